"""What this process takes of its machine."""

import resource
from typing import Final

_PAGE_BYTES: Final = resource.getpagesize()


def rss_bytes() -> int:
    """Resident memory now."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * _PAGE_BYTES
