"""Steps of a gang are gathered until they tell something, and told no more often than that is news."""

from collections.abc import Mapping

from paceline.model.ids import NO_CAUSE, DeviceUuid, LeaseId
from paceline.model.plan import LeaseView
from paceline.placement.inband import RankPace
from paceline.placement.steps import LOOK_NS, STEPS_KEPT, STEPS_WANTED, TELL_NS, Gathered

A, B, C = (DeviceUuid(u) for u in "abc")
GANG = LeaseView(LeaseId("lease"), "job/run/1", (A, B, C), NO_CAUSE)
EVEN = {A: 0.1, B: 0.1, C: 0.1}
C_IS_LATE = {A: 0.1, B: 0.1, C: 0.12}
NOW_NS = 10**18


def tell(
    gathered: Gathered,
    compute_s: Mapping[DeviceUuid, float],
    first: int,
    count: int = STEPS_WANTED,
    now_ns: int = NOW_NS,
) -> tuple[RankPace, ...]:
    """Each rank tells of as many steps. What the last one's word gave."""
    found: tuple[RankPace, ...] = ()
    slowest_s = max(compute_s.values())
    for uuid, own_s in compute_s.items():
        assert found == (), "not before the whole gang has told"
        rows = [(step, own_s, slowest_s - own_s + 0.001) for step in range(first, first + count)]
        found = gathered.take(GANG, uuid, rows, now_ns)
    return found


def lagging(found: tuple[RankPace, ...]) -> list[DeviceUuid]:
    return [row.uuid for row in found if row.lags]


def test_enough_whole_steps_name_the_late_rank() -> None:
    gathered = Gathered()
    assert tell(gathered, C_IS_LATE, 0, STEPS_WANTED - 1) == ()
    found = tell(gathered, C_IS_LATE, STEPS_WANTED - 1, 1)
    assert [(row.uuid, row.steps) for row in found] == [(u, STEPS_WANTED) for u in (A, B, C)]
    assert lagging(found) == [C]


def test_a_gang_is_looked_at_once_a_minute_and_by_new_steps_only() -> None:
    gathered = Gathered()
    assert tell(gathered, EVEN, 0) != ()
    assert tell(gathered, C_IS_LATE, STEPS_WANTED, now_ns=NOW_NS + LOOK_NS - 1) == ()
    found = gathered.take(GANG, A, [], NOW_NS + LOOK_NS)
    assert [row.steps for row in found] == [STEPS_WANTED] * 3, "those of before are forgotten"
    assert lagging(found) == [C]


def test_what_has_not_changed_is_told_seldom() -> None:
    gathered = Gathered()
    told = []
    for minute in range(2 * TELL_NS // LOOK_NS + 1):
        times = C_IS_LATE if 3 <= minute < 5 else EVEN
        if tell(gathered, times, minute * STEPS_WANTED, now_ns=NOW_NS + minute * LOOK_NS):
            told.append(minute)
    assert told == [0, 3, 5, 5 + TELL_NS // LOOK_NS]


def test_a_rank_that_is_silent_fills_no_memory() -> None:
    gathered = Gathered()
    for step in range(10 * STEPS_KEPT):
        assert gathered.take(GANG, A, [(step, 0.1, 0.1)], NOW_NS) == ()
    assert len(gathered._gangs[GANG.lease_id].steps) == STEPS_KEPT


def test_a_lease_that_is_gone_is_forgotten() -> None:
    gathered = Gathered()
    tell(gathered, EVEN, 0, STEPS_WANTED - 1)
    assert list(gathered.leases) == [GANG.lease_id]
    gathered.forget(GANG.lease_id)
    assert list(gathered.leases) == []
    assert tell(gathered, EVEN, STEPS_WANTED - 1, 1) == ()


def test_two_ranks_are_not_kept() -> None:
    gathered = Gathered()
    pair = LeaseView(LeaseId("pair"), "job/run/2", (A, B), NO_CAUSE)
    assert gathered.take(pair, A, [(1, 0.1, 0.1)], NOW_NS) == ()
    assert list(gathered.leases) == []
