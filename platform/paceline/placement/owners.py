"""Who asked for gangs, and which runs and leases have lost whoever spoke for them. Pure: clock and Ray's word come in as arguments.

A run has a driver (its script) and a controller (an actor of Ray Train, owned by the driver), and each may die without a word:
Ray's table of jobs tells of drivers, its table of actors of controllers.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from paceline.model.ids import JobId, LeaseId
from paceline.model.plan import LeaseView
from paceline.model.workload import RunState, split_attempt

MOVE_POLL_S: Final = 10.0
"""A gang's owner asks this often whether its gang must move."""
DEAD_GRACE_S: Final = 2 * MOVE_POLL_S
"""From the last word of a controller that Ray calls dead to the end of its lease: its driver may have a better word for the end."""
UNKNOWN_SILENT_S: Final = 180.0
"""A lease whose owner has not called in this life of the service. A gang says nothing while its workers start: up to
`service.CONFIRM_DEADLINE_S`."""
UNKNOWN_DRIVER_S: Final = 60.0
"""A run whose driver Ray does not know: the cluster it ran on is gone. A new driver is known before its run says anything."""
UNTOLD_S: Final = 30.0
"""A dead driver whose submission Ray still calls running: what would have told died with it, as when the head is lost."""
assert DEAD_GRACE_S < UNKNOWN_SILENT_S, "Ray's word must end a lease sooner than mere silence"

GONE: Final = "the run's controller is gone without a word"
RESUME: Final = "submit it again under the same run name: it resumes from its latest checkpoint"

RunKey = tuple[JobId, str]


@dataclass(frozen=True, slots=True)
class Driver:
    """A row of Ray's table of jobs. `status` and `message` are those of its submission; empty for a driver that was not submitted.
    `dead_s`: seconds since it died."""

    job_id: JobId
    dead: bool
    status: str = ""
    message: str = ""
    dead_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run in no final state, and for how long it is in the state that it is in."""

    job_id: JobId
    run_name: str
    age_s: float


@dataclass(frozen=True, slots=True)
class Ending:
    state: RunState
    reason: str
    hint: str = ""


@dataclass
class _Owner:
    actor_id: str
    """Ray's id of the run's controller; empty until its first call to this life of the service."""
    heard_s: float


class Owners:
    """The memory of one life of the placement service. Times in `_s` are of one monotonic clock."""

    def __init__(self) -> None:
        self._askers: dict[RunKey, _Owner] = {}
        self._owners: dict[LeaseId, _Owner] = {}

    def asked(self, run: RunKey, actor_id: str, now_s: float) -> None:
        """This controller wants a gang for the run; it may wait for it as long as it lives."""
        self._askers[run] = _Owner(actor_id, now_s)

    def heard(self, lease_id: LeaseId, actor_id: str, now_s: float) -> None:
        self._owners[lease_id] = _Owner(actor_id, now_s)

    def forget(self, lease_id: LeaseId) -> None:
        self._owners.pop(lease_id, None)

    def gone(self, leases: Iterable[LeaseView], is_dead: Callable[[str], bool], now_s: float) -> list[LeaseView]:
        """Leases without an owner. One whose owner is alive is never among them, however silent it is. `is_dead` takes an actor id."""
        found = []
        for lease in leases:
            owner = self._owners.setdefault(lease.lease_id, _Owner("", now_s))
            if _is_gone(owner, is_dead, now_s):
                found.append(lease)
        return found

    def endings(
        self, runs: Iterable[OpenRun], drivers: Sequence[Driver], is_dead: Callable[[str], bool], now_s: float
    ) -> dict[RunKey, Ending]:
        """How the runs ended that nobody speaks for any more. Askers of runs that are over are forgotten."""
        open_runs = {(run.job_id, run.run_name): run for run in runs}
        self._askers = {key: actor for key, actor in self._askers.items() if key in open_runs}
        found: dict[RunKey, Ending] = {}
        for key, run in open_runs.items():
            ending = _by_driver([d for d in drivers if d.job_id == run.job_id], run.age_s)
            asker = self._askers.get(key)
            if ending is None and asker is not None and _is_gone(asker, is_dead, now_s):
                ending = Ending(RunState.FAILED, GONE, RESUME)
            if ending is not None:
                found[key] = ending
        return found

    def granted(self, run: RunKey) -> None:
        """The run waits no longer; from now on its lease tells."""
        self._askers.pop(run, None)


def run_of(lease: LeaseView) -> RunKey:
    job_id, run_name, _ = split_attempt(lease.attempt_id)
    return job_id, run_name


def _is_gone(owner: _Owner, is_dead: Callable[[str], bool], now_s: float) -> bool:
    silent_s = now_s - owner.heard_s
    if not owner.actor_id:
        return silent_s > UNKNOWN_SILENT_S
    return silent_s > DEAD_GRACE_S and is_dead(owner.actor_id)


def _by_driver(drivers: Sequence[Driver], age_s: float) -> Ending | None:
    """None while a driver lives, or while Ray has yet to say how its submission ended."""
    if not drivers:
        reason = "Ray does not know its driver: the cluster that it ran on is gone"
        return Ending(RunState.FAILED, reason, RESUME) if age_s > UNKNOWN_DRIVER_S else None
    if not all(driver.dead for driver in drivers):
        return None
    last = drivers[-1]
    match last.status:
        case "":
            return Ending(RunState.FAILED, "its driver is gone without a word", RESUME)
        case "SUCCEEDED":
            return Ending(RunState.SUCCEEDED, "its script ended well")
        case "STOPPED":
            return Ending(RunState.CANCELLED, "stopped by its user", RESUME)
        case "FAILED":
            first_line = (last.message.strip().splitlines() or ["no reason was given"])[0]
            why = first_line.partition(", last available logs")[0]
            return Ending(RunState.FAILED, f"its script failed: {why}", f"its output: ray job logs {last.job_id}")
        case _:
            reason = "its driver is gone, and Ray did not see how it ended: the head may have been lost"
            return Ending(RunState.FAILED, reason, RESUME) if last.dead_s > UNTOLD_S else None
