"""What the steps of a running gang tell of its devices, without a probe and without a common clock. Pure.

In synchronous training every rank waits in the collective for the last one. Each rank measures, by its own clock, how long it computed
and how long it then was inside the collective. The late rank waits least; how much later it came than the others is the difference of
their waits: lag[r] = max(wait) − wait[r], and the collective itself took min(wait). Clocks are never compared (research: a rank
delayed by 25 ms was seen to lag by 26.2 ms among 1.4, 0.1 and 0.2). On a GPU the waits must come from events on the device: a CPU timer
around an asynchronous launch says nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from paceline.model.ids import DeviceUuid
from paceline.model.measurement import Measurement, Workload
from paceline.placement.spread import mad

BENCHMARK: Final = "steps"
VERSION: Final = 1
STEPS_MIN: Final = 20
"""Fewer steps are the start of a run, or a hiccup."""
RANKS_MIN: Final = 3
"""Of two ranks nobody can say which one is late for its own reasons; the median of three is not moved by one."""
LAG_FRACTION: Final = 0.05
"""A rank lags if it is later than the median rank by so much of a step, …"""
LAG_STEPS: Final = 0.75
"""…in so many of its steps: data that comes late now and then is not the device's fault (EROICA: more than 5 % over 50 steps)."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One rank in one step, seconds by its own clock: until it entered the collective, and inside it."""

    compute_s: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class RankPace:
    """`relative` is the rank's time to the collective over that of the median rank, median over the steps (1.05: 5 % later).

    `noise` is the median absolute deviation of `relative` from step to step. `lags`: it is late in LAG_STEPS of the steps.
    """

    uuid: DeviceUuid
    relative: float
    noise: float
    lags: bool
    steps: int


def paces(steps: Sequence[Mapping[DeviceUuid, StepTimes]]) -> tuple[RankPace, ...]:
    """Pace of each device, in order of uuid; nothing if the steps or the ranks are too few.

    Steps that lack a rank count for nothing: a gang is judged whole. O(steps × ranks log ranks).
    """
    gang = frozenset(uuid for step in steps for uuid in step)
    whole = [step for step in steps if step.keys() == gang and all(t.compute_s > 0 for t in step.values())]
    if len(gang) < RANKS_MIN or len(whole) < STEPS_MIN:
        return ()
    arrivals = [_arrivals(step) for step in whole]
    return tuple(_pace(uuid, [step[uuid] for step in arrivals]) for uuid in sorted(gang))


def straggle_s(step: Mapping[DeviceUuid, StepTimes]) -> float:
    """Seconds of a step that the median rank waits for the last one."""
    waits = [times.wait_s for times in step.values()]
    return median(waits) - min(waits)


def measurements(found: Sequence[RankPace], scores: Mapping[DeviceUuid, float], at_ns: int) -> tuple[Measurement, ...]:
    """For the inventory. A gang is chosen of equals, so its median is worth the median of its devices' scores, not 1.

    Nothing for a device without a score. These measurements feed scores of the workload "step"; they never condemn a device.
    """
    anchors = [scores[row.uuid] for row in found if row.uuid in scores]
    if not anchors:
        return ()
    anchor = median(anchors)
    return tuple(
        Measurement(
            uuid=row.uuid,
            benchmark=BENCHMARK,
            version=VERSION,
            at_ns=at_ns,
            repetitions_s=(row.relative * anchor,),
            ok=True,
            workload=Workload.STEP,
            conditions={"steps": float(row.steps), "noise": row.noise, "lags": float(row.lags)},
        )
        for row in found
        if row.uuid in scores
    )


def _arrivals(step: Mapping[DeviceUuid, StepTimes]) -> dict[DeviceUuid, float]:
    """When each rank entered the collective, over the median rank's: by the waits alone. The step's length is the median rank's compute."""
    longest = max(times.wait_s for times in step.values())
    lags = {uuid: longest - times.wait_s for uuid, times in step.items()}
    middle = median(lags.values())
    length = median(times.compute_s for times in step.values())
    return {uuid: 1 + (lag - middle) / length for uuid, lag in lags.items()}


def _pace(uuid: DeviceUuid, relative: Sequence[float]) -> RankPace:
    late = sum(value >= 1 + LAG_FRACTION for value in relative)
    return RankPace(uuid, median(relative), mad(relative), late >= LAG_STEPS * len(relative), len(relative))
