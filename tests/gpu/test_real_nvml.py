"""The NVML reader on a real GPU. Run by hand on a machine that has one: `pytest tests/gpu`."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.model.hardware import XidEvent
from paceline.telemetry.nvml import NvmlProbe
from paceline.telemetry.nvml_wire import Reading

pytestmark = pytest.mark.skipif(
    not Path("/dev/nvidiactl").exists() or "PACELINE_SIM_STATE" in os.environ, reason="no NVIDIA driver here"
)
READINGS = 200


@pytest.fixture
def probe() -> Iterator[NvmlProbe]:
    xids: list[XidEvent] = []
    probe = NvmlProbe(xids.append)
    yield probe
    probe.close()
    assert xids == []


def test_a_real_device_is_read(probe: NvmlProbe) -> None:
    reading = probe.read(60.0)
    assert isinstance(reading, Reading), reading
    for device, sample in zip(reading.devices, reading.samples, strict=True):
        print(device, sample)
        assert device.uuid == sample.uuid
        assert device.uuid.startswith("GPU-")
        assert device.memory_bytes > 1 << 30
        assert device.power_cap_w > 0
        assert device.product.startswith("NVIDIA")
        assert sample.temperature_c is not None
        assert sample.sm_clock_mhz is not None
        assert sample.power_w is not None
        assert sample.process_count is not None


def test_what_a_reading_costs(probe: NvmlProbe) -> None:
    took = sorted(reading.took_us for _ in range(READINGS) if isinstance(reading := probe.read(60.0), Reading))
    assert len(took) == READINGS
    last = probe.read(60.0)
    assert isinstance(last, Reading)
    print(f"{len(last.devices)} devices: p50 {took[READINGS // 2]} us, p99 {took[READINGS * 99 // 100]} us,", end=" ")
    print(f"{last.cpu_s / READINGS * 1000:.2f} ms CPU a reading, start included; {last.rss_bytes >> 20} MiB")
    assert took[READINGS // 2] < 200_000, "at one reading a second this would be a fifth of a core"
