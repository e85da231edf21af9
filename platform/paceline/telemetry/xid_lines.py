"""Xids and SXids in the kernel's own words. Pure.

The driver writes `NVRM: Xid (PCI:0000:3b:00): 79, pid=…, name=…, GPU has fallen off the bus.`; with MIG the address is
followed by the GPU instance. NVML misses some of these codes (62, 79, 119, 120: DCGM issues 162 and 235).
An NVSwitch writes `nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 28 sourcetrack timeout error (First)`:
the address is the switch's, and no GPU's.
"""

import re
from dataclasses import dataclass
from typing import Final

DETAIL_CHARS: Final = 300
"""The longest known text is a page fault's, about 250 characters; the decoders read the first 200."""

_RECORD: Final = re.compile(r"(?P<prefix>\d+),(?P<sequence>\d+),(?P<uptime_us>\d+),[^;]*;(?P<text>.*)", re.DOTALL)
"""Documentation/ABI/testing/dev-kmsg: priority, sequence number, microseconds since boot, flags; then the text."""
_XID: Final = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<address>[0-9a-fA-F:.]+)[^)]*\): (?P<code>\d{1,6})\b[, ]*(?P<detail>[^\n]*)"
)
_SXID: Final = re.compile(
    r"nvidia-nvswitch\d+: SXid \((?:PCI:)?(?P<address>[0-9a-fA-F:.]+)\): (?P<code>\d{1,6})\b[, ]*(?P<detail>[^\n]*)"
)
_CONTINUED: Final = ("Severity ", "Data {")
"""How the lines begin that the driver writes after an SXid, with the same code: its registers."""
_ADDRESS: Final = re.compile(r"(?:(?P<domain>[0-9a-fA-F]+):)?(?P<bus>[0-9a-fA-F]+):(?P<device>[0-9a-fA-F]+)(?:\.\d)?")

PciAddress = tuple[int, int, int]
"""Domain, bus, device: the same for NVML's `00000000:3B:00.0` and the kernel's `0000:3b:00`."""


@dataclass(frozen=True, slots=True)
class XidLine:
    """`detail` is the text after the code, at most DETAIL_CHARS characters."""

    address: PciAddress
    code: int
    uptime_us: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SxidLine:
    """What an NVSwitch at `address` said; `detail` as in XidLine."""

    address: PciAddress
    code: int
    uptime_us: int
    detail: str = ""


def parse_record(record: str) -> XidLine | None:
    """The Xid in one record of /dev/kmsg, or None. A record without a header counts as written at boot (0)."""
    read = _read(record, "NVRM: Xid (", _XID)
    return XidLine(*read) if read else None


def parse_sxid_record(record: str) -> SxidLine | None:
    """The SXid in one record of /dev/kmsg, or None; None for the lines with its registers, which repeat the code."""
    read = _read(record, ": SXid (", _SXID)
    return SxidLine(*read) if read and not read[3].startswith(_CONTINUED) else None


def parse_address(text: str) -> PciAddress | None:
    found = _ADDRESS.fullmatch(text)
    if found is None:
        return None
    return int(found["domain"] or "0", 16), int(found["bus"], 16), int(found["device"], 16)


def _read(record: str, mark: str, pattern: re.Pattern[str]) -> tuple[PciAddress, int, int, str] | None:
    if mark not in record:  # nearly all of a kernel's log: 20 times cheaper than the pattern
        return None
    header = _RECORD.match(record)
    found = pattern.search(header["text"] if header else record)
    address = parse_address(found["address"]) if found else None
    if found is None or address is None:
        return None
    detail = found["detail"].rstrip()[:DETAIL_CHARS]
    return address, int(found["code"]), int(header["uptime_us"]) if header else 0, detail
