"""Whether a device has become slower than it was. Pure.

Two questions are kept apart. A device that always was 5 % slower than its peers is natural spread: it is grouped with its
equals (score.py), and nobody is told. One that *becomes* 5 % slower is a degradation, and is found long before it is an outlier.
So a device is measured against its own first probes, and what its peers had in common at that time is taken away: a warm
afternoon slows all of them, and finds nobody. The limits rest on the real runs behind docs/health/slow-devices.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from paceline.model.health import Advice, Finding
from paceline.model.ids import DeviceUuid
from paceline.placement.spread import MAD_TO_SIGMA, mad

BASELINE_MIN: Final = 4
"""Fewer probes are no past to compare with."""
BASELINE_RUNS: Final = 8
"""Then the baseline stands still: one that moved along would forget a device that fails slowly."""
DRIFT_FRACTION: Final = 0.03
"""Least drift that is worth a word. Of 5907 SGEMM runs behind a GPU's first eight, 1 % lie more than 0.8 % above these, and all beyond
3 % are of one GPU that is not steady. Heat moves a whole fleet by 1 to 2 % (Llama 3), and is taken away besides."""
DRIFT_Z: Final = 3.5
SIGMA_FLOOR: Final = 0.003
OF_THREE: Final = 0.67
"""Two of three above a bar is their median above it; the median of three normals has 0.67 of their sigma."""
WINDOW, WANTED = 3, 2
SEVERE: Final = 0.15
"""As far over its own past as an outlier is over its peers (score.SLOW_FRACTION): no use to wait for more."""
PEERS_MIN: Final = 3
"""The median of three is not moved by one that is sick as well."""
PEERS_WITHIN_NS: Final = 2 * 3600 * 1_000_000_000
"""A peer's probe tells about the conditions of that time. A sweep of a cohort takes less (probing.py)."""
assert 1 <= BASELINE_MIN <= BASELINE_RUNS
assert SIGMA_FLOOR * DRIFT_Z * OF_THREE < DRIFT_FRACTION < SEVERE, "in a quiet device the fraction decides"

DRIFT_RULE: Final = "probe.drift"
DRIFT_RULE_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Baseline:
    """The past of a device in one benchmark: `sigma` is relative, from probe to probe."""

    seconds: float
    sigma: float
    runs: int

    @property
    def bar(self) -> float:
        """Drift from here on is more than noise."""
        return max(DRIFT_FRACTION, DRIFT_Z * OF_THREE * max(self.sigma, SIGMA_FLOOR))


@dataclass(frozen=True, slots=True)
class Run:
    """One probe: when, and the median of its repetitions."""

    at_ns: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Track:
    """One device in one benchmark: its baseline and its newest runs, at least WINDOW of them where there are as many. In no order."""

    baseline: Baseline | None
    runs: tuple[Run, ...]

    @property
    def newest(self) -> tuple[Run, ...]:
        """The last WINDOW runs, oldest first."""
        return tuple(sorted(self.runs, key=lambda run: (run.at_ns, run.seconds))[-WINDOW:])


@dataclass(frozen=True, slots=True)
class Drift:
    """`value` of the newest run; None while there is no baseline or no peer. `lasting`: in WANTED of the last WINDOW runs."""

    value: float | None
    over: bool = False
    lasting: bool = False


def baseline(seconds: Sequence[float]) -> Baseline | None:
    """From a device's probes, the oldest first. None if they are too few."""
    first = list(seconds[:BASELINE_RUNS])
    if len(first) < BASELINE_MIN:
        return None
    middle = median(first)
    return Baseline(middle, MAD_TO_SIGMA * mad(first) / middle, len(first))


def common_mode(peers: Iterable[Track], at_ns: int) -> float | None:
    """How much slower than their own past `peers` were about then (1.0: not at all); None if too few were measured."""
    ratios = []
    for peer in peers:
        near = [run for run in peer.runs if abs(run.at_ns - at_ns) <= PEERS_WITHIN_NS]
        if peer.baseline is not None and near:
            run = min(near, key=lambda run: (abs(run.at_ns - at_ns), run.at_ns, run.seconds))
            ratios.append(run.seconds / peer.baseline.seconds)
    return median(ratios) if len(ratios) >= PEERS_MIN else None


def judge(uuid: DeviceUuid, cohort: Mapping[DeviceUuid, Track]) -> Drift:
    """Drift of `uuid`, beside the others of `cohort`. O(devices). The order of devices and of runs is not an input."""
    mine = cohort[uuid]
    if mine.baseline is None:
        return Drift(None)
    peers = [track for other, track in cohort.items() if other != uuid]
    values = [_drift(run, mine.baseline, peers) for run in mine.newest]
    over = [value is not None and value >= mine.baseline.bar for value in values]
    return Drift(
        values[-1] if values else None, bool(over) and over[-1], bool(over) and over[-1] and sum(over) >= WANTED
    )


def _drift(run: Run, own: Baseline, peers: Sequence[Track]) -> float | None:
    common = common_mode(peers, run.at_ns)
    return None if common is None else run.seconds / (own.seconds * common) - 1


def finding(uuid: DeviceUuid, by_workload: Mapping[str, tuple[Drift, Baseline]], now_ns: int) -> Finding | None:
    """One finding on a device for all workloads in which it drifts, or None. OBSERVE: it is reported and grouped, and still given out.

    Only SEVERE drift asks for SUSPECT: more probes, and quarantine if they agree.
    """
    lasting = {
        workload: (drift.value, own)
        for workload, (drift, own) in sorted(by_workload.items())
        if drift.lasting and drift.value is not None
    }
    if not lasting:
        return None
    worst = max(value for value, _ in lasting.values())
    evidence: dict[str, str | int | float | bool | None] = {"workloads": ", ".join(lasting)}
    for workload, (value, own) in lasting.items():
        evidence |= {f"{workload}_drift": round(value, 4), f"{workload}_bar": round(own.bar, 4)}
        evidence |= {f"{workload}_baseline_s": own.seconds, f"{workload}_baseline_runs": own.runs}
    return Finding(
        rule_id=DRIFT_RULE,
        rule_version=DRIFT_RULE_VERSION,
        uuid=uuid,
        advice=Advice.SUSPECT if worst >= SEVERE else Advice.OBSERVE,
        at_ns=now_ns,
        summary=f"{worst:.1%} slower than its own past in {', '.join(lasting)}, peers taken away",
        evidence=evidence,
    )
