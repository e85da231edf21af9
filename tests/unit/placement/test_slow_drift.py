"""Who has become slower than it was: drawn runs of a device and of its peers."""

import pytest

from paceline.model.health import Advice
from paceline.model.ids import DeviceUuid
from paceline.placement import drift
from paceline.placement.drift import BASELINE_MIN, BASELINE_RUNS, PEERS_WITHIN_NS, Drift, Run, Track

ME = DeviceUuid("me")
DAY_NS = 86_400 * 10**9
QUIET = (1.0, 1.001, 0.999, 1.0, 1.0, 1.001, 0.999, 1.0)
NOISY = (1.0, 1.03, 0.97, 1.0, 1.03, 0.97, 1.03, 0.97)


def track(*now: float, past: tuple[float, ...] = QUIET, at_ns: int = 0) -> Track:
    """`now`: one probe a day, the oldest first."""
    return Track(drift.baseline(past), tuple(Run(at_ns + day * DAY_NS, value) for day, value in enumerate(now)))


def cohort(mine: Track, *peers: Track) -> dict[DeviceUuid, Track]:
    return {ME: mine} | {DeviceUuid(f"peer-{n}"): peer for n, peer in enumerate(peers)}


def judged(*now: float, peers: tuple[float, ...] = (1.0, 1.0, 1.0), past: tuple[float, ...] = QUIET) -> Drift:
    return drift.judge(ME, cohort(track(*now, past=past), *(track(*peers) for _ in range(4))))


def test_a_device_that_has_become_five_per_cent_slower_is_found_at_its_second_slow_probe() -> None:
    assert judged(1.0, 1.0, 1.05) == Drift(pytest.approx(0.05), over=True, lasting=False)
    assert judged(1.0, 1.05, 1.05).lasting
    assert judged(1.05, 1.0, 1.05).lasting, "two of three"


def test_a_device_that_always_was_slow_is_natural_spread() -> None:
    always = tuple(value * 1.05 for value in QUIET)
    assert judged(1.05, 1.05, 1.05, past=always) == Drift(pytest.approx(0.0))


def test_what_all_have_in_common_is_nobodys_fault() -> None:
    assert judged(1.05, 1.05, 1.05, peers=(1.05, 1.05, 1.05)) == Drift(pytest.approx(0.0))
    assert judged(1.05, 1.05, 1.05, peers=(1.01, 1.01, 1.01)).value == pytest.approx(1.05 / 1.01 - 1)


def test_one_that_is_well_again_is_not_found() -> None:
    assert not judged(1.05, 1.05, 1.0).lasting


def test_a_noisy_device_needs_more() -> None:
    assert not judged(1.05, 1.05, 1.05, past=NOISY).over
    assert judged(1.15, 1.15, 1.15, past=NOISY).lasting


def test_without_a_past_or_without_peers_of_that_time_there_is_no_verdict() -> None:
    assert drift.baseline(QUIET[: BASELINE_MIN - 1]) is None
    assert judged(1.5, 1.5, 1.5, past=QUIET[: BASELINE_MIN - 1]) == Drift(None)
    slow = track(1.5, 1.5, 1.5)
    assert drift.judge(ME, cohort(slow, track(1.0, 1.0, 1.0), track(1.0, 1.0, 1.0))) == Drift(None), "two peers"
    yesterday = [track(1.0, 1.0, 1.0, at_ns=-PEERS_WITHIN_NS - 1) for _ in range(4)]
    assert drift.judge(ME, cohort(slow, *yesterday)) == Drift(None)


def test_the_baseline_stands_still_once_it_is_full() -> None:
    assert drift.baseline((*QUIET, 9.0, 9.0)) == drift.baseline(QUIET)
    found = drift.baseline(QUIET)
    assert found is not None
    assert found.runs == BASELINE_RUNS


def finding(**drifts: float) -> Advice | None:
    own = drift.baseline(QUIET)
    assert own is not None
    found = drift.finding(ME, {work: (Drift(value, True, True), own) for work, value in drifts.items()}, 7)
    return found.advice if found else None


def test_drift_is_observed_and_only_severe_drift_is_acted_on() -> None:
    assert finding(memory=0.05) is Advice.OBSERVE
    assert finding(memory=0.05, compute=0.16) is Advice.SUSPECT
    assert finding() is None


def test_a_finding_names_each_workload_that_drifts_and_its_bar() -> None:
    own = drift.baseline(QUIET)
    assert own is not None
    drifts = {"memory": (Drift(0.051, True, True), own), "compute": (Drift(0.2, True, False), own)}
    found = drift.finding(ME, drifts, 7)
    assert found is not None
    assert (found.rule_id, found.at_ns, found.uuid) == ("probe.drift", 7, ME)
    assert found.summary == "5.1% slower than its own past in memory, peers taken away"
    assert found.evidence["memory_bar"] == drift.DRIFT_FRACTION
    assert "compute_drift" not in found.evidence, "once is not lasting"
