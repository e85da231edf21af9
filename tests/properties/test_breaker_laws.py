"""Laws of the circuit breaker, over any order of wishes."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from paceline.health.breaker import LIMITS, Exclusion, Limit, why_held
from paceline.model.ids import DeviceUuid

SKUS = ("A", "B")
WISHES = st.lists(
    st.tuples(st.sampled_from(SKUS), st.sampled_from([0, 1, 100, 10**9, 60 * 10**9, 599 * 10**9, 3600 * 10**9])),
    max_size=60,
)
"""Exclusions that some rule wants: (cohort, time since the wish before)."""
SIZES = st.tuples(st.integers(1, 60), st.integers(0, 60))


def let_through(wishes: list[tuple[str, int]], sizes: dict[str, int]) -> list[Exclusion]:
    done: list[Exclusion] = []
    now_ns = 10**18
    for number, (cohort, gap_ns) in enumerate(wishes):
        now_ns += gap_ns
        if why_held(done, cohort, sizes[cohort], sum(sizes.values()), now_ns) is None:
            done.append(Exclusion(DeviceUuid(f"GPU-{number}"), cohort, now_ns))
    return done


def most_in_a_window(times_ns: list[int], limit: Limit) -> int:
    return max((sum(end - limit.window_ns < t <= end for t in times_ns) for end in times_ns), default=0)


@given(WISHES, SIZES)
def test_no_window_holds_more_exclusions_than_its_limit(wishes: list[tuple[str, int]], sizes: tuple[int, int]) -> None:
    of = dict(zip(SKUS, sizes, strict=True))
    done = let_through(wishes, of)
    for limit in LIMITS:
        assert most_in_a_window([one.at_ns for one in done], limit) <= limit.devices(sum(sizes))
        for cohort, size in of.items():
            assert most_in_a_window([one.at_ns for one in done if one.cohort == cohort], limit) <= limit.devices(size)


@given(WISHES, SIZES, st.randoms(use_true_random=False))
def test_the_order_of_the_record_is_no_input(
    wishes: list[tuple[str, int]], sizes: tuple[int, int], random: Random
) -> None:
    of = dict(zip(SKUS, sizes, strict=True))
    done = let_through(wishes, of)
    mixed = list(done)
    random.shuffle(mixed)
    now_ns = 10**18 + sum(gap for _, gap in wishes)
    for cohort in SKUS:
        assert why_held(mixed, cohort, of[cohort], sum(sizes), now_ns) == why_held(
            done, cohort, of[cohort], sum(sizes), now_ns
        )


@given(SIZES)
def test_two_devices_may_always_be_lost(sizes: tuple[int, int]) -> None:
    of = dict(zip(SKUS, sizes, strict=True))
    assert len(let_through([("A", 0), ("A", 0)], of)) == 2
