"""Chosen devices on Ray, which gives out counts and picks the indices itself.

A one-GPU placement group pins one device without a process: Ray gives the lowest free index and a bundle keeps its index for life.
So a node's devices are chosen by exclusion: take every free GPU, see which index each group got, give back the wanted ones.
Facts tried on Ray 2.60; all calls here are safe to repeat.
"""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import ray
import structlog
from ray._private.internal_api import node_stats
from ray.core.generated import gcs_pb2
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from paceline.model.ids import JobId, NodeId
from paceline.placement.owners import Driver

log = structlog.get_logger()

HOLD_PREFIX: Final = "paceline-hold-"
HOLDER_PREFIX: Final = "paceline-holder-"
MASK_DEADLINE_S: Final = 20.0
"""8 groups took 0.4 s on an idle machine; a loaded one must not look like a stranger on the device."""
INDEX_GPU_SHARE: Final = 0.01
PROBE_GPU_SHARE: Final = 0.9
assert INDEX_GPU_SHARE + PROBE_GPU_SHARE < 1, "a probe must not keep the index of its own bundle from being read"


RAY_WORKER: Final = b"ray::"
"""How the command line of every worker that has work begins."""


@dataclass(frozen=True, slots=True)
class Process:
    """A worker of Ray on its node. `actor_id` is empty for a task."""

    pid: int
    job_id: str
    actor_id: str


@ray.remote(
    num_cpus=0, num_gpus=INDEX_GPU_SHARE, max_retries=3, max_calls=0
)  # else Ray ends a worker after one GPU task
def _index_here() -> int:
    return int(ray.get_runtime_context().get_accelerator_ids()["GPU"][0])


@ray.remote(num_cpus=0, num_gpus=1, max_restarts=-1)
class Holder:
    """Waits in the raylet's own queue for a busy device, and then sits on it. A pending group would lose to any waiting task."""

    def index(self) -> int:
        return int(ray.get_runtime_context().get_accelerator_ids()["GPU"][0])

    def run(self, function: Any, *args: Any) -> Any:
        """Call a Ray function's body here, on this device: the holder leaves no share of it for a task."""
        return function._function(*args)


@dataclass(frozen=True, slots=True)
class Hold:
    """One device that Ray cannot give out: by a group (idle when taken) or by a holder actor (busy when asked for)."""

    node_id: NodeId
    index: int
    group: PlacementGroup | None = None
    holder: Any = None

    def release(self) -> None:
        if self.group is not None:
            remove_placement_group(self.group)
        if self.holder is not None:
            ray.kill(self.holder, no_restart=True)


def free_gpus(node_id: NodeId) -> int:
    """Whole GPUs that Ray could give out on a node now; 0 for a node that Ray does not know."""
    per_node: dict[str, dict[str, float]] = ray._private.state.available_resources_per_node()
    return int(per_node.get(node_id, {}).get("GPU", 0) + 1e-6)


async def take_free(node_id: NodeId) -> dict[int, Hold]:
    """Pin every free GPU of a node. Returns hold by index; what a stranger took in between is simply not there."""
    groups: list[PlacementGroup] = []
    try:
        for _ in range(free_gpus(node_id)):
            groups.append(_one_gpu_group(node_id))
        placed = await asyncio.gather(*map(_placed, groups))
        holds = [await _hold(node_id, group) for group, there in zip(groups, placed, strict=True) if there]
    except BaseException:  # nobody would know these groups
        for group in groups:
            remove_placement_group(group)
        raise
    return {hold.index: hold for hold in holds if hold is not None}


async def take_free_on(nodes: Iterable[NodeId]) -> dict[tuple[NodeId, int], Hold]:
    """`take_free` on several nodes at once: all of it, or nothing is left behind."""
    taken: dict[tuple[NodeId, int], Hold] = {}

    async def take(node_id: NodeId) -> None:
        for index, hold in (await take_free(node_id)).items():
            taken[node_id, index] = hold

    try:
        async with asyncio.TaskGroup() as group:
            for node_id in nodes:
                group.create_task(take(node_id))
    except BaseException as failure:
        for hold in taken.values():
            hold.release()
        if isinstance(failure, ExceptionGroup):
            raise failure.exceptions[0] from None
        raise
    return taken


def _one_gpu_group(node_id: NodeId) -> PlacementGroup:
    group: PlacementGroup = placement_group(
        [{"GPU": 1}],
        name=f"{HOLD_PREFIX}{node_id[:12]}-{secrets.token_hex(4)}",
        lifetime="detached",
        bundle_label_selector=[{"ray.io/node-id": node_id}],
    )
    return group


async def _placed(group: PlacementGroup) -> bool:
    """Whether Ray has placed the group in time; otherwise it is removed. Asks the GCS: `group.ready()` would start a worker for it."""
    if await asyncio.to_thread(group.wait, MASK_DEADLINE_S):
        return True
    log.info("group not placed", group=group.id.hex())
    remove_placement_group(group)
    return False


async def _hold(node_id: NodeId, group: PlacementGroup) -> Hold | None:
    """Which device a placed group got. Asked one after the other, Ray uses one worker for all of them: 2 ms each instead of a start."""
    strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=0)
    try:
        index = await asyncio.wait_for(
            _as_future(_index_here.options(scheduling_strategy=strategy).remote()), MASK_DEADLINE_S
        )
    except (TimeoutError, ray.exceptions.RayError) as error:
        log.warning("a group does not tell its device", node=node_id[:12], error=repr(error))
        remove_placement_group(group)
        return None
    return Hold(node_id, int(index), group=group)


async def _as_future(ref: Any) -> Any:
    return await ref


def queue_holder(node_id: NodeId) -> Any:
    """A holder actor that takes the next GPU that becomes free on the node."""
    return Holder.options(  # type: ignore[attr-defined]  # ray.remote's class type has no options in its stubs
        name=f"{HOLDER_PREFIX}{node_id}-{secrets.token_hex(4)}",
        lifetime="detached",
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node_id, soft=False),
    ).remote()


async def seated(node_id: NodeId, holders: Iterable[Any], deadline_s: float) -> dict[int, Hold]:
    """The holders that got a device within the deadline, by index. The others are taken out of the queue."""

    async def sit(holder: Any) -> Hold | None:
        try:
            return Hold(node_id, await asyncio.wait_for(_as_future(holder.index.remote()), deadline_s), holder=holder)
        except (TimeoutError, ray.exceptions.RayError) as error:
            log.info("holder not seated", node=node_id[:12], error=repr(error))
            ray.kill(holder, no_restart=True)
            return None

    return {hold.index: hold for hold in await asyncio.gather(*map(sit, holders)) if hold is not None}


async def adopt(alive: frozenset[NodeId]) -> list[Hold]:
    """Holds that an earlier life of the placement service left on the cluster. Those on dead nodes are removed."""
    by_group = await asyncio.gather(*(_adopt_group(name, row, alive) for name, row in _named_groups()))
    entries = ray.util.list_named_actors(all_namespaces=True)
    names = [entry for entry in entries if entry["name"].startswith(HOLDER_PREFIX)]
    by_holder = await asyncio.gather(*(_adopt_holder(row["name"], row["namespace"], alive) for row in names))
    return [hold for hold in (*by_group, *by_holder) if hold is not None]


async def _adopt_holder(name: str, namespace: str, alive: frozenset[NodeId]) -> Hold | None:
    node_id = NodeId(name.removeprefix(HOLDER_PREFIX).rsplit("-", 1)[0])
    try:
        holder = ray.get_actor(name, namespace=namespace)
    except ValueError:  # it has died since it was listed
        return None
    if node_id not in alive:
        log.info("holder of a lost node removed", name=name)
        ray.kill(holder, no_restart=True)
        return None
    return next(iter((await seated(node_id, [holder], MASK_DEADLINE_S)).values()), None)


def _named_groups() -> list[tuple[str, dict[str, Any]]]:
    rows = placement_group_table().values()
    return [(r["name"], r) for r in rows if r["name"].startswith(HOLD_PREFIX) and r["state"] != "REMOVED"]


async def _adopt_group(name: str, row: dict[str, Any], alive: frozenset[NodeId]) -> Hold | None:
    group = PlacementGroup(ray.PlacementGroupID(bytes.fromhex(row["placement_group_id"])))
    node_id = NodeId(next(iter(row["bundles_to_node_id"].values()), ""))
    if node_id not in alive:
        log.info("hold of a lost node removed", name=name)
        remove_placement_group(group)
        return None
    return await _hold(node_id, group) if await _placed(group) else None


async def run_in(hold: Hold, function: Any, *args: Any) -> Any:
    """Run a Ray function on the device of a hold, beside the hold."""
    if hold.group is None:
        return await hold.holder.run.remote(function, *args)
    strategy = PlacementGroupSchedulingStrategy(placement_group=hold.group, placement_group_bundle_index=0)
    return await function.options(num_cpus=0, num_gpus=PROBE_GPU_SHARE, scheduling_strategy=strategy).remote(*args)


def actor_is_dead(actor_id: str) -> bool:
    """Whether Ray says so. An id that Ray does not know (or "") is not known to be dead."""
    if not actor_id:
        return False
    row: dict[str, Any] = ray._private.state.state.actor_table(actor_id)
    return row.get("State") == "DEAD"


def drivers() -> list[Driver]:
    """Ray's table of jobs, in the order of their start, with what their submissions say."""
    accessor: Any = ray._private.state.state._connect_and_get_accessor()
    table: Any = gcs_pb2
    rows = accessor.get_job_table(skip_submission_job_info_field=False, skip_is_running_tasks_field=True)
    found = sorted(map(table.JobTableData.FromString, rows), key=lambda row: int(row.start_time))
    return [
        Driver(
            JobId(row.config.metadata.get("job_submission_id", "") or row.job_id.hex()),
            bool(row.is_dead),
            row.job_info.status,
            row.job_info.message,
            max(0.0, time.time() - row.end_time / 1000) if row.is_dead else 0.0,
        )
        for row in found
    ]


def occupants(nodes: Iterable[NodeId]) -> dict[tuple[NodeId, int], list[Process]]:
    """The processes that Ray has given GPUs of these nodes to, by device, without those of this service's own job.

    A raylet tells the slots of each worker's resources: `GPU`, or `GPU_group_…` inside a placement group. A node that does not answer
    is left out.
    """
    wanted, own = set(nodes), ray.get_runtime_context().get_job_id()
    found: dict[tuple[NodeId, int], list[Process]] = {}
    for row in ray.nodes():
        if row["NodeID"] not in wanted or not row["Alive"]:
            continue
        try:
            stats = node_stats(row["NodeManagerAddress"], row["NodeManagerPort"], include_memory_info=False)
        except grpc.RpcError as error:
            log.warning("a raylet does not tell who has its GPUs", node=row["NodeID"][:12], error=repr(error))
            continue
        for worker in stats.core_workers_stats:
            process = Process(worker.pid, worker.job_id.hex(), _actor_id(worker.actor_id))
            for index in _gpus_of(worker.used_resources) if process.job_id != own else ():
                found.setdefault((row["NodeID"], index), []).append(process)
    return found


def _gpus_of(used: Mapping[str, Any]) -> set[int]:
    whole_or_in_a_group = (used[name] for name in used if name == "GPU" or name.startswith("GPU_group_"))
    return {int(slot.slot) for allocation in whole_or_in_a_group for slot in allocation.resource_slots}


def _actor_id(raw: bytes) -> str:
    """Empty for the id that a worker without an actor has: all ones."""
    return "" if not raw.strip(b"\xff") else raw.hex()


@ray.remote(num_cpus=0, max_retries=0)
def _end_processes(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended by itself
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(RAY_WORKER):
                os.kill(pid, signal.SIGKILL)


async def end_processes(node_id: NodeId, pids: Iterable[int]) -> None:
    """Kill workers of Ray on a node, and nothing else: a number may be another process's by now."""
    there = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    await _as_future(_end_processes.options(scheduling_strategy=there).remote(list(pids)))


def remove_all() -> None:
    """Drop every hold of Paceline on the cluster. Holder actors are killed with the other actors."""
    for _, row in _named_groups():
        remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(row["placement_group_id"]))))
