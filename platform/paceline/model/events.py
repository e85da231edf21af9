"""The event log: what happened, to what, and because of which earlier event."""

from dataclasses import dataclass, field
from enum import StrEnum

from paceline.model.ids import EventId


class EventKind(StrEnum):
    TELEMETRY = "telemetry"  # the sample or Xid that a finding rests on
    FINDING = "finding"
    VERDICT = "verdict"  # the state machine moved a device
    QUARANTINED = "quarantined"  # Ray can no longer give the device out: checked
    RELEASED = "released"
    STRANGER = "stranger"  # work that nobody leased to it keeps a bad device from being held
    MEASURED = "measured"
    NODE = "node"
    JOB = "job"
    LEASED = "leased"
    LEASE_MOVING = "lease moving"
    LEASE_ENDED = "lease ended"
    ATTEMPT_STARTED = "attempt started"
    ATTEMPT_RESUMED = "attempt resumed"
    ATTEMPT_ENDED = "attempt ended"
    CHECKPOINT = "checkpoint"
    SESSION = "session"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Event:
    """`entity` is `device:<uuid>`, `node:<host>`, `job:<id>`, `lease:<id>`, `attempt:<id>` or `session:<id>`."""

    id: EventId
    at_ns: int
    kind: EventKind
    entity: str
    summary: str
    cause_id: EventId
    body: dict[str, object] = field(default_factory=dict)
