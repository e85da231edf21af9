"""The kernel log, as it comes, and back to the boot. The second witness beside NVML's events.

A line's time is the time of the boot plus the line's own time since then. Reading the same line again gives the same
time, so that a report of it is known to be one that was made before: the time of the boot moves only when somebody sets
the wall clock (the kernel slews wall clock and monotonic clock alike). A line that comes while we read is given the time
of now instead where the two are far apart: the log's clock is one that nobody slews (a minute in some months).
"""

import os
import select
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Protocol

from paceline.sim.pace import STATE_VARIABLE
from paceline.sim.state import kmsg_path
from paceline.telemetry.xid_lines import SxidLine, XidLine, parse_record, parse_sxid_record

KMSG: Final = Path("/dev/kmsg")
KMSG_VARIABLE: Final = "PACELINE_KMSG"
RECORD_BYTES: Final = 8192
"""Longest record: each read gives one, and EINVAL if it does not fit (LOG_LINE_MAX and its dictionary)."""
LOOKBACK_RECORDS: Final = 200_000
"""Newest records that are looked at when a log is opened. A kernel keeps far fewer (2^17 bytes by default); a file may not."""
LOOKBACK_BYTES: Final = LOOKBACK_RECORDS * 160
CHUNK_BYTES: Final = 1 << 20
"""Read at once of a file: a storm of lines must not fill the memory. Longer than any line."""
FILE_POLL_S: Final = 0.25
"""A file cannot be waited for."""
assert CHUNK_BYTES > RECORD_BYTES
APART_US: Final = 2_000_000
BOOT_GRAIN_NS: Final = 100_000_000
"""Two clocks cannot be read at once: their difference is known to some microseconds, and rounded to far more."""
CLOCK_READS: Final = 5

Line = XidLine | SxidLine


class Log(Protocol):
    """One open kernel log. `wait` blocks up to `timeout_s` until there may be records; `next` gives one, or ""."""

    def wait(self, timeout_s: float) -> bool: ...
    def next(self) -> str: ...
    def close(self) -> None: ...


class Kmsg:
    """Xids and SXids of a kernel log, from the boot on. One thread reads."""

    def __init__(self, log: Log, boot_ns: Callable[[], int] | None = None) -> None:
        self._log, self._boot_ns = log, boot_ns or boot_time_ns
        self._history = True
        """Whether what is read was written before we came."""

    @classmethod
    def open(cls, path: Path = KMSG) -> "Kmsg | str":
        """A reader of the device, or of a file that stands for it; or why the log cannot be read here."""
        try:
            return cls(_Device.open(path) if path.is_char_device() else _File(path))
        except OSError as error:
            return f"Xids of the kernel log are not seen: {error}"

    def wait(self, timeout_s: float) -> Iterator[tuple[Line, int]]:
        """Lines with their unix time in ns, as soon as there are any; none after `timeout_s`."""
        if self._log.wait(timeout_s):
            boot_ns = self._boot_ns()
            while record := self._log.next():
                line = parse_record(record) or parse_sxid_record(record)
                if line:
                    yield line, boot_ns + 1000 * self._uptime_us(line)
        self._history = False

    def close(self) -> None:
        self._log.close()

    def _uptime_us(self, line: Line) -> int:
        now_us = time.monotonic_ns() // 1000
        return now_us if not self._history and abs(now_us - line.uptime_us) > APART_US else line.uptime_us


class _Device:
    """/dev/kmsg: each read gives one record, the oldest that is left first."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    @classmethod
    def open(cls, path: Path) -> "_Device":
        return cls(os.open(path, os.O_RDONLY | os.O_NONBLOCK))

    def wait(self, timeout_s: float) -> bool:
        return bool(self._poll.poll(timeout_s * 1000))

    def next(self) -> str:
        while True:
            try:
                return os.read(self._descriptor, RECORD_BYTES).decode("utf-8", "replace")
            except BlockingIOError:
                return ""
            except BrokenPipeError:
                continue  # records were overwritten before we read them: go on with the oldest that is left

    def close(self) -> None:
        os.close(self._descriptor)


class _File:
    """A simulated host's log: a file that grows by a record a line. It need not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = max(0, self._size() - LOOKBACK_BYTES)
        self._looked_at = -1
        self._lines: list[str] = []

    def wait(self, timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        while not self._grown() and time.monotonic() < until:
            time.sleep(min(FILE_POLL_S, timeout_s))
        return self._grown()

    def next(self) -> str:
        if not self._lines and self._grown():
            self._looked_at = self._size()
            with self._path.open("rb") as file:
                file.seek(self._at)
                whole = file.read(CHUNK_BYTES).rpartition(b"\n")[0]
            self._at += len(whole) + 1 if whole else 0
            self._lines = whole.decode("utf-8", "replace").split("\n")[::-1] if whole else []
            if len(whole) + 1 >= CHUNK_BYTES // 2:
                self._looked_at = -1  # there may be more of what was there
        return self._lines.pop() if self._lines else ""

    def close(self) -> None:
        self._lines = []

    def _grown(self) -> bool:
        """Whether there is more than what was read, and more than the half of a line that was looked at."""
        return self._size() > max(self._at, self._looked_at)

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0


def kernel_log(env: Mapping[str, str] | None = None) -> Path:
    """The kernel log of this machine, or of the simulated host that `env` (the process's by default) names."""
    env = os.environ if env is None else env
    if named := env.get(KMSG_VARIABLE):
        return Path(named)
    return kmsg_path(env[STATE_VARIABLE]) if env.get(STATE_VARIABLE) else KMSG


def boot_time_ns(wall_ns: Callable[[], int] = time.time_ns, uptime_ns: Callable[[], int] = time.monotonic_ns) -> int:
    """When this machine was booted, to BOOT_GRAIN_NS: the same each time, until somebody sets the wall clock."""
    reads = []
    for _ in range(CLOCK_READS):
        before, wall, after = uptime_ns(), wall_ns(), uptime_ns()
        reads.append((after - before, wall - (before + after) // 2))
    return round(min(reads)[1] / BOOT_GRAIN_NS) * BOOT_GRAIN_NS  # of the read that was interrupted least
