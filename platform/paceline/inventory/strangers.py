"""Strangers: work on a device that must not be given out, which no lease has told of. Ray's own users need no lease from Paceline."""

from collections.abc import Iterable
from typing import Final

from sqlalchemy import or_, select

from paceline.inventory import alerts, devices
from paceline.inventory.tables import AttemptRow, DeviceRow, LeaseDeviceRow, RankRow
from paceline.inventory.unit import Unit
from paceline.model.events import EventKind
from paceline.model.hardware import CONDEMNED, DeviceState
from paceline.model.ids import EventId
from paceline.model.plan import Occupant
from paceline.sdk.rows_health import AlertKind

LEAVE_S: Final = 60
"""So long the processes of an attempt that has ended may take to go."""
QUIET_S: Final = 24 * 3600
"""A process that stays is told of once a day."""


def take(unit: Unit, occupants: Iterable[Occupant]) -> tuple[Occupant, ...]:
    """Those of the occupants that are strangers. Each is an event and an alert, once."""
    found = []
    for one in sorted(occupants, key=lambda o: (o.uuid, o.pid)):
        row = unit.session.get(DeviceRow, one.uuid)
        if row is not None and DeviceState(row.state) in CONDEMNED and not _is_of_a_gang(unit, one):
            found.append(one)
            _tell(unit, row, one)
    return tuple(found)


def _is_of_a_gang(unit: Unit, one: Occupant) -> bool:
    """The device is leased, or the process was a rank of an attempt and has had no time to go."""
    seat = select(LeaseDeviceRow.lease_id).where(LeaseDeviceRow.uuid == one.uuid, LeaseDeviceRow.held)
    if unit.session.scalar(seat) is not None:
        return True
    rank = select(RankRow.rank).join(AttemptRow, AttemptRow.attempt_id == RankRow.attempt_id)
    going = or_(AttemptRow.ended_ns == 0, AttemptRow.ended_ns > unit.now_ns - LEAVE_S * 1_000_000_000)
    mine = rank.where(RankRow.uuid == one.uuid, RankRow.pid == one.pid, going)
    return unit.session.scalar(mine.limit(1)) is not None


def _tell(unit: Unit, row: DeviceRow, one: Occupant) -> None:
    key = f"stranger:{one.uuid}:{one.pid}:{one.job_id}"
    if alerts.told_lately(unit, key, QUIET_S):
        return
    what = f"actor {one.actor_id[:12]}" if one.actor_id else "a task"
    summary = (
        f"{what} of job {one.job_id} (pid {one.pid}) is on {row.host}/{row.index}, which is {row.state}: {row.reason}"
    )
    body = {"host": row.host, "index": row.index, "pid": one.pid, "job": one.job_id, "actor": one.actor_id}
    event = unit.event(EventKind.STRANGER, devices.entity(row.uuid), summary, EventId(row.cause_id), body)
    alerts.tell(unit, AlertKind.STRANGER, devices.entity(row.uuid), summary, event, body, key, QUIET_S)
