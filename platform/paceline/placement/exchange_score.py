"""How fast the devices of a machine exchange data, among machines that are alike. Pure."""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Final

from paceline.model.health import NodeAdvice, NodeFinding
from paceline.model.ids import HostName
from paceline.model.measurement import NodeMeasurement
from paceline.placement.score import COHORT_MIN, CORRUPT, MAD_FLOOR, SLOW_FRACTION, SLOW_Z
from paceline.placement.spread import MAD_TO_SIGMA, mad

SLOW_RULE: Final = "exchange.slow"
FAILED_RULE: Final = "exchange.failed"
CORRUPT_RULE: Final = "exchange.corrupt"
VERSION: Final = 1

Evidence = dict[str, str | int | float | bool | None]


def relative(seconds: Mapping[HostName, float]) -> dict[HostName, float]:
    """Time of each machine over the median of all: 1.02 is 2 % slower."""
    middle = median(seconds.values())
    return {host: value / middle for host, value in seconds.items()}


def slow(host: HostName, benchmark: str, seconds: Mapping[HostName, float], at_ns: int) -> NodeFinding | None:
    """Whether `host` is an outlier to the slow side, by the bars of a device (score.py). Nothing among fewer than COHORT_MIN machines.

    `seconds` are the medians of one benchmark on machines with as many devices of the same SKU, one of which is `host`.
    """
    if len(seconds) < COHORT_MIN:
        return None
    shares = relative(seconds)
    over = shares[host] - 1
    z = over / (MAD_TO_SIGMA * max(mad(shares.values()), MAD_FLOOR))
    if over < SLOW_FRACTION or z < SLOW_Z:
        return None
    summary = (
        f"{benchmark} between its devices takes {over:.0%} longer than on the median of {len(seconds)} such machines"
    )
    evidence: Evidence = {
        "benchmark": benchmark,
        "relative": round(shares[host], 4),
        "robust_z": round(z, 1),
        "machines": len(seconds),
    }
    return NodeFinding(SLOW_RULE, VERSION, NodeAdvice.CORDON, at_ns, summary, evidence)


def wrong(measurements: Iterable[NodeMeasurement]) -> tuple[NodeFinding, ...]:
    """A finding for each failed exchange: data that came out wrong is another rule than an exchange that did not come about."""
    return tuple(_wrong(m) for m in measurements if not m.ok)


def _wrong(m: NodeMeasurement) -> NodeFinding:
    corrupt = CORRUPT in m.error
    rule = CORRUPT_RULE if corrupt else FAILED_RULE
    what = "data was corrupted between its devices" if corrupt else "its devices could not exchange data"
    evidence: Evidence = {
        "benchmark": m.benchmark,
        "version": m.version,
        "measured_ns": m.at_ns,
        "devices": len(m.devices),
    }
    return NodeFinding(rule, VERSION, NodeAdvice.CORDON, m.at_ns, f"{what}: {m.error or 'no reason given'}", evidence)
