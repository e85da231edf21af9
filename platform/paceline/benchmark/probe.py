"""The light probe of one device: a fixed kernel, timed several times. Runs inside the hold of the device.

On an NVIDIA GPU the kernel is a bfloat16 GEMM of torch, in a process of its own: CUDA keeps the first device that a process has
used, and its memory until the process ends. On a simulated device it is a small GEMM on the CPU, paced by the device.
"""

import json
import subprocess
import sys
import time
from typing import Final

import numpy as np

from paceline.model.errors import RunFailed
from paceline.sim.pace import Pace, pace_of

NAME: Final = "gemm"
VERSION: Final = 1
REPETITIONS: Final = 7
"""Odd, so that the median is one that was measured; a device is judged by its median."""
GEMM_SIZE: Final = 8192
INNER: Final = 20
GPU_DEADLINE_S: Final = 90.0
"""Importing torch and making a CUDA context takes 10 to 60 s; the GEMMs take one."""
SIM_GEMM_SIZE: Final = 128
"""Small against the paced time, so that a loaded CPU does not decide the score of a simulated device."""


def run(index: int) -> tuple[float, ...]:
    """Seconds of each repetition on device `index` of this host. Raises what the device raises."""
    pace = pace_of(index)
    return _simulated(pace) if pace is not None else _in_a_child()


def _simulated(pace: Pace) -> tuple[float, ...]:
    a = np.random.default_rng(0).standard_normal((SIM_GEMM_SIZE, SIM_GEMM_SIZE), dtype=np.float32)
    seconds = []
    for _ in range(REPETITIONS + 1):
        started = time.perf_counter()
        _ = a @ a
        pace.finish(started)
        seconds.append(time.perf_counter() - started)
    return tuple(seconds[1:])


def _in_a_child() -> tuple[float, ...]:
    """`_gpu` in a process of its own, which sees the device that Ray has given to this one."""
    done = subprocess.run(
        [sys.executable, "-m", __name__], capture_output=True, text=True, timeout=GPU_DEADLINE_S, check=False
    )
    if done.returncode != 0:
        raise RunFailed("PL-RUN-010", f"the GEMM failed: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    return tuple(json.loads(done.stdout))


def _gpu() -> tuple[float, ...]:
    import torch

    a = torch.randn(GEMM_SIZE, GEMM_SIZE, device="cuda", dtype=torch.bfloat16)
    seconds = []
    for _ in range(REPETITIONS + 1):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(INNER):
            _ = a @ a
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return tuple(seconds[1:])


if __name__ == "__main__":
    print(json.dumps(_gpu()))
