"""The NVML reader's process against the compiled libnvidia-ml.so.1 of a simulated host. Real processes."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.model.hardware import RecoveryAction, XidEvent
from paceline.model.ids import HostName
from paceline.sim import build
from paceline.sim.fleet import identify
from paceline.sim.state import EVENT_DBE, EVENT_RECOVERY_ACTION, HostState
from paceline.telemetry.fields import FIELDS, SLOW_PERIOD_S, Due, named
from paceline.telemetry.nvml import NvmlProbe, Silence
from paceline.telemetry.nvml_wire import Noticed, Reading
from waiting import until

DEVICES = 4
START_S = 30.0
NVML_ERROR_UNKNOWN = 999
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_DRIVER_NOT_LOADED = 9
EVENT_SBE_STORM, EVENT_GPU_UNAVAILABLE = 0x200, 0x4000
KNOWN_CALLS = {field.call for field in FIELDS} | {
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetName",
    "nvmlDeviceGetSerial",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def host(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> HostState:
    specs = [identify("test", HostName("gpu-a"), index) for index in range(DEVICES)]
    state = HostState.create(tmp_path / "state", "gpu-a", specs)
    monkeypatch.setenv("PACELINE_SIM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    return state


@pytest.fixture
def xids() -> list[tuple[XidEvent, float]]:
    return []


@pytest.fixture
def events() -> list[Noticed]:
    return []


@pytest.fixture
def probe(host: HostState, xids: list[tuple[XidEvent, float]], events: list[Noticed]) -> Iterator[NvmlProbe]:
    probe = NvmlProbe(lambda event: xids.append((event, time.monotonic())), events.append, kill_after_s=0.6)
    yield probe
    probe.close()


@pytest.fixture
def patient(host: HostState, events: list[Noticed]) -> Iterator[NvmlProbe]:
    """A probe that gives a reader time to start on a busy machine, and tries a device again soon."""
    probe = NvmlProbe(lambda event: None, events.append, kill_after_s=3.0, first_retry_s=0.5)
    yield probe
    probe.close()


def read(probe: NvmlProbe) -> Reading:
    result = probe.read(START_S)
    assert isinstance(result, Reading), result
    return result


def silence(probe: NvmlProbe) -> Silence:
    found: list[Silence] = []

    def declared() -> bool:
        result = probe.read(0.1)
        found[:] = [result] if isinstance(result, Silence) and result.declared else []
        return bool(found)

    until(declared)
    return found[0]


def test_facts_and_samples(host: HostState, probe: NvmlProbe) -> None:
    host.set(1, temperature_c=77, power_mw=650_500, throttle_reasons=0x40, ecc_uncorrected=3, remap_pending=1)
    host.set_processes(1, [(os.getpid(), 1 << 30)])
    reading = read(probe)
    assert [device.index for device in reading.devices] == [0, 1, 2, 3]
    assert len({device.uuid for device in reading.devices}) == DEVICES
    facts, sample = reading.devices[1], reading.samples[1]
    record = host.device(1)
    assert (facts.uuid, facts.serial) == (record.uuid.decode(), record.serial.decode())
    assert facts.pci_bus_id == record.pci_bus_id.decode()
    assert facts.sku == "NVIDIA H100 80GB HBM3/80GiB/700W"
    assert (sample.uuid, sample.temperature_c, sample.power_w, sample.throttle_reasons) == (facts.uuid, 77, 650.5, 0x40)
    assert (sample.ecc_uncorrected, sample.remap_pending, sample.remap_failed) == (3, True, False)
    assert (sample.process_count, sample.memory_used_bytes) == (1, 1 << 30)
    assert None not in [getattr(sample, name) for name in sample.__slots__]


def test_a_power_cap_that_changes_changes_the_sku(host: HostState, probe: NvmlProbe) -> None:
    read(probe)
    host.set(0, power_cap_mw=500_000)
    host.post_event(0, EVENT_SBE_STORM)
    until(lambda: read(probe).devices[0].sku.endswith("500W"))


def test_counters_keep_their_value_until_they_are_due(host: HostState, probe: NvmlProbe) -> None:
    read(probe)
    host.set(1, ecc_uncorrected=4, temperature_c=61)
    calls = host.device(1).calls
    reading = read(probe)
    assert (reading.samples[1].ecc_uncorrected, reading.samples[1].temperature_c) == (0, 61)
    assert 0 < reading.slow_age_s < SLOW_PERIOD_S
    assert host.device(1).calls - calls == len(named(Due.EACH)), "one call for each reading that is due"


@pytest.mark.parametrize("event", [EVENT_DBE, EVENT_SBE_STORM, EVENT_GPU_UNAVAILABLE, EVENT_RECOVERY_ACTION])
def test_an_event_of_the_driver_has_everything_read(
    host: HostState, probe: NvmlProbe, events: list[Noticed], event: int
) -> None:
    uuid = read(probe).devices[2].uuid
    host.set(2, ecc_uncorrected=1, recovery_action=RecoveryAction.DRAIN_AND_RESET, sram_threshold_exceeded=1)
    assert read(probe).samples[2].recovery_action == 0, "not due yet"
    host.post_event(2, event)
    until(lambda: events)
    assert events == [Noticed(uuid, event)]
    reading = read(probe)
    sample = reading.samples[2]
    assert (sample.ecc_uncorrected, sample.recovery_action, sample.sram_threshold) == (1, 4, True)
    assert reading.slow_age_s == 0
    assert {one.name for one in reading.slowest} <= KNOWN_CALLS
    assert all(one.p50_us <= one.p99_us for one in reading.slowest)


def test_a_driver_that_does_not_tell_its_events_still_tells_xids(
    host: HostState, probe: NvmlProbe, xids: list[tuple[XidEvent, float]], events: list[Noticed]
) -> None:
    host.set_error(0, "nvmlDeviceGetSupportedEventTypes", NVML_ERROR_NOT_SUPPORTED)
    read(probe)
    assert host.fired(0, "nvmlDeviceGetSupportedEventTypes") > 0
    host.post_event(0, EVENT_DBE)
    host.inject_xid(0, 31)
    until(lambda: [event.code for event, _ in xids] == [31])
    assert events == []


def test_throttled_time_is_counted_by_the_driver(host: HostState, probe: NvmlProbe) -> None:
    host.throttle(0, "thermal")
    host.throttle(1, "power-cap")
    first = read(probe).samples
    host.post_event(0, EVENT_SBE_STORM)
    until(lambda: (read(probe).samples[0].throttle_ns or 0) > (first[0].throttle_ns or 0))
    assert first[0].throttle_reasons == 0x40
    assert read(probe).samples[1].throttle_ns == 0, "the power cap is no fault"


def test_with_mig_on_rows_and_load_are_unknown_and_events_come_on_the_parent(
    host: HostState, probe: NvmlProbe, xids: list[tuple[XidEvent, float]]
) -> None:
    host.set(1, mig_mode=1, remap_pending=1)
    reading = read(probe)
    sample = reading.samples[1]
    assert (sample.remap_pending, sample.remap_failed, sample.utilisation_pct) == (None, None, None)
    assert (sample.ecc_uncorrected, reading.samples[0].remap_pending) == (0, False)
    host.inject_xid(1, 94)
    until(lambda: xids)
    assert (xids[0][0].uuid, xids[0][0].code) == (reading.devices[1].uuid, 94)


def test_an_xid_comes_at_once(host: HostState, probe: NvmlProbe, xids: list[tuple[XidEvent, float]]) -> None:
    uuid = read(probe).devices[2].uuid
    injected = time.monotonic()
    host.inject_xid(2, 48)
    until(lambda: xids)
    event, came = xids[0]
    assert (event.uuid, event.code, event.source) == (uuid, 48, "nvml")
    assert came - injected < 0.2


def test_a_device_off_the_bus_is_left_out_and_the_others_are_read(
    host: HostState, probe: NvmlProbe, xids: list[tuple[XidEvent, float]]
) -> None:
    before = read(probe).devices
    host.inject_xid(1, 79)
    after = read(probe)
    assert [device.uuid for device in after.devices] == [before[i].uuid for i in (0, 2, 3)]
    assert len(after.samples) == 3
    until(lambda: [event.code for event, _ in xids] == [79])
    assert xids[0][0].uuid == before[1].uuid
    assert probe.starts == 1


def test_a_device_that_says_it_is_lost_is_left_out(host: HostState, probe: NvmlProbe) -> None:
    read(probe)
    host.set_error(3)
    assert [device.index for device in read(probe).devices] == [0, 1, 2]
    assert host.fired(3) > 0


def test_a_device_that_is_back_with_another_index_is_the_same_device(host: HostState, probe: NvmlProbe) -> None:
    before = read(probe).devices
    host.lose(0)
    assert [(one.uuid, one.index) for one in read(probe).devices] == [
        (one.uuid, one.index - 1) for one in before if one.index > 0
    ]
    host.lose(2)
    host.restore(0)
    assert {one.uuid: one.index for one in read(probe).devices} == {
        before[0].uuid: 0,
        before[1].uuid: 1,
        before[3].uuid: 2,
    }
    assert probe.starts == 1


def test_a_driver_that_is_loaded_anew_is_read_again(host: HostState, probe: NvmlProbe) -> None:
    before = read(probe)
    for index in range(DEVICES):
        host.set_error(index, nvml_error=NVML_ERROR_UNINITIALIZED)
    host.set_error(None, "nvmlInit", NVML_ERROR_DRIVER_NOT_LOADED)
    said = silence(probe)
    until(lambda: "Driver Not Loaded" in silence(probe).reason)
    assert said.unreadable == ()
    assert host.fired(None, "nvmlInit") > 0
    for index in (*range(DEVICES), None):
        host.clear_faults(index)
    until(lambda: isinstance(probe.read(1.0), Reading))
    assert read(probe).devices == before.devices
    assert probe.starts >= 2


def test_a_device_with_another_error_is_still_there(host: HostState, probe: NvmlProbe) -> None:
    before = read(probe)
    host.set_error(0, nvml_error=NVML_ERROR_UNKNOWN)
    after = read(probe)
    assert host.fired(0) > 0
    assert {device.uuid for device in after.devices} == {device.uuid for device in before.devices}
    unread = next(one for one in after.samples if one.uuid == before.devices[0].uuid)
    assert (unread.temperature_c, unread.process_count) == (None, None)


def test_a_reading_that_is_not_supported_is_none(host: HostState, probe: NvmlProbe) -> None:
    host.set_error(0, "nvmlDeviceGetFieldValues", NVML_ERROR_NOT_SUPPORTED)
    samples = read(probe).samples
    assert (samples[0].remap_pending, samples[1].remap_pending) == (None, False)
    assert host.fired(0, "nvmlDeviceGetFieldValues") > 0


def test_a_host_on_which_no_device_answers_is_an_error_and_no_empty_host(host: HostState, probe: NvmlProbe) -> None:
    read(probe)
    for index in range(DEVICES):
        host.set_error(index, nvml_error=NVML_ERROR_UNKNOWN)
    result = probe.read(START_S)
    assert isinstance(result, Silence)
    assert result.declared


def until_read(probe: NvmlProbe, wanted: Callable[[Reading], object]) -> tuple[Reading, list[Silence]]:
    """The first reading that is as wanted, and the silences before it."""
    silences: list[Silence] = []
    found: list[Reading] = []

    def look() -> bool:
        result = probe.read(0.2)
        if isinstance(result, Silence):
            silences.append(result)
        elif wanted(result):
            found.append(result)
        return bool(found)

    until(look)
    return found[0], silences


def test_a_hang_in_counting_devices_is_declared_and_reading_goes_on_after_it(host: HostState, probe: NvmlProbe) -> None:
    read(probe)
    first = probe.pid
    host.set_hang(None, call="nvmlDeviceGetCount")
    said = silence(probe)
    assert "does not answer" in said.reason
    assert said.unreadable == (), "no device was in hand"
    assert host.fired(None, "nvmlDeviceGetCount") > 0
    host.set_hang(None, 0, call="nvmlDeviceGetCount")
    until(lambda: isinstance(probe.read(1.0), Reading))
    assert probe.starts >= 2
    assert probe.pid != first


def test_a_hang_in_nvml_init_makes_the_whole_host_silent(host: HostState, patient: NvmlProbe) -> None:
    read(patient)
    host.set_hang(None, call="nvmlInit")
    host.set_hang(None, call="nvmlDeviceGetCount")
    began = time.monotonic()
    said = silence(patient)
    until(lambda: host.fired(None, "nvmlInit") > 0 or isinstance(patient.read(0.1), Reading))
    assert host.fired(None, "nvmlInit") > 0
    assert said.declared
    assert time.monotonic() - began < 30
    assert isinstance(patient.read(0.1), Silence)


@pytest.mark.parametrize("call", ["nvmlDeviceGetTemperature", "nvmlDeviceGetFieldValues", "*"])
def test_a_device_that_hangs_is_left_out_and_the_others_are_read(
    host: HostState, patient: NvmlProbe, call: str
) -> None:
    before = read(patient)
    sick = before.devices[1].uuid
    host.set_hang(1, call=call)
    host.post_event(0, EVENT_SBE_STORM)  # the counters are read, too
    until(lambda: patient.read(0.2).unreadable, what="the device is told")
    reading, silences = until_read(patient, lambda reading: reading.unreadable)
    assert host.fired(1, call) > 0
    assert reading.unreadable == (sick,)
    assert {device.uuid: device.index for device in reading.devices} == {one.uuid: one.index for one in before.devices}
    assert {sample.uuid for sample in reading.samples} == {one.uuid for one in before.devices} - {sick}
    assert not [said for said in silences if said.declared], "the host was never silent"


def test_a_device_that_hangs_in_the_first_reading_of_all_is_left_out_too(host: HostState, patient: NvmlProbe) -> None:
    host.set_hang(2, call="nvmlDeviceGetPowerUsage")
    reading, _ = until_read(patient, lambda reading: reading.unreadable)
    assert host.fired(2, "nvmlDeviceGetPowerUsage") > 0
    assert reading.unreadable == (host.device(2).uuid.decode(),)
    assert len(reading.samples) == DEVICES - 1


def test_two_devices_that_hang_are_left_out_one_after_the_other(host: HostState, patient: NvmlProbe) -> None:
    read(patient)
    for index in (0, 3):
        host.set_hang(index)
    reading, _ = until_read(patient, lambda reading: len(reading.unreadable) == 2)
    assert {host.fired(index) > 0 for index in (0, 3)} == {True}
    assert len(reading.samples) == 2


def test_a_device_that_hung_is_tried_again_by_itself_and_read_when_it_answers(
    host: HostState, patient: NvmlProbe
) -> None:
    before = read(patient)
    host.set_hang(1)
    until_read(patient, lambda reading: reading.unreadable)
    starts, fired = patient.starts, host.fired(1)
    _, silences = until_read(patient, lambda reading: host.fired(1) > fired)  # the trial hangs on it; we do not
    assert silences == []
    host.set_hang(1, 0)
    reading, _ = until_read(patient, lambda reading: not reading.unreadable)
    assert [one.uuid for one in reading.devices] == [one.uuid for one in before.devices]
    assert patient.starts == starts, "the reader of the others was never stopped"


def test_a_reader_that_is_killed_is_started_again(host: HostState, probe: NvmlProbe) -> None:
    before = read(probe)
    assert probe.pid is not None
    os.kill(probe.pid, signal.SIGKILL)
    reading, _ = until_read(probe, lambda reading: True)
    assert reading.devices == before.devices
    assert probe.starts == 2


def test_a_machine_without_the_driver_says_so(
    probe: NvmlProbe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PACELINE_SIM_STATE")
    result = probe.read(START_S)
    assert isinstance(result, Silence)
    assert result.declared
    assert "Driver Not Loaded" in result.reason


def test_the_reader_ends_when_its_parent_is_gone_even_while_nvml_hangs(host: HostState, probe: NvmlProbe) -> None:
    read(probe)
    child = probe._child
    assert child is not None
    host.set_hang(0)
    assert isinstance(probe.read(0.1), Silence)
    until(lambda: host.fired(0) > 0)
    assert child.process.stdin is not None
    child.process.stdin.close()  # what the kernel does when the parent dies
    assert child.process.wait(20) == 0
