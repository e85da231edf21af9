"""Scores of drawn cohorts, and who is called slow."""

import pytest

from paceline.model.health import Advice
from paceline.model.ids import DeviceUuid
from paceline.model.measurement import DeviceScore, Measurement
from paceline.placement.score import score, slow_findings


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
