"""Bad devices and cordoned hosts on real raylets: what Ray can give out follows at once, and survives the loss of the host."""

import json
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from paceline_cluster import DEADLINE_S, Site, site

from paceline.model.events import EventKind
from paceline.model.hardware import DeviceState, NodeState
from paceline.sdk.rows import DeviceRow
from paceline.sdk.rows_health import AlertKind
from paceline.sim import cluster
from waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

HOSTS, GPUS = 2, 4
NOMINAL_STEP_S = 0.05
HELD = """
import json, ray
ray.init(namespace='paceline', log_to_driver=False, configure_logging=False)
print(json.dumps(ray.get(ray.get_actor("paceline-placement").held.remote(), timeout=120)))
"""


@pytest.fixture(scope="module")
def here() -> Iterator[Site]:
    with (
        tempfile.TemporaryDirectory(prefix="pl-test-", dir="/tmp") as home,
        site(Path(home), HOSTS, GPUS, PACELINE_STRANGERS="evict") as made,
    ):
        yield made


def idle(here: Site) -> list[DeviceRow]:
    return here.devices(DeviceState.HEALTHY)


def place(device: DeviceRow) -> str:
    return f"{device.host}/{device.index}"


def is_held(here: Site, device: DeviceRow) -> bool:
    """By Ray's word, not by the inventory's."""
    return [device.node_id, device.index] in json.loads(here.python(HELD))


def test_an_xid_of_the_kernel_log_takes_an_idle_device_out(here: Site) -> None:
    """NVML does not tell of it: only the line is written."""
    device = idle(here)[-1]
    state = cluster.host_state(here.home, device.host)
    state.write_kmsg(
        f"NVRM: Xid (PCI:{device.pci_bus_id[4:14].lower()}): 95, pid=1, name=python, Uncontained ECC error"
    )
    until(lambda: here.client.device(device.uuid).state is DeviceState.QUARANTINED, DEADLINE_S)
    assert is_held(here, device)
    told = [e.summary for e in here.client.story(device.uuid).events]
    assert "Xid 95 (from kmsg)" in told
    (verdict,) = [v for v in here.client.verdicts(uuid=device.uuid) if v.to_state == "DRAINING"]
    assert (verdict.rule_id, verdict.mode) == ("xid", "enforce")


def test_a_device_that_hangs_nvml_leaves_its_neighbours_in_service(here: Site) -> None:
    device = idle(here)[-1]
    neighbours = {d.uuid for d in idle(here)} - {device.uuid}
    state = cluster.host_state(here.home, device.host)
    state.set_hang(device.index)
    try:
        until(lambda: here.client.device(device.uuid).state is DeviceState.UNKNOWN, DEADLINE_S)
        assert state.fired(device.index) >= 1
        until(lambda: {d.uuid for d in idle(here)} == neighbours, DEADLINE_S, "they are read again")
        until(lambda: is_held(here, device), DEADLINE_S)
    finally:
        state.clear_faults(device.index)


STRANGER = """
import os, sys, ray
ray.init(log_to_driver=False, configure_logging=False)

@ray.remote(num_gpus=1)
class Guest:
    def where(self):
        context = ray.get_runtime_context()
        return context.get_node_id(), int(context.get_accelerator_ids()["GPU"][0]), os.getpid()

    def stay(self):
        import signal
        signal.pause()

guest = Guest.remote()
print(*ray.get(guest.where.remote()), flush=True)
try:
    ray.get(guest.stay.remote())
except ray.exceptions.ActorDiedError:
    print("evicted", flush=True)
"""


def test_a_stranger_on_a_condemned_device_is_told_of_and_evicted(here: Site) -> None:
    """A user of Ray who knows nothing of Paceline has a device when it is quarantined."""
    command = [sys.executable, "-c", STRANGER]
    with subprocess.Popen(command, env=here.env, stdout=subprocess.PIPE, text=True) as guest:
        try:
            assert guest.stdout is not None
            node_id, index, pid = guest.stdout.readline().split()
            device = next(d for d in idle(here) if (d.node_id, d.index) == (node_id, int(index)))
            here.run("paceline", "quarantine", device.uuid, "--reason", "test")
            until(lambda: here.client.device(device.uuid).state is DeviceState.QUARANTINED, DEADLINE_S)
            assert is_held(here, device)
            assert "evicted" in guest.stdout.read().splitlines()
        finally:
            guest.kill()
    (told,) = [e for e in here.client.story(device.uuid).events if e.kind is EventKind.STRANGER]
    assert told.body["pid"] == int(pid)
    (alert,) = [alert for alert in here.client.alerts() if alert.kind is AlertKind.STRANGER]
    assert (alert.event_id, alert.summary) == (told.id, told.summary)
    assert not psutil.pid_exists(int(pid))


def test_a_cordoned_device_and_a_drained_host_are_not_given_out(here: Site) -> None:
    device = idle(here)[0]
    here.run("paceline", "cordon", place(device), "--reason", "test")
    until(lambda: is_held(here, device), DEADLINE_S)
    assert here.client.device(device.uuid).state is DeviceState.HEALTHY, "nothing is wrong with it"
    here.run("paceline", "uncordon", place(device), "--reason", "test over")
    until(lambda: not is_held(here, device), DEADLINE_S)

    here.run("paceline", "drain", device.host, "--deadline", "60s", "--reason", "test")
    mine = [d for d in here.client.devices() if d.host == device.host]
    until(lambda: all(is_held(here, d) for d in mine), DEADLINE_S)
    until(lambda: host_state(here, device.host) is NodeState.CORDONED, DEADLINE_S, "no lease is left on it")
    here.run("paceline", "uncordon", device.host, "--reason", "test over")
    until(lambda: host_state(here, device.host) is NodeState.READY, DEADLINE_S)
    until(lambda: not is_held(here, device), DEADLINE_S)


def host_state(here: Site, name: str) -> NodeState:
    return next(host.state for host in here.client.hosts() if host.host == name)


def test_a_full_probe_uses_all_sound_devices_of_a_node_together(here: Site) -> None:
    """A node whose links are slow: the probe says so of the node, and gives the devices back."""
    ((host, sound),) = Counter(d.host for d in idle(here)).most_common(1)
    cluster.host_state(here.home, host).set_link_pace(4.0)
    try:
        here.run("paceline", "probe", host, "--reason", "test")
        until(lambda: here.client.host(host).exchanges, DEADLINE_S, "it is measured")
    finally:
        cluster.host_state(here.home, host).set_link_pace(1.0)
    p2p, all_reduce = sorted(here.client.host(host).exchanges, key=lambda m: m.benchmark, reverse=True)
    assert (p2p.benchmark, all_reduce.benchmark) == ("p2p", "all_reduce")
    for measured in (p2p, all_reduce):
        assert (measured.ok, measured.error) == (True, "")
        assert measured.devices >= sound, "those that had come back meanwhile, too"
        assert measured.seconds is not None
        assert measured.seconds >= 4 * NOMINAL_STEP_S
    shown = here.run("paceline", "describe", "host", host).stdout
    assert "full probe" in shown
    until(lambda: not any(is_held(here, d) for d in idle(here)), DEADLINE_S, "they are given back")


def test_what_a_node_tells_while_the_server_stands_still_is_not_lost(here: Site) -> None:
    """SIGSTOP of the API: the reports wait at the health actor, and each is taken once, in order."""
    device = idle(here)[0]
    state = cluster.host_state(here.home, device.host)
    api = here.child("paceline.runtime.api")
    api.send_signal(signal.SIGSTOP)
    try:
        until(lambda: api.status() == psutil.STATUS_STOPPED, 30, "the fault fired")
        for code in (31, 43, 45):  # an application's: told, and held against nobody
            state.inject_xid(device.index, code, consequences=False)
    finally:
        api.send_signal(signal.SIGCONT)

    def told() -> list[str]:
        events = here.client.events(limit=5000, entity=f"device:{device.uuid}")
        return [e.summary for e in events if e.summary.startswith("Xid") and e.summary.endswith("(from nvml)")]

    expected = [f"Xid {code} (from nvml)" for code in (31, 43, 45)]
    until(lambda: len(told()) >= len(expected), DEADLINE_S, "the reports have come")
    assert told() == expected


def test_a_quarantine_outlives_its_node(here: Site) -> None:
    """The host loses power, a device on it is quarantined meanwhile, and the hold is made once the node is back."""
    device = idle(here)[0]
    assert cluster.kill_host(here.home, device.host) >= 1, "the fault fired"
    until(lambda: here.client.device(device.uuid).state is DeviceState.UNKNOWN, DEADLINE_S)
    here.run("paceline", "quarantine", device.uuid, "--reason", "test")
    assert here.client.device(device.uuid).state is DeviceState.DRAINING, "nobody can check a hold on it now"
    here.run("paceline", "sim", "up", "--hosts", str(HOSTS), "--gpus", str(GPUS))
    until(lambda: here.client.device(device.uuid).state is DeviceState.QUARANTINED, DEADLINE_S)
    back = here.client.device(device.uuid)
    assert back.node_id != device.node_id
    assert is_held(here, back)
