"""Laws of the bounds on an MTBF, of ETTR and of lemons."""

from math import exp, inf, lgamma, log
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.analysis.reliability import (
    DAY_NS,
    Happened,
    Happening,
    NodeHistory,
    best_interval_s,
    ettr,
    lemons,
    mtbf_h,
    poisson_at_least,
    poisson_bounds,
)
from paceline.model.ids import HostName

NOW = 1_000 * DAY_NS
COUNTS = st.integers(0, 400)
ALPHAS = st.sampled_from([0.5, 0.1, 0.05, 0.01, 1e-4])


def chance(k: int, mean: float) -> float:
    return exp(k * log(mean) - mean - lgamma(k + 1))


@given(COUNTS, st.floats(0.01, 500))
def test_the_tail_is_the_sum_of_its_terms(n: int, mean: float) -> None:
    below = sum(chance(k, mean) for k in range(n))
    assert poisson_at_least(n, mean) == pytest.approx(1 - below, abs=1e-9)


@given(COUNTS, ALPHAS)
def test_each_bound_leaves_half_of_alpha(n: int, alpha: float) -> None:
    low, high = poisson_bounds(n, alpha)
    assert poisson_at_least(n, low) == pytest.approx(alpha / 2 if n else 1.0, rel=1e-6)
    assert 1 - poisson_at_least(n + 1, high) == pytest.approx(alpha / 2, rel=1e-6)


BOUNDS = {alpha: [poisson_bounds(n, alpha) for n in range(60)] for alpha in (0.5, 0.05, 1e-4)}


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 15), st.sampled_from(sorted(BOUNDS)))
def test_the_interval_covers_the_true_mean_as_often_as_it_promises(mean: float, alpha: float) -> None:
    covered = 0.0
    for n, (low, high) in enumerate(BOUNDS[alpha]):
        covered += chance(n, mean) * (low <= mean <= high)
    assert covered >= 1 - alpha - 1e-9


@given(COUNTS, st.floats(1, 1e9), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_estimate_lies_within_its_bounds_which_widen_with_confidence(
    n: int, hours: float, confidence: float
) -> None:
    mtbf = mtbf_h(n, hours, confidence)
    assert 0 < mtbf.low <= mtbf.value <= mtbf.high
    wider = mtbf_h(n, hours, (1 + confidence) / 2)
    assert wider.low < mtbf.low
    assert wider.high > mtbf.high or mtbf.high == inf


@given(st.integers(1, 20_000), st.floats(0, 0.05), st.floats(1, 3600), st.floats(1, 86_400), st.floats(0, 600))
def test_ettr_is_a_share_and_falls_with_each_burden(
    nodes: int, rate: float, restart_s: float, interval_s: float, save_s: float
) -> None:
    share = ettr(nodes, rate, restart_s, interval_s, save_s)
    assert 0 <= share <= 1
    assert ettr(nodes + 1, rate, restart_s, interval_s, save_s) <= share
    assert ettr(nodes, rate, restart_s + 1, interval_s, save_s) <= share
    assert ettr(nodes, rate, restart_s, interval_s, save_s + 1) <= share


@given(st.integers(1, 20_000), st.floats(1e-4, 0.05), st.floats(0.1, 600))
def test_the_best_interval_is_young_s(nodes: int, rate: float, save_s: float) -> None:
    """At it, the time lost to failures is the time lost to checkpoints."""
    best = best_interval_s(nodes, rate, save_s)
    assert nodes * rate / 86_400 * best / 2 == pytest.approx(save_s / best)


HISTORIES = st.lists(
    st.lists(
        st.builds(
            Happening,
            st.sampled_from(Happened),
            st.integers(NOW - 30 * DAY_NS, NOW),
            st.sampled_from([str(n) for n in range(12)]),
        ),
        max_size=40,
    ),
    min_size=6,
    max_size=14,
)


@settings(max_examples=40, deadline=None)
@given(HISTORIES, st.randoms(use_true_random=False))
def test_the_order_of_nodes_and_of_their_histories_is_no_input(
    histories: list[list[Happening]], random: Random
) -> None:
    nodes = [NodeHistory(HostName(f"n{n}"), tuple(one)) for n, one in enumerate(histories)]
    mixed = [NodeHistory(node.host, tuple(random.sample(node.happened * 2, 2 * len(node.happened)))) for node in nodes]
    random.shuffle(mixed)
    assert lemons(mixed, NOW) == lemons(nodes, NOW)


@settings(max_examples=40, deadline=None)
@given(HISTORIES)
def test_equal_nodes_are_no_lemons(histories: list[list[Happening]]) -> None:
    nodes = [NodeHistory(HostName(f"n{n}"), tuple(histories[0])) for n in range(len(histories))]
    assert lemons(nodes, NOW) == ()
