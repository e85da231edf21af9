"""Laws of scores and of drift on any fleet."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from paceline.model.ids import DeviceUuid
from paceline.model.measurement import Measurement
from paceline.placement import drift
from paceline.placement.drift import Run, Track
from paceline.placement.score import score, slow_findings

TIMES = st.floats(0.5, 2.0)
NOISE = st.floats(0.995, 1.005)
DAY_NS = 86_400 * 10**9


@st.composite
def probes(draw: st.DrawFn) -> list[Measurement]:
    """Several probes of each of some devices."""
    return [
        Measurement(DeviceUuid(f"GPU-{n}"), "gemm", 1, day * DAY_NS, (draw(TIMES), draw(TIMES), draw(TIMES)), True)
        for n in range(draw(st.integers(1, 12)))
        for day in range(draw(st.integers(1, 3)))
    ]


@st.composite
def cohorts(draw: st.DrawFn) -> dict[DeviceUuid, Track]:
    """Devices with their own speeds and quiet noise, probed each day at about the same time."""
    found = {}
    days = draw(st.integers(1, 3))
    for n in range(draw(st.integers(4, 10))):
        own = draw(TIMES)
        past = [own * draw(NOISE) for _ in range(drift.BASELINE_RUNS)]
        runs = tuple(Run(day * DAY_NS + n, own * draw(NOISE)) for day in range(days))
        found[DeviceUuid(f"GPU-{n}")] = Track(drift.baseline(past), runs)
    return found


def slowed(track: Track, factor: float) -> Track:
    return replace(track, runs=tuple(Run(run.at_ns, run.seconds * factor) for run in track.runs))


@given(probes(), st.randoms(use_true_random=False))
def test_the_order_of_measurements_is_no_input(given_rows: list[Measurement], dice: Random) -> None:
    skus = {m.uuid: "H200" for m in given_rows}
    shuffled = given_rows.copy()
    dice.shuffle(shuffled)
    rows = score(given_rows, skus)
    assert rows == score(shuffled, skus)
    assert slow_findings(rows, 7) == slow_findings(rows[::-1], 7)


@given(probes(), st.floats(0.25, 4.0))
def test_a_fleet_that_is_slow_as_a_whole_has_the_same_scores(given_rows: list[Measurement], factor: float) -> None:
    skus = {m.uuid: "H200" for m in given_rows}
    slow = [replace(m, repetitions_s=tuple(s * factor for s in m.repetitions_s)) for m in given_rows]
    for before, after in zip(score(given_rows, skus), score(slow, skus), strict=True):
        assert abs(before.score - after.score) < 1e-9


@given(cohorts(), st.floats(0.7, 1.5))
def test_a_slowdown_that_all_share_finds_nobody(cohort: dict[DeviceUuid, Track], factor: float) -> None:
    shared = {uuid: slowed(track, factor) for uuid, track in cohort.items()}
    assert not any(drift.judge(uuid, shared).over for uuid in shared)


@given(cohorts(), st.randoms(use_true_random=False))
def test_the_order_of_devices_and_of_runs_is_no_input(cohort: dict[DeviceUuid, Track], dice: Random) -> None:
    order = list(cohort)
    dice.shuffle(order)
    other = {uuid: replace(cohort[uuid], runs=cohort[uuid].runs[::-1]) for uuid in order}
    assert {u: drift.judge(u, cohort) for u in cohort} == {u: drift.judge(u, other) for u in cohort}


@given(cohorts(), st.floats(1.06, 2.0))
def test_one_that_has_become_slower_alone_is_found_and_nobody_else(
    cohort: dict[DeviceUuid, Track], factor: float
) -> None:
    sick = min(cohort)
    cohort[sick] = slowed(cohort[sick], factor)
    found = {uuid for uuid in cohort if drift.judge(uuid, cohort).over}
    assert found == {sick}
    assert drift.judge(sick, cohort).lasting is (len(cohort[sick].runs) >= drift.WANTED)


@given(cohorts(), st.floats(1.0, 1.5), st.floats(1.0, 1.5))
def test_more_slowness_is_never_found_less(cohort: dict[DeviceUuid, Track], one: float, other: float) -> None:
    sick = min(cohort)
    less, more = sorted((one, other))
    mild = drift.judge(sick, cohort | {sick: slowed(cohort[sick], less)})
    bad = drift.judge(sick, cohort | {sick: slowed(cohort[sick], more)})
    assert bad.lasting or not mild.lasting
