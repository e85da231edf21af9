"""The devices that Ray cannot give out now. What is to be held, the placement service says, from the inventory."""

from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

import structlog

from paceline.model.hardware import DeviceState, NodeState
from paceline.model.ids import NodeId
from paceline.model.plan import DeviceView, FleetSnapshot
from paceline.placement import binding
from paceline.placement.binding import Hold

log = structlog.get_logger()

SEAT_DEADLINE_S: Final = 90.0
"""A move ends the workers within about 10 s; a run that does not let go in this time is asked again."""

Place = tuple[NodeId, int]


class Holds:
    """`places` is by node and Ray's index. Whoever takes devices of a node has that node's lock."""

    def __init__(self) -> None:
        self.places: dict[Place, Hold] = {}
        self._unreleased: list[Hold] = []

    def lack(self, device: DeviceView) -> bool:
        """Whether the device must be held and is not."""
        return device.state is not DeviceState.HEALTHY and (device.node_id, device.index) not in self.places

    def give_back(self, place: Place) -> None:
        if place in self.places:
            self.drop(self.places.pop(place))

    def drop(self, *holds: Hold) -> None:
        """Give devices back to Ray. What Ray does not take is kept for the next turn: else it would be held by nobody's will."""
        for hold in holds:
            try:
                hold.release()
            except Exception:  # Ray raises whatever its RPC layer does; the holds after this one must go too
                log.exception("hold not released; will be tried again", node=hold.node_id, index=hold.index)
                self._unreleased.append(hold)

    def tidy(self, alive: Collection[NodeId]) -> None:
        """Try again what Ray did not take, and drop what is on nodes that are gone."""
        again, self._unreleased = self._unreleased, []
        self.drop(*again)
        for place in [place for place in self.places if place[0] not in alive]:
            self.give_back(place)

    async def adopt(self, snapshot: FleetSnapshot) -> None:
        """Take over what an earlier life of the service held."""
        must_hold = {(d.node_id, d.index) for d in snapshot.devices if d.state is not DeviceState.HEALTHY}
        self.places.clear()
        for hold in await binding.adopt(alive(snapshot)):
            place = (hold.node_id, hold.index)
            if place in must_hold and place not in self.places:
                self.places[place] = hold
            else:
                self.drop(hold)  # a mask of a binding that died with the service before

    async def take_idle(self, node_id: NodeId, indices: Collection[int]) -> None:
        """Hold those of a node's free devices that have one of these indices."""
        for index, hold in (await binding.take_free(node_id)).items():
            if index in indices:
                self.places[node_id, index] = hold
            else:
                self.drop(hold)

    async def take_busy(
        self, device: DeviceView, freed: Collection[int], let_go: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Queue holders for all devices that will be `freed`, then end the work, then keep the holder on the device."""
        node_id = device.node_id
        got = await binding.take_free(node_id)
        try:
            holders = [binding.queue_holder(node_id) for _ in set(freed) - set(got)]
            await let_go()
            got |= await binding.seated(node_id, holders, SEAT_DEADLINE_S)
            if device.index in got:
                self.places[node_id, device.index] = got.pop(device.index)
        finally:
            self.drop(*got.values())
        if (node_id, device.index) not in self.places:
            log.warning("device could not be taken yet", device=device.uuid, lease=device.lease_id)


def alive(snapshot: FleetSnapshot) -> frozenset[NodeId]:
    return frozenset(node.node_id for node in snapshot.nodes if node.state is not NodeState.LOST)
