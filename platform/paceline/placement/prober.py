"""Carries probes out on devices that are held. When a device is probed, probing.py says; what comes of it, the inventory."""

import asyncio
import functools
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from paceline.benchmark import launcher
from paceline.model.hardware import DeviceState
from paceline.model.ids import DeviceUuid, NodeId
from paceline.model.measurement import DeviceScore, Measurement, NodeMeasurement
from paceline.model.plan import DeviceView, FleetSnapshot
from paceline.placement import binding, probing
from paceline.placement.binding import Hold
from paceline.placement.probing import Past, Proofs

log = structlog.get_logger()

PROBES_PER_NODE: Final = 2
BEFORE_A_JOB_S: Final = 60.0
"""A gang waits so long for old scores to be renewed: a light probe and the start of its process. Then it starts with the old ones."""

Place = tuple[NodeId, int]
Report = Callable[[list[Measurement]], Awaitable[tuple[DeviceScore, ...]]]
ReportNode = Callable[[tuple[NodeMeasurement, ...]], Awaitable[None]]


class Prober:
    """One probe of a device at a time. `report` hands measurements to the inventory and returns the scores of their devices,
    `report_node` those of a full probe."""

    def __init__(self, report: Report, report_node: ReportNode) -> None:
        self._report, self._report_node = report, report_node
        self._past: dict[DeviceUuid, Past] = {}
        self._slots: dict[NodeId, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(PROBES_PER_NODE))
        self._probing: set[DeviceUuid] = set()
        self._proofs: dict[DeviceUuid, Proofs] = {}
        self._asked_for_ns = 0
        self._full: set[NodeId] = set()
        self._full_tried_ns: dict[NodeId, int] = {}
        self.lent: dict[Place, Hold] = {}
        """Sound devices that are held for the time of a probe."""

    def refused(self) -> None:
        """Somebody waits for a gang."""
        self._asked_for_ns = time.time_ns()

    def at_once(self, snapshot: FleetSnapshot, held: Collection[Place]) -> dict[NodeId, list[DeviceView]]:
        """Held devices whose machine waits for a probe, by node; each is given once, to be handed to `probe`."""
        waiting = probing.at_once(snapshot, held)
        self._proofs = {d.uuid: self._proofs.get(d.uuid, Proofs()) for d in waiting}
        due = [d for d in waiting if probing.may_prove(self._proofs[d.uuid], time.time_ns())]
        return self._by_node([d for d in due if d.uuid not in self._probing])

    def sweep(self, snapshot: FleetSnapshot) -> dict[NodeId, list[DeviceView]]:
        """Idle sound devices whose turn it is, by node, to be handed to `probe_idle`. None while somebody waits for a gang."""
        now_ns = time.time_ns()
        self._past = {d.uuid: self._past_of(d, now_ns) for d in snapshot.devices if d.state is DeviceState.HEALTHY}
        if now_ns - self._asked_for_ns < probing.QUIET_NS:
            return {}
        return self._by_node(probing.sweep(snapshot, self._past, self._probing, now_ns))

    def full(self, snapshot: FleetSnapshot) -> dict[NodeId, list[DeviceView]]:
        """Nodes whose turn it is for a full probe, each given once, to be handed to `probe_full`. None while somebody waits for a gang."""
        now_ns = time.time_ns()
        if now_ns - self._asked_for_ns < probing.QUIET_NS:
            return {}
        due = probing.full_due(snapshot, self._full_tried_ns, now_ns)
        found = {
            node_id: devices
            for node_id, devices in due.items()
            if node_id not in self._full and not self._probing & {d.uuid for d in devices}
        }
        self._full |= found.keys()
        self._probing |= {d.uuid for devices in found.values() for d in devices}
        return found

    def old(self, devices: Sequence[DeviceView]) -> list[DeviceView]:
        """Those whose scores should be renewed before a gang starts on them."""
        now_ns = time.time_ns()
        return [d for d in devices if probing.is_old(self._past_of(d, now_ns), now_ns)]

    def doubt(self, uuid: DeviceUuid) -> None:
        """It was late in a run, or its run failed, for whatever reason: its scores are old from now on."""
        self._past[uuid] = replace(self._past.get(uuid, Past(0)), at_ns=0)

    def _past_of(self, device: DeviceView, now_ns: int) -> Past:
        """Of a probe before this service started, the inventory knows when it was."""
        return self._past.get(device.uuid) or Past(device.scored_ns or now_ns)

    def _by_node(self, devices: Sequence[DeviceView]) -> dict[NodeId, list[DeviceView]]:
        by_node: dict[NodeId, list[DeviceView]] = defaultdict(list)
        for device in devices:
            by_node[device.node_id].append(device)
        self._probing |= {device.uuid for device in devices}
        return by_node

    async def probe(self, devices: Sequence[DeviceView], holds: Mapping[Place, Hold]) -> None:
        """Probe held devices of one node and report them together: a device is judged beside its peers."""
        try:
            for device in devices:
                self._past[device.uuid] = probing.tried(self._past.get(device.uuid, Past(0)), time.time_ns())
            results = await asyncio.gather(*(self._measure(device, holds) for device in devices))
            scores = await self._report([row for rows in results for row in rows])
            for device, rows in zip(devices, results, strict=True):
                if device.uuid in self._proofs:
                    self._proofs[device.uuid] = Proofs(self._proofs[device.uuid].count + 1, time.time_ns())
                if rows:
                    own = [row for row in scores if row.uuid == device.uuid]
                    before = self._past.get(device.uuid, Past(0))
                    self._past[device.uuid] = probing.probed(before, own, time.time_ns())
        finally:
            self._probing -= {device.uuid for device in devices}

    async def _measure(self, device: DeviceView, holds: Mapping[Place, Hold]) -> tuple[Measurement, ...]:
        """Nothing where the device was given back meanwhile: what ran beside others says nothing about it."""
        place = (device.node_id, device.index)
        async with self._slots[device.node_id]:
            hold = holds.get(place)
            if hold is None:
                return ()
            measured = await launcher.measure(device.uuid, functools.partial(binding.run_in, hold))
        return measured if holds.get(place) is hold else ()

    async def probe_idle(
        self, devices: Sequence[DeviceView], lock: asyncio.Lock, give_back: Callable[[Hold], None]
    ) -> None:
        """Hold sound devices of one node, probe them, and give them back. What is in use meanwhile is left for another day.

        Cancelled, it gives them back at once. Always under the node's `lock`: a gang that is being bound must not find a device unmasked.
        """
        wanted = {device.index for device in devices}
        node_id = devices[0].node_id
        try:
            async with lock:
                for index, hold in (await binding.take_free(node_id)).items():
                    if index in wanted:
                        self.lent[node_id, index] = hold
                    else:
                        give_back(hold)
            await self.probe(devices, self.lent)
        finally:
            self._probing -= {device.uuid for device in devices}
            # Shielded: cancelled while another gang has the lock, it would leave the devices held by nobody's will.
            await asyncio.shield(self._return(node_id, wanted, lock, give_back))

    async def probe_full(
        self, devices: Sequence[DeviceView], lock: asyncio.Lock, give_back: Callable[[Hold], None]
    ) -> None:
        """Hold all sound devices of a node, let them exchange data, and give them back; not at all if one is in use. As `probe_idle`."""
        node_id, wanted = devices[0].node_id, {device.index for device in devices}
        self._full_tried_ns[node_id] = time.time_ns()
        try:
            async with lock:
                taken = await binding.take_free(node_id)
                mine = wanted if wanted <= taken.keys() else set()
                self.lent |= {(node_id, index): taken[index] for index in mine}
                for index in taken.keys() - mine:
                    give_back(taken[index])
            if not mine:
                return
            there = {d.uuid: functools.partial(binding.run_in, self.lent[node_id, d.index]) for d in devices}
            results = await launcher.measure_node(devices[0].host, there)
            if results:
                await self._report_node(results)
                del self._full_tried_ns[node_id]
        finally:
            self._full.discard(node_id)
            self._probing -= {device.uuid for device in devices}
            await asyncio.shield(self._return(node_id, wanted, lock, give_back))

    async def _return(
        self, node_id: NodeId, indices: Collection[int], lock: asyncio.Lock, give_back: Callable[[Hold], None]
    ) -> None:
        async with lock:
            for place in [(node_id, index) for index in indices if (node_id, index) in self.lent]:
                give_back(self.lent.pop(place))

    async def renew(self, devices: Sequence[DeviceView], masks: Mapping[Place, Hold]) -> bool:
        """Probe devices of a gang that is about to start, inside its masks. False if that took too long: the old scores will do."""
        self._probing |= {device.uuid for device in devices}
        try:
            await asyncio.wait_for(self.probe(devices, masks), BEFORE_A_JOB_S)
        except TimeoutError:
            log.warning("old scores could not be renewed in time", devices=[device.uuid for device in devices])
            return False
        return True
