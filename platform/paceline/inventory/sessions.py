"""Conversations, as the gateway tells them. Only what a reader of the history cares about becomes an event."""

from paceline.inventory.tables import DeviceRow, SessionRow
from paceline.inventory.unit import Unit
from paceline.model.events import EventKind
from paceline.model.hardware import DeviceState
from paceline.model.session import SessionUpdate


def update(unit: Unit, told: SessionUpdate) -> None:
    """Take an update; one that is older than what is known changes nothing."""
    row = unit.session.get(SessionRow, told.session_id)
    if row is not None and told.at_ns < row.at_ns:
        return
    before = None
    if row is None:
        row = SessionRow(session_id=told.session_id, first_ns=told.at_ns, event_id=0)
    else:
        before = (row.resumes, row.device, row.state)
    summary = _what_happened(before, told)
    if summary:
        cause = _cause(unit, row, told) if before else 0
        body = {
            "replica": told.replica,
            "device": told.device,
            "turns": told.turns,
            "tokens": told.tokens,
            "resumes": told.resumes,
        }
        body |= {"state": told.state, "reason": told.reason}
        row.event_id = unit.event(EventKind.SESSION, f"session:{told.session_id}", summary, cause, body)
    row.at_ns, row.turns, row.tokens, row.resumes = told.at_ns, told.turns, told.tokens, told.resumes
    row.replica, row.device, row.state, row.reason = told.replica, told.device, told.state, told.reason
    unit.session.add(row)


def _what_happened(before: tuple[int, str, str] | None, told: SessionUpdate) -> str:
    """In words, or empty for a turn like any other."""
    if before is None:
        return f"opened on {told.replica or 'a replica'}"
    resumes, device, state = before
    why = f": {told.reason}" if told.reason else ""
    if told.state == "failed" and state != "failed":
        return f"failed{why}"
    if told.resumes > resumes:
        return f"resumed on {told.replica or 'another replica'} after {told.tokens} tokens{why}"
    if told.device != device and device:
        return f"moved to {told.replica or 'another replica'}{why}"
    return ""


def _cause(unit: Unit, row: SessionRow, told: SessionUpdate) -> int:
    """What happened to the device that the session had been on; else what was told of the session before."""
    device = unit.session.get(DeviceRow, row.device) if row.device and row.device != told.device else None
    if device is not None and device.state != DeviceState.HEALTHY.value:
        return device.cause_id
    return row.event_id
