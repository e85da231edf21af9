"""What users ask for, and how far it has come."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from paceline.model.ids import AttemptId, JobId, LeaseId, NodeId


class RunState(StrEnum):
    QUEUED = "QUEUED"
    PLACING = "PLACING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    DRAINING = "DRAINING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


FINAL_STATES: Final = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED})


@dataclass(frozen=True, slots=True)
class GangRequest:
    """Devices for one attempt, whole or absent."""

    job_id: JobId
    run_name: str
    attempt: int
    devices: int
    max_spread: float
    """Largest allowed 1 − slowest/fastest of the gang, 0 ≤ max_spread < 1."""

    @property
    def attempt_id(self) -> AttemptId:
        return AttemptId(f"{self.job_id}/{self.run_name}/{self.attempt}")


def split_attempt(attempt_id: str) -> tuple[JobId, str, int]:
    """(job, run name, number) of an attempt id. Raises ValueError for anything else."""
    job_id, run_name, number = attempt_id.rsplit("/", 2)
    return JobId(job_id), run_name, int(number)


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where one rank of an attempt really runs."""

    rank: int
    node_id: NodeId
    index: int
    pid: int


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """A job (one Ray Train run) reached a state. `reason` says why, `hint` what helps."""

    job_id: JobId
    run_name: str
    state: RunState
    at_ns: int
    reason: str = ""
    hint: str = ""
    storage_path: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A checkpoint that Ray Train has committed. `step` is the script's own `step` metric, or the number of the report."""

    attempt_id: AttemptId
    path: str
    step: int
    at_ns: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class AttemptProgress:
    """An attempt started or ended.

    kind is `started` (ranks are placed), `resumed` (training goes on from `step`) or `ended`.
    """

    attempt_id: AttemptId
    lease_id: LeaseId
    kind: str
    at_ns: int
    step: int = 0
    ranks: tuple[RankPlace, ...] = ()
    checkpoint: str = ""
    reason: str = ""
