"""What the NVML reader writes, its parent reads."""

import pytest

from paceline.model.hardware import DeviceFacts, Sample, XidEvent
from paceline.model.ids import DeviceUuid
from paceline.telemetry.nvml_wire import CallTime, Failed, Message, Noticed, Reading, Ready, Seen, decode, encode

GPU = DeviceUuid("GPU-1")
FACTS = DeviceFacts(GPU, 0, "165", "00000000:1B:00.0", "NVIDIA H100 80GB HBM3", 80 << 30, 700.0, "580.65.06")
SAMPLE = Sample(GPU, 5, 1980, None, 70.5, 0, 0, 0, 0, False, None, 1, 0)


@pytest.mark.parametrize(
    "message",
    [
        Ready(),
        Failed("NVML Shared Library Not Found"),
        Reading((FACTS,), (SAMPLE,), 900, 0.5, 30_000_000),
        Reading((), (), 1, 0.0, 0),
        Reading((FACTS,), (SAMPLE,), 900, 0.5, 30_000_000, 9.5, (CallTime("nvmlDeviceGetName", 8, 3, 5),)),
        Seen(FACTS),
        Noticed(GPU, 0x8000),
        XidEvent(GPU, 79, 7, "nvml"),
    ],
)
def test_a_message_comes_back(message: Message) -> None:
    line = encode(message)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize("line", ["{}", '{"ready": false}', "[1]", "garbage"])
def test_anything_else_is_no_message(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # json's own and ours
        decode(line)
