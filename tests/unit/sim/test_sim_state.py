"""Writing a host's state file: what is stored, what is refused, and that writers do not disturb each other."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.model.errors import BadRequest, HostSetup, NotFound
from paceline.model.ids import HostName
from paceline.sim import fleet, layout
from paceline.sim.pace import pace_of
from paceline.sim.state import EVENT_XID, HostState


@pytest.fixture
def host(tmp_path: Path) -> HostState:
    name = HostName("host-0")
    return HostState.create(
        tmp_path / "host-0.state", name, fleet.devices([name], 4, seed=1)[name], nominal_step_s=0.02
    )


def test_a_host_is_as_it_was_built(host: HostState) -> None:
    spec = fleet.devices([HostName("host-0")], 4, seed=1)[HostName("host-0")][2]
    device = HostState.open(host.path).device(2)
    assert (device.uuid.decode(), device.serial.decode(), device.pci_bus_id.decode()) == (
        spec.uuid,
        spec.serial,
        spec.pci_bus_id,
    )
    assert (device.pace, device.memory_bytes, device.power_cap_mw) == (spec.pace, spec.memory_bytes, 700_000)
    assert (host.host, host.device_count, host.present()) == ("host-0", 4, (0, 1, 2, 3))


def test_an_xid_is_an_event_and_leaves_traces(host: HostState) -> None:
    host.inject_xid(1, 94)
    assert host.events_posted == 1
    assert (host.device(1).ecc_uncorrected, host.device(1).remap_pending) == (1, 1)
    host.inject_xid(1, 48, consequences=False)
    assert (host.events_posted, host.device(1).ecc_uncorrected) == (2, 1)


def test_xid_79_takes_the_device_off_the_bus_and_restore_brings_it_back(host: HostState) -> None:
    host.inject_xid(1, 79)
    assert host.present() == (0, 2, 3)
    host.restore(1)
    assert host.present() == (0, 1, 2, 3)


def test_the_ring_keeps_the_newest_events(host: HostState) -> None:
    for number in range(layout.EVENTS + 3):
        host.post_event(0, EVENT_XID, number)
    assert host.events_posted == layout.EVENTS + 3


def test_the_record_is_never_left_half_written(host: HostState) -> None:
    host._record(0).sequence = 7  # a writer that died half way
    host.set_pace(0, 3.0)
    assert host.device(0).sequence % 2 == 0
    with pytest.raises(BadRequest):
        host.set_error(0, "cudaMalloc", 15)
    assert host.device(0).sequence % 2 == 0


def test_faults_of_one_call_share_a_slot_and_can_be_cleared(host: HostState) -> None:
    host.set_error(0, "nvmlDeviceGetMemoryInfo_v2", 999)
    host.set_hang(0, math.inf, "nvmlDeviceGetMemoryInfo")
    named = [fault for fault in host.device(0).faults if fault.call]
    assert [(fault.call, fault.error, fault.hang_until_ns) for fault in named] == [
        (b"nvmlDeviceGetMemoryInfo", 999, layout.AUTO64)
    ]
    host.clear_faults(0)
    assert not [fault for fault in host.device(0).faults if fault.call]


def test_what_cannot_be_is_refused(host: HostState, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="No such reading"):
        host.set(0, uuid=3)
    with pytest.raises(BadRequest, match="pace"):
        host.set_pace(0, math.nan)
    with pytest.raises(NotFound):
        host.lose(4)
    with pytest.raises(HostSetup, match="No simulated host"):
        HostState.open(tmp_path / "absent")
    (tmp_path / "other").write_bytes(b"x" * 4096)
    with pytest.raises(HostSetup, match="this version"):
        HostState.open(tmp_path / "other")


def test_two_processes_count_together(host: HostState) -> None:
    code = (
        "import sys; from paceline.sim.state import HostState; h = HostState.open(sys.argv[1])\n"
        "for _ in range(200): h.inject_xid(0, 48)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(host.path)]) for _ in range(2)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    assert host.events_posted == 400


def test_pace_follows_the_state_file(host: HostState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_SIM_STATE", raising=False)
    assert pace_of(0) is None
    monkeypatch.setenv("PACELINE_SIM_STATE", str(host.path))
    monkeypatch.delenv("PACELINE_SIM_SLOTS", raising=False)
    host.set_pace(1, 2.5)
    pace = pace_of(1)
    assert pace is not None
    assert (pace.factor, pace.nominal_step_s, pace.step_s, pace.lost) == (2.5, 0.02, 0.05, False)
    with pytest.raises(NotFound):
        pace_of(4)


def test_ray_indices_are_slots_that_were_present_when_the_raylet_started(
    host: HostState, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.set_pace(2, 1.5)
    monkeypatch.setenv("PACELINE_SIM_STATE", str(host.path))
    monkeypatch.setenv("PACELINE_SIM_SLOTS", "0,2,3")
    pace = pace_of(1)
    assert pace is not None
    assert pace.factor == 1.5
    host.lose(2)
    lost = pace_of(1)
    assert lost is not None
    assert lost.lost


def test_a_replaced_file_is_mapped_again(host: HostState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_SIM_STATE", str(host.path))
    before = pace_of(0)
    HostState.create(host.path, "host-0", [fleet.identify("paceline", HostName("host-0"), 0, pace=9.0)])
    after = pace_of(0)
    assert before is not None
    assert after is not None
    assert (before.factor != 9.0, after.factor) == (True, 9.0)
