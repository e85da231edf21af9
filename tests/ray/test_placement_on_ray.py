"""Devices really are held, gangs really sit where they were planned, and every process may die: on real raylets."""

import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from paceline_cluster import DEADLINE_S, Site, site

from paceline.model.hardware import DeviceState
from paceline.model.workload import FINAL_STATES, RunState
from paceline.sim import cluster
from waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

HOSTS, GPUS = 2, 4
EVERY = 20
"""Steps from one checkpoint of a run to the next."""
CONNECT = "import ray; ray.init(namespace='paceline', log_to_driver=False, configure_logging=False)\n"
ALL_THAT_RAY_GIVES = (
    CONNECT
    + """
import json
@ray.remote(num_gpus=1, num_cpus=0)
class Squatter:
    def where(self):
        context = ray.get_runtime_context()
        return context.get_node_id(), int(context.get_accelerator_ids()["GPU"][0])
squatters = [Squatter.remote() for _ in range({total})]
ready, _ = ray.wait([s.where.remote() for s in squatters], num_returns={expected}, timeout=120)
late, _ = ray.wait([s.where.remote() for s in squatters], num_returns=min({expected} + 1, {total}), timeout=3)
print(json.dumps(sorted(ray.get(late))))
"""
)

ACQUIRE = (
    CONNECT
    + """
from paceline.model.ids import JobId
from paceline.model.plan import Refusal
from paceline.model.workload import GangRequest
def acquire():
    while True:
        try:
            service = ray.get_actor("paceline-placement")
            return ray.get(service.acquire.remote(GangRequest(JobId("job"), "run", 1, {devices}, 0.03), ""), timeout=120)
        except ray.exceptions.ActorUnavailableError:
            pass
answer = acquire()
if isinstance(answer, Refusal):
    print("Refusal", "|", answer.reason, "|", answer.remedy)
"""
)
RELEASE = """
service = ray.get_actor("paceline-placement")
ray.get(service.release.remote(answer.lease_id, "test over"), timeout=120)
print(type(answer).__name__, "|", len(answer.devices))
"""
HELD = """
import json
print(json.dumps(ray.get(ray.get_actor("paceline-placement").held.remote(), timeout=120)))
"""
CONTROLLER = """
actors = ray._private.state.actors().values()
print(next(a["Pid"] for a in actors if a["State"] == "ALIVE" and "TrainController" in a["ActorClassName"]))
"""
TRAIN_LM = Path(__file__).parents[2] / "jobs" / "train_lm.py"


def submit(here: Site, job: str, *arguments: str) -> None:
    script = [sys.executable, str(TRAIN_LM), "--storage", str(here.home / "results"), *arguments]
    here.run("ray", "job", "submit", "--no-wait", "--submission-id", job, "--", *script)


def run_state(here: Site, job: str) -> RunState | None:
    return next((row.state for row in here.client.jobs() if row.job_id == job), None)


def checkpoint_steps(here: Site, job: str) -> list[int]:
    """Steps of its checkpoints as the inventory has them; none before the run is known."""
    known = any(row.job_id == job for row in here.client.jobs())
    return [checkpoint.step for checkpoint in here.client.job(job).checkpoints] if known else []


def scored_by_steps(here: Site) -> list[str]:
    """Devices with a score from the steps of runs."""
    uuids = [device.uuid for device in here.client.devices()]
    return [u for u in uuids if any(row.workload == "step" for row in here.client.device_health(u).scores)]


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(scope="module")
def here() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="pl-test-", dir="/tmp") as home, site(Path(home), HOSTS, GPUS) as made:
        yield made


def test_only_healthy_devices_can_be_had(here: Site) -> None:
    """The slow device was found by measuring; Ray gives out every other one, and never that one."""
    out = here.devices(DeviceState.QUARANTINED)
    assert len(out) == 1, "the fleet has exactly one outlier"
    assert out[0].held
    expected = HOSTS * GPUS - 1
    got = json.loads(here.python(ALL_THAT_RAY_GIVES.format(total=HOSTS * GPUS, expected=expected)))
    healthy = sorted([d.node_id, d.index] for d in here.devices(DeviceState.HEALTHY))
    assert got == healthy
    assert [out[0].node_id, out[0].index] not in got


def test_an_idle_device_is_taken_out_and_comes_back_by_a_probe(here: Site) -> None:
    device = here.devices(DeviceState.HEALTHY)[-1]
    refused = here.run("paceline", "quarantine", device.uuid, "--reason", "", check=False)
    assert refused.returncode == 2
    assert "reason" in refused.stderr
    here.run("paceline", "quarantine", device.uuid, "--reason", "test")
    until(lambda: here.client.device(device.uuid).state is DeviceState.QUARANTINED, DEADLINE_S)
    assert here.client.device(device.uuid).held
    here.run("paceline", "release", device.uuid, "--reason", "test over")
    until(lambda: here.client.device(device.uuid).state is DeviceState.HEALTHY, DEADLINE_S)
    kinds = [e.kind.value for e in here.client.story(device.uuid).events]
    assert {"operator", "quarantined", "measured", "released"} <= set(kinds)


def test_a_silent_health_actor_makes_its_devices_unknown_and_a_dead_one_comes_back(here: Site) -> None:
    node_id = here.devices(DeviceState.HEALTHY)[0].node_id
    name = f"paceline-health-{node_id}"

    def states() -> set[DeviceState]:
        return {d.state for d in here.client.devices() if d.node_id == node_id} - {DeviceState.QUARANTINED}

    actor = here.actor(name)
    actor.send_signal(signal.SIGSTOP)
    until(lambda: actor.status() == psutil.STATUS_STOPPED, 30, "the fault fired")
    until(lambda: states() == {DeviceState.UNKNOWN}, DEADLINE_S, "silence is UNKNOWN")
    actor.kill()
    until(lambda: states() == {DeviceState.HEALTHY}, DEADLINE_S, "back after its restart")
    assert here.actor(name).pid != actor.pid


def test_a_gang_that_cannot_be_placed_says_why(here: Site) -> None:
    script = (
        CONNECT
        + """
from paceline.model.ids import JobId
from paceline.model.workload import GangRequest
service = ray.get_actor("paceline-placement")
answer = ray.get(service.acquire.remote(GangRequest(JobId("job"), "run", 1, 9, 0.03), ""), timeout=120)
print(type(answer).__name__, "|", answer.reason, "|", answer.remedy)
"""
    )
    kind, reason, remedy = here.python(script).split(" | ")
    assert kind == "Refusal"
    assert "9" in reason
    assert remedy


def test_up_again_is_harmless(here: Site) -> None:
    before = here.server, here.child("paceline.runtime.api"), here.actor("paceline-placement")
    assert "Paceline is up" in here.run("paceline", "up").stdout
    assert (here.server, here.child("paceline.runtime.api"), here.actor("paceline-placement")) == before


def test_a_run_that_asks_for_too_much_waits_with_a_reason_and_ends_when_it_is_stopped(here: Site) -> None:
    submit(here, "greedy", "--workers", str(HOSTS * GPUS + 1))
    until(lambda: run_state(here, "greedy") is RunState.QUEUED, DEADLINE_S, "it is queued")
    job = here.client.job("greedy")
    assert str(HOSTS * GPUS + 1) in job.reason
    assert job.hint
    told = " ".join(here.run("paceline", "explain", "job", "greedy").stdout.split())
    assert job.reason in told
    assert job.hint in told
    here.run("ray", "job", "stop", "greedy")
    until(lambda: run_state(here, "greedy") in FINAL_STATES, 60, "it does not wait for ever")
    assert (run_state(here, "greedy"), here.client.job("greedy").reason) == (RunState.CANCELLED, "stopped by its user")


def test_the_placement_service_may_die(here: Site) -> None:
    """SIGKILL while a device is quarantined and a gang half bound: the hold outlives it, the masks do not, and gangs are found."""
    device = here.devices(DeviceState.HEALTHY)[0]
    here.run("paceline", "quarantine", device.uuid, "--reason", "test")
    until(lambda: here.client.device(device.uuid).state is DeviceState.QUARANTINED, DEADLINE_S)
    left = here.python(ACQUIRE.format(devices=1) + "print(ray.available_resources()['GPU'])")
    assert float(left) < len(here.devices(DeviceState.HEALTHY)), "the other devices of the gang's node are masked"
    service = here.actor("paceline-placement")
    service.kill()
    until(lambda: is_gone(service), 30, "the fault fired")
    kind, count = here.python(ACQUIRE.format(devices=2) + RELEASE).split(" | ")
    assert (kind, count) == ("Grant", "2")
    assert here.actor("paceline-placement").pid != service.pid
    held = json.loads(here.python(CONNECT + HELD))
    assert sorted(held) == sorted([d.node_id, d.index] for d in here.devices(DeviceState.QUARANTINED))
    assert [device.node_id, device.index] in held
    healthy = sorted([d.node_id, d.index] for d in here.devices(DeviceState.HEALTHY))
    got = json.loads(here.python(ALL_THAT_RAY_GIVES.format(total=HOSTS * GPUS, expected=len(healthy))))
    assert got == healthy


def test_a_run_whose_controller_is_killed_gives_its_gang_back(here: Site) -> None:
    submit(here, "orphan", "--workers", "2", "--steps", "100000")
    until(lambda: run_state(here, "orphan") is RunState.RUNNING, DEADLINE_S, "it runs")
    assert here.client.job("orphan").devices == 2
    controller = psutil.Process(int(here.python(CONNECT + CONTROLLER)))
    controller.kill()
    until(lambda: is_gone(controller), 30, "the fault fired")
    until(lambda: run_state(here, "orphan") in FINAL_STATES, 60, "the run is over")
    job = here.client.job("orphan")
    assert job.state is RunState.FAILED
    assert "script failed" in job.reason or "controller is gone" in job.reason
    assert job.hint
    assert {lease.state for lease in here.client.leases() if lease.job_id == "orphan"} == {"ended"}
    assert job.devices == 0


def test_the_server_may_die_while_a_run_trains(here: Site) -> None:
    """SIGKILL of the API, then of all that the server is: the run does not notice, and what it reported meanwhile is told later.

    Three workers: before that, the times of its steps are a score of each device of its gang.
    """
    submit(here, "steady", "--name", "steady", "--workers", "3", "--steps", "1000000", "--checkpoint-every", str(EVERY))
    until(lambda: len(checkpoint_steps(here, "steady")) >= 2, DEADLINE_S, "it trains")
    until(lambda: scored_by_steps(here), DEADLINE_S, "its steps are told of")
    [gang] = [lease.devices for lease in here.client.leases() if lease.job_id == "steady" and lease.state != "ended"]
    assert sorted(scored_by_steps(here)) == sorted(gang)
    before = here.client.events(limit=1000)
    api = here.child("paceline.runtime.api")
    api.kill()
    until(lambda: is_gone(api), 30, "the fault fired")
    assert here.child("paceline.runtime.api").pid != api.pid
    until(
        lambda: here.client.health()["status"] == "ok",
        DEADLINE_S,
        "its supervisor started it again, on the same address",
    )
    assert here.client.events(limit=1000)[: len(before)] == before

    reported = len(checkpoint_steps(here, "steady"))
    server = here.server
    family = [server, *server.children()]
    server.kill()
    until(lambda: all(is_gone(process) for process in family), 30, "its children do not outlive it")
    here.run("paceline", "up")
    assert here.server.pid != server.pid
    until(lambda: len(checkpoint_steps(here, "steady")) > reported + 1, DEADLINE_S, "it goes on")
    steps = checkpoint_steps(here, "steady")
    assert steps == list(range(EVERY - 1, EVERY * len(steps), EVERY)), "each checkpoint once, in order"
    assert len(here.client.job("steady").attempts) == 1
    assert run_state(here, "steady") is RunState.RUNNING


def test_the_head_may_die_while_a_run_trains(here: Site) -> None:
    """SIGKILL of GCS, dashboard and the head's raylet, and with it the run's driver. Nodes, holds and history are as they were
    once it is started again, the run is told as failed, and submitted under its name again it goes on from its checkpoint."""
    assert run_state(here, "steady") is RunState.RUNNING
    quarantined = {d.uuid for d in here.devices(DeviceState.QUARANTINED)}
    saved = checkpoint_steps(here, "steady")
    history = here.client.events(limit=1000)
    assert cluster.kill_head(here.home) >= 1, "the fault fired"
    assert {d.uuid for d in here.devices(DeviceState.QUARANTINED)} == quarantined
    here.run("paceline", "sim", "up", "--hosts", str(HOSTS), "--gpus", str(GPUS))
    here.run("paceline", "up")
    here.wait_measured()
    assert {d.uuid for d in here.devices(DeviceState.QUARANTINED)} == quarantined
    assert here.client.events(limit=1000)[: len(history)] == history

    until(lambda: run_state(here, "steady") in FINAL_STATES, DEADLINE_S, "a run without a driver is over")
    lost = here.client.job("steady")
    assert (lost.state, lost.devices) == (RunState.FAILED, 0)
    assert "same run name" in lost.hint
    last = checkpoint_steps(here, "steady")[-1]
    assert last >= saved[-1], "no acknowledged checkpoint is lost"
    until_step = ["--steps", str(last + 1 + 2 * EVERY), "--checkpoint-every", str(EVERY)]
    submit(here, "again", "--name", "steady", "--workers", "2", *until_step)
    until(lambda: run_state(here, "again") in FINAL_STATES, DEADLINE_S, "it runs to its end")
    assert run_state(here, "again") is RunState.SUCCEEDED
    steps = checkpoint_steps(here, "again")
    assert last < steps[0] <= last + 2 * EVERY, "it did not begin anew"
    assert steps[-1] == last + 2 * EVERY

    expected = HOSTS * GPUS - len(quarantined)
    got = json.loads(here.python(ALL_THAT_RAY_GIVES.format(total=HOSTS * GPUS, expected=expected)))
    assert len(got) == expected


def test_down_twice_is_harmless(here: Site) -> None:
    """Last: Paceline is off the cluster, Ray has every device again, and a second `down` has nothing to do."""
    assert "Paceline is down" in here.run("paceline", "down").stdout
    assert "was not running" in here.run("paceline", "down").stdout
    got = json.loads(here.python(ALL_THAT_RAY_GIVES.format(total=HOSTS * GPUS, expected=HOSTS * GPUS)))
    assert len(got) == HOSTS * GPUS


def test_up_without_ray_says_so(tmp_path: Path) -> None:
    lonely = Site(tmp_path)
    done = lonely.run("paceline", "up", "--address", "127.0.0.1:1", check=False)
    assert done.returncode == 8
    assert "no Ray cluster answers at 127.0.0.1:1" in done.stderr
    assert "paceline up --address" in done.stderr
