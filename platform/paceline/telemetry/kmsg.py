"""Xids from the kernel log, as they come. The second witness beside NVML's events."""

import os
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from paceline.telemetry.xid_lines import XidLine, parse_record

KMSG: Final = Path("/dev/kmsg")
RECORD_BYTES: Final = 8192
"""Longest record: each read gives one, and EINVAL if it does not fit (LOG_LINE_MAX and its dictionary)."""

LOOKBACK_S: Final = 60
"""What happened while the actor was restarted is told late, not never. Older Xids are history: they may be repaired."""


class Kmsg:
    """Records of the kernel log, from LOOKBACK_S before it was opened. One thread reads."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._from_ns = time.time_ns() - LOOKBACK_S * 1_000_000_000
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    @classmethod
    def open(cls, path: Path = KMSG) -> Self | str:
        """A reader, or why the kernel log cannot be read here."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            return f"Xids of the kernel log are not seen: {error}"
        return cls(descriptor)

    def wait(self, timeout_s: float) -> Iterator[tuple[XidLine, int]]:
        """Xids with their unix time in ns, as soon as there are any; none after `timeout_s`."""
        if not self._poll.poll(timeout_s * 1000):
            return
        boot_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        while record := self._next():
            found = parse_record(record)
            at_ns = boot_ns + found.uptime_us * 1000 if found else 0
            if found and at_ns >= self._from_ns:
                yield found, at_ns

    def close(self) -> None:
        os.close(self._descriptor)

    def _next(self) -> str:
        """The next record, or "" if there is none now."""
        while True:
            try:
                return os.read(self._descriptor, RECORD_BYTES).decode("utf-8", "replace")
            except BlockingIOError:
                return ""
            except BrokenPipeError:
                continue  # records were overwritten before we read them: go on with the oldest that is left
