"""How long a worker computed in each step and how long it waited for the others, told to the placement service: see placement/inband.py.

Nothing is put into the run's collectives. DDP notes itself when a backward pass has computed everything and when its last collective
is done, and hands that out (`_get_ddp_logging_data`), whatever its buckets, its graph or a communication hook of the user. A hook of
ours would take the place of the user's, and change the last bits of the gradients of three ranks: `default_hooks.allreduce_hook`
divides by 3 where DDP multiplies by 1/3 (tried on torch 2.13).

Both waits of a DDP step are counted: for the gradients, and at the start of the forward pass for the module's buffers, which rank 0
broadcasts. By the gradients alone a late rank 0 is never seen, and a rank that waited for a late one with its buffers is late as well
(seen with BatchNorm on gloo). What else a script waits for in its step is not seen, and hides so much of a lag; only a rank that alone
waits for a late one in a collective of the script's own (a reduce to rank 0 in each step) would pass for late itself.

On the CPU only (gloo). On CUDA DDP's timers are events on the device, as they must be, but reading them in every step makes the host
wait for the device: not done until it can be tried on several GPUs.
"""

import contextlib
import functools
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

import ray
import structlog

from paceline.runtime.settings import PLACEMENT_ACTOR, RAY_NAMESPACE

log = structlog.get_logger()

BATCH_STEPS: Final = 50
BATCH_S: Final = 10.0
"""A batch is sent when it has so many steps, or with the first step after this time."""
BATCHES_KEPT: Final = 8
"""Batches that wait for the one that is being sent; those that come then are dropped."""
SEND_DEADLINE_S: Final = 30.0

Row = tuple[int, float, float]
"""(step of this attempt, seconds until its collectives, seconds inside them)."""


def time_this_worker() -> None:
    """Measure and tell, where this process holds exactly one GPU and its trainer has loaded torch.

    Raises AttributeError where torch has no such DDP; nothing is changed then.
    """
    context = ray.get_runtime_context()
    indices = context.get_accelerator_ids().get("GPU", [])
    if len(indices) != 1 or "torch.distributed" not in sys.modules:
        return
    node_id, index = context.get_node_id(), int(indices[0])

    def send(rows: list[Row]) -> None:
        service = ray.get_actor(PLACEMENT_ACTOR, namespace=RAY_NAMESPACE)
        ray.get(service.step_times.remote(node_id, index, rows), timeout=SEND_DEADLINE_S)

    measure(Teller(send).put)
    log.info("steps are timed", index=index)


def measure(take: Callable[[Row], None]) -> None:
    """Give `take` a row for each step of this process from now on, in the thread that trains, at the step after.

    Costs about 0.1 ms a step. torch has no hook that sees DDP's forward pass without one on every module, or in the module's pickle.
    """
    from torch._compile import _disable_dynamo
    from torch.nn.parallel import DistributedDataParallel

    meter = Meter(take)
    pre_forward: Any = DistributedDataParallel._pre_forward
    works = True

    @functools.wraps(pre_forward)
    def timed(self: DistributedDataParallel, *inputs: Any, **kwargs: Any) -> Any:
        nonlocal works
        began_ns = time.perf_counter_ns()
        result = pre_forward(self, *inputs, **kwargs)
        try:
            if works:
                meter.forward(self, time.perf_counter_ns() - began_ns)
        except Exception as error:  # any of ours is less bad than ending the user's run. Without the locals: they are the user's tensors
            log.error("the steps of this worker are not timed any more", error=repr(error))
            works = False
        return result

    # torch.compile would make more pieces of a DDP forward with this in it. Its switch, torch.compiler.disable, loads the compiler: 2 s.
    DistributedDataParallel._pre_forward = _disable_dynamo(timed)  # type: ignore[method-assign]  # the patch itself


class Meter:
    """Rows from the forward passes of a process. A step ends with the collectives of a backward pass; one without them (no_sync) is part
    of the next. Of several DDP modules the last one to begin is followed: that is the order of the program, and the same on every rank.
    """

    def __init__(self, take: Callable[[Row], None]) -> None:
        self._take = take
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._followed: Callable[[], Any] = lambda: None
        self._step = 0
        self._ended_ns = 0
        self._waited_ns = 0

    def forward(self, module: Any, waited_ns: int) -> None:
        """A forward pass of a DDP module begins, after it has waited so long for its buffers."""
        if module not in self._seen:
            self._seen.add(module)
            if _is_measurable(module):
                module._set_ddp_runtime_logging_sample_rate(1)
                self._followed, self._ended_ns = weakref.ref(module), 0
        if self._followed() is module:
            self._look(module._get_ddp_logging_data())
        self._waited_ns += waited_ns

    def _look(self, data: Mapping[str, Any]) -> None:
        """What DDP says of the last backward pass, in nanoseconds since the epoch."""
        computed_ns, ended_ns = data.get("backward_compute_time_end", 0), data.get("backward_comm_time_end", 0)
        if ended_ns in (0, self._ended_ns):
            return
        self._step += 1
        compute_ns = computed_ns - self._ended_ns - self._waited_ns
        wait_ns = ended_ns - computed_ns + self._waited_ns
        if self._ended_ns and compute_ns > 0 and wait_ns >= 0:  # the clock may have been set meanwhile
            self._take((self._step, compute_ns / 1e9, wait_ns / 1e9))
        self._ended_ns, self._waited_ns = ended_ns, 0


def _is_measurable(module: Any) -> bool:
    """On the CPU, and over all ranks: two groups do not wait for each other. With TORCH_DISTRIBUTED_DEBUG=DETAIL DDP prints each look."""
    from torch.distributed import DebugLevel, get_debug_level, get_world_size  # type: ignore[attr-defined]  # torch names them in no __all__

    is_whole: bool = module.join_process_group.size() == get_world_size()
    return is_whole and module.join_device.type == "cpu" and get_debug_level() != DebugLevel.DETAIL


class Teller:
    """Collects rows and has them sent by a thread: the run never waits for that. While `send` fails, rows are dropped."""

    def __init__(self, send: Callable[[list[Row]], None]) -> None:
        self._send = send
        self._batch: list[Row] = []
        self._since = 0.0
        self._queue: queue.Queue[list[Row]] = queue.Queue(BATCHES_KEPT)
        threading.Thread(target=self._run, name="paceline-steps", daemon=True).start()

    def put(self, row: Row) -> None:
        now = time.monotonic()
        if not self._batch:
            self._since = now
        self._batch.append(row)
        if len(self._batch) >= BATCH_STEPS or now - self._since >= BATCH_S:
            with contextlib.suppress(queue.Full):
                self._queue.put_nowait(self._batch)
            self._batch = []

    def _run(self) -> None:
        away = False
        while True:
            rows = self._queue.get()
            try:
                self._send(rows)
                away = False
            except Exception as error:  # whatever Ray raises; the service restarts by itself, and takes the next rows
                if not away:
                    log.info("step times are dropped: the placement service does not answer", error=repr(error))
                away = True
