"""The circuit breaker: what it lets through and what it holds."""

import pytest

from paceline.health.breaker import BURST, DAY, Exclusion, Limit, why_held
from paceline.model.ids import DeviceUuid

MINUTE_NS = 60_000_000_000
NOW = 100 * DAY.window_ns


def gone(number: int, minutes_ago: float, cohort: str = "H200") -> Exclusion:
    return Exclusion(DeviceUuid(f"GPU-{number}"), cohort, NOW - int(minutes_ago * MINUTE_NS))


@pytest.mark.parametrize("fleet", [1, 2, 4, 8, 29])
def test_a_small_fleet_may_lose_two_devices_and_no_third(fleet: int) -> None:
    assert why_held([], "H200", fleet, fleet, NOW) is None
    assert why_held([gone(1, 1)], "H200", fleet, fleet, NOW) is None
    why = why_held([gone(1, 1), gone(2, 5)], "H200", fleet, fleet, NOW)
    assert why is not None
    assert f"2 of {fleet} devices of H200" in why
    assert "in the last 10 min, the limit is 2" in why


def test_a_cohort_may_lose_a_tenth() -> None:
    lost = [gone(n, 1) for n in range(9)]
    assert why_held(lost, "H200", 100, 1000, NOW) is None
    assert why_held([*lost, gone(9, 1)], "H200", 100, 1000, NOW) is not None
    assert why_held([*lost, gone(9, 1)], "H100", 100, 1000, NOW) is None, "another cohort has its own limit"


def test_the_fleet_has_a_limit_of_its_own() -> None:
    lost = [gone(n, 1, cohort=f"sku{n}") for n in range(10)]
    why = why_held(lost, "sku99", 10, 100, NOW)
    assert why is not None
    assert "10 of 100 devices of the fleet" in why


def test_what_is_ten_minutes_old_no_longer_counts() -> None:
    assert why_held([gone(1, 1), gone(2, 10)], "H200", 8, 8, NOW) is None
    assert why_held([gone(1, 1), gone(2, 9.99)], "H200", 8, 8, NOW) is not None


def test_a_wrong_rule_does_not_empty_the_fleet_overnight() -> None:
    lost, why = [], None
    for number in range(144):  # one device each ten minutes
        now_ns = NOW + number * BURST.window_ns
        why = why_held(lost, "H200", 100, 100, now_ns)
        if why is None:
            lost.append(Exclusion(DeviceUuid(f"GPU-{number}"), "H200", now_ns))
    assert len(lost) == DAY.devices(100) == 30
    assert "in the last 1440 min" in (why or "")


def test_the_same_exclusion_told_twice_counts_once() -> None:
    assert why_held([gone(1, 1)] * 2, "H200", 8, 8, NOW) is None


def test_an_exclusion_of_the_future_counts() -> None:
    """The clock went back: the breaker must not open by that."""
    assert why_held([gone(1, -30), gone(2, -30)], "H200", 8, 8, NOW) is not None


def test_limits_can_be_given() -> None:
    wide = [Limit(BURST.window_ns, share_pct=100, least=8)]
    assert why_held([gone(n, 1) for n in range(7)], "H200", 8, 8, NOW, wide) is None
