"""Which rank is late, from each rank's own clock."""

import pytest

from paceline.model.ids import DeviceUuid
from paceline.placement.inband import STEPS_MIN, StepTimes, measurements, paces, straggle_s

RANKS = [DeviceUuid(u) for u in "abcd"]
TRANSFER_S = 0.010


def step(*compute_s: float) -> dict[DeviceUuid, StepTimes]:
    """A blocking collective lets everyone go when the last rank has come and the transfer is done."""
    out_s = max(compute_s) + TRANSFER_S
    return {u: StepTimes(own, out_s - own) for u, own in zip(RANKS, compute_s, strict=False)}


def test_the_rank_that_waits_least_is_the_late_one() -> None:
    found = paces([step(0.100, 0.100, 0.110, 0.100)] * STEPS_MIN)
    assert [row.lags for row in found] == [False, False, True, False]
    assert [row.relative for row in found] == [pytest.approx(v) for v in (1.0, 1.0, 1.1, 1.0)]
    assert straggle_s(step(0.100, 0.100, 0.125, 0.100)) == pytest.approx(0.025)


def test_a_gang_that_is_slow_together_lags_nowhere() -> None:
    assert not any(row.lags for row in paces([step(0.2, 0.2, 0.2, 0.2)] * STEPS_MIN))


def test_late_data_now_and_then_is_no_lag() -> None:
    steps = [step(0.1, 0.1, 0.3 if n % 2 else 0.1, 0.1) for n in range(STEPS_MIN * 2)]
    assert not any(row.lags for row in paces(steps))


def test_too_few_steps_or_ranks_say_nothing() -> None:
    assert paces([step(0.1, 0.1, 0.2, 0.1)] * (STEPS_MIN - 1)) == ()
    assert paces([step(0.1, 0.2)] * STEPS_MIN) == ()


def test_a_step_that_lacks_a_rank_is_left_out() -> None:
    whole = [step(0.1, 0.1, 0.1, 0.1)] * STEPS_MIN
    assert paces([*whole, step(0.1, 0.1, 0.9)]) == paces(whole)
    assert {row.steps for row in paces([*whole, step(0.1, 0.1, 0.9)])} == {STEPS_MIN}


def test_a_gang_of_slow_equals_keeps_their_scores() -> None:
    found = paces([step(0.1, 0.1, 0.1, 0.1)] * STEPS_MIN)
    rows = measurements(found, dict.fromkeys(RANKS[:3], 1.08), 7)
    assert [(m.uuid, m.repetitions_s[0], m.at_ns) for m in rows] == [(u, pytest.approx(1.08), 7) for u in RANKS[:3]]
    assert {(m.workload, m.ok) for m in rows} == {("step", True)}
    assert measurements(found, {}, 7) == ()
