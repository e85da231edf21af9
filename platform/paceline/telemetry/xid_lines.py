"""Xids in the kernel's own words. Pure.

The driver writes `NVRM: Xid (PCI:0000:3b:00): 79, pid=…, name=…, GPU has fallen off the bus.`; with MIG the address is
followed by the GPU instance. NVML misses some of these codes (62, 79, 119, 120: DCGM issues 162 and 235).
SXids (`nvidia-nvswitch0: SXid (PCI:…)`) are about switches, not devices, and are not taken for Xids.
"""

import re
from dataclasses import dataclass
from typing import Final

_RECORD: Final = re.compile(r"(?P<prefix>\d+),(?P<sequence>\d+),(?P<uptime_us>\d+),[^;]*;(?P<text>.*)", re.DOTALL)
"""Documentation/ABI/testing/dev-kmsg: priority, sequence number, microseconds since boot, flags; then the text."""
_XID: Final = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<address>[0-9a-fA-F:.]+)[^)]*\): (?P<code>\d+)")
_ADDRESS: Final = re.compile(r"(?:(?P<domain>[0-9a-fA-F]+):)?(?P<bus>[0-9a-fA-F]+):(?P<device>[0-9a-fA-F]+)(?:\.\d)?")

PciAddress = tuple[int, int, int]
"""Domain, bus, device: the same for NVML's `00000000:3B:00.0` and the kernel's `0000:3b:00`."""


@dataclass(frozen=True, slots=True)
class XidLine:
    address: PciAddress
    code: int
    uptime_us: int


def parse_record(record: str) -> XidLine | None:
    """The Xid in one record of /dev/kmsg, or None. A record without a header counts as written at boot (0)."""
    header = _RECORD.match(record)
    found = _XID.search(header["text"] if header else record)
    address = parse_address(found["address"]) if found else None
    if found is None or address is None:
        return None
    return XidLine(address, int(found["code"]), int(header["uptime_us"]) if header else 0)


def parse_address(text: str) -> PciAddress | None:
    found = _ADDRESS.fullmatch(text)
    if found is None:
        return None
    return int(found["domain"] or "0", 16), int(found["bus"], 16), int(found["device"], 16)
