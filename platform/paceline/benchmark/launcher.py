"""Runs probes as Ray tasks inside the holds of their devices, and makes measurements of them whatever happens."""

import asyncio
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import ray
import structlog

from paceline.benchmark import exchange, probe
from paceline.benchmark.probe import Reading
from paceline.model.ids import DeviceUuid, HostName
from paceline.model.measurement import Measurement, NodeMeasurement

log = structlog.get_logger()

DEADLINE_S: Final = 150.0
"""A probe takes seconds; starting its worker on a loaded machine may take a minute. Longer is an answer too: the device hangs."""


FULL_DEADLINE_S: Final = 300.0
assert DEADLINE_S > probe.GPU_DEADLINE_S, "the probe's own words are better than silence"
assert FULL_DEADLINE_S > exchange.CHILD_DEADLINE_S, "likewise"


@ray.remote(num_cpus=0, max_retries=0)
def _probe_here() -> tuple[Reading, ...]:
    index = int(ray.get_runtime_context().get_accelerator_ids()["GPU"][0])
    return probe.run(index)


@ray.remote(num_cpus=0, max_retries=0)
def _exchange_here(rank: int, world: int, meet: str) -> tuple[Reading, ...]:
    index = int(ray.get_runtime_context().get_accelerator_ids()["GPU"][0])
    return exchange.run(index, rank, world, meet)


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


async def measure_node(
    host: HostName, devices: Mapping[DeviceUuid, Callable[..., Awaitable[tuple[Reading, ...]]]]
) -> tuple[NodeMeasurement, ...]:
    """The full probe of devices of one machine, one measurement a benchmark; each value runs a Ray function on its device.

    Empty where Ray could not run it or lost it, as in `measure`.
    """
    meet = f"{tempfile.gettempdir()}/paceline-meet-{secrets.token_hex(8)}"
    ranks = (run(_exchange_here, rank, len(devices), meet) for rank, run in enumerate(devices.values()))
    try:
        answers = await asyncio.wait_for(asyncio.gather(*ranks, return_exceptions=True), FULL_DEADLINE_S)
    except TimeoutError:
        return _of_node(host, tuple(devices), (), f"the full probe did not finish within {FULL_DEADLINE_S:.0f} s")
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    if failures and not all(isinstance(failure, ray.exceptions.RayTaskError) for failure in failures):
        log.warning("full probe could not run", host=host, error=str(failures[0]))
        return ()
    if failures:
        return _of_node(host, tuple(devices), (), str(failures[0]).strip().splitlines()[-1])
    return _of_node(host, tuple(devices), exchange.together([a for a in answers if not isinstance(a, BaseException)]))


def _of_node(
    host: HostName, devices: tuple[DeviceUuid, ...], readings: Sequence[Reading], error: str = ""
) -> tuple[NodeMeasurement, ...]:
    """Of one full probe: all at one time. Without a reading the error is the word of the first benchmark, for all."""
    at_ns = time.time_ns()
    if not readings:
        return (NodeMeasurement(host, devices, *exchange.FULL[0], at_ns, (), ok=False, error=error),)
    return tuple(
        NodeMeasurement(
            host=host,
            devices=devices,
            benchmark=reading.benchmark,
            version=reading.version,
            at_ns=at_ns,
            repetitions_s=reading.seconds,
            ok=not reading.error,
            error=reading.error,
            bytes=reading.conditions.get("bytes", 0.0),
        )
        for reading in readings
    )


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
