"""Every internal symbol of Ray Train that Paceline uses, in one place.

Pinned to Ray 2.60; tests/contract/test_ray_train_hooks.py checks each.
"""

import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError
from ray.train.v2._internal.execution.callback import (
    ControllerCallback,
    ReportCallback,
    WorkerCallback,
    WorkerGroupCallback,
)
from ray.train.v2.api.preemption import PreemptionInfo

from paceline.model.ids import NodeId
from paceline.model.workload import RankPlace

__all__ = [
    "ControllerCallback",
    "ReportCallback",
    "WorkerCallback",
    "WorkerGroupCallback",
    "WorkerGroupStartupTimeoutError",
]


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    storage_path: str


def run_of(train_run_context: Any) -> Run:
    """Name and storage of a run, from the context that `after_controller_start` gets."""
    config = train_run_context.run_config
    return Run(str(config.name), str(config.storage_path))


def places_of(worker_group: Any) -> tuple[RankPlace, ...]:
    """Where each rank sits. A worker with several GPUs gives one entry each."""
    return tuple(
        RankPlace(
            worker.distributed_context.world_rank, NodeId(worker.metadata.node_id), int(index), worker.metadata.pid
        )
        for worker in worker_group.get_workers()
        for index in worker.metadata.accelerator_ids.get("GPU", [])
    )


def end_attempt(worker_group: Any, places: tuple[RankPlace, ...], bad: set[tuple[NodeId, int]]) -> None:
    """End an attempt as a preemption whose deadline is now: restarted at once, charged to the preemption budget (default: unlimited).

    `mark_preempt` with a deadline in the past was tried on 2.60: 0.6 s from here to the restart, and no node is drained.
    """
    ranks: dict[str, list[int]] = {}
    for place in places:
        if (place.node_id, place.index) in bad or not bad:
            ranks.setdefault(place.node_id, []).append(place.rank)
    info = PreemptionInfo(deadline_ms=int(time.time() * 1000), preempted_node_to_ranks=ranks)
    ray.get([worker.actor.mark_preempt.remote(info) for worker in worker_group.get_workers()], timeout=10)
