"""The placement service: one detached Ray actor on the head that makes Ray follow the inventory.

Two jobs. It keeps every device that may not be given out held on Ray (level-triggered: the desired state is the fleet snapshot, so a
restart of anything only makes it look again), and it finds gangs: plan, mask, lease, unmask once the gang is seen to sit where it should.
Its memory is a cache; what matters is SQL behind the control API and the named holds on the cluster.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from paceline.model.errors import Conflict
from paceline.model.hardware import CONDEMNED, DeviceState
from paceline.model.ids import NO_CAUSE, DeviceUuid, EventId, LeaseId, NodeId
from paceline.model.measurement import DeviceScore, Measurement, NodeMeasurement
from paceline.model.plan import DeviceView, FleetSnapshot, Grant, LeaseView, Occupant, Plan, Refusal
from paceline.model.workload import FINAL_STATES, GangRequest, JobUpdate, RankPlace, RunState, split_attempt
from paceline.placement import binding, inband, owners, planner
from paceline.placement.binding import Hold
from paceline.placement.holds import Holds, alive
from paceline.placement.owners import MOVE_POLL_S, UNKNOWN_SILENT_S, Ending, OpenRun, Owners, RunKey, run_of
from paceline.placement.prober import Prober
from paceline.placement.steps import Gathered, Row
from paceline.placement.tasks import Tasks
from paceline.sdk.client import AsyncClient

log = structlog.get_logger()

BIND_ATTEMPTS: Final = 4
CONFIRM_DEADLINE_S: Final = 180.0
"""From grant to the gang's confirmation: workers must start, and importing torch takes 4 CPU-seconds each."""
OWNER_CHECK_S: Final = 5.0
STRANGER_LOOK_S: Final = 1.0
"""Half of the time within which a stranger is to be reported."""
HOLDER_QUEUED_S: Final = 0.5
"""A holder that was asked for waits at its raylet after this time; the device must not become free before."""
OPEN_RUNS: Final = 1000
"""Newest runs that are looked at for an owner that is gone."""
assert UNKNOWN_SILENT_S >= CONFIRM_DEADLINE_S, "a gang that is still starting must not lose its lease"


@dataclass
class _Binding:
    """A grant that waits for its confirmation: the masks around it and the locks of its nodes."""

    masks: list[Hold]
    nodes: list[NodeId]
    done: asyncio.Event = field(default_factory=asyncio.Event)


class PlacementService:
    """Created by the reconciler. All methods are safe to call again after a lost reply."""

    def __init__(self, server_url: str, token: str, evict: bool = False) -> None:
        """`evict`: work that sits on a condemned device without a lease is ended, and not only reported."""
        self._evict_strangers = evict
        self._client = AsyncClient(server_url, token)
        self._url, self._token = server_url, token
        self._snapshot = FleetSnapshot(-1, (), (), ())
        self._holds = Holds()
        self._locks: dict[NodeId, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._bindings: dict[LeaseId, _Binding] = {}
        self._owners = Owners()
        self._run_locks: dict[RunKey, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._reporting = asyncio.Lock()
        self._may_move: dict[LeaseId, asyncio.Event] = defaultdict(asyncio.Event)
        self._prober = Prober(self._take_probes, self._take_full_probe)
        self._steps = Gathered()
        self._reported: frozenset[DeviceUuid] | None = None
        self._tasks = Tasks()
        self._started = asyncio.Event()

    # ── what callers use ─────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> bool:
        """Begin the loops (once). Called by the reconciler again and again; cheap when already running."""
        self._tasks.loop("watch", self._watch)
        self._tasks.loop("owners", self._check_owners)
        self._tasks.loop("strangers", self._look_for_strangers)
        return True

    def connection(self) -> tuple[str, str]:
        """(server URL, token): how the training callback and the gateway find the inventory."""
        return self._url, self._token

    async def reconnect(self, server_url: str, token: str, evict: bool = False) -> None:
        """The server has moved, or the site has another policy."""
        self._evict_strangers = evict
        if (server_url, token) != (self._url, self._token):
            self._url, self._token = server_url, token
            self._client = AsyncClient(server_url, token)

    async def acquire(self, request: GangRequest, owner_actor_id: str) -> Grant | Refusal:
        """A whole gang, or why not. Raises Unreachable while the server is down: ask again."""
        await asyncio.wait_for(self._started.wait(), CONFIRM_DEADLINE_S)
        run = (request.job_id, request.run_name)
        self._owners.asked(run, owner_actor_id, time.monotonic())
        async with self._run_locks[run]:  # a call that was sent again waits for the one before
            return await self._acquire(request, owner_actor_id)

    async def _acquire(self, request: GangRequest, owner_actor_id: str) -> Grant | Refusal:
        unavailable: frozenset[DeviceUuid] = frozenset()
        for turn in range(BIND_ATTEMPTS):
            snapshot = await self._client.fleet()
            mine = [x for x in snapshot.leases if run_of(x) == (request.job_id, request.run_name)]
            if turn == 0:
                self._doubt_failed(mine, request)
            for lease in mine:
                self._unbind(lease.lease_id)  # of an attempt that never confirmed: its locks would be waited for below
            snapshot = _without(snapshot, {lease.lease_id for lease in mine})
            lent = {d.uuid for d in snapshot.devices if (d.node_id, d.index) in self._prober.lent}
            result = planner.plan(snapshot, request, unavailable | lent)
            if isinstance(result, Refusal) and lent:
                await self._tasks.end("sweep")  # a gang needs the devices that are probed by schedule
                continue
            if isinstance(result, Refusal):
                self._prober.refused()
                return result
            outcome = await self._bind(snapshot, request, result, owner_actor_id)
            if isinstance(outcome, Grant):
                return outcome
            unavailable |= outcome
        reason = f"{BIND_ATTEMPTS} plans in a row could not be carried out: others took their devices meanwhile"
        return Refusal(reason, "ask again", ())

    def _doubt_failed(self, leases: Sequence[LeaseView], request: GangRequest) -> None:
        """Of an attempt that ended by itself nobody knows why: the devices of its gang are probed before they work again."""
        for lease in leases:
            began = lease.lease_id not in self._bindings
            if began and not lease.moving_cause and split_attempt(lease.attempt_id)[2] < request.attempt:
                for uuid in lease.devices:
                    self._prober.doubt(uuid)

    async def confirm(self, lease_id: LeaseId, ranks: tuple[RankPlace, ...]) -> tuple[DeviceUuid, ...]:
        """The gang has started on `ranks`: drop the masks. Returns the devices it sits on and that it should not use."""
        by_place = {(d.node_id, d.index): d for d in self._snapshot.devices}
        seated = [by_place[r.node_id, r.index] for r in ranks if (r.node_id, r.index) in by_place]
        lease = next((lease for lease in (await self._client.fleet()).leases if lease.lease_id == lease_id), None)
        self._unbind(lease_id)
        if lease is None:
            return ()
        actual = tuple(d.uuid for d in seated)
        if set(actual) != set(lease.devices):
            log.warning("gang sits elsewhere than planned", lease=lease_id, planned=lease.devices, actual=actual)
            await self._client.correct_lease(lease_id, actual)
        return tuple(d.uuid for d in seated if d.state is not DeviceState.HEALTHY)

    async def await_move(self, lease_id: LeaseId, owner_actor_id: str) -> EventId:
        """Blocks up to MOVE_POLL_S. Not 0: give the gang up now; the number is the event that says why. Also the owner's sign of life."""
        self._owners.heard(lease_id, owner_actor_id, time.monotonic())
        try:
            await asyncio.wait_for(self._may_move[lease_id].wait(), MOVE_POLL_S)
        except TimeoutError:
            return NO_CAUSE
        lease = _lease(self._snapshot, lease_id)
        return lease.moving_cause if lease is not None else NO_CAUSE

    async def release(self, lease_id: LeaseId, reason: str) -> None:
        self._unbind(lease_id)
        await self._client.end_lease(lease_id, reason)
        self._forget(lease_id)

    async def step_times(self, node_id: NodeId, index: int, rows: Sequence[Row]) -> None:
        """Steps of the worker on this device; ignored where no lease holds it."""
        device = next((d for d in self._snapshot.devices if (d.node_id, d.index) == (node_id, index)), None)
        lease = _lease(self._snapshot, device.lease_id) if device is not None else None
        if device is None or lease is None:
            return
        found = self._steps.take(lease, device.uuid, rows, time.time_ns())
        if found:
            self._tasks.spawn(("steps", lease.lease_id), self._take_paces(found))

    def held(self) -> list[tuple[NodeId, int]]:
        """Places that Ray cannot give out now, for tests and for `paceline describe`."""
        return sorted(self._holds.places)

    # ── gangs ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _bind(
        self, snapshot: FleetSnapshot, request: GangRequest, plan: Plan, owner_actor_id: str
    ) -> Grant | frozenset[DeviceUuid]:
        """Mask, lease, unmask. A set instead of a grant: these devices could not be had; empty where the inventory moved on."""
        views = {d.uuid: d for d in snapshot.devices}
        wanted = {(views[uuid].node_id, views[uuid].index): uuid for uuid in plan.devices}
        nodes = sorted({node for node, _ in wanted})
        locked: list[NodeId] = []
        masks: dict[tuple[NodeId, int], Hold] = {}
        try:
            for node in nodes:
                await self._locks[node].acquire()
                locked.append(node)
            masks = await binding.take_free_on(nodes)
            missing = frozenset(uuid for place, uuid in wanted.items() if place not in masks)
            if missing:
                log.info("planned devices are in use by others", devices=sorted(missing))
                return missing
            old = self._prober.old([views[uuid] for uuid in plan.devices])
            if old and await self._prober.renew(old, masks):
                return frozenset()  # to be planned again, with what was measured
            lease = await self._client.create_lease(request, plan)
            self._holds.drop(*(masks.pop(place) for place in wanted))
            self._hand_over(lease.lease_id, _Binding(list(masks.values()), locked), owner_actor_id)
            masks, locked = {}, []  # the binding owns them now
            self._owners.granted((request.job_id, request.run_name))
            return Grant(lease.lease_id, tuple(sorted({n for n, _ in wanted})), plan.devices, plan)
        except Conflict as conflict:
            log.info("plan is out of date", reason=conflict.message)
            return frozenset()
        finally:
            self._holds.drop(*masks.values())
            for node in locked:
                self._locks[node].release()

    def _hand_over(self, lease_id: LeaseId, bound: _Binding, owner_actor_id: str) -> None:
        self._unbind(lease_id)
        self._bindings[lease_id] = bound
        self._owners.heard(lease_id, owner_actor_id, time.monotonic())

        async def expire() -> None:
            try:
                await asyncio.wait_for(bound.done.wait(), CONFIRM_DEADLINE_S)
            except TimeoutError:
                log.warning("gang did not confirm in time: its masks are dropped", lease=lease_id)
                self._unbind(lease_id)

        self._tasks.spawn(("expire", lease_id), expire())

    def _unbind(self, lease_id: LeaseId) -> None:
        bound = self._bindings.pop(lease_id, None)
        if bound is None:
            return
        self._holds.drop(*bound.masks)
        for node in bound.nodes:
            self._locks[node].release()
        bound.done.set()

    # ── holds follow the inventory ───────────────────────────────────────────────────────────────────────────────

    async def _watch(self) -> None:
        if not self._started.is_set():
            await self._holds.adopt(await self._client.fleet())
            self._started.set()
        self._snapshot = await self._client.fleet(after=self._snapshot.revision, wait_s=5)
        nodes = alive(self._snapshot)
        self._holds.tidy(nodes)
        for lease_id in [i for i in {*self._may_move, *self._steps.leases} if _lease(self._snapshot, i) is None]:
            self._forget(lease_id)
        for node_id in sorted(nodes):
            self._tasks.spawn(("node", node_id), self._reconcile_node(node_id))
        await self._report_holds()
        self._start_probes()

    async def _reconcile_node(self, node_id: NodeId) -> None:
        """Hold what must not be given out, give back what may be. Again, if something has changed meanwhile: the next poll is far."""
        seen = -1
        while seen != self._snapshot.revision:
            seen = self._snapshot.revision
            await self._reconcile_once(node_id)

    async def _reconcile_once(self, node_id: NodeId) -> None:
        """One at a time for each node."""
        async with self._locks[node_id]:
            devices = [d for d in self._snapshot.devices if d.node_id == node_id]
            for device in devices:
                if device.state is DeviceState.HEALTHY:
                    self._holds.give_back((node_id, device.index))
            missing = [d for d in devices if self._holds.lack(d)]
            if any(d.lease_id is None for d in missing):
                await self._holds.take_idle(node_id, {d.index for d in missing})
            for device in missing:
                lease = _lease(self._snapshot, device.lease_id)
                if lease is not None and lease.moving_cause and self._holds.lack(device):
                    await self._hold_busy(device, lease)
        await self._report_holds()

    async def _hold_busy(self, device: DeviceView, lease: LeaseView) -> None:
        """A gang frees all its devices of the node at once and Ray hands them out lowest index first: a holder waits for each of them."""
        mine = {d.index for d in self._snapshot.devices if d.uuid in lease.devices and d.node_id == device.node_id}

        async def let_it_move() -> None:
            self._may_move[lease.lease_id].set()

        await self._holds.take_busy(device, mine, let_it_move)

    async def _report_holds(self) -> None:
        async with self._reporting:  # in order: an older word must not overwrite a newer one
            await self._report_holds_now()

    async def _report_holds_now(self) -> None:
        by_place = {(d.node_id, d.index): d for d in self._snapshot.devices}
        found = [by_place[place] for place in self._holds.places if place in by_place]
        held = frozenset(d.uuid for d in found)
        # A device that was held before it was condemned: its quarantine waits for this word.
        waited_for = any(d.state is DeviceState.DRAINING for d in found)
        if held != self._reported or waited_for:
            gone = (self._reported or frozenset(d.uuid for d in self._snapshot.devices)) - held
            await self._client.holds(sorted(held), sorted(gone), time.time_ns())
            self._reported = held

    # ── strangers ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _look_for_strangers(self) -> None:
        """Who sits on a condemned device that no lease holds and that could not be held: Ray's users need no lease from us."""
        await asyncio.sleep(STRANGER_LOOK_S)
        taken = {
            (d.node_id, d.index): d
            for d in self._snapshot.devices
            if d.state in CONDEMNED and d.lease_id is None and self._holds.lack(d)
        }
        there = await asyncio.to_thread(binding.occupants, {node for node, _ in taken}) if taken else {}
        found = [
            Occupant(taken[place].uuid, process.pid, process.job_id, process.actor_id)
            for place in taken.keys() & there.keys()
            for process in there[place]
        ]
        strangers = await self._client.strangers(found) if found else ()
        for device in taken.values() if self._evict_strangers else ():
            pids = [one.pid for one in strangers if one.uuid == device.uuid]
            if pids:
                self._tasks.spawn(("evict", device.uuid), self._evict(device, pids))

    async def _evict(self, device: DeviceView, pids: list[int]) -> None:
        async def end_them() -> None:
            await asyncio.sleep(HOLDER_QUEUED_S)
            log.warning("strangers on a condemned device are ended", device=device.uuid, pids=pids)
            await binding.end_processes(device.node_id, pids)

        async with self._locks[device.node_id]:
            if self._holds.lack(device):
                await self._holds.take_busy(device, {device.index}, end_them)
        await self._report_holds()

    # ── probes ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _start_probes(self) -> None:
        for node_id, devices in self._prober.at_once(self._snapshot, self._holds.places).items():
            self._tasks.spawn(("probe", node_id, devices[0].uuid), self._prober.probe(devices, self._holds.places))
        for node_id, devices in self._prober.sweep(self._snapshot).items():
            idle = self._prober.probe_idle(devices, self._locks[node_id], self._keep_or_drop)
            self._tasks.spawn(("sweep", node_id, devices[0].uuid), idle)
        for node_id, devices in self._prober.full(self._snapshot).items():
            full = self._prober.probe_full(devices, self._locks[node_id], self._keep_or_drop)
            self._tasks.spawn(("sweep", node_id, "full"), full)

    async def _take_probes(self, results: list[Measurement]) -> tuple[DeviceScore, ...]:
        scores = await self._client.measurements(results)
        self._snapshot = await self._client.fleet()  # before they may be probed again: it knows the outcome
        return scores

    async def _take_paces(self, found: Sequence[inband.RankPace]) -> None:
        for row in found:
            if row.lags:
                log.info("late in the steps of its gang: to be probed", device=row.uuid, relative_time=row.relative)
                self._prober.doubt(row.uuid)
        scores = {d.uuid: d.score for d in self._snapshot.devices if d.score is not None}
        await self._client.measurements(inband.measurements(found, scores, time.time_ns()))

    async def _take_full_probe(self, results: tuple[NodeMeasurement, ...]) -> None:
        await self._client.node_measurements(results)
        self._snapshot = await self._client.fleet()

    def _keep_or_drop(self, hold: Hold) -> None:
        """A sound device was held for a probe; the probe may have found that it is none."""
        place = (hold.node_id, hold.index)
        if any((d.node_id, d.index) == place and self._holds.lack(d) for d in self._snapshot.devices):
            self._holds.places[place] = hold
        else:
            self._holds.drop(hold)

    # ── owners ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _check_owners(self) -> None:
        """End the runs and leases of owners that are gone, however they went."""
        await asyncio.sleep(OWNER_CHECK_S)
        rows = [row for row in await self._client.jobs(OPEN_RUNS) if row.state not in FINAL_STATES]
        if rows:
            runs = [OpenRun(row.job_id, row.run_name, (time.time_ns() - row.since_ns) / 1e9) for row in rows]
            drivers = await asyncio.to_thread(binding.drivers)
            for run, ending in self._owners.endings(runs, drivers, binding.actor_is_dead, time.monotonic()).items():
                await self._end_run(run, ending)
        still_open = {(row.job_id, row.run_name) for row in rows}
        for lease in self._owners.gone(self._snapshot.leases, binding.actor_is_dead, time.monotonic()):
            if run_of(lease) in still_open:
                await self._end_run(run_of(lease), Ending(RunState.FAILED, owners.GONE, owners.RESUME))
            await self.release(lease.lease_id, owners.GONE)

    async def _end_run(self, run: RunKey, ending: Ending) -> None:
        log.warning("nobody speaks for a run any more", run=run, ending=ending)
        update = JobUpdate(*run, ending.state, time.time_ns(), ending.reason, ending.hint)
        await self._client.job_update(update)  # ends its leases, too
        for lease in self._snapshot.leases:
            if run_of(lease) == run:
                self._unbind(lease.lease_id)

    # ── small things ─────────────────────────────────────────────────────────────────────────────────────────────

    def _forget(self, lease_id: LeaseId) -> None:
        self._owners.forget(lease_id)
        self._steps.forget(lease_id)
        event = self._may_move.pop(lease_id, None)
        if event is not None:
            event.set()


def _lease(snapshot: FleetSnapshot, lease_id: LeaseId | None) -> LeaseView | None:
    return next((lease for lease in snapshot.leases if lease.lease_id == lease_id), None)


def _without(snapshot: FleetSnapshot, leases: set[LeaseId]) -> FleetSnapshot:
    """The fleet as a new attempt of the same run sees it: the gang of its attempt before is free again (SQL replaces the lease)."""
    devices = tuple(replace(d, lease_id=None) if d.lease_id in leases else d for d in snapshot.devices)
    return replace(snapshot, devices=devices)
