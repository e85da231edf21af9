"""Work without a lease on a condemned device: told once, and told apart from a gang that is on its way out."""

import pytest

from inventory_maker import Fleet, uuid
from paceline.inventory.strangers import LEAVE_S, QUIET_S
from paceline.model.events import EventKind
from paceline.model.plan import Occupant
from paceline.sdk.rows_health import AlertKind

BAD = uuid("ada", 1)
TASK = Occupant(BAD, 4711, "02000000")
ACTOR = Occupant(BAD, 4712, "02000000", "97fe1d1114135aab25b5610402000000")


def strangers(fleet: Fleet, *occupants: Occupant) -> tuple[Occupant, ...]:
    return fleet.store.strangers(occupants, fleet.now_ns)


@pytest.fixture
def condemned(fleet: Fleet) -> Fleet:
    fleet.healthy("ada", 4)
    fleet.fall("ada", 1)
    return fleet


def test_each_stranger_is_an_event_and_an_alert_once(condemned: Fleet) -> None:
    assert strangers(condemned, ACTOR, TASK) == (TASK, ACTOR)
    condemned.pass_s(1)
    assert strangers(condemned, ACTOR, TASK) == (TASK, ACTOR), "it is one as long as it is there"
    events = condemned.events(EventKind.STRANGER)
    assert [event.body["pid"] for event in events] == [TASK.pid, ACTOR.pid]
    assert events[0].summary.startswith("a task of job 02000000 (pid 4711) is on ada/1, which is DRAINING: Xid 79")
    assert "actor 97fe1d111413 of job 02000000 (pid 4712)" in events[1].summary
    state = condemned.store.device(BAD)
    assert {event.cause_id for event in events} == {state.cause_id}, "the story leads from the fault to the stranger"
    alerts = [alert for alert in condemned.store.alerts() if alert.kind is AlertKind.STRANGER]
    assert sorted(alert.event_id for alert in alerts) == [event.id for event in events]
    condemned.pass_s(QUIET_S + 1)
    strangers(condemned, TASK)
    assert len(condemned.events(EventKind.STRANGER)) == 3, "one that stays is told of again, a day later"


def test_on_a_device_that_is_well_or_cordoned_or_unknown_nobody_is_a_stranger(condemned: Fleet) -> None:
    condemned.store.cordon_device(uuid("ada", 2), "looks odd", "eve", condemned.now_ns)
    others = [Occupant(uuid("ada", 0), 1, "j"), Occupant(uuid("ada", 2), 2, "j"), Occupant(uuid("nobody", 0), 3, "j")]
    assert strangers(condemned, *others) == ()
    assert condemned.events(EventKind.STRANGER) == []


def test_a_gang_that_leaves_is_no_stranger_until_it_has_had_the_time(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    lease = fleet.lease("job", 1, uuid("ada", 0), BAD)
    fleet.attempt(lease, "started")
    rank = Occupant(BAD, fleet.pid_of_rank(1), "01000000")
    fleet.fall("ada", 1)
    assert strangers(fleet, rank, TASK) == (), "the device is leased: its lease moves"
    fleet.attempt(lease, "ended")
    fleet.store.end_lease(lease.lease_id, "moved", fleet.now_ns)
    assert strangers(fleet, rank, TASK) == (TASK,)
    fleet.pass_s(LEAVE_S + 1)
    assert strangers(fleet, rank) == (rank,)
