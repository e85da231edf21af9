"""What the NVML reader's process and its parent say to each other: one JSON object a line. Pure.

parent → child   read
child → parent   {"ready": true}                                    NVML is initialised
                 {"failed": "NVML Shared Library Not Found"}        …or cannot be; the child exits
                 {"devices": [...], "samples": [...], "took_us": 900, "cpu_s": 0.4, "rss_bytes": 30000000}
                 {"xid": {"uuid": …, "code": 79, "at_ns": …, "source": "nvml"}}     at any time
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from paceline.model.hardware import DeviceFacts, Sample, XidEvent


@dataclass(frozen=True, slots=True)
class Reading:
    """All devices that NVML shows now, with one sample each.

    `took_us` is the time in NVML; `cpu_s` and `rss_bytes` are what the reader's process has used.
    """

    devices: tuple[DeviceFacts, ...]
    samples: tuple[Sample, ...]
    took_us: int
    cpu_s: float = 0.0
    rss_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    pass


@dataclass(frozen=True, slots=True)
class Failed:
    reason: str


Message = Ready | Failed | Reading | XidEvent


def encode(message: Message) -> str:
    """One line, newline included."""
    match message:
        case Ready():
            row: Mapping[str, object] = {"ready": True}
        case Failed(reason):
            row = {"failed": reason}
        case Reading():
            row = asdict(message)
        case XidEvent():
            row = {"xid": asdict(message)}
    return json.dumps(row) + "\n"


def decode(line: str) -> Message:
    """Raises ValueError for what is no message."""
    row = json.loads(line)
    match row:
        case {"ready": True}:
            return Ready()
        case {"failed": str(reason)}:
            return Failed(reason)
        case {"xid": dict(event)}:
            return XidEvent(**event)
        case {
            "devices": list(devices),
            "samples": list(samples),
            "took_us": int(took_us),
            "cpu_s": float(cpu_s),
            "rss_bytes": int(rss),
        }:
            facts = tuple(DeviceFacts(**device) for device in devices)
            return Reading(facts, tuple(Sample(**sample) for sample in samples), took_us, cpu_s, rss)
        case _:
            raise ValueError(f"no message of the NVML reader: {line[:200]!r}")
