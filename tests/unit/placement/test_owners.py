"""Which runs and leases have lost whoever spoke for them."""

from collections.abc import Callable

import pytest

from paceline.model.ids import NO_CAUSE, DeviceUuid, JobId, LeaseId
from paceline.model.plan import LeaseView
from paceline.model.workload import RunState
from paceline.placement.owners import (
    DEAD_GRACE_S,
    UNKNOWN_DRIVER_S,
    UNKNOWN_SILENT_S,
    UNTOLD_S,
    Driver,
    OpenRun,
    Owners,
)

JOB = JobId("job")
LEASE = LeaseView(LeaseId("lease-1"), "job/run/1", (DeviceUuid("GPU-0"),), NO_CAUSE)
LIVING = Driver(JOB, dead=False, status="RUNNING")


def dead(_: str) -> bool:
    return True


def alive(_: str) -> bool:
    return False


def endings(
    owners: Owners, *drivers: Driver, is_dead: Callable[[str], bool] = alive, now_s: float = 0
) -> list[tuple[RunState, str]]:
    found = owners.endings([OpenRun(JOB, "run", now_s)], drivers, is_dead, now_s)
    return [(ending.state, ending.reason) for ending in found.values()]


@pytest.mark.parametrize(
    ("status", "message", "state", "reason"),
    [
        ("STOPPED", "", RunState.CANCELLED, "stopped by its user"),
        ("SUCCEEDED", "", RunState.SUCCEEDED, "its script ended well"),
        ("", "", RunState.FAILED, "its driver is gone without a word"),
        ("FAILED", "exit code 1, last available logs (x):\n…", RunState.FAILED, "its script failed: exit code 1"),
        ("FAILED", "", RunState.FAILED, "its script failed: no reason was given"),
    ],
)
def test_a_run_ends_as_its_submission_did(status: str, message: str, state: RunState, reason: str) -> None:
    assert endings(Owners(), Driver(JOB, True, status, message)) == [(state, reason)]


def test_a_run_goes_on_while_a_driver_lives_or_ray_has_not_said_how_it_ended() -> None:
    assert not endings(Owners(), LIVING)
    assert not endings(Owners(), Driver(JOB, True, "STOPPED"), LIVING)
    assert not endings(Owners(), Driver(JOB, True, "RUNNING", dead_s=UNTOLD_S))


def test_a_run_whose_end_ray_missed_ends_after_a_while() -> None:
    (ending,) = endings(Owners(), Driver(JOB, True, "RUNNING", "Job is currently running.", UNTOLD_S + 1))
    assert ending[0] is RunState.FAILED
    assert "Ray did not see how it ended" in ending[1]


def test_a_run_whose_cluster_is_gone_ends_after_a_while() -> None:
    other = Driver(JobId("other"), dead=False)
    assert not endings(Owners(), other, now_s=UNKNOWN_DRIVER_S)
    assert endings(Owners(), other, now_s=UNKNOWN_DRIVER_S + 1)[0][0] is RunState.FAILED


def test_a_waiting_run_ends_with_its_controller_though_its_driver_lives() -> None:
    owners = Owners()
    owners.asked((JOB, "run"), "actor", 0)
    assert not endings(owners, LIVING, now_s=1e6)
    assert not endings(owners, LIVING, is_dead=dead, now_s=DEAD_GRACE_S), "its driver may say why"
    assert endings(owners, LIVING, is_dead=dead, now_s=DEAD_GRACE_S + 1)[0][0] is RunState.FAILED
    owners.granted((JOB, "run"))
    assert not endings(owners, LIVING, is_dead=dead, now_s=1e6), "its lease tells from here on"


def test_a_lease_ends_with_its_owner_and_never_while_the_owner_lives() -> None:
    owners = Owners()
    owners.heard(LEASE.lease_id, "actor", 0.0)
    assert owners.gone([LEASE], dead, DEAD_GRACE_S) == []
    assert owners.gone([LEASE], dead, DEAD_GRACE_S + 1) == [LEASE]
    assert owners.gone([LEASE], alive, 1e6) == []


def test_a_lease_of_an_earlier_life_has_time_to_be_spoken_for() -> None:
    owners = Owners()
    assert owners.gone([LEASE], dead, 5.0) == []
    assert owners.gone([LEASE], dead, 5.0 + UNKNOWN_SILENT_S) == []
    assert owners.gone([LEASE], dead, 5.1 + UNKNOWN_SILENT_S) == [LEASE]
    owners.heard(LEASE.lease_id, "actor", 5.1 + UNKNOWN_SILENT_S)
    assert owners.gone([LEASE], alive, 1e6) == []
