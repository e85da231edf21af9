"""No lock of a node and no mask is left behind, whatever goes wrong while a gang is bound. Ray and the server are stand-ins."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Literal

import pytest

from paceline.model.errors import Unreachable
from paceline.model.hardware import DeviceState, NodeState
from paceline.model.ids import NO_CAUSE, DeviceUuid, HostName, JobId, LeaseId, NodeId
from paceline.model.plan import DeviceView, FleetSnapshot, Grant, LeaseView, NodeView, Plan
from paceline.model.workload import GangRequest
from paceline.placement import binding
from paceline.placement.service import PlacementService

A, B = NodeId("a"), NodeId("b")
REQUEST = GangRequest(JobId("job"), "run", 1, 4, 0.5)


class Mask:
    """A hold that counts itself."""

    here: ClassVar[set["Mask"]] = set()
    sick: ClassVar[bool] = False

    def __init__(self, node_id: NodeId, index: int) -> None:
        self.node_id, self.index = node_id, index
        self.here.add(self)

    def release(self) -> None:
        if self.sick:
            raise RuntimeError("GCS is away")
        self.here.discard(self)


class TellingLock(asyncio.Lock):
    def __init__(self) -> None:
        super().__init__()
        self.taken = asyncio.Event()

    async def acquire(self) -> Literal[True]:
        await super().acquire()
        self.taken.set()
        return True


class Server:
    """Two nodes with three devices each; leases are given to whoever asks."""

    def __init__(self) -> None:
        self.leases: list[LeaseView] = []
        self.answers = True

    async def fleet(self) -> FleetSnapshot:
        nodes = tuple(NodeView(n, HostName(n), NodeState.READY, simulated=True) for n in (A, B))
        taken = {uuid: lease.lease_id for lease in self.leases for uuid in lease.devices}
        devices = tuple(
            DeviceView(
                u := DeviceUuid(f"{n}{i}"), HostName(n), n, i, "H", DeviceState.HEALTHY, 1.0, taken.get(u), NO_CAUSE
            )
            for n in (A, B)
            for i in range(3)
        )
        return FleetSnapshot(1, nodes, devices, tuple(self.leases))

    async def create_lease(self, request: GangRequest, plan: Plan) -> LeaseView:
        if not self.answers:
            raise Unreachable("PL-NET-001", "no answer")
        self.leases = [LeaseView(LeaseId(f"lease-{request.attempt}"), request.attempt_id, plan.devices, NO_CAUSE)]
        return self.leases[0]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    async def take_free_on(nodes: list[NodeId]) -> dict[tuple[NodeId, int], Mask]:
        return {(node, i): Mask(node, i) for node in nodes for i in range(3)}

    monkeypatch.setattr(binding, "take_free_on", take_free_on)
    monkeypatch.setattr(Mask, "here", set())
    monkeypatch.setattr(Mask, "sick", False)
    return Server()


def with_service(server: Server, test: Callable[[PlacementService], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        service = PlacementService("http://127.0.0.1:1", "token")
        service._client = server
        service._started.set()
        await test(service)

    asyncio.run(asyncio.wait_for(run(), 30))


def locked(service: PlacementService) -> list[NodeId]:
    return [node for node in (A, B) if service._locks[node].locked()]


def test_a_server_that_is_away_leaves_nothing_locked_or_masked(server: Server) -> None:
    async def test(service: PlacementService) -> None:
        server.answers = False
        with pytest.raises(Unreachable):
            await service.acquire(REQUEST, "")
        assert locked(service) == []
        assert not Mask.here

    with_service(server, test)


def test_a_cancelled_wait_for_the_second_lock_gives_the_first_back(server: Server) -> None:
    async def test(service: PlacementService) -> None:
        first = service._locks[A] = TellingLock()
        await service._locks[B].acquire()
        asking = asyncio.create_task(service.acquire(REQUEST, ""))
        await first.taken.wait()
        assert locked(service) == [A, B]
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert locked(service) == [B]

    with_service(server, test)


def test_masks_that_ray_does_not_take_back_are_kept_for_later_and_no_lock_stays(server: Server) -> None:
    async def test(service: PlacementService) -> None:
        grant = await service.acquire(REQUEST, "")
        assert isinstance(grant, Grant)
        assert (locked(service), len(Mask.here)) == ([A, B], 2)
        Mask.sick = True
        service._unbind(grant.lease_id)
        assert locked(service) == []
        assert set(service._holds._unreleased) == Mask.here

    with_service(server, test)


def test_the_next_attempt_does_not_wait_for_one_that_never_confirmed(server: Server) -> None:
    async def test(service: PlacementService) -> None:
        first = await service.acquire(REQUEST, "")
        again = await service.acquire(GangRequest(JobId("job"), "run", 2, 4, 0.5), "")
        assert isinstance(first, Grant)
        assert isinstance(again, Grant)
        service._unbind(again.lease_id)
        assert (locked(service), Mask.here) == ([], set())

    with_service(server, test)
