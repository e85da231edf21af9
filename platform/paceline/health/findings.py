"""The rules on readings of one device: samples in, findings out. Pure; what a rule must remember is in `Memory`.

| rule              | fires when                                                                  | advice                |
|-------------------|-----------------------------------------------------------------------------|-----------------------|
| recovery.action   | the driver itself asks for a recovery action                                | by recovery_actions.csv |
| ecc.uncorrected   | the count of uncorrectable errors rose                                      | SUSPECT               |
| remap.failed      | a row could not be remapped: the device is to be replaced                   | QUARANTINE            |
| remap.pending     | a row waits for a reset to be remapped                                      | SUSPECT               |
| sram.threshold    | more uncorrectable SRAM errors than NVIDIA tolerates: to be replaced        | QUARANTINE            |
| throttle.hardware | heat or the power brake slowed the device for seconds of a minute           | SUSPECT               |
| pcie.degraded     | the PCIe link has fewer lanes than it could, or is slower while it is used  | SUSPECT               |

A reading that the device does not support (None) fires nothing. The software power cap is normal under load, and a slow
PCIe link is normal on an idle device: never a finding. Rules on Xids: xid_rules.py; on ports: links.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from paceline.health.catalog import load
from paceline.model.hardware import Sample
from paceline.model.health import Advice, Finding

SECOND_NS: Final = 1_000_000_000
REPEAT_AFTER_NS: Final = 60 * SECOND_NS
"""A condition that lasts is said again after this long: it must reach a device that was released meanwhile."""
THROTTLE_WINDOW_NS: Final = 60 * SECOND_NS
THROTTLE_SAMPLES: Final = 10
"""Throttled samples in the window that are worth a suspicion: at one sample a second, a sixth of the time."""
THROTTLED_NS: Final = 10 * SECOND_NS
"""The same sixth by the driver's own counter, which also sees what lies between two samples."""
PCIE_LASTS_NS: Final = 30 * SECOND_NS
"""A link is trained anew when a device wakes up, and is read each ten seconds only: one odd reading is nothing."""
BUSY_PCT: Final = 50
"""From here on a device is used, and its link is not put to sleep."""
assert THROTTLE_WINDOW_NS <= REPEAT_AFTER_NS, "one hot minute must not count as two"
assert THROTTLED_NS < THROTTLE_WINDOW_NS

HARDWARE_THROTTLE: Final[Mapping[int, str]] = {
    0x08: "hardware slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of NVML's clock event reasons that the board sets against the driver's will. nvml.h, nvmlClocksEventReason*."""

VERSIONS: Final[Mapping[str, int]] = {
    "recovery.action": 1,
    "ecc.uncorrected": 1,
    "remap.failed": 1,
    "remap.pending": 1,
    "sram.threshold": 1,
    "throttle.hardware": 2,
    "pcie.degraded": 1,
}
"""Version of each rule; it grows when the rule would judge differently, so that old findings stay explainable."""

Evidence = dict[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class Memory:
    """What the rules remember of one device. Start with `Memory()`; it is bounded by the window and the number of rules."""

    last: Sample | None = None
    throttled_ns: tuple[int, ...] = ()
    """When the throttled samples of the window were taken."""
    slowed: tuple[tuple[int, int], ...] = ()
    """(when, what) the driver's counter of slowdown showed whenever it had risen: the newest value before the window first."""
    narrow_since_ns: int | None = None
    """Since when the PCIe link has been worse than it could be, in each sample."""
    spoken: Mapping[str, int] = field(default_factory=dict)
    """When each rule spoke last."""


def judge_sample(memory: Memory, sample: Sample) -> tuple[Memory, tuple[Finding, ...]]:
    """Findings of all rules on one reading. The first reading of a device is a baseline for rules on changes."""
    since_ns = sample.at_ns - THROTTLE_WINDOW_NS
    hot = (*memory.throttled_ns, sample.at_ns) if _throttles(sample) else memory.throttled_ns
    narrow_since_ns = memory.narrow_since_ns if memory.narrow_since_ns is not None else sample.at_ns
    memory = replace(
        memory,
        throttled_ns=tuple(at_ns for at_ns in hot if since_ns < at_ns <= sample.at_ns),
        slowed=_slowed(memory.slowed, sample, since_ns),
        narrow_since_ns=min(narrow_since_ns, sample.at_ns) if _narrow(sample) else None,
    )
    found = []
    for finding in _fired(memory, sample):
        rule = finding.rule_id
        before_ns = memory.spoken.get(rule)
        quiet_ns = 0 if rule == "ecc.uncorrected" else REPEAT_AFTER_NS
        if before_ns is None or not 0 <= sample.at_ns - before_ns < quiet_ns:
            memory = replace(memory, spoken={**memory.spoken, rule: sample.at_ns})
            found.append(finding)
    return replace(memory, last=sample), tuple(found)


def _fired(memory: Memory, sample: Sample) -> Iterator[Finding]:
    last = memory.last
    if sample.recovery_action:
        yield _recovery(sample, sample.recovery_action)
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
    if sample.sram_threshold:
        summary = "more uncorrectable SRAM errors than NVIDIA tolerates: the device needs replacement"
        yield _of("sram.threshold", Advice.QUARANTINE, sample, summary, {"sram_threshold": True})
    yield from _throttled(memory, sample)
    if memory.narrow_since_ns is not None and sample.at_ns - memory.narrow_since_ns >= PCIE_LASTS_NS:
        yield _pcie(sample)


def _recovery(sample: Sample, value: int) -> Finding:
    row = load().recoveries.get(value)
    evidence: Evidence = {"recovery_action": value, "name": row.name if row else str(value), "authority": "driver"}
    if row is None:
        summary = f"the driver asks for recovery action {value}, which is in no table: recorded only"
        return _of("recovery.action", Advice.OBSERVE, sample, summary, evidence)
    summary = f"the driver asks for recovery action {row.name}"
    return _of("recovery.action", row.advice, sample, summary, evidence | {"action": row.action, "why": row.why})


def _throttled(memory: Memory, sample: Sample) -> Iterator[Finding]:
    counted_ns = memory.slowed[-1][1] - memory.slowed[0][1] if memory.slowed else 0
    often = len(memory.throttled_ns) >= THROTTLE_SAMPLES and bool(_throttles(sample))
    if not often and counted_ns < THROTTLED_NS:
        return
    what = _throttles(sample) or "hardware slowdown"
    seen = f"in {len(memory.throttled_ns)} samples" if often else f"for {counted_ns / SECOND_NS:.1f} s"
    evidence: Evidence = {
        "throttle_reasons": sample.throttle_reasons,
        "samples": len(memory.throttled_ns),
        "throttled_s": round(counted_ns / SECOND_NS, 3) if memory.slowed else None,
        "temperature_c": sample.temperature_c,
        "power_w": sample.power_w,
    }
    yield _of("throttle.hardware", Advice.SUSPECT, sample, f"{what} {seen} of the last minute", evidence)


def _slowed(slowed: tuple[tuple[int, int], ...], sample: Sample, since_ns: int) -> tuple[tuple[int, int], ...]:
    """`slowed` with this sample, and no more of the time before the window than the value that it began with."""
    if sample.throttle_ns is None:
        return slowed
    if slowed and (sample.throttle_ns < slowed[-1][1] or sample.at_ns < slowed[-1][0]):
        slowed = ()  # the driver was loaded anew, or the clock was set back
    same = bool(slowed) and sample.throttle_ns == slowed[-1][1]
    kept = slowed if same else (*slowed, (sample.at_ns, sample.throttle_ns))
    while len(kept) > 1 and kept[1][0] <= since_ns:
        kept = kept[1:]
    return kept


def _pcie(sample: Sample) -> Finding:
    now, most = (sample.pcie_width, sample.pcie_gen), (sample.pcie_width_max, sample.pcie_gen_max)
    evidence: Evidence = {"width": now[0], "width_max": most[0], "gen": now[1], "gen_max": most[1]}
    evidence["utilisation_pct"] = sample.utilisation_pct
    summary = f"the PCIe link runs at {_words(*now)} of {_words(*most)}"
    return _of("pcie.degraded", Advice.SUSPECT, sample, summary, evidence)


def _words(width: int | None, gen: int | None) -> str:
    return f"x{width} generation {gen}" if gen is not None else f"x{width}"


def _narrow(sample: Sample) -> bool:
    """Fewer lanes than device and slot can do; or a lower generation although the device is at work."""
    fewer = _less(sample.pcie_width, sample.pcie_width_max)
    return fewer or (_less(sample.pcie_gen, sample.pcie_gen_max) and (sample.utilisation_pct or 0) >= BUSY_PCT)


def _less(now: int | None, most: int | None) -> bool:
    return now is not None and most is not None and now < most


def _of(rule: str, advice: Advice, sample: Sample, summary: str, evidence: Evidence) -> Finding:
    return Finding(rule, VERSIONS[rule], sample.uuid, advice, sample.at_ns, summary, evidence)


def _rise(before: int | None, now: int | None) -> int:
    """How much a counter rose; 0 after a reset of the driver, which sets it back."""
    return max(0, now - before) if before is not None and now is not None else 0


def _throttles(sample: Sample) -> str:
    bits = sample.throttle_reasons or 0
    return ", ".join(words for bit, words in HARDWARE_THROTTLE.items() if bits & bit)
