"""How fast a device is among its equals. Pure.

A score is time relative to the median of the cohort: 1.02 is 2 % slower than the median device of its SKU. Scores group
devices; they exclude one only if it is an outlier by far. Healthy devices of one SKU differ by 8 % on average (SC'22,
arXiv 2208.11035), so a bar of a few per cent would empty a sound fleet. A device that has *become* slower is for drift.py.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

from paceline.model.health import Advice, Finding
from paceline.model.ids import DeviceUuid
from paceline.model.measurement import DeviceScore, Measurement, Workload
from paceline.placement.spread import MAD_TO_SIGMA, mad

SLOW_FRACTION: Final = 0.15
"""A device this far over its cohort's median is slow: above the natural spread of healthy ones, below DCGM's 25 %."""
SLOW_Z: Final = 3.5
"""…and it must stand out: robust z of Iglewicz and Hoaglin. In a wide cohort no single device is to blame."""
MAD_FLOOR: Final = 0.003
"""Least deviation assumed in a cohort, 0.3 %: repeat noise of a GEMM. Without it a tight cohort condemns anyone."""
COHORT_MIN: Final = 8
"""Fewer devices give no median worth a verdict."""
assert SLOW_FRACTION > SLOW_Z * MAD_TO_SIGMA * MAD_FLOOR, "in a tight cohort the fraction decides, not the noise floor"

SLOW_RULE: Final = "probe.slow"
SLOW_RULE_VERSION: Final = 3
CORRUPT: Final = "corrupt:"
"""An error of a probe that begins so: the device has computed something that is not true."""
CORRUPT_RULE: Final = "probe.corrupt"
CORRUPT_RULE_VERSION: Final = 1
REPEATABLE_MIN: Final = 3
"""Scores from which a deviation between probes can be told."""
ISO_5725: Final = 2.8
"""Repeatability limit over sigma: 1.96 × √2 (ISO 5725-6)."""


def score(
    measurements: Sequence[Measurement],
    skus: Mapping[DeviceUuid, str],
    last: int = 1,
    cohorts: Mapping[DeviceUuid, str] | None = None,
) -> tuple[DeviceScore, ...]:
    """Scores by (benchmark, uuid), from the `last` good measurements of each device.

    A device without a good measurement or without a SKU has no score. Only the newest version of a benchmark counts:
    times of different versions are no equals. Pass the measurements of all devices of a SKU: their median is the yardstick,
    so that scores within a SKU can be compared. `cohorts` names the narrower groups in which devices are judged (SKU and driver).
    """
    cohorts = skus if cohorts is None else cohorts
    newest = _repetitions(measurements, skus, last)
    medians: dict[tuple[str, str], list[float]] = defaultdict(list)
    sizes = Counter((benchmark, cohorts[uuid]) for benchmark, uuid in newest)
    for (benchmark, uuid), (_, repetitions) in newest.items():
        medians[benchmark, skus[uuid]].append(median(repetitions))
    return tuple(
        DeviceScore(
            uuid=uuid,
            benchmark=benchmark,
            score=median(repetitions) / median(medians[benchmark, skus[uuid]]),
            noise=mad(repetitions) / median(repetitions),
            samples=len(repetitions),
            cohort=cohorts[uuid],
            cohort_size=sizes[benchmark, cohorts[uuid]],
            workload=workload,
        )
        for (benchmark, uuid), (workload, repetitions) in sorted(newest.items())
    )


def cohort_of(sku: str, driver_version: str) -> str:
    """Devices that are judged beside each other: SKU (which has power cap and MIG profile in it) and major version of the driver."""
    major = driver_version.split(".")[0]
    return f"{sku}/driver {major}" if major else sku


def repeatability(scores: Sequence[float]) -> tuple[float | None, float | None]:
    """(MAD, repeatability limit) of the scores of one device, both relative; None if they are too few."""
    if len(scores) < REPEATABLE_MIN:
        return None, None
    spread = mad(scores) / median(scores)
    return spread, ISO_5725 * MAD_TO_SIGMA * spread


def slow_findings(scores: Sequence[DeviceScore], now_ns: int) -> tuple[Finding, ...]:
    """A SUSPECT finding for each device that is far slower than its cohort in some benchmark, in order of uuid.

    SUSPECT, because one probe mixes the device with whatever else its host did: the state machine asks for more probes, and
    condemns the device when they agree. `scores` must hold whole cohorts; those of fewer than COHORT_MIN are left alone, and
    so are the times of training steps. One finding a device, by its worst benchmark: a probe is one piece of evidence.
    """
    cohorts: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in scores:
        cohorts[row.benchmark, row.cohort].append(row.score)
    yardsticks = {key: (median(peers), mad(peers)) for key, peers in cohorts.items() if len(peers) >= COHORT_MIN}
    slow: dict[DeviceUuid, list[tuple[float, float, DeviceScore]]] = defaultdict(list)
    for row in sorted(scores, key=lambda row: (row.uuid, row.benchmark)):
        if row.workload == Workload.STEP or (row.benchmark, row.cohort) not in yardsticks:
            continue
        middle, spread = yardsticks[row.benchmark, row.cohort]
        over = row.score / middle - 1
        z = over / (MAD_TO_SIGMA * max(spread / middle, MAD_FLOOR))
        if over >= SLOW_FRACTION and z >= SLOW_Z:
            slow[row.uuid].append((over, z, row))
    return tuple(_slow(rows, now_ns) for rows in slow.values())


def corrupt_findings(measurements: Iterable[Measurement], now_ns: int) -> tuple[Finding, ...]:
    """A QUARANTINE finding for each device that has computed something wrong, in order of uuid: there is no chance in integers."""
    errors = {m.uuid: m for m in sorted(measurements, key=lambda m: m.at_ns) if m.error.startswith(CORRUPT)}
    return tuple(
        Finding(
            rule_id=CORRUPT_RULE,
            rule_version=CORRUPT_RULE_VERSION,
            uuid=uuid,
            advice=Advice.QUARANTINE,
            at_ns=now_ns,
            summary=f"silent data corruption: {m.error.removeprefix(CORRUPT).strip()}",
            evidence={"benchmark": m.benchmark, "version": m.version, "measured_ns": m.at_ns},
        )
        for uuid, m in sorted(errors.items())
    )


def _slow(rows: Sequence[tuple[float, float, DeviceScore]], now_ns: int) -> Finding:
    over, z, row = max(rows, key=lambda found: found[0])
    return Finding(
        rule_id=SLOW_RULE,
        rule_version=SLOW_RULE_VERSION,
        uuid=row.uuid,
        advice=Advice.SUSPECT,
        at_ns=now_ns,
        summary=f"{over:.0%} slower than the median of {row.cohort_size} × {row.cohort} in {row.benchmark}",
        evidence={
            "benchmark": row.benchmark,
            "slow_in": ", ".join(found.benchmark for _, _, found in rows),
            "score": round(row.score, 4),
            "robust_z": round(z, 1),
            "noise": round(row.noise, 5),
            "cohort": row.cohort,
            "cohort_size": row.cohort_size,
        },
    )


def _repetitions(
    measurements: Sequence[Measurement], skus: Mapping[DeviceUuid, str], last: int
) -> dict[tuple[str, DeviceUuid], tuple[str, list[float]]]:
    """(workload, repetitions) by (benchmark, uuid)."""
    good = [m for m in measurements if m.ok and m.repetitions_s and min(m.repetitions_s) > 0 and m.uuid in skus]
    newest: dict[str, int] = {}
    for m in good:
        newest[m.benchmark] = max(m.version, newest.get(m.benchmark, m.version))
    by_device: dict[tuple[str, DeviceUuid], list[Measurement]] = defaultdict(list)
    for m in good:
        if m.version == newest[m.benchmark]:
            by_device[m.benchmark, m.uuid].append(m)
    return {
        key: (rows[0].workload, [seconds for m in sorted(rows, key=_by_time)[-last:] for seconds in m.repetitions_s])
        for key, rows in by_device.items()
    }


def _by_time(m: Measurement) -> tuple[int, tuple[float, ...]]:
    return m.at_ns, m.repetitions_s
