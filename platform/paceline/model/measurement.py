"""Active probes and what came of them."""

from dataclasses import dataclass, field
from enum import StrEnum

from paceline.model.ids import DeviceUuid, HostName


class Workload(StrEnum):
    """Classes of work. A device may be fast in one and slow in another, so it has a score in each (PAL, SC 2024)."""

    COMPUTE = "compute"
    """bfloat16 GEMM: the score that gangs are planned by."""
    COMPUTE_FP32 = "compute_fp32"
    MEMORY = "memory"
    """The device's own memory, read and written."""
    TRANSFER = "transfer"
    """Between the host's memory and the device's."""
    STEP = "step"
    """Steps of training runs, from their ranks: in-band, so it never condemns a device."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One probe of one device: `repetitions_s` are the seconds of each timed repetition, warm-up left out.

    The measurements of one probe of a device, one for each workload, have the same `at_ns`. `conditions` are medians of what the
    device said meanwhile (sm_clock_mhz, power_w, temperature_c), and throttle_ns: time in hardware slowdown during the probe.
    """

    uuid: DeviceUuid
    benchmark: str
    version: int
    at_ns: int
    repetitions_s: tuple[float, ...]
    ok: bool
    error: str = ""
    workload: str = Workload.COMPUTE
    conditions: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeMeasurement:
    """One benchmark of a full probe: an exchange between all sound devices of a machine. It says something of the machine only.

    `repetitions_s` are seconds, warm-up left out; `bytes` is what the busiest link carries in a repetition (0: not known).
    """

    host: HostName
    devices: tuple[DeviceUuid, ...]
    benchmark: str
    version: int
    at_ns: int
    repetitions_s: tuple[float, ...]
    ok: bool
    error: str = ""
    bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceScore:
    """Time of a device relative to the median of its SKU (1.0), with what it rests on."""

    uuid: DeviceUuid
    benchmark: str
    score: float
    noise: float
    """Median absolute deviation of the device's own repetitions, relative to their median."""
    samples: int
    cohort: str
    cohort_size: int
    workload: str = Workload.COMPUTE
    drift: float | None = None
    """Time relative to the device's own past, less what its peers had in common: 0.05 has become 5 % slower. None: not known yet."""
