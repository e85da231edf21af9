"""How fast a device is among its equals. Pure.

A score is time relative to the median of the cohort: 1.02 is 2 % slower than the median device of its SKU. Scores group
devices; they exclude one only if it is an outlier by far. Healthy devices of one SKU differ by 8 % on average (SC'22,
arXiv 2208.11035), so a bar of a few per cent would empty a sound fleet.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final

from paceline.model.health import Advice, Finding
from paceline.model.ids import DeviceUuid
from paceline.model.measurement import DeviceScore, Measurement

SLOW_FRACTION: Final = 0.15
"""A device this far over its cohort's median is slow: above the natural spread of healthy ones, below DCGM's 25 %."""
SLOW_Z: Final = 3.5
"""…and it must stand out: robust z of Iglewicz and Hoaglin. In a wide cohort no single device is to blame."""
MAD_FLOOR: Final = 0.003
"""Least deviation assumed in a cohort, 0.3 %: repeat noise of a GEMM. Without it a tight cohort condemns anyone."""
MAD_TO_SIGMA: Final = 1.4826
"""A normal distribution's sigma over its median absolute deviation."""
COHORT_MIN: Final = 8
"""Fewer devices give no median worth a verdict."""
assert SLOW_FRACTION > SLOW_Z * MAD_TO_SIGMA * MAD_FLOOR, "in a tight cohort the fraction decides, not the noise floor"

SLOW_RULE: Final = "probe.slow"
SLOW_RULE_VERSION: Final = 2


def score(
    measurements: Sequence[Measurement], skus: Mapping[DeviceUuid, str], last: int = 1
) -> tuple[DeviceScore, ...]:
    """Scores by (benchmark, uuid), from the `last` good measurements of each device.

    A device without a good measurement or without a SKU has no score. Only the newest version of a benchmark counts:
    times of different versions are no equals. Pass the measurements of the whole cohort: it is the yardstick.
    """
    times = _repetitions(measurements, skus, last)
    cohorts: dict[tuple[str, str], dict[DeviceUuid, float]] = defaultdict(dict)
    for (benchmark, uuid), repetitions in times.items():
        cohorts[benchmark, skus[uuid]][uuid] = median(repetitions)
    scores = []
    for (benchmark, uuid), repetitions in sorted(times.items()):
        cohort = cohorts[benchmark, skus[uuid]]
        own = cohort[uuid]
        scores.append(
            DeviceScore(
                uuid=uuid,
                benchmark=benchmark,
                score=own / median(cohort.values()),
                noise=_mad(repetitions) / own,
                samples=len(repetitions),
                cohort=skus[uuid],
                cohort_size=len(cohort),
            )
        )
    return tuple(scores)


def slow_findings(scores: Sequence[DeviceScore], now_ns: int) -> tuple[Finding, ...]:
    """A SUSPECT finding for each device that is far slower than its cohort, in order of (benchmark, uuid).

    SUSPECT, because one probe mixes the device with whatever else its host did: the state machine asks for more probes, and
    condemns the device when they agree. `scores` must hold whole cohorts; those of fewer than COHORT_MIN are left alone.
    """
    cohorts: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in scores:
        cohorts[row.benchmark, row.cohort].append(row.score)
    found = []
    for row in sorted(scores, key=lambda row: (row.benchmark, row.uuid)):
        peers = cohorts[row.benchmark, row.cohort]
        if len(peers) < COHORT_MIN:
            continue
        over = row.score - median(peers)
        z = over / (MAD_TO_SIGMA * max(_mad(peers), MAD_FLOOR))
        if over >= SLOW_FRACTION and z >= SLOW_Z:
            found.append(_slow(row, over, z, now_ns))
    return tuple(found)


def _slow(row: DeviceScore, over: float, z: float, now_ns: int) -> Finding:
    return Finding(
        rule_id=SLOW_RULE,
        rule_version=SLOW_RULE_VERSION,
        uuid=row.uuid,
        advice=Advice.SUSPECT,
        at_ns=now_ns,
        summary=f"{over:.0%} slower than the median of {row.cohort_size} × {row.cohort} in {row.benchmark}",
        evidence={
            "benchmark": row.benchmark,
            "score": round(row.score, 4),
            "robust_z": round(z, 1),
            "noise": round(row.noise, 5),
            "cohort": row.cohort,
            "cohort_size": row.cohort_size,
        },
    )


def _repetitions(
    measurements: Sequence[Measurement], skus: Mapping[DeviceUuid, str], last: int
) -> dict[tuple[str, DeviceUuid], list[float]]:
    good = [m for m in measurements if m.ok and m.repetitions_s and min(m.repetitions_s) > 0 and m.uuid in skus]
    newest: dict[str, int] = {}
    for m in good:
        newest[m.benchmark] = max(m.version, newest.get(m.benchmark, m.version))
    by_device: dict[tuple[str, DeviceUuid], list[Measurement]] = defaultdict(list)
    for m in good:
        if m.version == newest[m.benchmark]:
            by_device[m.benchmark, m.uuid].append(m)
    return {
        key: [seconds for m in sorted(rows, key=_by_time)[-last:] for seconds in m.repetitions_s]
        for key, rows in by_device.items()
    }


def _by_time(m: Measurement) -> tuple[int, tuple[float, ...]]:
    return m.at_ns, m.repetitions_s


def _mad(values: Iterable[float]) -> float:
    values = list(values)
    middle = median(values)
    return median(abs(value - middle) for value in values)
