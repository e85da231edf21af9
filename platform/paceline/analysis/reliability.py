"""How often things fail and what that costs: MTBF with exact bounds, ETTR, and the nodes that fail more than chance lets them. Pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, inf, lgamma, log, sqrt
from typing import Final

from paceline.model.ids import DeviceUuid, HostName

DAY_S: Final = 86_400
DAY_NS: Final = DAY_S * 1_000_000_000
CONFIDENCE: Final = 0.95

# MTBF


@dataclass(frozen=True, slots=True)
class Estimate:
    """Hours between failures, from `n` failures, with the bounds of a confidence interval. inf: no failure was seen."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Exposure:
    """How long one device was watched, and how often it failed meanwhile."""

    uuid: DeviceUuid
    sku: str
    rack: str
    device_hours: float
    failures: int


def mtbf_h(failures: int, device_hours: float, confidence: float = CONFIDENCE) -> Estimate:
    """Mean time between failures in hours, from a count over a fixed time.

    The bounds are exact for a Poisson count (F. Garwood, Biometrika 28, 1936): they hold for zero failures and for one, where
    a normal approximation does not. ValueError unless failures >= 0, device_hours > 0 and 0 < confidence < 1.
    """
    if failures < 0 or device_hours <= 0 or not 0 < confidence < 1:
        raise ValueError(f"no MTBF from {failures} failures in {device_hours} device hours at confidence {confidence}")
    low, high = poisson_bounds(failures, 1 - confidence)
    return Estimate(
        value=device_hours / failures if failures else inf,
        low=device_hours / high,
        high=device_hours / low if low else inf,
        n=failures,
    )


def mtbf_by(exposures: Iterable[Exposure], group: Callable[[Exposure], str]) -> dict[str, Estimate]:
    """MTBF of each group, by name: `lambda e: e.sku`, `e.rack` or `e.uuid`. Groups without any time are left out."""
    failures: Counter[str] = Counter()
    hours: dict[str, float] = defaultdict(float)
    for one in exposures:
        failures[group(one)] += one.failures
        hours[group(one)] += one.device_hours
    return {name: mtbf_h(failures[name], hours[name]) for name in sorted(hours) if hours[name] > 0}


def poisson_bounds(n: int, alpha: float) -> tuple[float, float]:
    """Means between which a Poisson count of `n` is no surprise: each end has a tail of alpha/2. O(√n)."""
    low = _bisect(0.0, float(n), lambda mean: poisson_at_least(n, mean) < alpha / 2) if n else 0.0
    top = n + 10 * sqrt(n + 1) - log(alpha)  # a tail there is far below alpha/2
    return low, _bisect(float(n), top, lambda mean: poisson_at_least(n + 1, mean) < 1 - alpha / 2)


def poisson_at_least(n: int, mean: float) -> float:
    """P(X >= n) for a Poisson count X of `mean`, summed from its largest term of the smaller tail. O(√n)."""
    if n <= 0:
        return 1.0
    if mean <= 0:
        return 0.0
    if n > mean:
        return _tail(n, mean, +1)
    return 1.0 - _tail(n - 1, mean, -1)


def _tail(k: int, mean: float, step: int) -> float:
    """Sum of the terms from k upwards (step +1, k above the mean) or down to 0 (step -1, k below it)."""
    term = exp(k * log(mean) - mean - lgamma(k + 1))
    total = 0.0
    while k >= 0 and term > total * 1e-17:
        total += term
        term *= mean / (k + 1) if step > 0 else k / mean
        k += step
    return total


def _bisect(low: float, high: float, below: Callable[[float], bool]) -> float:
    """Where `below` changes from true to false, to 2⁻⁶⁰ of the span."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2


# Effective training time ratio


def mttf_h(nodes: int, failures_per_node_day: float) -> float:
    """Hours until the first of `nodes` fails, on average; inf where none does."""
    rate = nodes * failures_per_node_day
    return 24 / rate if rate > 0 else inf


def ettr(nodes: int, failures_per_node_day: float, restart_s: float, interval_s: float, save_stall_s: float) -> float:
    """Expected share of the wall clock in which a job of `nodes` makes progress that lasts, 0 to 1.

    A. Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", arXiv 2410.21680: within
    about 5 % of their simulation. `restart_s` from a failure to the first new step, `interval_s` between checkpoints,
    `save_stall_s` the stop of training for one of them. Holds while failures are rare beside restarts; 0 where they are not.
    """
    if interval_s <= 0:
        raise ValueError(f"checkpoints must be some time apart, not {interval_s} s")
    lost = nodes * failures_per_node_day * (restart_s + interval_s / 2) / DAY_S
    return max(0.0, 1 - lost) / (1 + save_stall_s / interval_s)


def best_interval_s(nodes: int, failures_per_node_day: float, save_stall_s: float) -> float:
    """The `interval_s` with the best ETTR, to first order (Young 1974; arXiv 2410.21680). inf where nothing fails."""
    rate = nodes * failures_per_node_day / DAY_S
    return sqrt(2 * save_stall_s / rate) if rate > 0 else inf


# Lemons

LEMON_WINDOW_NS: Final = 28 * DAY_NS
"""Meta's snapshot. Long enough for five incidents of a bad node, short enough that a repaired one is free again in a month."""
SURPRISE: Final = 0.001
"""Chance that one signal of any node of a sound fleet goes over its bar in a window: about once in 77 years."""
SIGNALS_WANTED: Final = 2
"""Voting signals that make a lemon. One may have a reason of its own: a program that fails wherever it runs, a careful operator."""
LEAST_COUNT: Final = 2
"""What happened once is an accident, however rare it is in the fleet."""
LEMON_FLEET_MIN: Final = 8
"""Fewer nodes give no yardstick."""


class Happened(StrEnum):
    """What a node's history is made of; `what` of a Happening is named in brackets."""

    EXCLUDED = "EXCLUDED"
    """A job asked not to run there [job]."""
    XID = "XID"
    """[code]: one code counts once a day, so that a storm is one."""
    TICKET = "TICKET"
    """A repair was begun [ticket or repair]."""
    OUT = "OUT"
    """The node, or a device of it, was taken out of service [event]."""
    MULTI_NODE_FAIL = "MULTI_NODE_FAIL"
    """A job on several nodes failed, and this one was the cause [job]."""
    SINGLE_NODE_FAIL = "SINGLE_NODE_FAIL"
    """A job on this node alone failed by the node's fault [job]."""
    SINGLE_NODE_JOB = "SINGLE_NODE_JOB"
    """A job on this node alone ended, well or not [job]."""


@dataclass(frozen=True, slots=True)
class Happening:
    kind: Happened
    at_ns: int
    what: str


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """What happened to one machine, in any order; what is older than the window is left out by `lemons`."""

    host: HostName
    happened: tuple[Happening, ...]


class Signal(StrEnum):
    """Meta's names. See `lemons`."""

    EXCLUDED_BY_JOBS = "excl_jobid_count"
    XIDS = "xid_cnt"
    TICKETS = "tickets"
    OUTS = "out_count"
    MULTI_NODE_FAILS = "multi_node_node_fails"
    SINGLE_NODE_FAILS = "single_node_node_fails"
    SINGLE_NODE_FAILURE_RATE = "single_node_node_failure_rate"


COUNTS: Final[Mapping[Signal, Happened]] = {
    Signal.EXCLUDED_BY_JOBS: Happened.EXCLUDED,
    Signal.XIDS: Happened.XID,
    Signal.TICKETS: Happened.TICKET,
    Signal.OUTS: Happened.OUT,
    Signal.MULTI_NODE_FAILS: Happened.MULTI_NODE_FAIL,
    Signal.SINGLE_NODE_FAILS: Happened.SINGLE_NODE_FAIL,
    Signal.SINGLE_NODE_FAILURE_RATE: Happened.SINGLE_NODE_FAIL,
}
VOTING: Final = frozenset(Signal) - {Signal.EXCLUDED_BY_JOBS, Signal.SINGLE_NODE_FAILS}
"""Exclusion by users did not go with failures at Meta. The count of failed jobs on one node rises with the number of jobs as well;
its rate does not, and both rest on the same failures: one vote."""


@dataclass(frozen=True, slots=True)
class Over:
    """A signal over its bar: `count` in the window, where the other nodes let expect `expected`."""

    signal: Signal
    count: int
    expected: float


@dataclass(frozen=True, slots=True)
class Lemon:
    host: HostName
    over: tuple[Over, ...]
    why: str


def lemons(nodes: Sequence[NodeHistory], now_ns: int) -> tuple[Lemon, ...]:
    """Nodes that fail again and again and stand out of their fleet, worst first; () in a fleet below LEMON_FLEET_MIN.

    The seven signals and the window are those of arXiv 2410.21680, section 5.1, which set its bars by hand on the fleet's
    distribution (40 nodes found, more than 85 % of them rightly). The bars here are a restatement that needs no hand: a
    signal is over where a Poisson count with the rate of the *other* nodes would reach it with a chance below SURPRISE, over
    all nodes together; a lemon has SIGNALS_WANTED of VOTING over. Lemons found are taken out of the yardstick, until no more
    are found. Counts of a sound fleet may be more uneven than Poisson's (jobs are not spread evenly): shadow it first.
    """
    counts = {node.host: _counts(node, now_ns) for node in nodes}
    found: dict[HostName, tuple[Over, ...]] = {}
    while len(counts) >= LEMON_FLEET_MIN:
        sound = [host for host in counts if host not in found]
        totals = sum((counts[host] for host in sound), Counter[Happened]())
        new = {host: over for host in sound if _is_lemon(over := _over(counts[host], totals, len(sound), len(counts)))}
        if not new:
            break
        found |= new
    ranked = sorted(found.items(), key=lambda item: (-len(item[1]), -sum(one.count for one in item[1]), item[0]))
    return tuple(Lemon(host, over, _why(over)) for host, over in ranked)


def _counts(node: NodeHistory, now_ns: int) -> Counter[Happened]:
    recent = (one for one in node.happened if now_ns - LEMON_WINDOW_NS < one.at_ns <= now_ns)
    distinct = {(one.kind, one.what, one.at_ns // DAY_NS if one.kind is Happened.XID else 0) for one in recent}
    return Counter(kind for kind, _, _ in distinct)


def _over(own: Counter[Happened], totals: Counter[Happened], sound: int, fleet: int) -> tuple[Over, ...]:
    """Signals of a node over their bars. `totals` are of the `sound` nodes, it among them. One more incident among the others
    is assumed, so that a kind which they never had is not infinitely surprising."""
    over = []
    for signal, kind in COUNTS.items():
        count, of_others = own[kind], totals[kind] - own[kind] + 1
        if signal is Signal.SINGLE_NODE_FAILURE_RATE:
            jobs_of_others = totals[Happened.SINGLE_NODE_JOB] - own[Happened.SINGLE_NODE_JOB] + 1
            expected = own[Happened.SINGLE_NODE_JOB] * min(1.0, of_others / jobs_of_others)
        else:
            expected = of_others / (sound - 1) if sound > 1 else inf
        if count >= LEAST_COUNT and poisson_at_least(count, expected) < SURPRISE / fleet:
            over.append(Over(signal, count, expected))
    return tuple(over)


def _is_lemon(over: Collection[Over]) -> bool:
    return sum(one.signal in VOTING for one in over) >= SIGNALS_WANTED


def _why(over: Iterable[Over]) -> str:
    told = ", ".join(f"{one.signal.value} {one.count} ({one.expected:.1f} expected)" for one in over)
    return f"in {LEMON_WINDOW_NS // DAY_NS} days: {told}"
