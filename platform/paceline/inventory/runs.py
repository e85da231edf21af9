"""Jobs, their attempts and checkpoints, as the training side tells them."""

import math

from sqlalchemy import select

from paceline.inventory import leases
from paceline.inventory.tables import AttemptRow, CheckpointRow, DeviceRow, JobRow, LeaseDeviceRow, LeaseRow, RankRow
from paceline.inventory.unit import Unit
from paceline.model.errors import BadRequest
from paceline.model.events import EventKind
from paceline.model.hardware import DeviceState
from paceline.model.workload import FINAL_STATES, AttemptProgress, CheckpointRecord, JobUpdate, RankPlace, split_attempt

_GONE = (DeviceState.UNKNOWN.value, DeviceState.DRAINING.value, DeviceState.QUARANTINED.value)
"""States of a device that explain why an attempt on it has ended."""


def entity(attempt_id: str) -> str:
    return f"attempt:{attempt_id}"


def job(unit: Unit, update: JobUpdate) -> None:
    """A run reached a state. An update older than what is known changes nothing; a final state takes back the gang."""
    row = unit.session.get(JobRow, (update.job_id, update.run_name))
    if row is not None and update.at_ns < row.updated_ns:
        return
    if row is None:
        row = JobRow(job_id=update.job_id, run_name=update.run_name, state="", created_ns=update.at_ns, event_id=0)
        unit.session.add(row)
    row.updated_ns, row.reason, row.hint = update.at_ns, update.reason, update.hint
    row.storage_path = update.storage_path or row.storage_path
    if row.state != update.state.value:
        row.state, row.since_ns = update.state.value, update.at_ns
        body = {"run": update.run_name, "state": update.state.value, "reason": update.reason, "hint": update.hint}
        summary = update.state.value + (f": {update.reason}" if update.reason else "")
        row.event_id = unit.event(EventKind.JOB, f"job:{update.job_id}", summary, _job_cause(unit, row), body)
    if update.state in FINAL_STATES:
        _close(unit, row, update)


def _job_cause(unit: Unit, row: JobRow) -> int:
    newest = _attempts(unit, row.job_id, row.run_name)[:1]
    for attempt in newest:
        return attempt.ended_event or attempt.resumed_event or attempt.started_event or row.event_id
    return row.event_id


def _close(unit: Unit, row: JobRow, update: JobUpdate) -> None:
    for attempt in _attempts(unit, row.job_id, row.run_name):
        if not attempt.ended_ns:
            _end(unit, attempt, update.at_ns, update.reason or f"the run has {update.state.value.lower()}")
    for lease in leases.held_by(unit, row.job_id, row.run_name):
        leases.end(unit, lease, f"the run has {update.state.value.lower()}")


def attempt(unit: Unit, progress: AttemptProgress) -> None:
    """An attempt started, resumed or ended. Each is told once; the same word again changes nothing."""
    row = unit.session.get(AttemptRow, progress.attempt_id)
    if row is None:
        row = _new(unit, progress)
    match progress.kind:
        case "started":
            _start(unit, row, progress)
        case "resumed":
            _resume(unit, row, progress)
        case "ended":
            _end(unit, row, progress.at_ns, progress.reason)
        case other:
            raise BadRequest("PL-REQ-013", f"an attempt cannot be {other!r}", "kind is started, resumed or ended")


def _new(unit: Unit, progress: AttemptProgress) -> AttemptRow:
    try:
        job_id, run_name, number = split_attempt(progress.attempt_id)
    except ValueError as error:
        raise BadRequest("PL-REQ-014", str(error), "an attempt is named <job id>/<run name>/<number>") from error
    row = AttemptRow(
        attempt_id=progress.attempt_id, job_id=job_id, run_name=run_name, number=number, lease_id=progress.lease_id
    )
    row.started_ns = row.resumed_ns = row.ended_ns = row.step = 0
    row.started_event = row.resumed_event = row.ended_event = 0
    row.checkpoint = row.reason = ""
    unit.session.add(row)
    unit.session.flush()
    return row


def _start(unit: Unit, row: AttemptRow, progress: AttemptProgress) -> None:
    if row.started_event:
        return
    before = [a for a in _attempts(unit, row.job_id, row.run_name) if a.number < row.number]
    for open_one in before:
        if not open_one.ended_ns:
            _end(unit, open_one, progress.at_ns, f"attempt {row.number} has started")
    lease = unit.session.get(LeaseRow, progress.lease_id)
    cause = before[0].ended_event if before else (lease.event_id if lease else 0)
    row.lease_id, row.started_ns, row.checkpoint, row.step = (
        progress.lease_id,
        progress.at_ns,
        progress.checkpoint,
        progress.step,
    )
    ranks = [_seat(unit, row.attempt_id, place) for place in progress.ranks]
    unit.session.add_all(ranks)
    where = sorted({rank.host or rank.node_id for rank in ranks})
    body = {"lease": progress.lease_id, "checkpoint": progress.checkpoint, "step": progress.step}
    body |= {"ranks": [{"rank": r.rank, "host": r.host, "index": r.index, "uuid": r.uuid, "pid": r.pid} for r in ranks]}
    summary = f"attempt {row.number} started" + (f" on {', '.join(where)}" if where else "")
    row.started_event = unit.event(EventKind.ATTEMPT_STARTED, entity(row.attempt_id), summary, cause, body)


def _seat(unit: Unit, attempt_id: str, place: RankPlace) -> RankRow:
    here = select(DeviceRow).where(DeviceRow.node_id == place.node_id, DeviceRow.index == place.index)
    device = unit.session.scalars(here.order_by(DeviceRow.seen_ns.desc(), DeviceRow.uuid)).first()
    return RankRow(
        attempt_id=attempt_id,
        rank=place.rank,
        node_id=place.node_id,
        index=place.index,
        pid=place.pid,
        uuid=device.uuid if device else "",
        host=device.host if device else "",
    )


def _resume(unit: Unit, row: AttemptRow, progress: AttemptProgress) -> None:
    if row.resumed_event:
        return
    row.resumed_ns, row.step = progress.at_ns, progress.step
    row.checkpoint = progress.checkpoint or row.checkpoint
    body = {"step": progress.step, "checkpoint": progress.checkpoint}
    summary = f"attempt {row.number} resumed at step {progress.step}"
    row.resumed_event = unit.event(EventKind.ATTEMPT_RESUMED, entity(row.attempt_id), summary, row.started_event, body)


def _end(unit: Unit, row: AttemptRow, at_ns: int, reason: str) -> None:
    if row.ended_event:
        return
    row.ended_ns, row.reason = at_ns, reason
    summary = f"attempt {row.number} ended" + (f": {reason}" if reason else "")
    cause = _why_ended(unit, row)
    row.ended_event = unit.event(EventKind.ATTEMPT_ENDED, entity(row.attempt_id), summary, cause, {"reason": reason})


def _why_ended(unit: Unit, row: AttemptRow) -> int:
    """The order to move; else a device of the gang that is out of service; else only that the attempt had begun."""
    lease = unit.session.get(LeaseRow, row.lease_id) if row.lease_id else None
    if lease is not None and lease.moving_cause:
        return lease.moving_cause
    seats = select(LeaseDeviceRow.uuid).where(LeaseDeviceRow.lease_id == row.lease_id)
    gone = select(DeviceRow.cause_id).where(DeviceRow.uuid.in_(seats), DeviceRow.state.in_(_GONE))
    return unit.session.scalar(gone.order_by(DeviceRow.cause_id).limit(1)) or row.resumed_event or row.started_event


def _attempts(unit: Unit, job_id: str, run_name: str) -> list[AttemptRow]:
    """Newest first."""
    mine = select(AttemptRow).where(AttemptRow.job_id == job_id, AttemptRow.run_name == run_name)
    return list(unit.session.scalars(mine.order_by(AttemptRow.number.desc())))


def checkpoint(unit: Unit, record: CheckpointRecord) -> None:
    """A committed checkpoint, once. It is part of a story only if it was made because the gang had to move."""
    same = (CheckpointRow.attempt_id == record.attempt_id, CheckpointRow.path == record.path)
    if unit.session.scalar(select(CheckpointRow.id).where(*same)) is not None:
        return
    metrics = {name: value if math.isfinite(value) else None for name, value in sorted(record.metrics.items())}
    unit.session.add(
        CheckpointRow(
            attempt_id=record.attempt_id, path=record.path, step=record.step, at_ns=record.at_ns, metrics=metrics
        )
    )
    of_attempt = select(LeaseRow.moving_cause).where(LeaseRow.attempt_id == record.attempt_id, LeaseRow.held)
    moving = unit.session.scalar(of_attempt) or 0
    body = {"step": record.step, "path": record.path, "metrics": metrics}
    unit.event(EventKind.CHECKPOINT, entity(record.attempt_id), f"checkpoint at step {record.step}", moving, body)
