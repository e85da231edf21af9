"""Leases: a gang held by an attempt, whole or absent. Rows are checked again at the commit, whatever the plan has seen."""

import secrets

from sqlalchemy import select, update

from paceline.inventory.tables import AttemptRow, DeviceRow, HostRow, LeaseDeviceRow, LeaseRow
from paceline.inventory.unit import Unit
from paceline.model.errors import BadRequest, Conflict, NotFound
from paceline.model.events import EventKind
from paceline.model.hardware import DeviceState
from paceline.model.ids import DeviceUuid, EventId, LeaseId
from paceline.model.plan import LeaseView, Plan
from paceline.model.workload import GangRequest

PLAN_AGAIN = "plan again on a fresh snapshot"


def entity(lease_id: str) -> str:
    return f"lease:{lease_id}"


def take(unit: Unit, request: GangRequest, plan: Plan) -> LeaseView:
    """Give the plan's devices to the attempt, and take back what an earlier attempt of the same run held.

    Again for an attempt that holds a lease: that lease. Raises Conflict if a device is not HEALTHY any more or is leased by another run.
    """
    _check(request, plan)
    mine = held_by(unit, request.job_id, request.run_name)
    for lease in mine:
        if lease.attempt_id == request.attempt_id:
            return view(unit, lease)
        if lease.attempt > request.attempt:
            raise Conflict(
                "PL-REV-003", f"attempt {lease.attempt} of this run has taken over", "this request came late: drop it"
            )
    _check_devices(unit, plan.devices, {lease.lease_id for lease in mine})
    ended = [end(unit, lease, f"attempt {request.attempt} takes over") for lease in mine]
    row = LeaseRow(
        lease_id=f"lease-{secrets.token_hex(6)}",
        attempt_id=request.attempt_id,
        job_id=request.job_id,
        run_name=request.run_name,
        attempt=request.attempt,
        max_spread=request.max_spread,
        spread=plan.spread,
        step_time=plan.step_time,
        plan_revision=plan.revision,
        plan_reason=plan.reason,
        held=True,
        since_ns=unit.now_ns,
        ended_ns=0,
        moving_cause=0,
        event_id=0,
    )
    cause = _last_end(unit, request) or (ended[-1] if ended else 0)
    body = {"attempt": request.attempt_id, "devices": list(plan.devices), "spread": plan.spread, "plan": plan.reason}
    row.event_id = unit.event(
        EventKind.LEASED, entity(row.lease_id), f"{_count(plan.devices)} for {request.attempt_id}", cause, body
    )
    unit.session.add(row)
    unit.session.flush()
    _seat(unit, row.lease_id, plan.devices)
    unit.touch()
    return view(unit, row)


def finish(unit: Unit, lease_id: str, reason: str) -> None:
    """End a lease by its id; nothing happens if it has ended."""
    row = _get(unit, lease_id)
    if row.held:
        end(unit, row, reason)


def correct(unit: Unit, lease_id: str, devices: tuple[DeviceUuid, ...]) -> LeaseView:
    """The gang sits on other devices than were planned. One that is not HEALTHY makes the lease move at once."""
    row = _get(unit, lease_id)
    if not row.held:
        raise Conflict("PL-REV-002", f"{lease_id} has ended: {row.end_reason}", "ask for a new gang")
    if set(view(unit, row).devices) == set(devices):
        return view(unit, row)
    found = _devices(unit, devices)
    _check_free(unit, devices, {lease_id})
    for old in unit.session.scalars(select(LeaseDeviceRow).where(LeaseDeviceRow.lease_id == lease_id)).all():
        unit.session.delete(old)
    unit.session.flush()
    _seat(unit, lease_id, devices)
    unit.event(
        EventKind.LEASED,
        entity(lease_id),
        "the gang sits on other devices than planned",
        row.event_id,
        {"devices": list(devices)},
    )
    unit.touch()
    for device in found:
        if device.state != DeviceState.HEALTHY.value:
            move(
                unit,
                DeviceUuid(device.uuid),
                EventId(device.cause_id),
                f"{device.uuid} is {device.state}: {device.reason}",
            )
    return view(unit, row)


def move(unit: Unit, uuid: DeviceUuid, cause: EventId, reason: str) -> None:
    """If a lease has the device, say that it must be given up. Once: a second reason does not move it faster."""
    seat = select(LeaseDeviceRow.lease_id).where(LeaseDeviceRow.uuid == uuid, LeaseDeviceRow.held)
    lease_id = unit.session.scalar(seat)
    if lease_id is None:
        return
    row = _get(unit, lease_id)
    if row.moving_cause:
        return
    body = {"device": uuid, "attempt": row.attempt_id, "reason": reason}
    row.moving_cause = unit.event(
        EventKind.LEASE_MOVING, entity(lease_id), f"{row.attempt_id} must move: {reason}", cause, body
    )
    unit.touch()


def end(unit: Unit, row: LeaseRow, reason: str) -> EventId:
    """Take the devices back. Returns the event."""
    row.held, row.ended_ns, row.end_reason = False, unit.now_ns, reason
    freed = update(LeaseDeviceRow).where(LeaseDeviceRow.lease_id == row.lease_id).values(held=False)
    unit.session.execute(freed.execution_options(synchronize_session="fetch"))
    unit.touch()
    cause = row.moving_cause or row.event_id
    return unit.event(EventKind.LEASE_ENDED, entity(row.lease_id), reason, cause, {"attempt": row.attempt_id})


def held_by(unit: Unit, job_id: str, run_name: str) -> list[LeaseRow]:
    mine = select(LeaseRow).where(LeaseRow.job_id == job_id, LeaseRow.run_name == run_name, LeaseRow.held)
    return list(unit.session.scalars(mine.order_by(LeaseRow.attempt, LeaseRow.lease_id)))


def view(unit: Unit, row: LeaseRow) -> LeaseView:
    seats = select(LeaseDeviceRow.uuid).where(LeaseDeviceRow.lease_id == row.lease_id).order_by(LeaseDeviceRow.rank)
    devices = tuple(DeviceUuid(uuid) for uuid in unit.session.scalars(seats))
    return LeaseView(LeaseId(row.lease_id), row.attempt_id, devices, EventId(row.moving_cause))


def _last_end(unit: Unit, request: GangRequest) -> int:
    """The event that ended the newest attempt before `request`, or 0."""
    earlier = select(AttemptRow.ended_event).where(
        AttemptRow.job_id == request.job_id, AttemptRow.run_name == request.run_name
    )
    newest = earlier.where(AttemptRow.number < request.attempt).order_by(AttemptRow.number.desc()).limit(1)
    return unit.session.scalar(newest) or 0


def _get(unit: Unit, lease_id: str) -> LeaseRow:
    row = unit.session.get(LeaseRow, lease_id)
    if row is None:
        raise NotFound("PL-FIND-003", f"no lease {lease_id}", "`paceline get leases` lists them")
    return row


def _check(request: GangRequest, plan: Plan) -> None:
    if len(set(plan.devices)) != len(plan.devices) or len(plan.devices) != request.devices:
        raise BadRequest(
            "PL-REQ-012",
            f"{request.attempt_id} asks for {request.devices} devices, and the plan names {len(set(plan.devices))}",
            "a gang is whole or absent: send the plan that was made for this request",
        )
    if not plan.devices:
        raise BadRequest("PL-REQ-012", f"{request.attempt_id} asks for no device", "a run without GPUs needs no lease")


def _devices(unit: Unit, uuids: tuple[DeviceUuid, ...]) -> list[DeviceRow]:
    wanted = select(DeviceRow).where(DeviceRow.uuid.in_(uuids)).order_by(DeviceRow.uuid).with_for_update()
    rows = list(unit.session.scalars(wanted))
    if len(rows) < len(set(uuids)):
        unknown = sorted(set(uuids) - {row.uuid for row in rows})
        raise NotFound("PL-FIND-001", f"no device {', '.join(unknown)} is known", "`paceline get devices` lists them")
    return rows


def _check_devices(unit: Unit, uuids: tuple[DeviceUuid, ...], own: set[str]) -> None:
    found = _devices(unit, uuids)
    hosts = select(HostRow).where(HostRow.host.in_({row.host for row in found}), HostRow.cordoned_ns > 0)
    cordoned = {host.host: host.cordon_reason for host in unit.session.scalars(hosts)}
    for row in found:
        if row.state != DeviceState.HEALTHY.value:
            raise Conflict("PL-REV-001", f"{row.uuid} is {row.state} now: {row.reason}", PLAN_AGAIN)
        if row.cordoned_ns:
            raise Conflict("PL-REV-001", f"{row.uuid} is cordoned now: {row.cordon_reason}", PLAN_AGAIN)
        if row.host in cordoned:
            raise Conflict("PL-REV-001", f"its node {row.host} is cordoned now: {cordoned[row.host]}", PLAN_AGAIN)
    _check_free(unit, uuids, own)


def _check_free(unit: Unit, uuids: tuple[DeviceUuid, ...], own: set[str]) -> None:
    taken = select(LeaseDeviceRow).where(LeaseDeviceRow.uuid.in_(uuids), LeaseDeviceRow.held)
    for seat in unit.session.scalars(taken.order_by(LeaseDeviceRow.uuid)):
        if seat.lease_id not in own:
            raise Conflict("PL-REV-001", f"{seat.uuid} is leased by {_get(unit, seat.lease_id).attempt_id}", PLAN_AGAIN)


def _seat(unit: Unit, lease_id: str, devices: tuple[DeviceUuid, ...]) -> None:
    for rank, uuid in enumerate(devices):
        unit.session.add(LeaseDeviceRow(lease_id=lease_id, uuid=uuid, rank=rank, held=True))
    unit.session.flush()


def _count(devices: tuple[DeviceUuid, ...]) -> str:
    return "1 device" if len(devices) == 1 else f"{len(devices)} devices"
