"""The search for the fastest allowed gang among devices of one SKU. Pure; see planner.py for what is optimised."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from paceline.model.ids import DeviceUuid, HostName

HOST_CROSSING_COST: Final = 0.05
"""Step time that each further host adds, as a fraction. Larger than the usual spread of healthy devices inside a host,
so that a gang is not torn apart for a per cent of speed; small enough that it leaves a host with a 1.1 device in it.
To be measured per fabric; until then a constant."""
assert 0 < HOST_CROSSING_COST < 0.15, "crossing a host must cost less than a device that is slow enough to be excluded"

EPSILON: Final = 1e-12
"""Room for rounding where a spread equals its limit."""


@dataclass(frozen=True, slots=True, order=True)
class Scored:
    """A usable device. Sorts by speed, then by host, index and uuid: ties are broken by id."""

    score: float
    host: HostName
    index: int
    uuid: DeviceUuid


@dataclass(frozen=True, slots=True)
class Gang:
    """`devices` in the order of ranks: by host, then index."""

    devices: tuple[Scored, ...]
    slowest: float
    spread: float
    step_time: float


def locality(hosts: int) -> float:
    """Factor on the step time for a gang on that many hosts."""
    return 1 + HOST_CROSSING_COST * (hosts - 1)


def spread_of(fastest_score: float, slowest_score: float) -> float:
    """1 − slowest/fastest speed, where speed = 1/score; 0 within rounding."""
    spread = 1 - fastest_score / slowest_score
    return spread if spread > EPSILON else 0.0


@dataclass(frozen=True, slots=True)
class _Choice:
    """Devices `first` to `end` (excluded) of the sorted list hold a gang on `hosts` hosts; `slowest` bounds it."""

    slowest: float
    hosts: int
    first: int
    end: int

    @property
    def cost(self) -> float:
        return self.slowest * locality(self.hosts)


def fastest_gang(devices: Sequence[Scored], size: int, max_spread: float, noise: float) -> Gang | None:
    """The cheapest gang of `size` out of sorted `devices`, or None. Costs within `noise` of the least are equal.

    For every score that may be the slowest, the devices that are equal to it within the spread are a window of the
    sorted list, and the fewest hosts that hold `size` of them are the ones with most. So the least cost over all
    windows is exact. `noise` is a fraction.
    """
    choices = _choices(devices, size, max_spread, noise)
    if not choices:
        return None
    least = min(choice.cost for choice in choices)
    best = min(
        (choice for choice in choices if choice.cost <= least * (1 + noise)),
        key=lambda choice: (choice.hosts, choice.slowest),
    )
    return _gang(_pick(devices[best.first : best.end], size))


def _choices(devices: Sequence[Scored], size: int, max_spread: float, noise: float) -> list[_Choice]:
    choices: list[_Choice] = []
    fewest = _hosts_needed(Counter(row.host for row in devices), size)
    if fewest is None:
        return choices
    window: Counter[HostName] = Counter()
    first = 0
    least = float("inf")
    for end, slowest in enumerate(devices, start=1):
        window[slowest.host] += 1
        if end < len(devices) and devices[end].score == slowest.score:
            continue  # equals enter together, so that the order of ids decides nothing but ties
        if slowest.score * locality(fewest) > least * (1 + noise):
            break  # nothing that follows can be as cheap
        while spread_of(devices[first].score, slowest.score) > max_spread + EPSILON:
            window[devices[first].host] -= 1
            first += 1
        hosts = _hosts_needed(window, size) if end - first >= size else None
        if hosts is not None:
            choices.append(_Choice(slowest.score, hosts, first, end))
            least = min(least, choices[-1].cost)
    return choices


def _hosts_needed(by_host: Counter[HostName], size: int) -> int | None:
    """Fewest hosts that together have `size` devices."""
    for hosts, total in enumerate(accumulate(sorted(by_host.values(), reverse=True)), start=1):
        if total >= size:
            return hosts
    return None


def _pick(window: Sequence[Scored], size: int) -> list[Scored]:
    """`size` devices on the fewest hosts: the largest hosts whole, and the rest where it leaves least over."""
    by_host: dict[HostName, list[Scored]] = defaultdict(list)
    for row in window:
        by_host[row.host].append(row)
    left = sorted(by_host.values(), key=lambda rows: (-len(rows), rows[0].host))
    picked: list[Scored] = []
    while len(picked) < size:
        wanted = size - len(picked)
        enough = [rows for rows in left if len(rows) >= wanted]
        chosen = min(enough, key=lambda rows: (len(rows), rows[0].host)) if enough else left[0]
        left.remove(chosen)
        picked.extend(chosen[:wanted])
    return picked


def _gang(picked: list[Scored]) -> Gang:
    scores = [row.score for row in picked]
    slowest = max(scores)
    hosts = len({row.host for row in picked})
    return Gang(
        devices=tuple(sorted(picked, key=lambda row: (row.host, row.index, row.uuid))),
        slowest=slowest,
        spread=spread_of(min(scores), slowest),
        step_time=slowest * locality(hosts),
    )
