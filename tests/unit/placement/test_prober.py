"""Devices are lent for a probe and given back whatever happens; a gang never waits for the schedule. Ray and the server are stand-ins."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from paceline.benchmark import launcher
from paceline.model.hardware import DeviceState, NodeState
from paceline.model.ids import NO_CAUSE, DeviceUuid, EventId, HostName, JobId, LeaseId, NodeId
from paceline.model.measurement import DeviceScore, Measurement, NodeMeasurement
from paceline.model.plan import DeviceView, FleetSnapshot, Grant, LeaseView, NodeView, Plan, Refusal
from paceline.model.workload import GangRequest
from paceline.placement import binding, probing
from paceline.placement.service import PlacementService
from paceline.placement.steps import STEPS_WANTED

A = NodeId("a")
GPUS = 4


def request(devices: int) -> GangRequest:
    return GangRequest(JobId("job"), "run", 1, devices, 0.5)


class World:
    """One node of four idle sound devices, a probe that ends when it is told to, and a server that keeps what it is told."""

    def __init__(self) -> None:
        self.free = set(range(GPUS))
        self.probe_may_end = asyncio.Event()
        self.probing = asyncio.Event()
        self.reported = asyncio.Event()
        self.told: list[Measurement] = []
        self.found: dict[DeviceUuid, DeviceState] = {}
        self.leases: list[LeaseView] = []
        self.old: set[int] = set()
        self.full_asked_ns = 0
        self.told_of_node: list[NodeMeasurement] = []

    async def take_free(self, node_id: NodeId) -> dict[int, "Held"]:
        taken, self.free = self.free, set()
        return {index: Held(self, node_id, index) for index in taken}

    async def take_free_on(self, nodes: list[NodeId]) -> dict[tuple[NodeId, int], "Held"]:
        return {(A, index): hold for index, hold in (await self.take_free(A)).items()}

    async def measure(self, uuid: DeviceUuid, _: object) -> tuple[Measurement, ...]:
        self.probing.set()
        await self.probe_may_end.wait()
        return (Measurement(uuid, "gemm", 1, 7, (0.1,), True),)

    async def measurements(self, values: list[Measurement]) -> tuple[DeviceScore, ...]:
        self.told += values
        self.reported.set()
        return tuple(DeviceScore(m.uuid, m.benchmark, 1.0, 0.0, 1, "H", GPUS) for m in values)

    async def measure_node(self, host: HostName, devices: dict[DeviceUuid, object]) -> tuple[NodeMeasurement, ...]:
        self.probing.set()
        await self.probe_may_end.wait()
        return (NodeMeasurement(host, tuple(devices), "p2p", 1, 7, (0.1,), ok=True),)

    async def node_measurements(self, values: tuple[NodeMeasurement, ...]) -> None:
        self.told_of_node += values
        self.full_asked_ns = 0

    async def holds(self, held: list[DeviceUuid], released: list[DeviceUuid], at_ns: int) -> None:
        """Nothing comes of it here."""

    async def fleet(self) -> FleetSnapshot:
        return self.snapshot()

    def snapshot(self) -> FleetSnapshot:
        leased = {uuid: lease.lease_id for lease in self.leases for uuid in lease.devices}
        devices = [
            DeviceView(
                u := DeviceUuid(f"a{i}"),
                HostName("a"),
                A,
                i,
                "H",
                self.state(u),
                1.0,
                leased.get(u),
                NO_CAUSE,
                scored_ns=1 if i in self.old else time.time_ns(),
            )
            for i in range(GPUS)
        ]
        node = NodeView(A, HostName("a"), NodeState.READY, simulated=True, probe_asked_ns=self.full_asked_ns)
        return FleetSnapshot(1, (node,), tuple(devices), tuple(self.leases))

    def state(self, uuid: DeviceUuid) -> DeviceState:
        return self.found.get(uuid, DeviceState.HEALTHY)

    async def create_lease(self, wanted: GangRequest, plan: Plan) -> LeaseView:
        self.leases = [LeaseView(LeaseId("lease"), wanted.attempt_id, plan.devices, NO_CAUSE)]
        return self.leases[0]


class Held:
    def __init__(self, world: World, node_id: NodeId, index: int) -> None:
        self.world, self.node_id, self.index = world, node_id, index

    def release(self) -> None:
        self.world.free.add(self.index)


def in_world(
    monkeypatch: pytest.MonkeyPatch, test: Callable[[World, PlacementService], Coroutine[Any, Any, None]]
) -> None:
    async def run() -> None:
        world = World()
        monkeypatch.setattr(binding, "take_free", world.take_free)
        monkeypatch.setattr(binding, "take_free_on", world.take_free_on)
        monkeypatch.setattr(launcher, "measure", world.measure)
        monkeypatch.setattr(launcher, "measure_node", world.measure_node)
        service = PlacementService("http://127.0.0.1:1", "token")
        service._client = world
        service._snapshot = world.snapshot()
        service._started.set()
        await test(world, service)

    asyncio.run(asyncio.wait_for(run(), 30))


def make_old(world: World, service: PlacementService, *indices: int) -> None:
    """The inventory says that their last probe was long ago: the service has just started."""
    world.old = set(indices)
    service._snapshot = world.snapshot()


async def settle(service: PlacementService) -> None:
    await asyncio.gather(*service._tasks.running())


def test_an_idle_device_is_held_while_it_is_probed_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World, service: PlacementService) -> None:
        make_old(world, service, 2)
        service._start_probes()
        await world.probing.wait()
        assert world.free == {0, 1, 3}
        assert set(service._prober.lent) == {(A, 2)}
        assert service.held() == [], "the inventory still gives it out"
        service._start_probes()
        world.probe_may_end.set()
        await settle(service)
        assert [m.uuid for m in world.told] == ["a2"], "once"
        assert world.free == set(range(GPUS))

    in_world(monkeypatch, test)


def test_a_device_that_its_probe_finds_sick_stays_held(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World, service: PlacementService) -> None:
        make_old(world, service, 2)
        world.found[DeviceUuid("a2")] = DeviceState.SUSPECT
        world.probe_may_end.set()
        service._start_probes()
        await settle(service)
        assert service.held() == [(A, 2)]
        assert world.free == {0, 1, 3}
        assert service._prober.lent == {}

    in_world(monkeypatch, test)


def test_a_gang_goes_around_a_device_that_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World, service: PlacementService) -> None:
        make_old(world, service, 0)
        service._start_probes()
        await world.probing.wait()
        grant = await service.acquire(request(3), "")
        assert isinstance(grant, Grant)
        assert grant.devices == ("a1", "a2", "a3")
        world.probe_may_end.set()
        await world.reported.wait()
        assert set(service._prober.lent) == {(A, 0)}, "it must not be found unmasked by a gang that is being bound"
        service._unbind(grant.lease_id)
        await settle(service)
        assert world.free == set(range(GPUS))

    in_world(monkeypatch, test)


def test_a_gang_that_needs_it_ends_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World, service: PlacementService) -> None:
        make_old(world, service, 0)
        service._start_probes()
        await world.probing.wait()
        grant = await service.acquire(request(4), "")
        assert isinstance(grant, Grant)
        assert len(grant.devices) == 4
        assert world.told == []

    in_world(monkeypatch, test)


def test_a_sweep_that_is_cancelled_while_it_waits_to_give_back_still_gives_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gang that is being bound has the node's lock when the probe ends; another gang then ends the sweep, twice."""

    async def test(world: World, service: PlacementService) -> None:
        make_old(world, service, 0)
        service._start_probes()
        await world.probing.wait()
        async with service._locks[A]:
            world.probe_may_end.set()
            await world.reported.wait()
            for _ in range(2):
                await service._tasks.end("sweep")
            assert set(service._prober.lent) == {(A, 0)}, "the fault fired: it could not be given back yet"
        async with service._locks[A]:
            assert service._prober.lent == {}
        assert world.free == set(range(GPUS))

    in_world(monkeypatch, test)


def test_a_sweep_that_is_ended_before_it_began_leaves_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World, service: PlacementService) -> None:
        make_old(world, service, 0)
        service._start_probes()
        await service._tasks.end("sweep")
        assert service._prober._probing == set()
        assert world.free == set(range(GPUS))

    in_world(monkeypatch, test)


def test_nothing_is_swept_while_somebody_waits_for_a_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World, service: PlacementService) -> None:
        assert isinstance(await service.acquire(request(5), ""), Refusal)
        make_old(world, service, 0)
        service._start_probes()
        assert not service._tasks.running()
        service._prober._asked_for_ns -= probing.QUIET_NS
        service._start_probes()
        await world.probing.wait()
        assert set(service._prober.lent) == {(A, 0)}
        world.probe_may_end.set()
        await settle(service)

    in_world(monkeypatch, test)


def test_a_device_in_use_is_left_alone_and_not_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World, service: PlacementService) -> None:
        world.free = {1, 2, 3}
        make_old(world, service, 0)
        service._start_probes()
        await settle(service)
        assert (world.told, world.free) == ([], {1, 2, 3})
        service._start_probes()
        assert not service._tasks.running()

    in_world(monkeypatch, test)


def test_old_scores_are_renewed_inside_the_masks_before_a_gang_gets_its_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World, service: PlacementService) -> None:
        service._prober.refused()  # no sweep
        make_old(world, service, 0, 1)
        world.probe_may_end.set()
        grant = await service.acquire(request(2), "")
        assert isinstance(grant, Grant)
        assert sorted(m.uuid for m in world.told) == ["a0", "a1"]
        service._unbind(grant.lease_id)
        world.leases = []
        again = await service.acquire(request(2), "")
        assert isinstance(again, Grant)
        assert len(world.told) == 2, "they are not old any more"

    in_world(monkeypatch, test)


@pytest.mark.parametrize(
    ("cause", "attempt", "probed"),
    [
        pytest.param(NO_CAUSE, 2, ["a0", "a1"], id="the attempt ended by itself"),
        pytest.param(EventId(7), 2, [], id="it was moved, and is known why"),
        pytest.param(NO_CAUSE, 1, [], id="a call that was sent again"),
    ],
)
def test_the_devices_of_an_attempt_that_failed_are_probed_before_they_work_again(
    monkeypatch: pytest.MonkeyPatch, cause: EventId, attempt: int, probed: list[str]
) -> None:
    async def test(world: World, service: PlacementService) -> None:
        world.probe_may_end.set()
        first = await service.acquire(request(2), "")
        assert isinstance(first, Grant)
        service._unbind(first.lease_id)  # its workers have started
        assert world.told == []
        world.leases = [replace(lease, moving_cause=cause) for lease in world.leases]
        grant = await service.acquire(replace(request(2), attempt=attempt), "")
        assert isinstance(grant, Grant)
        assert sorted(m.uuid for m in world.told) == probed

    in_world(monkeypatch, test)


def test_a_gang_starts_with_old_scores_if_they_cannot_be_renewed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World, service: PlacementService) -> None:
        service._prober.refused()
        make_old(world, service, 0, 1)
        monkeypatch.setattr("paceline.placement.prober.BEFORE_A_JOB_S", 0.0)
        grant = await service.acquire(request(2), "")
        assert isinstance(grant, Grant)
        assert world.told == []

    in_world(monkeypatch, test)


def test_a_device_that_is_condemned_while_another_is_being_held_is_held_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World, service: PlacementService) -> None:
        def condemn(revision: int) -> None:
            world.found[DeviceUuid(f"a{revision}")] = DeviceState.QUARANTINED
            service._snapshot = replace(world.snapshot(), revision=revision)

        async def take_free(node_id: NodeId) -> dict[int, Held]:
            if service._snapshot.revision == 2:
                condemn(3)
            return await world.take_free(node_id)

        monkeypatch.setattr(binding, "take_free", take_free)
        condemn(2)
        await service._reconcile_node(A)
        assert service.held() == [(A, 2), (A, 3)]

    in_world(monkeypatch, test)


def ask_for_a_full_probe(world: World, service: PlacementService) -> None:
    world.full_asked_ns = time.time_ns()
    service._snapshot = world.snapshot()


def test_a_full_probe_holds_the_whole_node_and_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World, service: PlacementService) -> None:
        ask_for_a_full_probe(world, service)
        service._start_probes()
        await world.probing.wait()
        assert world.free == set()
        service._start_probes()
        world.probe_may_end.set()
        await settle(service)
        (measured,) = world.told_of_node
        assert measured.devices == ("a0", "a1", "a2", "a3"), "once, by rank"
        assert world.free == set(range(GPUS))
        service._start_probes()
        await settle(service)
        assert len(world.told_of_node) == 1

    in_world(monkeypatch, test)


def test_a_full_probe_is_put_off_where_a_stranger_has_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World, service: PlacementService) -> None:
        world.free = {0, 1, 3}
        ask_for_a_full_probe(world, service)
        service._start_probes()
        await settle(service)
        assert not world.probing.is_set()
        assert world.free == {0, 1, 3}
        service._start_probes()
        await settle(service)
        assert world.free == {0, 1, 3}, "not tried again at once"

    in_world(monkeypatch, test)


def test_a_gang_ends_a_full_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World, service: PlacementService) -> None:
        ask_for_a_full_probe(world, service)
        service._start_probes()
        await world.probing.wait()
        grant = await service.acquire(request(2), "")
        assert isinstance(grant, Grant)
        assert world.told_of_node == []
        service._unbind(grant.lease_id)
        assert world.free == set(range(GPUS))

    in_world(monkeypatch, test)


def test_a_device_that_is_late_in_a_run_is_told_of_and_probed_when_it_is_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(world: World, service: PlacementService) -> None:
        world.probe_may_end.set()
        await run_in_which_one_is_late(world, service)
        assert {(m.uuid, m.workload, m.conditions["lags"]) for m in world.told} == {
            ("a0", "step", 0.0),
            ("a1", "step", 0.0),
            ("a2", "step", 1.0),
        }
        service._start_probes()
        await settle(service)
        assert len(world.told) == 3, "it is in use"
        world.leases = []
        service._snapshot = world.snapshot()
        service._start_probes()
        await settle(service)
        assert [m.uuid for m in world.told[3:]] == ["a2"]

    in_world(monkeypatch, test)


def test_a_device_that_was_late_is_probed_before_the_next_gang_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World, service: PlacementService) -> None:
        world.probe_may_end.set()
        await run_in_which_one_is_late(world, service)
        world.leases = []
        assert isinstance(await service.acquire(request(3), ""), Grant)
        assert [m.uuid for m in world.told[3:]] == ["a2"]

    in_world(monkeypatch, test)


def test_steps_of_a_place_that_no_lease_holds_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World, service: PlacementService) -> None:
        await run_in_which_one_is_late(world, service, nodes=(A, NodeId("elsewhere")), leased=False)
        assert (world.told, list(service._steps.leases)) == ([], [])

    in_world(monkeypatch, test)


async def run_in_which_one_is_late(
    world: World, service: PlacementService, nodes: tuple[NodeId, ...] = (A,), leased: bool = True
) -> None:
    """Three workers tell of a minute of steps; that on a2 is late in each."""
    gang = LeaseView(LeaseId("lease"), "job/run/1", tuple(DeviceUuid(f"a{i}") for i in range(3)), NO_CAUSE)
    world.leases = [gang] if leased else []
    service._snapshot = world.snapshot()
    for node in nodes:
        for index, compute_s in enumerate((0.1, 0.1, 0.12)):
            rows = [(step, compute_s, 0.121 - compute_s) for step in range(STEPS_WANTED)]
            await service.step_times(node, index, rows)
    await settle(service)
