"""The full probe with a process for each device of a simulated machine, and what the inventory makes of full probes."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inventory_maker import Fleet, uuid
from paceline.benchmark import exchange, launcher
from paceline.benchmark.probe import Reading
from paceline.model.errors import BadRequest, NotFound
from paceline.model.hardware import NodeState
from paceline.model.ids import DeviceUuid, HostName
from paceline.model.measurement import NodeMeasurement
from paceline.sdk.rows_health import VerdictMode
from paceline.sim.fleet import identify
from paceline.sim.pace import STATE_VARIABLE
from paceline.sim.state import HostState

GPUS = 3
STEP_S = 0.02


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostState:
    name = HostName("ada")
    made = HostState.create(tmp_path / "state", name, [identify("test", name, i) for i in range(GPUS)], STEP_S)
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    return made


def probe() -> tuple[NodeMeasurement, ...]:
    """As placement does it, without Ray: each rank in a thread, which starts its process."""

    def on(index: int) -> Callable[..., Awaitable[tuple[Reading, ...]]]:
        async def run(_function: Any, rank: int, world: int, meet: str) -> tuple[Reading, ...]:
            return await asyncio.to_thread(partial(exchange.run, index, rank, world, meet))

        return run

    devices = {DeviceUuid(f"GPU-{index}"): on(index) for index in range(GPUS)}
    return asyncio.run(launcher.measure_node(HostName("ada"), devices))


def test_processes_meet_exchange_and_tell_how_long_it_took(machine: HostState) -> None:
    machine.set_link_pace(3.0)
    measured = probe()
    assert [(m.benchmark, m.ok, m.error) for m in measured] == [("p2p", True, ""), ("all_reduce", True, "")]
    for m in measured:
        assert m.devices == ("GPU-0", "GPU-1", "GPU-2")
        assert len(m.repetitions_s) == exchange.REPETITIONS
        assert min(m.repetitions_s) >= 3 * STEP_S
        assert m.bytes > 0


def full(host: str, seconds: float, at_ns: int, error: str = "", benchmark: str = "all_reduce") -> NodeMeasurement:
    devices = tuple(uuid(host, i) for i in range(2))
    times = () if error else (seconds,) * exchange.REPETITIONS
    return NodeMeasurement(HostName(host), devices, benchmark, 1, at_ns, times, not error, error, 1e9)


def state_of(fleet: Fleet, host: str) -> NodeState:
    return fleet.store.host(host).state


def test_a_host_is_compared_with_hosts_that_are_alike(fleet: Fleet) -> None:
    """`exchange.slow` is on trial: it says what it would do."""
    names = [f"h{number}" for number in range(8)]
    for name in names:
        fleet.healthy(name, 2)
        seconds = 0.026 if name == "h7" else 0.020
        fleet.store.node_measurements([full(name, seconds, fleet.now_ns)], fleet.now_ns)
    (shown,) = fleet.store.host("h7").exchanges
    assert (shown.benchmark, shown.devices, shown.seconds) == ("all_reduce", 2, 0.026)
    assert shown.relative == pytest.approx(1.3)
    assert shown.bus_gbps == pytest.approx(1 / 0.026)
    (verdict,) = fleet.store.verdicts(rule_id="exchange.slow")
    assert (verdict.host, verdict.mode) == ("h7", VerdictMode.SHADOW)
    assert {state_of(fleet, name) for name in names} == {NodeState.READY}


def test_corrupted_data_cordons_the_machine_and_blames_no_device(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)
    told = [full("ada", 0, fleet.now_ns, "corrupt: rank 1 got other bytes than rank 0 sent")]
    fleet.store.node_measurements(told, fleet.now_ns)
    after = fleet.events()
    fleet.store.node_measurements(told, fleet.pass_s(1))
    assert fleet.events() == after, "said twice is said once"
    assert state_of(fleet, "ada") is NodeState.CORDONED
    (verdict,) = fleet.store.verdicts(host="ada", rule_id="exchange.corrupt")
    assert (verdict.mode, verdict.uuid, verdict.automatic) == (VerdictMode.ENFORCE, "", True)
    assert {fleet.state("ada", i).value for i in range(2)} == {"HEALTHY"}


def test_an_order_is_seen_by_placement_until_it_is_carried_out(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)
    fleet.store.probe("ada", "new cables", "eve", fleet.pass_s(1))
    (node,) = fleet.store.fleet().nodes
    assert (node.simulated, node.probe_asked_ns, node.probed_ns) == (True, fleet.now_ns, 0)
    fleet.store.node_measurements([full("ada", 0.02, fleet.pass_s(60))], fleet.now_ns)
    (node,) = fleet.store.fleet().nodes
    assert node.probed_ns == fleet.now_ns
    with pytest.raises(BadRequest, match="needs a reason"):
        fleet.store.probe("ada", " ", "eve", fleet.now_ns)
    with pytest.raises(NotFound, match="no host nobody"):
        fleet.store.probe("nobody", "why not", "eve", fleet.now_ns)
