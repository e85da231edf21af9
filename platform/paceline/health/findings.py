"""The rules: from samples and Xids of one device to findings. Pure; what a rule must remember is in `Memory`.

| rule              | fires when                                             | advice                |
|-------------------|--------------------------------------------------------|-----------------------|
| xid               | the driver raised an Xid                               | by catalog.py's tables |
| ecc.uncorrected   | the count of uncorrectable errors rose                 | SUSPECT               |
| remap.failed      | a row could not be remapped: the device is to be replaced | QUARANTINE         |
| remap.pending     | a row waits for a reset to be remapped                 | SUSPECT               |
| throttle.hardware | heat or the power brake slowed the device for seconds  | SUSPECT               |

A reading that the device does not support (None) fires nothing. The software power cap is normal under
load: never a finding.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from paceline.health.catalog import Catalog
from paceline.model.hardware import Sample, XidEvent
from paceline.model.health import Advice, Finding
from paceline.model.ids import DeviceUuid

SECOND_NS: Final = 1_000_000_000
REPEAT_AFTER_NS: Final = 60 * SECOND_NS
"""A condition that lasts is said again after this long: it must reach a device that was released meanwhile."""
XID_QUIET_NS: Final = 5 * SECOND_NS
"""Shortest time between two findings on one code of one device. NVML and the kernel log tell of one Xid at once."""
XID_QUIET_MOST_NS: Final = 900 * SECOND_NS
"""The quiet time doubles up to this while a code keeps coming: one GPU wrote 99 % of a fleet's Xid 95 lines (Delta)."""
THROTTLE_WINDOW_NS: Final = 60 * SECOND_NS
THROTTLE_SAMPLES: Final = 10
"""Throttled samples in the window that are worth a suspicion: at one sample a second, a sixth of the time."""
assert XID_QUIET_NS < REPEAT_AFTER_NS <= XID_QUIET_MOST_NS
assert THROTTLE_WINDOW_NS <= REPEAT_AFTER_NS, "one hot minute must not count as two"

HARDWARE_THROTTLE: Final[Mapping[int, str]] = {
    0x08: "hardware slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of NVML's clock event reasons that the board sets against the driver's will. nvml.h, nvmlClocksEventReason*."""

VERSIONS: Final[Mapping[str, int]] = {
    "xid": 1,
    "ecc.uncorrected": 1,
    "remap.failed": 1,
    "remap.pending": 1,
    "throttle.hardware": 1,
}
"""Version of each rule; it grows when the rule would judge differently, so that old findings stay explainable."""

Evidence = dict[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class Spoken:
    """When a rule last spoke, for how long it is quiet after that, and what it has kept to itself since."""

    at_ns: int
    quiet_ns: int
    suppressed: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """What the rules remember of one device. Start with `Memory()`; it is bounded by the number of rules and codes."""

    last: Sample | None = None
    throttled_ns: tuple[int, ...] = ()
    spoken: Mapping[str, Spoken] = field(default_factory=dict)


def judge_xid(memory: Memory, event: XidEvent, catalog: Catalog) -> tuple[Memory, Finding | None]:
    """A finding, or None where the same code was told of a moment ago (by the other source, or in a storm)."""
    key = f"xid:{event.code}"
    before = memory.spoken.get(key)
    since_ns = event.at_ns - before.at_ns if before else 0
    if before and since_ns < before.quiet_ns:
        return _spoke(memory, key, replace(before, suppressed=before.suppressed + 1)), None
    storm = before is not None and since_ns < 2 * before.quiet_ns
    quiet_ns = min(2 * before.quiet_ns, XID_QUIET_MOST_NS) if before and storm else XID_QUIET_NS
    after = _spoke(memory, key, Spoken(event.at_ns, quiet_ns))
    return after, _xid_finding(event, catalog, before.suppressed if before else 0)


def judge_sample(memory: Memory, sample: Sample) -> tuple[Memory, tuple[Finding, ...]]:
    """Findings of all rules on one reading. The first reading of a device is a baseline for rules on changes."""
    since_ns = sample.at_ns - THROTTLE_WINDOW_NS
    hot = (*memory.throttled_ns, sample.at_ns) if _throttles(sample) else memory.throttled_ns
    memory = replace(memory, throttled_ns=tuple(at_ns for at_ns in hot if at_ns > since_ns))
    found = []
    for key, finding in _fired(memory, sample):
        before = memory.spoken.get(key)
        if before is None or sample.at_ns - before.at_ns >= before.quiet_ns:
            memory = _spoke(memory, key, Spoken(sample.at_ns, 0 if key == "ecc.uncorrected" else REPEAT_AFTER_NS))
            found.append(finding)
    return replace(memory, last=sample), tuple(found)


def _fired(memory: Memory, sample: Sample) -> Iterator[tuple[str, Finding]]:
    last = memory.last
    rose = _rise(last.ecc_uncorrected if last else None, sample.ecc_uncorrected)
    if rose:
        summary = f"{rose} more uncorrectable memory errors"
        evidence: Evidence = {"before": last.ecc_uncorrected if last else None, "now": sample.ecc_uncorrected}
        yield _of("ecc.uncorrected", Advice.SUSPECT, sample, summary, evidence)
    if sample.remap_failed:
        summary = "row remapping failed: the device needs replacement"
        yield _of("remap.failed", Advice.QUARANTINE, sample, summary, {"remap_failed": True})
    if sample.remap_pending and not (last and last.remap_pending):
        summary = "a memory row waits for a reset to be remapped"
        yield _of("remap.pending", Advice.SUSPECT, sample, summary, {"remap_pending": True})
    if len(memory.throttled_ns) >= THROTTLE_SAMPLES and _throttles(sample):
        summary = f"{_throttles(sample)} in {len(memory.throttled_ns)} samples of the last minute"
        evidence = {
            "throttle_reasons": sample.throttle_reasons,
            "samples": len(memory.throttled_ns),
            "temperature_c": sample.temperature_c,
            "power_w": sample.power_w,
        }
        yield _of("throttle.hardware", Advice.SUSPECT, sample, summary, evidence)


def _xid_finding(event: XidEvent, catalog: Catalog, repeats: int) -> Finding:
    meaning = catalog.meanings.get(event.code)
    evidence: Evidence = {"xid": event.code, "source": event.source, "repeats_before": repeats}
    if meaning is None:
        advice, summary = Advice.OBSERVE, f"Xid {event.code} is in no catalog: recorded only, look it up"
        evidence |= {"known": False}
    else:
        advice, why = catalog.advise(meaning)
        summary = f"Xid {event.code}: {meaning.name}"
        evidence |= {"severity": meaning.severity, "class": meaning.fault_class, "action": meaning.action, "why": why}
    return _finding("xid", advice, event.uuid, event.at_ns, summary, evidence)


def _of(rule: str, advice: Advice, sample: Sample, summary: str, evidence: Evidence) -> tuple[str, Finding]:
    return rule, _finding(rule, advice, sample.uuid, sample.at_ns, summary, evidence)


def _finding(rule: str, advice: Advice, uuid: DeviceUuid, at_ns: int, summary: str, evidence: Evidence) -> Finding:
    return Finding(rule, VERSIONS[rule], uuid, advice, at_ns, summary, evidence)


def _spoke(memory: Memory, key: str, spoken: Spoken) -> Memory:
    return replace(memory, spoken={**memory.spoken, key: spoken})


def _rise(before: int | None, now: int | None) -> int:
    """How much a counter rose; 0 after a reset of the driver, which sets it back."""
    return max(0, now - before) if before is not None and now is not None else 0


def _throttles(sample: Sample) -> str:
    bits = sample.throttle_reasons or 0
    return ", ".join(words for bit, words in HARDWARE_THROTTLE.items() if bits & bit)
