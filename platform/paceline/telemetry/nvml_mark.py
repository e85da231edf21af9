"""The word that a reader and its parent share: which device is in the reader's hands now.

An anonymous file of some bytes. A write is one system call, and it is there for the parent also when the reader will
never run again.
"""

import os
from typing import Final

MARK_BYTES: Final = 64
"""A PCI address, or `index 3` before a device has a name."""


def open_mark() -> int:
    """A descriptor that a child process can inherit."""
    return os.memfd_create("nvml-mark")


def write_mark(descriptor: int, place: str) -> None:
    os.pwrite(descriptor, place.encode()[:MARK_BYTES].ljust(MARK_BYTES), 0)


def read_mark(descriptor: int) -> str:
    """The device in hand; empty between devices."""
    return os.pread(descriptor, MARK_BYTES, 0).decode().strip()
