"""Which machine is slow among its like, and what is said of one whose devices cannot exchange data."""

import pytest

from paceline.model.health import NodeAdvice
from paceline.model.ids import DeviceUuid, HostName
from paceline.model.measurement import NodeMeasurement
from paceline.placement import exchange_score
from paceline.placement.score import COHORT_MIN


def machines(*seconds: float) -> dict[HostName, float]:
    return {HostName(f"h{number}"): value for number, value in enumerate(seconds)}


def test_times_are_relative_to_the_median_machine() -> None:
    assert exchange_score.relative(machines(1.0, 2.0, 4.0)) == machines(0.5, 1.0, 2.0)


@pytest.mark.parametrize(
    ("first", "others", "found"),
    [
        pytest.param(1.3, [1.0] * 7, True, id="far from the others"),
        pytest.param(1.10, [1.0] * 7, False, id="within the natural spread"),
        pytest.param(1.3, [1.0] * 6, False, id="too few to tell"),
        pytest.param(1.3, [0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4], False, id="all differ"),
        pytest.param(0.5, [1.0] * 7, False, id="faster"),
    ],
)
def test_an_outlier_to_the_slow_side_is_found(first: float, others: list[float], found: bool) -> None:
    finding = exchange_score.slow(HostName("h0"), "p2p", machines(first, *others), 7)
    assert (finding is not None) is found
    if finding is not None:
        assert (finding.rule_id, finding.advice, finding.at_ns) == ("exchange.slow", NodeAdvice.CORDON, 7)
        assert finding.summary.startswith("p2p between its devices takes 30% longer than on the median of 8")
        assert finding.evidence["machines"] == COHORT_MIN


def measurement(error: str) -> NodeMeasurement:
    return NodeMeasurement(HostName("a"), (DeviceUuid("a0"), DeviceUuid("a1")), "p2p", 1, 7, (), not error, error)


def test_wrong_data_and_no_data_are_two_rules() -> None:
    findings = exchange_score.wrong([measurement(""), measurement("corrupt: rank 1 got"), measurement("NCCL: timeout")])
    assert [f.rule_id for f in findings] == ["exchange.corrupt", "exchange.failed"]
    assert [f.summary for f in findings] == [
        "data was corrupted between its devices: corrupt: rank 1 got",
        "its devices could not exchange data: NCCL: timeout",
    ]
