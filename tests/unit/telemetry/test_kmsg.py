"""Reading the kernel log. A SEQPACKET socket stands for the device: both give one record for each read."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.telemetry.kmsg import LOOKBACK_S, Kmsg


@pytest.fixture
def log() -> Iterator[tuple[socket.socket, Kmsg]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, Kmsg(theirs.fileno())


def record(code: int, ago_s: float = 0) -> bytes:
    uptime_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000 - int(ago_s * 1e6)
    return f"3,7,{uptime_us},-;NVRM: Xid (PCI:0000:3b:00): {code}, pid=1\n".encode()


def test_xids_come_with_their_time(log: tuple[socket.socket, Kmsg]) -> None:
    kernel, kmsg = log
    for line in (record(79, ago_s=2), b"6,8,9,-;usb 1-1: new device\n", record(45)):
        kernel.send(line)
    found = list(kmsg.wait(1.0))
    assert [line.code for line, _ in found] == [79, 45]
    assert abs(found[0][1] - (time.time_ns() - 2_000_000_000)) < 1_000_000_000


def test_old_xids_are_history(log: tuple[socket.socket, Kmsg]) -> None:
    kernel, kmsg = log
    uptime_s = time.clock_gettime(time.CLOCK_MONOTONIC)
    if uptime_s < LOOKBACK_S + 5:
        pytest.skip("this machine has just booted")
    kernel.send(record(79, ago_s=LOOKBACK_S + 5))
    assert list(kmsg.wait(1.0)) == []


def test_silence_is_no_xid(log: tuple[socket.socket, Kmsg]) -> None:
    assert list(log[1].wait(0.01)) == []


def test_a_log_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    said = Kmsg.open(tmp_path / "kmsg")
    assert isinstance(said, str)
    assert "No such file" in said
