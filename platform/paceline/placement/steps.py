"""Step times of running gangs, gathered until they tell which rank is late. Pure.

Each rank tells of its steps by itself (training/steps.py), now and then; a step counts once the whole gang has told of it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from paceline.model.ids import DeviceUuid, LeaseId
from paceline.model.plan import LeaseView
from paceline.placement.inband import RANKS_MIN, STEPS_MIN, RankPace, StepTimes, paces
from paceline.placement.probing import MINUTE_NS

Row = tuple[int, float, float]
"""(step of the attempt, seconds until its collectives, seconds inside them)."""

STEPS_WANTED: Final = 50
STEPS_KEPT: Final = 300
"""Newest steps of a gang that are kept. The ranks of a gang are a step apart, what they tell a batch of at most 50."""
LOOK_NS: Final = MINUTE_NS
TELL_NS: Final = 10 * MINUTE_NS
"""A gang in which nothing has changed is told of so seldom: each time is a measurement and an event of every device."""
assert STEPS_MIN <= STEPS_WANTED < STEPS_KEPT
assert LOOK_NS <= TELL_NS


@dataclass
class _Gang:
    steps: dict[int, dict[DeviceUuid, StepTimes]] = field(default_factory=dict)
    looked_ns: int | None = None
    told_ns: int = 0
    lagging: frozenset[DeviceUuid] = frozenset()

    def is_news(self, found: Sequence[RankPace], now_ns: int) -> bool:
        before, self.lagging = self.lagging, frozenset(row.uuid for row in found if row.lags)
        if self.lagging == before and now_ns - self.told_ns < TELL_NS:
            return False
        self.told_ns = now_ns
        return True


class Gathered:
    """Of each lease at most STEPS_KEPT steps, about 200 bytes a rank and step."""

    def __init__(self) -> None:
        self._gangs: dict[LeaseId, _Gang] = {}

    @property
    def leases(self) -> Collection[LeaseId]:
        return self._gangs.keys()

    def forget(self, lease_id: LeaseId) -> None:
        self._gangs.pop(lease_id, None)

    def take(self, lease: LeaseView, uuid: DeviceUuid, rows: Sequence[Row], now_ns: int) -> tuple[RankPace, ...]:
        """Keep the rows of a device of the gang. Returns the paces of the whole gang, once a minute at most, if they are worth a word."""
        if len(lease.devices) < RANKS_MIN:
            return ()
        gang = self._gangs.setdefault(lease.lease_id, _Gang())
        for step, compute_s, wait_s in rows:
            gang.steps.setdefault(step, {})[uuid] = StepTimes(compute_s, wait_s)
        for step in sorted(gang.steps)[:-STEPS_KEPT]:
            del gang.steps[step]
        if gang.looked_ns is not None and now_ns - gang.looked_ns < LOOK_NS:
            return ()
        whole = [step for step, times in gang.steps.items() if len(times) == len(lease.devices)]
        if len(whole) < STEPS_WANTED:
            return ()
        found = paces([gang.steps[step] for step in whole])
        gang.looked_ns = now_ns
        gang.steps = {step: times for step, times in gang.steps.items() if step > max(whole)}
        return found if gang.is_news(found, now_ns) else ()
