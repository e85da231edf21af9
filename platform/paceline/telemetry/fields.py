"""What is read of a device, how often, for whom, and why. Pure.

A reading is here only because a rule, a score or a surface asks for it; the rest of NVML is not read. Left out on
purpose: PCIe throughput (20 ms a call and direction), NVLink and profiling counters (no rule asks for them; profiling
raises the idle power of an A100, dcgm-exporter #464), retired pages (Volta and older).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SLOW_PERIOD_S: Final = 10.0
"""Counters that only ever rise, and links: a fault in them is to be found within COUNTER_WITHIN_S, without an event."""
COUNTER_WITHIN_S: Final = 15.0
assert SLOW_PERIOD_S + 3.0 <= COUNTER_WITHIN_S, "the reading, the report and the verdict take their time, too"


class Due(StrEnum):
    """How often a reading is taken. All are taken at once after an event of the driver."""

    EACH = "each reading"
    SLOW = "ten seconds"
    START = "start"


@dataclass(frozen=True, slots=True)
class Field:
    """One reading. `ids` are NVML's field ids, read in one call for all such readings; otherwise `call` is made.

    `name` is a field of Sample, or of DeviceFacts for what describes a device. Several ids are added up.
    """

    name: str
    due: Due
    asked_by: str
    why: str
    call: str = ""
    ids: tuple[int, ...] = ()


FIELDS: Final = (
    Field(
        "sm_clock_mhz",
        Due.EACH,
        "score, page",
        "a measurement is explained by the clock beside it",
        "nvmlDeviceGetClockInfo",
    ),
    Field(
        "temperature_c",
        Due.EACH,
        "throttle.hardware, page",
        "heat rises by degrees a second",
        "nvmlDeviceGetTemperature",
    ),
    Field("power_w", Due.EACH, "throttle.hardware, page", "load changes each step", "nvmlDeviceGetPowerUsage"),
    Field("memory_used_bytes", Due.EACH, "page", "a stranger shows here first", "nvmlDeviceGetMemoryInfo"),
    Field(
        "utilisation_pct",
        Due.EACH,
        "pcie.degraded, page",
        "NVML's own window is ≤ 1 s",
        "nvmlDeviceGetUtilizationRates",
    ),
    Field(
        "throttle_reasons",
        Due.EACH,
        "throttle.hardware",
        "bits of this moment: what lies between two readings is lost where there is no counter",
        "nvmlDeviceGetCurrentClocksEventReasons",
    ),
    Field(
        "process_count",
        Due.EACH,
        "page, strangers",
        "a stranger on a quarantined device is told within two seconds",
        "nvmlDeviceGetComputeRunningProcesses",
    ),
    Field("ecc_corrected", Due.SLOW, "page", "counts since the driver was loaded: ECC_SBE_VOL_TOTAL", ids=(3,)),
    Field("ecc_uncorrected", Due.SLOW, "ecc.uncorrected", "the same: ECC_DBE_VOL_TOTAL, with an event", ids=(4,)),
    Field("remap_pending", Due.SLOW, "remap.pending", "REMAPPED_PENDING; lasts until a reset", ids=(144,)),
    Field("remap_failed", Due.SLOW, "remap.failed", "REMAPPED_FAILURE; lasts for ever", ids=(145,)),
    Field("recovery_action", Due.SLOW, "recovery.action", "GET_GPU_RECOVERY_ACTION, with an event", ids=(230,)),
    Field(
        "throttle_ns",
        Due.SLOW,
        "throttle.hardware",
        "HW_THERM_SLOWDOWN and HW_POWER_BRAKE_SLOWDOWN in ns: nothing is lost between two readings",
        ids=(270, 271),
    ),
    Field(
        "sram_threshold",
        Due.SLOW,
        "sram.threshold",
        "lasts until the part is replaced",
        "nvmlDeviceGetSramEccErrorStatus",
    ),
    Field(
        "pcie_gen",
        Due.SLOW,
        "pcie.degraded",
        "a link that was trained anew stays as it is",
        "nvmlDeviceGetCurrPcieLinkGeneration",
    ),
    Field("pcie_width", Due.SLOW, "pcie.degraded", "the same", "nvmlDeviceGetCurrPcieLinkWidth"),
    Field(
        "pcie_gen_max",
        Due.START,
        "pcie.degraded",
        "a property of device and slot",
        "nvmlDeviceGetMaxPcieLinkGeneration",
    ),
    Field("pcie_width_max", Due.START, "pcie.degraded", "the same", "nvmlDeviceGetMaxPcieLinkWidth"),
    Field(
        "power_cap_w",
        Due.SLOW,
        "SKU, score",
        "an operator may change it at any time",
        "nvmlDeviceGetEnforcedPowerLimit",
    ),
)
"""Ids and calls: nvml.h (CUDA 13), NVML_FI_DEV_*. nvmlDeviceGetFieldValues answers each id by itself, also "not supported"."""

BATCH: Final = tuple(number for field in FIELDS for number in field.ids)


def named(due: Due) -> tuple[Field, ...]:
    """The readings that are calls of their own and due so often."""
    return tuple(field for field in FIELDS if field.due is due and field.call)
