"""Alerts: an outbox. A row is written in the transaction of its event, so none is lost and none is told of what did not happen.

`control.alerts` brings them to each target in order, and says here how far it has come.
"""

from typing import Any, Final

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from paceline.inventory.tables import AlertRow, AlertTargetRow
from paceline.inventory.unit import Unit
from paceline.sdk import rows_health as rows
from paceline.sdk.rows_health import AlertKind

SECOND_NS: Final = 1_000_000_000
TRIED_NS: Final = 7 * 24 * 3600 * SECOND_NS
"""An alert that a target has not taken for this long is given up for that target: it tells of another week."""
KEPT_NS: Final = 30 * 24 * 3600 * SECOND_NS
"""The event behind an alert is kept for good; the alert itself is a list for people."""
LONGEST_PAUSE_S: Final = 300
"""A receiver that is back after an outage gets what waits within five minutes."""
assert TRIED_NS < KEPT_NS, "an alert that is still being delivered must not be dropped"


def tell(
    unit: Unit,
    kind: AlertKind,
    entity: str,
    summary: str,
    event: int,
    body: dict[str, Any] | None = None,
    key: str = "",
    quiet_s: int = 0,
) -> None:
    """Put an alert into the outbox; not if one with the same `key` was put there in the last `quiet_s`."""
    if key and quiet_s and told_lately(unit, key, quiet_s):
        return
    unit.session.add(
        AlertRow(
            at_ns=unit.now_ns,
            kind=kind.value,
            entity=entity,
            summary=summary,
            event_id=event,
            key=key,
            body=body or {},
        )
    )


def told_lately(unit: Unit, key: str, quiet_s: int) -> bool:
    since = select(AlertRow.id).where(AlertRow.key == key, AlertRow.at_ns > unit.now_ns - quiet_s * SECOND_NS)
    return unit.session.scalar(since.limit(1)) is not None


def know(unit: Unit, targets: set[str]) -> None:
    """These are the targets now. A new one gets alerts from now on; one that is gone is forgotten."""
    newest = unit.session.scalar(select(func.max(AlertRow.id))) or 0
    unit.session.execute(delete(AlertTargetRow).where(AlertTargetRow.target.not_in(targets)))
    values = {"acknowledged_id": newest, "failures": 0, "next_ns": 0, "error": "", "seen_ns": unit.now_ns}
    unit.add_new(AlertTargetRow, [{"target": target, **values} for target in sorted(targets)])


def due(session: Session, target: str, now_ns: int) -> rows.AlertRow | None:
    """The next alert for `target`, or None: nothing waits, or the pause after a failure is not over."""
    at = session.get(AlertTargetRow, target)
    if at is None or at.next_ns > now_ns:
        return None
    waiting = select(AlertRow).where(AlertRow.id > at.acknowledged_id, AlertRow.at_ns > now_ns - TRIED_NS)
    row = session.scalars(waiting.order_by(AlertRow.id).limit(1)).first()
    return _row(row, ()) if row is not None else None


def delivered(unit: Unit, target: str, alert_id: int) -> None:
    """`target` has taken all alerts up to this one."""
    at = unit.session.get(AlertTargetRow, target)
    if at is not None:
        at.acknowledged_id = max(at.acknowledged_id, alert_id)
        at.failures, at.next_ns, at.error = 0, 0, ""


def failed(unit: Unit, target: str, error: str) -> None:
    """`target` has not taken its next alert: it is tried again after a pause that grows."""
    at = unit.session.get(AlertTargetRow, target)
    if at is not None:
        at.next_ns = unit.now_ns + min(2**at.failures, LONGEST_PAUSE_S) * SECOND_NS
        at.failures, at.error = min(at.failures + 1, 16), error


def drop_old(unit: Unit) -> None:
    unit.session.execute(delete(AlertRow).where(AlertRow.at_ns < unit.now_ns - KEPT_NS))


def newest(session: Session, limit: int) -> list[rows.AlertRow]:
    """The newest first."""
    reached = {t.target: t.acknowledged_id for t in session.scalars(select(AlertTargetRow))}
    found = session.scalars(select(AlertRow).order_by(AlertRow.id.desc()).limit(limit)).all()
    return [_row(row, tuple(sorted(t for t, last in reached.items() if last < row.id))) for row in found]


def counts(session: Session) -> dict[str, int]:
    """Alerts that are kept, by kind."""
    by_kind = session.execute(select(AlertRow.kind, func.count()).group_by(AlertRow.kind))
    return dict(by_kind.all())


def waiting(session: Session, now_ns: int) -> dict[str, int]:
    """How many alerts each target has still to take, without those that are given up."""
    tried = AlertRow.at_ns > now_ns - TRIED_NS
    later = select(func.count()).where(AlertRow.id > AlertTargetRow.acknowledged_id, tried).correlate(AlertTargetRow)
    return dict(session.execute(select(AlertTargetRow.target, later.scalar_subquery())).all())


def _row(row: AlertRow, left: tuple[str, ...]) -> rows.AlertRow:
    values = {name: getattr(row, name) for name in rows.AlertRow.model_fields if name != "waiting"}
    return rows.AlertRow.model_validate(values | {"waiting": left})
