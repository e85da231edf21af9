"""Runs the light probe of a device as a Ray task inside the device's hold, and makes measurements of it whatever happens."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import ray
import structlog

from paceline.benchmark import probe
from paceline.benchmark.probe import Reading
from paceline.model.ids import DeviceUuid
from paceline.model.measurement import Measurement

log = structlog.get_logger()

DEADLINE_S: Final = 150.0
"""A probe takes seconds; starting its worker on a loaded machine may take a minute. Longer is an answer too: the device hangs."""


assert DEADLINE_S > probe.GPU_DEADLINE_S, "the probe's own words are better than silence"


@ray.remote(num_cpus=0, max_retries=0)
def _probe_here() -> tuple[Reading, ...]:
    index = int(ray.get_runtime_context().get_accelerator_ids()["GPU"][0])
    return probe.run(index)


async def measure(
    uuid: DeviceUuid, run_there: Callable[[Any], Awaitable[tuple[Reading, ...]]]
) -> tuple[Measurement, ...]:
    """Probe a device, one measurement a workload; `run_there` runs a Ray function on it. A probe that fails is one that is not ok.

    Empty where Ray could not run it or lost it: what carried the probe died, and that says nothing about the device.
    """
    try:
        readings = await asyncio.wait_for(run_there(_probe_here), DEADLINE_S)
    except TimeoutError:
        return measurements(uuid, (), time.time_ns(), f"the probe did not finish within {DEADLINE_S:.0f} s")
    except ray.exceptions.RayTaskError as failure:
        return measurements(uuid, (), time.time_ns(), str(failure).strip().splitlines()[-1])
    except ray.exceptions.RayError as error:
        log.warning("probe could not run", device=uuid, error=str(error))
        return ()
    return measurements(uuid, readings, time.time_ns())


def measurements(uuid: DeviceUuid, readings: Sequence[Reading], at_ns: int, error: str = "") -> tuple[Measurement, ...]:
    """Of one probe: all at one time. Without a reading the error is the word of the first workload, for all."""
    if not readings:
        readings = (Reading(*probe.LIGHT[0], error=error or "the probe said nothing"),)
    return tuple(
        Measurement(
            uuid=uuid,
            benchmark=reading.benchmark,
            version=reading.version,
            at_ns=at_ns,
            repetitions_s=reading.seconds,
            ok=not reading.error,
            error=reading.error,
            workload=reading.workload,
            conditions=reading.conditions,
        )
        for reading in readings
    )
