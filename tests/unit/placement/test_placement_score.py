"""Scores of drawn cohorts, and who is called slow."""

from dataclasses import replace

import pytest

from paceline.model.health import Advice
from paceline.model.ids import DeviceUuid
from paceline.model.measurement import DeviceScore, Measurement, Workload
from paceline.placement.score import cohort_of, corrupt_findings, repeatability, score, slow_findings


def measured(uuid: str, *seconds: float, at_ns: int = 1, version: int = 1, ok: bool = True) -> Measurement:
    return Measurement(DeviceUuid(uuid), "gemm", version, at_ns, seconds, ok)


def scores(times: dict[str, float]) -> tuple[DeviceScore, ...]:
    skus = {DeviceUuid(uuid): "H200" for uuid in times}
    return score([measured(uuid, seconds) for uuid, seconds in times.items()], skus)


def cohort(*times: float) -> tuple[DeviceScore, ...]:
    return scores({f"GPU-{n}": seconds for n, seconds in enumerate(times)})


def test_a_score_is_relative_to_the_median_of_the_cohort() -> None:
    rows = scores({"a": 1.0, "b": 2.0, "c": 3.0})
    assert [(row.uuid, row.score, row.cohort, row.cohort_size) for row in rows] == [
        ("a", 0.5, "H200", 3),
        ("b", 1.0, "H200", 3),
        ("c", 1.5, "H200", 3),
    ]


def test_skus_are_not_compared_with_each_other() -> None:
    skus = {DeviceUuid("a"): "H100", DeviceUuid("b"): "H200"}
    assert [row.score for row in score([measured("a", 9.0), measured("b", 1.0)], skus)] == [1.0, 1.0]


def test_a_device_stands_for_the_median_of_its_repetitions() -> None:
    (row,) = score([measured("a", 1.0, 1.1, 9.0)], {DeviceUuid("a"): "H200"})
    assert (row.score, row.samples) == (1.0, 3)
    assert row.noise == pytest.approx(0.1 / 1.1)


def test_the_last_measurement_counts_alone_unless_more_are_asked_for() -> None:
    rows = [measured("a", 2.0, at_ns=1), measured("a", 4.0, at_ns=2), measured("b", 4.0)]
    skus = {DeviceUuid("a"): "H200", DeviceUuid("b"): "H200"}
    assert score(rows, skus)[0].score == 1.0
    assert score(rows, skus, last=2)[0].score == pytest.approx(3.0 / 3.5)


def test_failed_empty_and_outdated_measurements_count_for_nothing() -> None:
    rows = [measured("a", 9.0, ok=False), measured("b"), measured("c", 1.0, version=1), measured("d", 1.0, version=2)]
    assert [row.uuid for row in score(rows, {DeviceUuid(u): "H200" for u in "abcd"})] == ["d"]


def test_the_order_of_rows_is_not_an_input() -> None:
    rows = [measured(uuid, seconds) for uuid, seconds in zip("abcd", (3.0, 1.0, 2.0, 5.0), strict=True)]
    skus = {DeviceUuid(u): "H200" for u in "abcd"}
    assert score(rows, skus) == score(rows[::-1], skus)


def test_an_outlier_is_slow() -> None:
    (finding,) = slow_findings(cohort(1.0, 1.01, 0.99, 1.0, 1.02, 1.0, 0.98, 1.4), 77)
    assert (finding.uuid, finding.advice, finding.at_ns) == ("GPU-7", Advice.SUSPECT, 77)
    assert finding.rule_id == "probe.slow"
    assert finding.evidence["score"] == 1.4
    assert finding.summary == "40% slower than the median of 8 × H200 in gemm"


@pytest.mark.parametrize(
    "times",
    [
        pytest.param((1.0, 1.01, 0.99, 1.0, 1.02, 1.0, 0.98, 1.10), id="within natural spread"),
        pytest.param((1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0), id="cohort of seven"),
        pytest.param((0.7, 0.8, 0.9, 1.0, 1.0, 1.1, 1.2, 1.3), id="wide as a whole"),
        pytest.param((1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5), id="fast"),
    ],
)
def test_nobody_is_slow(times: tuple[float, ...]) -> None:
    assert slow_findings(cohort(*times), 77) == ()


def test_a_device_that_is_slow_in_two_benchmarks_is_one_finding() -> None:
    rows = scores({f"GPU-{n}": 1.0 for n in range(7)} | {"GPU-7": 1.4})
    memory = [replace(row, benchmark="triad", workload="memory", score=row.score**2) for row in rows]
    (finding,) = slow_findings([*rows, *memory], 77)
    assert finding.summary == "96% slower than the median of 8 × H200 in triad"
    assert finding.evidence["slow_in"] == "gemm, triad"


def test_steps_of_training_runs_condemn_nobody() -> None:
    rows = cohort(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.4)
    assert slow_findings([replace(row, workload=Workload.STEP) for row in rows], 77) == ()


def test_scores_are_relative_to_the_sku_and_judged_within_a_driver() -> None:
    times = {f"old-{n}": 1.0 for n in range(8)} | {f"new-{n}": 1.2 for n in range(8)}
    skus = {DeviceUuid(uuid): "H200" for uuid in times}
    cohorts = {uuid: cohort_of("H200", "580.65" if uuid.startswith("old") else "610.1") for uuid in skus}
    rows = score([measured(uuid, seconds) for uuid, seconds in times.items()], skus, cohorts=cohorts)
    assert {(row.cohort, round(row.score, 3), row.cohort_size) for row in rows} == {
        ("H200/driver 580", 0.909, 8),
        ("H200/driver 610", 1.091, 8),
    }
    assert slow_findings(rows, 77) == (), "a driver that is slow for all is no fault of a device"


def test_a_wrong_integer_is_quarantined_and_a_failed_probe_is_not() -> None:
    wrong = replace(measured("a", ok=False), error="corrupt: 1 of 64 rows of an integer GEMM are wrong")
    (finding,) = corrupt_findings([wrong, wrong, replace(measured("b", ok=False), error="CUDA error 719")], 77)
    assert (finding.uuid, finding.rule_id, finding.advice) == ("a", "probe.corrupt", Advice.QUARANTINE)
    assert finding.summary == "silent data corruption: 1 of 64 rows of an integer GEMM are wrong"


def test_repeatability_is_the_difference_that_two_probes_may_show() -> None:
    assert repeatability([1.0, 1.01]) == (None, None)
    mad, limit = repeatability([1.0, 1.01, 0.99, 1.0, 1.01])
    assert mad == pytest.approx(0.01)
    assert limit == pytest.approx(2.8 * 1.4826 * 0.01)
