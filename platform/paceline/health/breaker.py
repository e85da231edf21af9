"""The circuit breaker: how many devices automation may take out of service in a while. Pure.

A bug in a rule, a bad driver or a broken clock can condemn a whole fleet in a second; no fleet loses a tenth of its
devices in ten minutes by itself. (Meta's RSC-1: 6.5 failures in 1000 node-days, arXiv 2410.21680; Llama 3: 419 in 54 days
on 16,384 GPUs.) What the breaker holds is written down, alerted and left to an operator, whose own quarantines are never
held. NVSentinel's breaker (half of the nodes in 5 min) is the model; ours trips five times earlier, and by cohort too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from paceline.model.ids import DeviceUuid

SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `share_pct` of a group, and always `least` devices, in any span of `window_ns`."""

    window_ns: int
    share_pct: int
    least: int

    def devices(self, size: int) -> int:
        """Exclusions that a group of `size` devices may have in the window."""
        return max(self.least, size * self.share_pct // 100)


BURST: Final = Limit(600 * SECOND_NS, share_pct=10, least=2)
"""Ten minutes: an operator who is called looks within that time. Two devices at the least: a host with two bad GPUs is no
bug, and a fleet of four must be able to lose them."""
DAY: Final = Limit(86_400 * SECOND_NS, share_pct=30, least=4)
"""A wrong rule must not empty the fleet overnight by a tenth each ten minutes. Four at the least: half a host of eight."""
LIMITS: Final = (BURST, DAY)
LOOK_BACK_NS: Final = max(limit.window_ns for limit in LIMITS)
"""How far back `why_held` wants to know the exclusions."""
assert BURST.window_ns >= 10 * 60 * SECOND_NS, (
    "rules on lasting conditions speak once a minute: see several rounds of them"
)
assert BURST.devices(1) == BURST.devices(4) == 2, "small fleets must be able to lose two devices"
assert all(BURST.devices(n) <= DAY.devices(n) for n in (1, 10, 10_000)), "a day must not be tighter than ten minutes"
assert DAY.share_pct * BURST.window_ns < BURST.share_pct * DAY.window_ns, "the limit of a day must be one"


@dataclass(frozen=True, slots=True)
class Exclusion:
    """An automatic quarantine that was carried out. `cohort` is the device's SKU."""

    uuid: DeviceUuid
    cohort: str
    at_ns: int


def why_held(
    quarantines: Sequence[Exclusion],
    cohort: str,
    cohort_size: int,
    fleet_size: int,
    now_ns: int,
    limits: Sequence[Limit] = LIMITS,
) -> str | None:
    """Why an automatic quarantine of one more device of `cohort` must not be carried out now, or None where it may be.

    `quarantines` are the automatic ones of the last LOOK_BACK_NS, in any order; those of operators are left out. The sizes
    count devices that are out of service too, else the limit would shrink with each loss. A device that was excluded twice
    counts twice. Exclusions of the future (a clock that went back) count. O(quarantines).
    """
    done = frozenset(quarantines)
    for limit in limits:
        recent = [one.cohort for one in done if one.at_ns > now_ns - limit.window_ns]
        groups = ((f"of {cohort}", recent.count(cohort), cohort_size), ("of the fleet", len(recent), fleet_size))
        for name, lost, size in groups:
            if lost >= limit.devices(size):
                return (
                    f"the circuit breaker holds: {lost} of {size} devices {name} were excluded by automation in the last "
                    f"{limit.window_ns // (60 * SECOND_NS)} min, the limit is {limit.devices(size)}"
                )
    return None
