"""The NVML reader's process against the compiled libnvidia-ml.so.1 of a simulated host. Real processes."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.model.hardware import XidEvent
from paceline.model.ids import HostName
from paceline.sim import build
from paceline.sim.fleet import identify
from paceline.sim.state import HostState
from paceline.telemetry.nvml import NvmlProbe, Silence
from paceline.telemetry.nvml_wire import Reading
from waiting import until

DEVICES = 4
START_S = 30.0
NVML_ERROR_UNKNOWN = 999
NVML_ERROR_NOT_SUPPORTED = 3


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
def probe(host: HostState, xids: list[tuple[XidEvent, float]]) -> Iterator[NvmlProbe]:
    probe = NvmlProbe(lambda event: xids.append((event, time.monotonic())), kill_after_s=0.6)
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
    assert read(probe).devices[0].sku.endswith("500W")


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


def test_a_device_with_another_error_is_still_there(host: HostState, probe: NvmlProbe) -> None:
    before = read(probe)
    host.set_error(0, "nvmlDeviceGetHandleByIndex", NVML_ERROR_UNKNOWN)
    after = read(probe)
    assert host.fired(0, "nvmlDeviceGetHandleByIndex") > 0
    assert {device.uuid for device in after.devices} == {device.uuid for device in before.devices}
    unread = next(one for one in after.samples if one.uuid == before.devices[0].uuid)
    assert (unread.temperature_c, unread.ecc_uncorrected) == (None, None)


def test_a_reading_that_is_not_supported_is_none(host: HostState, probe: NvmlProbe) -> None:
    host.set_error(0, "nvmlDeviceGetRemappedRows", NVML_ERROR_NOT_SUPPORTED)
    samples = read(probe).samples
    assert (samples[0].remap_pending, samples[1].remap_pending) == (None, False)
    assert host.fired(0, "nvmlDeviceGetRemappedRows") > 0


def test_a_host_on_which_no_device_answers_is_an_error_and_no_empty_host(host: HostState, probe: NvmlProbe) -> None:
    read(probe)
    for index in range(DEVICES):
        host.set_error(index, nvml_error=NVML_ERROR_UNKNOWN)
    result = probe.read(START_S)
    assert isinstance(result, Silence)
    assert result.declared


def test_a_hang_is_declared_the_reader_is_killed_and_reading_goes_on_after_it(
    host: HostState, probe: NvmlProbe
) -> None:
    read(probe)
    first = probe.pid
    host.set_hang(0, call="nvmlDeviceGetTemperature")
    assert "does not answer" in silence(probe).reason
    assert host.fired(0, "nvmlDeviceGetTemperature") > 0
    host.set_hang(0, 0, call="nvmlDeviceGetTemperature")
    until(lambda: isinstance(probe.read(1.0), Reading))
    assert probe.starts >= 2
    assert probe.pid != first


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
