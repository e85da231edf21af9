"""Times, sizes and names as people read them. Pure."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from paceline.model.errors import BadRequest, NotFound
from paceline.sdk.rows import DeviceRow, HostRow

UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SHORT_UUID: Final = 12
"""`GPU-` and eight digits: enough to tell some hundred thousand devices apart, most of the time."""


def age(since_ns: int, now_ns: int) -> str:
    """`45s`, `12m`, `3h05m`, `6d04h`; `-` for a time that never was."""
    if not since_ns:
        return "-"
    seconds = max(0, (now_ns - since_ns) // 1_000_000_000)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 120:
        return f"{minutes}m"
    if hours < 48:
        return f"{hours}h{minutes % 60:02}m"
    return f"{days}d{hours % 24:02}h"


def seconds(text: str) -> int:
    """`90s`, `10m`, `2h`, `1d`: as seconds. A bare number is refused: its unit would be guessed."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    if found is None:
        raise BadRequest("PL-REQ-032", f"{text!r} is no length of time", "write 90s, 10m, 2h or 1d")
    return int(found[1]) * UNITS_S[found[2]]


def clock(at_ns: int, now_ns: int) -> str:
    """Local time of day; with the date if it was another day."""
    at, now = (datetime.fromtimestamp(ns / 1e9, tz=UTC).astimezone() for ns in (at_ns, now_ns))
    return f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M:%S}"


def score(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def gibibytes(count: int) -> str:
    return f"{count / (1 << 30):.0f} GiB"


def short_names(uuids: Iterable[str]) -> dict[str, str]:
    """A short form of each uuid, long enough that no two are alike."""
    wanted = sorted(set(uuids))
    length = SHORT_UUID
    while len({uuid[:length] for uuid in wanted}) < len(wanted):
        length += 4
    return {uuid: uuid[:length] for uuid in wanted}


def place(device: DeviceRow) -> str:
    return f"{device.host}/{device.index}"


def find_device(devices: Iterable[DeviceRow], name: str) -> DeviceRow:
    """The device called by its uuid, by a prefix that only one has, or by `host/index`."""
    known = list(devices)
    by_place = [d for d in known if place(d) == name and d.state != "RETIRED"]
    found = [d for d in known if d.uuid == name] or by_place or [d for d in known if d.uuid.startswith(name)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFound(
            "PL-FIND-001",
            f"no device is called {name}",
            "`paceline get devices` lists them; a name is a uuid, its beginning, or HOST/INDEX",
        )
    alike = ", ".join(d.uuid for d in found[:4]) + (", …" if len(found) > 4 else "")
    raise BadRequest("PL-REQ-030", f"{len(found)} devices begin with {name}: {alike}", "give more of the uuid")


def is_host(hosts: Iterable[HostRow], name: str) -> bool:
    return any(host.host == name for host in hosts)


def find_host(hosts: Iterable[HostRow], name: str) -> HostRow:
    found = next((host for host in hosts if host.host == name), None)
    if found is None:
        raise NotFound("PL-FIND-006", f"no host is called {name}", "`paceline get hosts` lists them")
    return found
