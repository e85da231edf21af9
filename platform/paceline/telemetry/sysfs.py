"""Ports and PCI links of this machine, from /sys. `root` is another tree in tests.

Physical ports only: a network device without a `device` link is a bridge, a tunnel, a pair of a container, or the
loopback. A port that somebody has switched off is left out, too.
Sources: Linux Documentation/ABI/stable/sysfs-class-infiniband, testing/sysfs-class-net, testing/sysfs-bus-pci.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paceline.model.hardware import LinkSample

SYS: Final = Path("/sys")
FULL: Final = frozenset({0xFF, 0xFFFF, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF})
"""InfiniBand's port counters stop at 8, 16 or 32 bits (IBTA 16.1.3.5): all ones says "at least so many"."""
GENERATIONS: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""PCI Express generation by GT/s of a lane."""
IFF_UP: Final = 0x1


@dataclass(frozen=True, slots=True)
class Port:
    """A port, and the group of ports that should be like it: the same kind of adapter."""

    sample: LinkSample
    group: str


@dataclass(frozen=True, slots=True)
class PciLink:
    """Generation and lanes now, and the most that both ends of the link can do."""

    gen: int | None
    width: int | None
    gen_max: int | None
    width_max: int | None


def read_ports(at_ns: int, root: Path = SYS) -> tuple[Port, ...]:
    """All physical ports that are not switched off, by name."""
    ib = [_ib_port(port, at_ns) for port in sorted((root / "class/infiniband").glob("*/ports/*"))]
    net = [_net_port(device, at_ns) for device in sorted((root / "class/net").glob("*"))]
    return tuple(port for port in (*ib, *net) if port is not None)


def read_pci(bus_id: str, root: Path = SYS) -> PciLink | None:
    """The link of the device at an address as NVML writes it (00000000:3B:00.0), or None if /sys does not show it."""
    domain, _, rest = bus_id.lower().partition(":")
    device = root / "bus/pci/devices" / f"{domain[-4:]}:{rest}"
    if not device.exists():
        return None
    ends = [device, device.resolve().parent]
    gens = [_generation(end / "max_link_speed") for end in ends]
    widths = [_width(end / "max_link_width") for end in ends]
    return PciLink(
        _generation(device / "current_link_speed"), _width(device / "current_link_width"), _least(gens), _least(widths)
    )


def _ib_port(port: Path, at_ns: int) -> Port | None:
    physical = _text(port / "phys_state")
    if _text(port / "link_layer") != "InfiniBand" or "Disabled" in physical:  # RoCE ports are read as Ethernet
        return None
    adapter = port.parent.parent
    counters = port / "counters"
    sample = LinkSample(
        name=f"{adapter.name}/{port.name}",
        kind="ib",
        at_ns=at_ns,
        up="ACTIVE" in _text(port / "state") and "LinkUp" in physical,
        rate_gbps=_first_number(_text(port / "rate")),
        link_downed=_counter(counters / "link_downed"),
        errors=_sum(_counter(counters / "symbol_error"), _counter(counters / "port_rcv_errors")),
    )
    return Port(sample, f"ib {_text(adapter / 'hca_type')} {_text(adapter / 'board_id')}")


def _net_port(device: Path, at_ns: int) -> Port | None:
    flags = _text(device / "flags")
    if not (device / "device").exists() or _virtual(device):
        return None
    if not flags or not int(flags, 16) & IFF_UP or _text(device / "type") != "1":  # ARPHRD_ETHER
        return None
    speed_mbps = _first_number(_text(device / "speed"))
    statistics = device / "statistics"
    sample = LinkSample(
        name=device.name,
        kind="ethernet",
        at_ns=at_ns,
        up=_text(device / "operstate") == "up",
        rate_gbps=speed_mbps / 1000 if speed_mbps and speed_mbps > 0 else None,
        link_downed=_counter(device / "carrier_down_count"),
        errors=_sum(_counter(statistics / "rx_errors"), _counter(statistics / "tx_errors")),
    )
    return Port(sample, f"ethernet {_text(device / 'device/vendor')}:{_text(device / 'device/device')}")


def _virtual(device: Path) -> bool:
    """A function that an adapter gives to a virtual machine, or its end in the host's switch."""
    return (device / "device/physfn").exists() or re.match(
        r"(c\d+)?pf\d+[vs]f\d+", _text(device / "phys_port_name")
    ) is not None


def _text(path: Path) -> str:
    """The file's text; empty where the driver does not tell (a port that is down has no speed: EINVAL)."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _counter(path: Path) -> int | None:
    text = _text(path)
    value = int(text) if text.isdigit() else None
    return None if value in FULL else value


def _sum(*parts: int | None) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _least(values: list[int | None]) -> int | None:
    return min((value for value in values if value), default=None)


def _first_number(text: str) -> float | None:
    found = re.match(r"-?\d+(\.\d+)?", text)
    return float(found[0]) if found else None


def _generation(path: Path) -> int | None:
    """`32.0 GT/s PCIe` → 5."""
    speed = _first_number(_text(path))
    return GENERATIONS.get(speed) if speed is not None else None


def _width(path: Path) -> int | None:
    """Lanes; 0 and 255 say that the device does not answer."""
    width = _counter(path)
    return width or None
