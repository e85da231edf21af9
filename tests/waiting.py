"""The one way to wait in tests: for a condition, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(look: Callable[[], T], deadline_s: float = 60, what: str = "") -> T:
    """The first true result of `look`."""
    ends = time.monotonic() + deadline_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < ends, f"not within {deadline_s} s: {what or look}"
        time.sleep(0.02)
