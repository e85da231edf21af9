"""The parent of the NVML reader, against readers that misbehave on purpose. Each is a real process."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict

import pytest

from paceline.model.hardware import DeviceFacts, XidEvent
from paceline.model.ids import DeviceUuid
from paceline.telemetry.nvml import FIRST_RETRY_S, NvmlProbe, Silence
from paceline.telemetry.nvml_wire import Reading

EMPTY = '{"devices": [], "samples": [], "took_us": 5, "cpu_s": 0.1, "rss_bytes": 7}'
GOOD = f"""
print('{{"ready": true}}', flush=True)
for line in sys.stdin: print('{EMPTY}', flush=True)
"""
DEAF = """
print('{"ready": true}', flush=True)
signal.pause()
"""
ONCE = f"""
print('{{"ready": true}}', flush=True)
sys.stdin.readline(); print('{EMPTY}', flush=True)
signal.pause()
"""
LATE = f"""
print('{{"ready": true}}', flush=True)
for line in sys.stdin: time.sleep(0.3); print('{EMPTY}', flush=True)
"""
FAILS = """print('{"failed": "Driver Not Loaded"}', flush=True)"""
DIES = "sys.exit(9)"
XID = """
print('{"ready": true}\\n{"xid": {"uuid": "GPU-1", "code": 79, "at_ns": 3, "source": "nvml"}}', flush=True)
signal.pause()
"""

PLACE = "00000000:3B:00.0"
FACTS = json.dumps(asdict(DeviceFacts(DeviceUuid("GPU-1"), 0, "s", PLACE, "H200", 1, 700.0, "580")))
SICK = f"""
if "--skip" in sys.argv and {PLACE!r} in sys.argv[sys.argv.index("--skip"):]:
    print('{{"ready": true}}', flush=True)
    for line in sys.stdin: print('{EMPTY}', flush=True)
print('{{"seen": {FACTS}}}', flush=True)
os.pwrite(int(sys.argv[sys.argv.index("--mark") + 1]), {PLACE!r}.ljust(64).encode(), 0)
signal.pause()
"""

Start = Callable[[str], NvmlProbe]


@pytest.fixture
def xids() -> list[XidEvent]:
    return []


@pytest.fixture
def start(xids: list[XidEvent]) -> Iterator[Start]:
    probes: list[NvmlProbe] = []

    def begin(program: str) -> NvmlProbe:
        command = (sys.executable, "-c", f"import os, signal, sys, time\n{program}")
        probes.append(NvmlProbe(xids.append, command=command, kill_after_s=0.5, start_within_s=20))
        return probes[-1]

    yield begin
    for probe in probes:
        probe.close()


def until_silence_is_declared(probe: NvmlProbe) -> Silence:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        result = probe.read(0.1)
        if isinstance(result, Silence) and result.declared:
            return result
    raise AssertionError("the silence was never declared")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_reading(start: Start) -> None:
    probe = start(GOOD)
    assert probe.read(20) == Reading((), (), 5, 0.1, 7)
    assert probe.read(20) == Reading((), (), 5, 0.1, 7)
    assert probe.starts == 1


def test_a_late_answer_is_the_answer_of_the_next_call(start: Start) -> None:
    probe = start(LATE)
    assert isinstance(probe.read(20), Reading)
    first = probe.read(0.05)
    assert isinstance(first, Silence)
    assert not first.declared
    assert isinstance(probe.read(5), Reading)
    assert probe.starts == 1


def test_a_reader_that_hangs_is_killed_and_started_again(start: Start) -> None:
    probe = start(ONCE)
    assert isinstance(probe.read(20), Reading)
    pid = probe.pid
    assert pid is not None
    silence = until_silence_is_declared(probe)
    assert "its reader was killed" in silence.reason
    assert not alive(pid)
    assert isinstance(probe.read(20), Reading)
    assert probe.starts == 2


def test_silence_stays_declared_until_there_is_an_answer(start: Start) -> None:
    probe = start(DEAF)
    assert "NVML does not answer" in until_silence_is_declared(probe).reason
    again = probe.read(0.05)
    assert isinstance(again, Silence)
    assert "silent for" in again.reason


def test_a_reader_that_cannot_start_says_why(start: Start) -> None:
    silence = start(FAILS).read(20)
    assert isinstance(silence, Silence)
    assert silence.declared
    assert "Driver Not Loaded" in silence.reason


def test_a_reader_that_dies_is_not_a_fork_storm(start: Start) -> None:
    probe = start(DIES)
    silence = until_silence_is_declared(probe)
    assert "exit status 9" in silence.reason
    began = time.monotonic()
    probe.read(0.2)
    probe.read(0.2)
    assert time.monotonic() - began >= 0.2
    assert probe.starts <= 3


def test_xids_come_by_themselves(start: Start, xids: list[XidEvent]) -> None:
    probe = start(XID)
    deadline = time.monotonic() + 30
    while not xids and time.monotonic() < deadline:
        probe.read(0.05)
    assert [(event.uuid, event.code) for event in xids] == [("GPU-1", 79)]


def test_a_device_that_goes_on_to_hang_is_tried_at_longer_and_longer_pauses(start: Start) -> None:
    probe = start(SICK)
    deadline = time.monotonic() + 30
    while not probe.unreadable and time.monotonic() < deadline:
        probe.read(0.1)
    assert probe.unreadable == ("GPU-1",)
    sick = probe._sick[PLACE]
    assert sick.pause_s == FIRST_RETRY_S
    for pause_s in (120.0, 240.0, 480.0, 900.0, 900.0):
        sick.retry_at = time.monotonic()
        while sick.pause_s != pause_s or probe._trial or sick.retry_at < time.monotonic():
            result = probe.read(0.1)
            assert not (isinstance(result, Silence) and result.declared), "a trial holds up nobody"
            assert time.monotonic() < deadline + 60
    probe._command = (*probe._command[:2], f"import sys, time\n{GOOD}")  # the device is well again
    sick.retry_at = time.monotonic()
    while probe.unreadable:
        probe.read(0.1)
        assert time.monotonic() < deadline + 90
    assert probe.starts == 2


def test_close_ends_the_reader(start: Start) -> None:
    probe = start(GOOD)
    probe.read(20)
    pid = probe.pid
    probe.close()
    assert pid is not None
    assert not alive(pid)
