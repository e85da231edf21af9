"""Conversations, as the inventory keeps them. The tokens stay in the gateway's journal."""

from dataclasses import dataclass

from paceline.model.ids import SessionId


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """A session after a turn or a resume. `replica` names the engine replica and `device` the GPU that it holds, if known."""

    session_id: SessionId
    at_ns: int
    turns: int
    tokens: int
    resumes: int
    replica: str
    device: str
    state: str
    """open while a turn runs, idle between turns, failed after a turn that could not be finished."""
    reason: str = ""
