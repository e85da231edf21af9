"""Reading the kernel log. A file stands for the device; how the device itself is read is tried where it can be read."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.model.ids import HostName
from paceline.sim.fleet import identify
from paceline.sim.state import HostState
from paceline.telemetry.kmsg import APART_US, CHUNK_BYTES, KMSG, Kmsg, boot_time_ns, kernel_log
from paceline.telemetry.xid_lines import SxidLine, XidLine

SECOND_NS = 1_000_000_000
BOOT_NS = 1_700_000_000 * SECOND_NS


def record(code: int, ago_s: float = 0) -> str:
    uptime_us = time.monotonic_ns() // 1000 - int(ago_s * 1e6)
    return f"3,7,{uptime_us},-;NVRM: Xid (PCI:0000:3b:00): {code}, pid=1"


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(line + "\n" for line in lines)


def opened(path: Path) -> Kmsg:
    kmsg = Kmsg.open(path)
    assert isinstance(kmsg, Kmsg), kmsg
    return kmsg


def codes(kmsg: Kmsg) -> list[int]:
    return [line.code for line, _ in kmsg.wait(1.0)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[tuple[Path, Kmsg]]:
    kmsg = opened(tmp_path / "kmsg")
    yield tmp_path / "kmsg", kmsg
    kmsg.close()


def test_lines_come_with_their_time(log: tuple[Path, Kmsg]) -> None:
    path, kmsg = log
    append(path, record(79), "6,8,9,-;usb 1-1: new device", record(45))
    found = list(kmsg.wait(1.0))
    assert [line.code for line, _ in found] == [79, 45]
    assert all(abs(at_ns - time.time_ns()) < SECOND_NS for _, at_ns in found)


def test_an_sxid_is_a_line_of_its_own_kind(log: tuple[Path, Kmsg]) -> None:
    path, kmsg = log
    append(path, "3,1,2,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 28 sourcetrack timeout (First)")
    ((line, _),) = kmsg.wait(1.0)
    assert isinstance(line, SxidLine)
    assert line.code == 24007


def test_everything_since_the_boot_is_looked_at_and_keeps_its_time(tmp_path: Path) -> None:
    long_ago_s = 0.9 * time.monotonic()
    append(tmp_path / "kmsg", record(79, ago_s=long_ago_s), record(31, ago_s=60))
    first, second = (list(opened(tmp_path / "kmsg").wait(1.0)) for _ in range(2))
    assert [line.code for line, _ in first] == [79, 31]
    assert first == second, "an actor that was restarted tells the same lines with the same times"
    assert abs(first[0][1] - (time.time_ns() - long_ago_s * SECOND_NS)) < SECOND_NS


def test_a_clock_that_is_set_moves_what_comes_and_splits_nothing(tmp_path: Path) -> None:
    boots = iter([BOOT_NS, BOOT_NS - 3600 * SECOND_NS, BOOT_NS + 9 * SECOND_NS])
    told: list[int] = []
    opened_log = opened(tmp_path / "kmsg")
    kmsg = Kmsg(opened_log._log, lambda: next(boots))
    for _ in range(3):
        append(tmp_path / "kmsg", record(13))
        told += [at_ns for _, at_ns in kmsg.wait(1.0)]
    back, forth = told[1] - told[0], told[2] - told[0]
    assert abs(back + 3600 * SECOND_NS) < 2 * SECOND_NS
    assert abs(forth - 9 * SECOND_NS) < 2 * SECOND_NS


def test_the_time_of_the_boot_is_the_same_each_time_until_somebody_sets_the_clock() -> None:
    assert {boot_time_ns() for _ in range(50)} == {boot_time_ns()}
    wall = {"ns": 50 * SECOND_NS}
    ticks = iter(range(0, 10**6, 700))
    assert boot_time_ns(lambda: wall["ns"], lambda: next(ticks)) == 50 * SECOND_NS
    wall["ns"] -= 8 * SECOND_NS
    assert boot_time_ns(lambda: wall["ns"], lambda: next(ticks)) == 42 * SECOND_NS


def test_a_line_that_comes_now_is_of_now_though_the_logs_clock_runs_away(tmp_path: Path) -> None:
    kmsg = opened(tmp_path / "kmsg")
    assert codes(kmsg) == []
    append(tmp_path / "kmsg", record(79, ago_s=10 * APART_US / 1e6))
    ((_, at_ns),) = kmsg.wait(1.0)
    assert abs(at_ns - time.time_ns()) < SECOND_NS


def test_a_long_log_is_read_to_its_end_in_pieces(tmp_path: Path) -> None:
    lines = 3 * CHUNK_BYTES // len(record(13))
    append(tmp_path / "kmsg", *[record(13)] * lines, record(79))
    kmsg = opened(tmp_path / "kmsg")
    found = codes(kmsg)
    assert (len(found), found[-1]) == (lines + 1, 79)
    assert codes(kmsg) == []


def test_half_a_line_is_waited_for(log: tuple[Path, Kmsg]) -> None:
    path, kmsg = log
    whole = record(79)
    path.write_text(whole[:20])
    assert codes(kmsg) == []
    path.write_text(whole + "\n")
    assert codes(kmsg) == [79]


def test_silence_is_no_xid(log: tuple[Path, Kmsg]) -> None:
    assert list(log[1].wait(0.01)) == []


def test_a_log_that_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container without the right to it."""
    monkeypatch.setattr(Path, "is_char_device", lambda path: True)
    said = Kmsg.open(tmp_path / "kmsg")
    assert isinstance(said, str)
    assert "No such file" in said


def test_the_log_of_this_machine_can_be_read_or_says_why_not() -> None:
    kmsg = Kmsg.open()
    if isinstance(kmsg, str):
        assert "kernel log" in kmsg
        return
    assert all(isinstance(line, XidLine | SxidLine) for line, _ in kmsg.wait(1.0))
    kmsg.close()


def test_a_simulated_host_has_a_log_of_its_own(tmp_path: Path) -> None:
    state = HostState.create(tmp_path / "a.state", "gpu-a", [identify("c", HostName("gpu-a"), 0)])
    path = kernel_log({"PACELINE_SIM_STATE": str(state.path)})
    kmsg = opened(path)
    assert codes(kmsg) == []
    state.write_kmsg("NVRM: Xid (PCI:0000:1b:00): 119, pid=7, name=x, Timeout after 6s of waiting for RPC")
    ((line, at_ns),) = kmsg.wait(1.0)
    assert (line.code, line.detail) == (119, "pid=7, name=x, Timeout after 6s of waiting for RPC")
    assert abs(at_ns - time.time_ns()) < SECOND_NS
    assert kernel_log({}) == KMSG
    assert kernel_log({"PACELINE_KMSG": "/x"}) == Path("/x")
