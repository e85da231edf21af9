"""Devices really are held, gangs really sit where they were planned, and every process may die: on real raylets."""

import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from paceline.model.hardware import DeviceState
from paceline.sim import cluster
from paceline_cluster import DEADLINE_S, Site, site
from waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

HOSTS, GPUS = 2, 4
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
late, _ = ray.wait([s.where.remote() for s in squatters], num_returns={expected} + 1, timeout=3)
print(json.dumps(sorted(ray.get(late))))
"""
)


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


def test_the_server_may_die(here: Site) -> None:
    """SIGKILL of the API: its supervisor starts it again, on the same address, and it has forgotten nothing."""
    before = here.client.events(limit=1000)
    api = here.child("paceline.runtime.api")
    api.kill()
    until(lambda: not api.is_running() or api.status() == psutil.STATUS_ZOMBIE, 30, "the fault fired")
    assert here.child("paceline.runtime.api").pid != api.pid
    until(lambda: here.client.health()["status"] == "ok", DEADLINE_S)
    assert here.client.events(limit=1000)[: len(before)] == before
    here.wait_measured()


def test_a_silent_health_actor_makes_its_devices_unknown_and_a_dead_one_comes_back(here: Site) -> None:
    node_id = here.devices(DeviceState.HEALTHY)[0].node_id
    ask = CONNECT + f"""
import os
actor = ray.get_actor("paceline-health-{node_id}")
print(ray.get(actor.stats.remote(), timeout=60)["pid"])
"""
    actor = psutil.Process(int(here.python(ask)))
    actor.send_signal(signal.SIGSTOP)
    of_node = lambda: {d.state for d in here.client.devices() if d.node_id == node_id and d.state is not DeviceState.QUARANTINED}  # noqa: E731
    until(lambda: of_node() == {DeviceState.UNKNOWN}, DEADLINE_S, "silence is UNKNOWN")
    actor.kill()
    until(lambda: of_node() == {DeviceState.HEALTHY}, DEADLINE_S, "back after its restart")
    assert int(here.python(ask)) != actor.pid


def test_a_gang_that_cannot_be_placed_says_why(here: Site) -> None:
    script = CONNECT + """
from paceline.model.ids import JobId
from paceline.model.workload import GangRequest
service = ray.get_actor("paceline-placement")
answer = ray.get(service.acquire.remote(GangRequest(JobId("job"), "run", 1, 9, 0.03), ""), timeout=120)
print(type(answer).__name__, "|", answer.reason, "|", answer.remedy)
"""
    kind, reason, remedy = here.python(script).split(" | ")
    assert kind == "Refusal"
    assert "9" in reason
    assert remedy


def test_the_head_may_die(here: Site) -> None:
    """SIGKILL of GCS, dashboard and the head's raylet; started again, the nodes, holds and history are as they were."""
    quarantined = {d.uuid for d in here.devices(DeviceState.QUARANTINED)}
    history = here.client.events(limit=1000)
    assert cluster.kill_head(here.home) >= 1, "the fault fired"
    assert {d.uuid for d in here.devices(DeviceState.QUARANTINED)} == quarantined
    here.run("paceline", "sim", "up", "--hosts", str(HOSTS), "--gpus", str(GPUS))
    here.run("paceline", "up")
    here.wait_measured()
    assert {d.uuid for d in here.devices(DeviceState.QUARANTINED)} == quarantined
    assert here.client.events(limit=1000)[: len(history)] == history
    expected = HOSTS * GPUS - len(quarantined)
    got = json.loads(here.python(ALL_THAT_RAY_GIVES.format(total=HOSTS * GPUS, expected=expected)))
    assert len(got) == expected


def test_up_without_ray_says_so(tmp_path: Path) -> None:
    lonely = Site(tmp_path)
    done = lonely.run("paceline", "up", "--address", "127.0.0.1:1", check=False)
    assert done.returncode == 8
    assert "no Ray cluster answers at 127.0.0.1:1" in done.stderr
    assert "paceline up --address" in done.stderr
