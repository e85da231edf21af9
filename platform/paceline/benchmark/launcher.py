"""Runs the light probe of a device as a Ray task inside the device's hold, and makes a measurement of it whatever happens."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import ray

from paceline.benchmark import probe
from paceline.model.ids import DeviceUuid
from paceline.model.measurement import Measurement

DEADLINE_S: Final = 150.0
"""A probe takes a second; starting its worker on a loaded machine may take a minute. Longer is an answer too: the device hangs."""


assert DEADLINE_S > probe.GPU_DEADLINE_S, "the probe's own words are better than silence"


@ray.remote(num_cpus=0, max_retries=0)
def _probe_here() -> tuple[float, ...]:
    index = int(ray.get_runtime_context().get_accelerator_ids()["GPU"][0])
    return probe.run(index)


async def measure(uuid: DeviceUuid, run_there: Callable[[Any], Awaitable[tuple[float, ...]]]) -> Measurement:
    """Probe a device; `run_there` runs a Ray function on it. A probe that fails is a measurement that is not ok.

    One that Ray could not run or lost (RayError other than the probe's own) is none at all, and raised.
    """
    error = ""
    seconds: tuple[float, ...] = ()
    try:
        seconds = await asyncio.wait_for(run_there(_probe_here), DEADLINE_S)
    except TimeoutError:
        error = f"the probe did not finish within {DEADLINE_S:.0f} s"
    except ray.exceptions.RayTaskError as failure:
        error = str(failure).strip().splitlines()[-1]
    return Measurement(uuid, probe.NAME, probe.VERSION, time.time_ns(), tuple(seconds), ok=not error, error=error)
