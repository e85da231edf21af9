"""Questions about jobs. A job may hold several runs; `<job id>` means its newest, `<job id>/<run name>` exactly that one."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from paceline.inventory.reads import seats
from paceline.inventory.tables import AttemptRow, CheckpointRow, JobRow, LeaseDeviceRow, LeaseRow, RankRow
from paceline.model.errors import NotFound
from paceline.sdk import rows

CHECKPOINTS_SHOWN = 2000
"""Newest checkpoints of a run in one answer: a week of a checkpoint every five minutes."""


def jobs(session: Session, limit: int) -> list[rows.JobRow]:
    """Runs, the newest first."""
    wanted = select(JobRow).order_by(JobRow.created_ns.desc(), JobRow.job_id, JobRow.run_name).limit(limit)
    return [rows.JobRow.model_validate(_job(session, row)) for row in session.scalars(wanted)]


def job(session: Session, name: str) -> rows.JobDetail:
    row, runs = _find(session, name)
    attempts = session.scalars(_of(AttemptRow, row).order_by(AttemptRow.number)).all()
    ids = [attempt.attempt_id for attempt in attempts]
    newest = (
        select(CheckpointRow)
        .where(CheckpointRow.attempt_id.in_(ids))
        .order_by(CheckpointRow.id.desc())
        .limit(CHECKPOINTS_SHOWN)
    )
    checkpoints = [rows.CheckpointRow.model_validate(c) for c in reversed(session.scalars(newest).all())]
    detail = {"runs": runs, "attempts": _attempts(session, attempts), "checkpoints": checkpoints}
    return rows.JobDetail.model_validate(_job(session, row) | detail)


def _find(session: Session, name: str) -> tuple[JobRow, tuple[str, ...]]:
    job_id, _, run_name = name.partition("/")
    of_job = session.scalars(
        select(JobRow).where(JobRow.job_id == job_id).order_by(JobRow.created_ns.desc(), JobRow.run_name)
    ).all()
    for row in of_job:
        if not run_name or row.run_name == run_name:
            return row, tuple(row.run_name for row in of_job)
    raise NotFound("PL-FIND-002", f"no job {name} is known", "`paceline get jobs` lists them")


def _of(table: Any, row: JobRow) -> Any:
    return select(table).where(table.job_id == row.job_id, table.run_name == row.run_name)


def _job(session: Session, row: JobRow) -> dict[str, Any]:
    attempts = session.scalar(select(func.count()).select_from(_of(AttemptRow, row).subquery()))
    lease = session.scalars(_of(LeaseRow, row).where(LeaseRow.held).limit(1)).first()
    devices = 0
    if lease is not None:
        seats = select(func.count()).where(LeaseDeviceRow.lease_id == lease.lease_id, LeaseDeviceRow.held)
        devices = session.scalar(seats) or 0
    of_run = select(AttemptRow.attempt_id).where(AttemptRow.job_id == row.job_id, AttemptRow.run_name == row.run_name)
    newest = (
        select(CheckpointRow.step)
        .where(CheckpointRow.attempt_id.in_(of_run))
        .order_by(CheckpointRow.id.desc())
        .limit(1)
    )
    extra: dict[str, Any] = {"starts": attempts, "devices": devices, "step": session.scalar(newest) or 0}
    extra |= {"lease_id": lease.lease_id if lease else ""}
    return {name: getattr(row, name) for name in rows.JobRow.model_fields if name not in extra} | extra


def _attempts(session: Session, found: Sequence[AttemptRow]) -> list[rows.AttemptRow]:
    ids = [attempt.attempt_id for attempt in found]
    ranks: dict[str, list[rows.RankRow]] = {}
    for rank in session.scalars(
        select(RankRow).where(RankRow.attempt_id.in_(ids)).order_by(RankRow.attempt_id, RankRow.rank)
    ):
        ranks.setdefault(rank.attempt_id, []).append(rows.RankRow.model_validate(rank))
    leases = {x.lease_id: x for x in session.scalars(select(LeaseRow).where(LeaseRow.attempt_id.in_(ids)))}
    gangs = seats(session, leases)
    made = []
    for row in found:
        lease = leases.get(row.lease_id)
        state = "ended" if row.ended_ns else "running" if row.resumed_ns else "starting"
        extra: dict[str, Any] = {"state": state, "ranks": ranks.get(row.attempt_id, [])}
        extra |= {"devices": gangs.get(row.lease_id, []), "spread": lease.spread if lease else None}
        extra |= {"resumed_step": row.step if row.resumed_ns else None}
        values = {name: getattr(row, name) for name in rows.AttemptRow.model_fields if name not in extra}
        made.append(rows.AttemptRow.model_validate(values | extra))
    return made
