"""A worker on a simulated device takes as long for a step as that device would. Nothing happens on a real one.

torch's global optimizer hook is called after each step of any optimizer, so the user's script needs no change (tried on Ray 2.60).
A device that has fallen off the bus never finishes its step, as on real hardware: the worker hangs until it is moved.
"""

import importlib.util
import os
import time
from typing import Final

import ray
import structlog

from paceline.sim.pace import Pace, pace_of
from paceline.sim.state import occupy

log = structlog.get_logger()

LOST_CHECK_S: Final = 0.1
WORKER_MEMORY_BYTES: Final = 4 << 30
"""What NVML says this process has on its device: a CUDA context, NCCL and a small model."""


def pace_this_worker() -> None:
    """Install the hook, where this process holds exactly one simulated device and torch is there."""
    indices = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    if len(indices) != 1 or pace_of(int(indices[0])) is None or importlib.util.find_spec("torch") is None:
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook

    index = int(indices[0])
    last = time.perf_counter()

    def after_step(*_: object) -> None:
        nonlocal last
        _finish_step(index, last)
        last = time.perf_counter()

    register_optimizer_step_post_hook(after_step)
    occupy(index, os.getpid(), WORKER_MEMORY_BYTES)
    log.info("steps are paced by the simulated device", index=index)


def _finish_step(index: int, started: float) -> None:
    while (pace := pace_of(index)) is not None and pace.lost:
        time.sleep(LOST_CHECK_S)
    if isinstance(pace, Pace):
        pace.finish(started)
