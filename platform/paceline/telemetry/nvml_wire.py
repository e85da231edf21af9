"""What the NVML reader's process and its parent say to each other: one JSON object a line. Pure.

parent → child   read                 what is due
                 read all             everything, now
                 with 00000000:3B:00.0   read this device, too: it answers again
child → parent   {"ready": true}                                    NVML is initialised, and each device was read once
                 {"failed": "NVML Shared Library Not Found"}        …or cannot be; the child exits
                 {"seen": {"uuid": …, "index": 3, …}}               a device was identified; nothing was read of it yet
                 {"devices": [...], "samples": [...], "took_us": 900, "cpu_s": 0.4, "rss_bytes": 30000000, …}
                 {"xid": {"uuid": …, "code": 79, "at_ns": …, "source": "nvml", "detail": ""}}     at any time
                 {"noticed": {"uuid": …, "kind": 2}}                at any time: another event of the driver
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paceline.model.hardware import DeviceFacts, Sample, XidEvent
from paceline.model.ids import DeviceUuid


@dataclass(frozen=True, slots=True)
class CallTime:
    """How long one NVML call takes, over the last `n` times."""

    name: str
    n: int
    p50_us: int
    p99_us: int


@dataclass(frozen=True, slots=True)
class Reading:
    """All devices that NVML shows now, with one sample each.

    `took_us` is the time in NVML; `cpu_s` and `rss_bytes` are what the reader's process has used. `slow_age_s` is the
    age of the oldest value in the samples (fields.py says which are not read each time); `slowest` are the slowest
    calls, when they were counted. `unreadable` are devices that are left out since NVML hangs on them: the parent adds
    them, and their facts to `devices`.
    """

    devices: tuple[DeviceFacts, ...]
    samples: tuple[Sample, ...]
    took_us: int
    cpu_s: float = 0.0
    rss_bytes: int = 0
    slow_age_s: float = 0.0
    slowest: tuple[CallTime, ...] = ()
    unreadable: tuple[DeviceUuid, ...] = ()


@dataclass(frozen=True, slots=True)
class Ready:
    pass


@dataclass(frozen=True, slots=True)
class Failed:
    reason: str


@dataclass(frozen=True, slots=True)
class Seen:
    device: DeviceFacts


@dataclass(frozen=True, slots=True)
class Noticed:
    """An event of the driver that is no Xid: nvml.h, nvmlEventType*."""

    uuid: DeviceUuid
    kind: int


Message = Ready | Failed | Seen | Reading | XidEvent | Noticed


def encode(message: Message) -> str:
    """One line, newline included."""
    match message:
        case Ready():
            row: Mapping[str, object] = {"ready": True}
        case Failed(reason):
            row = {"failed": reason}
        case Seen(device):
            row = {"seen": asdict(device)}
        case Reading():
            row = asdict(message)
        case XidEvent():
            row = {"xid": asdict(message)}
        case Noticed():
            row = {"noticed": asdict(message)}
    return json.dumps(row) + "\n"


def decode(line: str) -> Message:
    """Raises ValueError for what is no message."""
    row = json.loads(line)
    match row:
        case {"ready": True}:
            return Ready()
        case {"failed": str(reason)}:
            return Failed(reason)
        case {"seen": dict(device)}:
            return Seen(DeviceFacts(**device))
        case {"xid": dict(event)}:
            return XidEvent(**event)
        case {"noticed": dict(event)}:
            return Noticed(**event)
        case {"devices": list(), "samples": list(), "took_us": int()}:
            return _reading(row)
        case _:
            raise ValueError(f"no message of the NVML reader: {line[:200]!r}")


def _reading(row: Mapping[str, Any]) -> Reading:
    plain = {name: row[name] for name in ("took_us", "cpu_s", "rss_bytes", "slow_age_s") if name in row}
    return Reading(
        devices=tuple(DeviceFacts(**one) for one in row["devices"]),
        samples=tuple(Sample(**one) for one in row["samples"]),
        slowest=tuple(CallTime(**one) for one in row.get("slowest", ())),
        **plain,
    )
