"""Each rule on ports fires when it must and stays silent when it must not."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from paceline.health.links import (
    DOWN_FOR_NS,
    FLAPS,
    FLAPS_WITHIN_NS,
    REPEAT_AFTER_NS,
    SECOND_NS,
    SLOW_FOR_NS,
    LinkMemory,
    judge_links,
)
from paceline.model.hardware import LinkSample
from paceline.model.health import NodeAdvice, NodeFinding

PERIOD_S = 10
UP = LinkSample("mlx5_0/1", "ib", 0, True, 400.0, 0, 0)
DOWN = replace(UP, up=False, rate_gbps=None)
RAILS = tuple(replace(UP, name=f"mlx5_{number}/1") for number in range(4))
GROUPS = {rail.name: "ib MT4129" for rail in RAILS} | {"mlx5_9/1": "ib MT4123"}


def judged(*readings: Sequence[LinkSample]) -> list[NodeFinding]:
    """Findings over a series of readings, one each ten seconds."""
    memory, found = LinkMemory(), []
    for number, links in enumerate(readings):
        now = [replace(link, at_ns=number * PERIOD_S * SECOND_NS) for link in links]
        memory, new = judge_links(memory, now, GROUPS, "boot-1")
        found += new
    return found


def times(ns: int) -> int:
    return ns // SECOND_NS // PERIOD_S


def test_a_port_that_stays_down_fires_after_four_minutes_and_is_said_again() -> None:
    readings = [[UP], *[[DOWN]] * (times(DOWN_FOR_NS) + 1)]
    assert judged(*readings[:-1]) == []
    (finding,) = judged(*readings)
    assert (finding.rule_id, finding.advice) == ("link.down", NodeAdvice.CORDON)
    assert finding.summary == "mlx5_0/1 has been down for 4 min"
    assert (finding.evidence["port"], finding.evidence["boot_id"]) == ("mlx5_0/1", "boot-1")
    assert len(judged(*readings, *[[DOWN]] * times(REPEAT_AFTER_NS))) == 2


@pytest.mark.parametrize(
    "readings",
    [
        pytest.param([[DOWN]] * 100, id="no cable: never up"),
        pytest.param([[UP], *[[DOWN]] * 20, *[[UP]] * 20, *[[DOWN]] * 20], id="a switch that restarts, twice"),
        pytest.param([[UP], *[[]] * 100], id="switched off by hand"),
        pytest.param([[UP]] * 100, id="up"),
    ],
)
def test_these_are_no_ports_that_are_down(readings: list[list[LinkSample]]) -> None:
    assert judged(*readings) == []


def test_a_management_port_is_told_and_not_acted_on() -> None:
    slow = replace(UP, name="eth0", kind="ethernet", rate_gbps=1.0)
    (finding,) = judged([slow], *[[replace(slow, up=False, rate_gbps=None)]] * 30)
    assert (finding.rule_id, finding.advice) == ("link.down", NodeAdvice.OBSERVE)


def test_a_port_below_its_group_fires_after_a_minute() -> None:
    slow = (replace(RAILS[0], rate_gbps=200.0), *RAILS[1:])
    assert judged(*[slow] * times(SLOW_FOR_NS)) == []
    (finding,) = judged(*[slow] * (times(SLOW_FOR_NS) + 1))
    assert (finding.rule_id, finding.advice, finding.evidence["port"]) == ("link.slow", NodeAdvice.CORDON, "mlx5_0/1")
    assert finding.summary == "mlx5_0/1 runs at 200 of 400 Gb/s"


def test_a_port_that_was_faster_fires_though_it_is_alone() -> None:
    (finding,) = judged([UP], *[[replace(UP, rate_gbps=100.0)]] * 10)
    assert (finding.rule_id, finding.evidence["best_gbps"]) == ("link.slow", 400.0)


@pytest.mark.parametrize(
    "links",
    [
        pytest.param((*RAILS, replace(UP, name="mlx5_9/1", rate_gbps=100.0)), id="another kind of adapter"),
        pytest.param((*RAILS[:2], *[replace(one, rate_gbps=200.0) for one in RAILS[2:]]), id="no rate is usual"),
        pytest.param((RAILS[0], replace(RAILS[1], rate_gbps=200.0)), id="two are no group"),
        pytest.param((replace(RAILS[0], rate_gbps=None), *RAILS[1:]), id="it does not tell"),
    ],
)
def test_these_are_no_slow_ports(links: tuple[LinkSample, ...]) -> None:
    assert judged(*[links] * 100) == []


def test_three_downs_within_an_hour_fire() -> None:
    readings = [[replace(UP, link_downed=downs)] for downs in range(FLAPS + 1)]
    assert judged(*readings[:-1]) == []
    (finding,) = judged(*readings)
    assert (finding.rule_id, finding.advice, finding.evidence["downs"]) == ("link.flaps", NodeAdvice.CORDON, 3)


def test_downs_that_are_seen_count_where_the_counter_is_full() -> None:
    up, down = replace(UP, link_downed=None), replace(DOWN, link_downed=None)
    assert [one.rule_id for one in judged(*[[up], [down]] * FLAPS)] == ["link.flaps"]


@pytest.mark.parametrize(
    "readings",
    [
        pytest.param([[replace(UP, link_downed=200)]] * 5, id="old ones, before we came"),
        pytest.param(
            [[replace(UP, link_downed=3)], [replace(UP, link_downed=0)], [replace(UP, link_downed=2)]], id="new driver"
        ),
        pytest.param(
            [[replace(UP, link_downed=n // (times(FLAPS_WITHIN_NS) // 2))] for n in range(1100)], id="two an hour"
        ),
    ],
)
def test_these_are_no_flaps(readings: list[list[LinkSample]]) -> None:
    assert judged(*readings) == []


def test_the_memory_is_as_large_as_the_ports() -> None:
    memory = LinkMemory()
    for number in range(3 * times(FLAPS_WITHIN_NS)):
        link = replace(UP, at_ns=number * PERIOD_S * SECOND_NS, up=bool(number % 2), link_downed=number)
        memory, _ = judge_links(memory, [link], GROUPS, "boot-1")
    assert len(memory.ports["mlx5_0/1"].downs_ns) == FLAPS
    assert len(memory.spoken) <= 3
