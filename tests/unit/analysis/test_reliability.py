"""MTBF, ETTR and lemons, against published values and drawn fleets."""

from math import inf
from random import Random

import pytest

from paceline.analysis.reliability import (
    DAY_NS,
    LEMON_FLEET_MIN,
    LEMON_WINDOW_NS,
    Exposure,
    Happened,
    Happening,
    NodeHistory,
    Signal,
    best_interval_s,
    ettr,
    lemons,
    mtbf_by,
    mtbf_h,
    mttf_h,
    poisson_bounds,
)
from paceline.model.ids import DeviceUuid, HostName

NOW = 1_000 * DAY_NS
RSC_1 = 6.5 / 1000
"""Failures per node-day of Meta's RSC-1."""


@pytest.mark.parametrize(
    ("n", "low", "high"),
    [(0, 0.0, 3.6889), (1, 0.0253, 5.5716), (5, 1.6235, 11.6683), (10, 4.7954, 18.3904), (100, 81.3640, 121.627)],
)
def test_poisson_bounds_are_those_of_the_tables(n: int, low: float, high: float) -> None:
    """95 %, Garwood 1936: half the 2.5 % and 97.5 % quantiles of chi-squared with 2n and 2n + 2 degrees of freedom."""
    assert poisson_bounds(n, 0.05) == (pytest.approx(low, abs=5e-4), pytest.approx(high, abs=5e-4))


def test_mtbf_of_llama_3() -> None:
    """419 unexpected interruptions of 16,384 GPUs in 54 days: about 50,000 GPU-hours each."""
    mtbf = mtbf_h(419, 16_384 * 54 * 24)
    assert (mtbf.value, mtbf.n) == (pytest.approx(50_677, abs=1), 419)
    assert mtbf.low < 46_100 < mtbf.value < 55_700 < mtbf.high


def test_no_failure_gives_a_lower_bound_only() -> None:
    mtbf = mtbf_h(0, 1000)
    assert (mtbf.value, mtbf.high, mtbf.n) == (inf, inf, 0)
    assert mtbf.low == pytest.approx(1000 / 3.6889, rel=1e-4)


@pytest.mark.parametrize(("failures", "hours", "confidence"), [(-1, 1, 0.95), (1, 0, 0.95), (1, 1, 1.0)])
def test_nonsense_has_no_mtbf(failures: int, hours: float, confidence: float) -> None:
    with pytest.raises(ValueError, match="no MTBF"):
        mtbf_h(failures, hours, confidence)


def test_mtbf_by_rack_adds_failures_and_hours() -> None:
    rows = [Exposure(DeviceUuid(f"GPU-{n}"), "H200", f"r{n % 2}", 500.0, n) for n in range(4)]
    by_rack = mtbf_by(rows, lambda row: row.rack)
    assert by_rack == {"r0": mtbf_h(2, 1000), "r1": mtbf_h(4, 1000)}
    assert list(mtbf_by(rows, lambda row: row.uuid)) == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert mtbf_by([Exposure(DeviceUuid("new"), "H200", "r0", 0.0, 0)], lambda row: row.sku) == {}


def test_mttf_falls_with_the_number_of_nodes() -> None:
    assert mttf_h(8, RSC_1) / 24 == pytest.approx(19.2, abs=0.05)
    assert mttf_h(128, RSC_1) == pytest.approx(28.8, abs=0.05)
    assert mttf_h(1024, RSC_1) == pytest.approx(3.6, abs=0.05)
    assert mttf_h(8, 0.0) == inf


def test_ettr_of_the_worked_example() -> None:
    """128 nodes, 5 min to restart, a checkpoint each 10 min that stops training for 5 s."""
    assert ettr(128, RSC_1, restart_s=300, interval_s=600, save_stall_s=5) == pytest.approx(0.986, abs=5e-4)


def test_ettr_of_a_fleet_that_always_fails_is_nothing() -> None:
    assert ettr(100_000, 1.0, restart_s=600, interval_s=3600, save_stall_s=5) == 0.0
    with pytest.raises(ValueError, match="some time apart"):
        ettr(8, RSC_1, 300, 0, 5)


def test_the_best_interval_has_the_best_ettr() -> None:
    best = best_interval_s(128, RSC_1, save_stall_s=5)
    at_best = ettr(128, RSC_1, 300, best, 5)
    assert at_best >= max(ettr(128, RSC_1, 300, best * factor, 5) for factor in (0.5, 0.8, 1.25, 2))
    assert best_interval_s(8, 0.0, 5) == inf


def a_month(random: Random, host: str, failures_a_day: float, jobs: int = 40) -> NodeHistory:
    """28 days of a node: jobs that end, and failures, each of which leaves its traces in several signals at once."""
    happened = [Happening(Happened.SINGLE_NODE_JOB, NOW - random.randrange(28 * DAY_NS), f"j{n}") for n in range(jobs)]
    for day in range(28):
        at_ns = NOW - day * DAY_NS - random.randrange(DAY_NS)
        if random.random() < 0.01:
            happened.append(Happening(Happened.EXCLUDED, at_ns, f"x{day}"))
        if random.random() >= failures_a_day:
            continue
        happened.append(Happening(Happened.OUT, at_ns, f"o{day}"))
        if random.random() < 0.7:
            happened += [Happening(Happened.XID, at_ns + n, "79") for n in range(random.randint(1, 50))]
        if random.random() < 0.5:
            happened.append(Happening(Happened.TICKET, at_ns, f"t{day}"))
        if random.random() < 0.4:
            happened.append(Happening(Happened.MULTI_NODE_FAIL, at_ns, f"m{day}"))
        else:
            happened.append(Happening(Happened.SINGLE_NODE_FAIL, at_ns, f"s{day}"))
            happened.append(Happening(Happened.SINGLE_NODE_JOB, at_ns, f"s{day}"))
    return NodeHistory(HostName(host), tuple(happened))


def test_planted_lemons_are_found_with_precision() -> None:
    """Ten fleets of 300 nodes at RSC-1's rate; 4 of each (1.3 %, as at Meta) fail every second or third day."""
    told = right = planted = 0
    for seed in range(10):
        random = Random(seed)
        bad = {f"n{number:03}" for number in random.sample(range(300), 4)}
        nodes = [a_month(random, host, 0.4 if host in bad else RSC_1) for host in (f"n{n:03}" for n in range(300))]
        found = {lemon.host for lemon in lemons(nodes, NOW)}
        told, right, planted = told + len(found), right + len(found & bad), planted + len(bad)
    assert right / told >= 0.9
    assert right / planted >= 0.9


@pytest.mark.parametrize("failures_a_day", [RSC_1, 0.05])
def test_a_sound_fleet_has_no_lemons(failures_a_day: float) -> None:
    for seed in range(10):
        random = Random(seed)
        assert lemons([a_month(random, f"n{n:03}", failures_a_day) for n in range(200)], NOW) == ()


def fleet(*odd: NodeHistory) -> list[NodeHistory]:
    """Twenty nodes with an incident of each kind on one in ten, and `odd`."""
    once = [Happening(kind, NOW - 1, "a") for kind in Happened]
    return [NodeHistory(HostName(f"n{n}"), tuple(once if n % 10 == 0 else ())) for n in range(20)] + list(odd)


def often(host: str, *kinds: Happened, times: int = 9, age_ns: int = DAY_NS) -> NodeHistory:
    happened = [Happening(kind, NOW - age_ns - n * DAY_NS, f"{n}") for n in range(times) for kind in kinds]
    return NodeHistory(HostName(host), tuple(happened))


def test_a_lemon_says_why() -> None:
    (lemon,) = lemons(fleet(often("bad", Happened.XID, Happened.OUT)), NOW)
    assert (lemon.host, [one.signal for one in lemon.over]) == ("bad", [Signal.XIDS, Signal.OUTS])
    assert lemon.why == "in 28 days: xid_cnt 9 (0.1 expected), out_count 9 (0.1 expected)"


def test_one_signal_is_not_enough() -> None:
    assert lemons(fleet(often("ticketed", Happened.TICKET)), NOW) == ()


def test_what_users_avoid_is_told_but_has_no_vote() -> None:
    assert lemons(fleet(often("avoided", Happened.EXCLUDED, Happened.OUT)), NOW) == ()
    (lemon,) = lemons(fleet(often("bad", Happened.EXCLUDED, Happened.OUT, Happened.XID)), NOW)
    assert Signal.EXCLUDED_BY_JOBS in {one.signal for one in lemon.over}


def test_failed_jobs_count_against_the_jobs_that_ran() -> None:
    busy = often("busy", Happened.SINGLE_NODE_FAIL, Happened.OUT)
    jobs = tuple(Happening(Happened.SINGLE_NODE_JOB, NOW - n, f"j{n}") for n in range(1000))
    others = [NodeHistory(n.host, n.happened + jobs[:10]) for n in fleet()]
    assert lemons([*others, NodeHistory(busy.host, busy.happened + jobs)], NOW) == (), (
        "9 of 1000, and 1 of 100 elsewhere"
    )
    assert [one.host for one in lemons([*others, NodeHistory(busy.host, busy.happened + jobs[:20])], NOW)] == ["busy"]


def test_a_storm_of_one_code_is_one_a_day() -> None:
    storm = tuple(Happening(Happened.XID, NOW - DAY_NS // 2 - n, "95") for n in range(100_000))
    assert lemons(fleet(NodeHistory(HostName("noisy"), storm + often("", Happened.OUT).happened)), NOW) == ()


def test_what_is_older_than_the_window_is_forgotten() -> None:
    assert lemons(fleet(often("mended", Happened.XID, Happened.OUT, age_ns=LEMON_WINDOW_NS)), NOW) == ()


def test_several_lemons_do_not_hide_each_other() -> None:
    bad = [often(f"bad{n}", Happened.XID, Happened.OUT, times=15 - 3 * n) for n in range(3)]
    assert [one.host for one in lemons(fleet(*bad), NOW)] == ["bad0", "bad1", "bad2"]


def test_a_small_fleet_has_no_yardstick() -> None:
    few = [NodeHistory(HostName(f"n{n}"), ()) for n in range(LEMON_FLEET_MIN - 2)]
    assert lemons([*few, often("bad", Happened.XID, Happened.OUT)], NOW) == ()
