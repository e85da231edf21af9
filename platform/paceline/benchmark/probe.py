"""The light probe of one device: each class of work timed several times, and integers multiplied that must come out exact.

Runs inside the hold of the device. On an NVIDIA GPU in a process of its own (probe_gpu.py): CUDA keeps the first device that a process
has used, and its memory until the process ends. On a simulated device with small kernels on the CPU: those of compute take as long as they
do on this device, the others as long as on any, for a simulated device is slow in its arithmetic only.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from paceline.benchmark import child, integer_gemm
from paceline.model.measurement import Workload
from paceline.sim.pace import Pace, pace_of

GEMM: Final = ("gemm", 1, Workload.COMPUTE)
GEMM_FP32: Final = ("gemm_fp32", 1, Workload.COMPUTE_FP32)
TRIAD: Final = ("triad", 1, Workload.MEMORY)
TRANSFER: Final = ("transfer", 1, Workload.TRANSFER)
LIGHT: Final = (GEMM, GEMM_FP32, TRIAD, TRANSFER)
"""(benchmark, version, workload). Another version is another yardstick: raise it when a kernel changes."""

REPETITIONS: Final = 7
"""Odd, so that the median is one that was measured; a device is judged by its median."""
GPU_DEADLINE_S: Final = 90.0
"""Importing torch and making a CUDA context takes 10 to 60 s; the light probe itself less than 20."""

SIM_GEMM_SIZE: Final = 128
"""Small against the paced time, so that a loaded CPU does not decide the score of a simulated device."""
SIM_SHORT_REPETITIONS: Final = 3
SIM_SHORT_STEP: Final = 0.4
"""The classes beside compute are there to be seen: fewer and shorter, so that a fleet of simulated devices is measured in seconds."""
SIM_ARRAY: Final = 1 << 16
SIM_LATE: Final = 1.01
"""A repetition on a simulated device that takes this much longer than the device does was held up by the host: it is made again…"""
SIM_TRIES: Final = 6
"""…but on a host that is always busy not for ever: then the repetitions that were held up least are what there is."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One workload of a probe. `error` is empty, or says what went wrong; see `placement.score.CORRUPT`."""

    benchmark: str
    version: int
    workload: str
    seconds: tuple[float, ...] = ()
    conditions: dict[str, float] = field(default_factory=dict)
    error: str = ""


def run(index: int) -> tuple[Reading, ...]:
    """One reading for each of LIGHT on device `index` of this host. Raises what the device raises."""
    started = time.perf_counter()
    pace = pace_of(index)
    readings = _simulated(pace) if pace is not None else _in_a_child()
    took = {"probe_s": time.perf_counter() - started}
    return tuple(replace(reading, conditions=reading.conditions | took) for reading in readings)


def _simulated(pace: Pace) -> tuple[Reading, ...]:
    dice = np.random.default_rng(0)
    a = dice.standard_normal((SIM_GEMM_SIZE, SIM_GEMM_SIZE), dtype=np.float32)
    b, c = dice.standard_normal(SIM_ARRAY), dice.standard_normal(SIM_ARRAY)
    short = replace(pace, nominal_step_s=pace.nominal_step_s * SIM_SHORT_STEP)
    alike = replace(short, factor=1.0)
    wrong = integer_gemm.in_words("numpy", _wrong_rows(), SIM_GEMM_SIZE)
    pace.finish(time.perf_counter())  # one step to warm up
    return (
        Reading(*GEMM, _timed(lambda: a @ a, pace, REPETITIONS), error=wrong),
        Reading(*GEMM_FP32, _timed(lambda: a @ a, short, SIM_SHORT_REPETITIONS)),
        Reading(*TRIAD, _timed(lambda: b + 3.0 * c, alike, SIM_SHORT_REPETITIONS)),
        Reading(*TRANSFER, _timed(lambda: np.copyto(b, c), alike, SIM_SHORT_REPETITIONS)),
    )


def _wrong_rows() -> list[int]:
    a, b = integer_gemm.matrices(SIM_GEMM_SIZE, SIM_GEMM_SIZE, SIM_GEMM_SIZE, 3, seed=0)
    return integer_gemm.wrong_rows(a, b, a.astype(np.float32) @ b.astype(np.float32))


def _timed(work: Callable[[], object], pace: Pace, repetitions: int) -> tuple[float, ...]:
    """Seconds of `repetitions` steps, the shortest first. A busy host only ever adds to a step, and many simulated ones share one CPU."""
    seconds: list[float] = []
    in_time = 0
    while in_time < repetitions and len(seconds) < SIM_TRIES * repetitions:
        started = time.perf_counter()
        work()
        pace.finish(started)
        seconds.append(time.perf_counter() - started)
        in_time += seconds[-1] <= SIM_LATE * pace.step_s
    return tuple(sorted(seconds)[:repetitions])


def _in_a_child() -> tuple[Reading, ...]:
    """probe_gpu.py in a process of its own, which sees the device that Ray has given to this one."""
    rows = child.answer("paceline.benchmark.probe_gpu", deadline_s=GPU_DEADLINE_S)
    return tuple(Reading(**{**row, "seconds": tuple(row["seconds"])}) for row in rows)
