"""Active probes and what came of them."""

from dataclasses import dataclass

from paceline.model.ids import DeviceUuid


@dataclass(frozen=True, slots=True)
class Measurement:
    """One probe of one device: `repetitions_s` are the seconds of each timed repetition, warm-up left out."""

    uuid: DeviceUuid
    benchmark: str
    version: int
    at_ns: int
    repetitions_s: tuple[float, ...]
    ok: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class DeviceScore:
    """Time of a device relative to its cohort's median (1.0), with what it rests on."""

    uuid: DeviceUuid
    benchmark: str
    score: float
    noise: float
    """Median absolute deviation of the device's own repetitions, relative to their median."""
    samples: int
    cohort: str
    cohort_size: int
