"""Which device is probed when, on drawn fleets."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from paceline.health import machine
from paceline.model.hardware import DeviceState, NodeState
from paceline.model.ids import NO_CAUSE, DeviceUuid, HostName, LeaseId, NodeId
from paceline.model.measurement import DeviceScore
from paceline.model.plan import DeviceView, FleetSnapshot, NodeView
from paceline.placement import probing
from paceline.placement.probing import MAX_AGE_NS, RECHECK_NS, RETRY_NS, SWEEP_PERIOD_NS, Past

NOW = 100 * SWEEP_PERIOD_NS
LONG_AGO = NOW - 2 * SWEEP_PERIOD_NS

STATES = {".": DeviceState.HEALTHY, "#": DeviceState.HEALTHY, "x": DeviceState.QUARANTINED, "p": DeviceState.PROBING}


def fleet(*hosts: str, ready: bool = True) -> FleetSnapshot:
    """`.` idle, `#` leased, `x` quarantined, `p` waits for a probe; one string a host."""
    names = "abcdefgh"[: len(hosts)]
    state = NodeState.READY if ready else NodeState.DRAINING
    nodes = tuple(NodeView(NodeId(name), HostName(name), state) for name in names)
    devices = tuple(
        DeviceView(
            uuid=DeviceUuid(f"{name}{index}"),
            host=HostName(name),
            node_id=NodeId(name),
            index=index,
            sku="H200",
            state=STATES[mark],
            score=1.0,
            lease_id=LeaseId("lease") if mark == "#" else None,
            cause_id=NO_CAUSE,
        )
        for name, row in zip(names, hosts, strict=True)
        for index, mark in enumerate(row)
    )
    return FleetSnapshot(1, nodes, devices, ())


def swept(snapshot: FleetSnapshot, past: Past | None = None, probing_now: set[str] | None = None) -> list[str]:
    pasts = {d.uuid: past or Past(LONG_AGO) for d in snapshot.devices}
    return [d.uuid for d in probing.sweep(snapshot, pasts, {DeviceUuid(u) for u in probing_now or ()}, NOW)]


def test_idle_sound_devices_are_swept_one_a_node() -> None:
    assert swept(fleet("#x." + "." * 9, "p" + "." * 11, "#" * 12, "." * 12)) == ["a10", "b1"], (
        "5 % of 48 at once; ids are words"
    )


def test_devices_that_are_probed_already_count() -> None:
    assert swept(fleet("." * 12, "." * 12, "." * 12, "." * 12), probing_now={"a3"}) == ["b0"]
    assert swept(fleet("...."), probing_now={"a3"}) == []


def test_a_small_fleet_is_swept_one_at_a_time() -> None:
    assert swept(fleet("..", "..")) == ["a0"]


def test_no_device_of_a_node_that_is_not_ready_is_swept() -> None:
    assert swept(fleet("..", ready=False)) == []


def test_a_device_is_swept_once_a_period() -> None:
    snapshot = fleet(".")
    times = range(NOW, NOW + 3 * SWEEP_PERIOD_NS, SWEEP_PERIOD_NS // 96)
    past, probes = Past(NOW), []
    for now in times:
        if probing.sweep(snapshot, {DeviceUuid("a0"): past}, (), now):
            probes.append(now)
            past = probing.probed(past, (), now)
    assert len(probes) in (2, 3)
    assert {b - a for a, b in pairwise(probes)} == {SWEEP_PERIOD_NS}


def test_a_device_whose_probe_came_to_nothing_waits_a_moment() -> None:
    assert swept(fleet("."), probing.tried(Past(LONG_AGO), NOW - RETRY_NS + 1)) == []
    assert swept(fleet("."), probing.tried(Past(LONG_AGO), NOW - RETRY_NS)) == ["a0"]


def score(drift: float | None) -> DeviceScore:
    return DeviceScore(DeviceUuid("a0"), "gemm", 1.0, 0.001, 7, "H200", 8, drift=drift)


def test_drift_is_looked_at_again_soon_and_twice() -> None:
    first = probing.probed(Past(LONG_AGO), [score(0.05)], NOW - RECHECK_NS)
    assert swept(fleet("."), first) == ["a0"]
    second = probing.probed(first, [score(0.05)], NOW - RECHECK_NS)
    assert swept(fleet("."), second) == ["a0"]
    assert swept(fleet("."), probing.probed(second, [score(0.05)], NOW - RECHECK_NS)) == [], "three have agreed"
    assert swept(fleet("."), replace(first, at_ns=NOW - RECHECK_NS + 1)) == [], "not at once"


@pytest.mark.parametrize("drift", [None, 0.01, -0.05])
def test_without_drift_there_is_no_second_look(drift: float | None) -> None:
    assert swept(fleet("."), probing.probed(Past(LONG_AGO), [score(drift)], NOW - RECHECK_NS)) == []


def test_a_device_that_drifts_goes_before_the_sweep() -> None:
    snapshot = fleet("..")
    pasts = {DeviceUuid("a0"): Past(LONG_AGO), DeviceUuid("a1"): Past(NOW - RECHECK_NS, drifting=True)}
    assert [d.uuid for d in probing.sweep(snapshot, pasts, (), NOW)] == ["a1"]


def test_only_what_is_held_and_waits_is_probed_at_once() -> None:
    snapshot = fleet("pp.x")
    held = {(NodeId("a"), 0), (NodeId("a"), 2), (NodeId("a"), 3)}
    assert [d.uuid for d in probing.at_once(snapshot, held)] == ["a0"]


def test_a_score_is_old_after_days_and_is_not_renewed_again_and_again() -> None:
    assert probing.is_old(Past(NOW - MAX_AGE_NS - 1), NOW)
    assert not probing.is_old(Past(NOW - MAX_AGE_NS), NOW)
    assert not probing.is_old(probing.tried(Past(LONG_AGO - MAX_AGE_NS), NOW), NOW)


def test_a_device_that_has_proved_itself_waits_between_further_probes() -> None:
    """Its machine waits for a quiet time of 90 s: probes back to back meanwhile would prove nothing and fill the history."""
    assert probing.PROOFS_AT_ONCE == machine.CLEAN_PROBES_WANTED
    three = probing.Proofs(3, at_ns=1_000)
    assert probing.may_prove(probing.Proofs(2, at_ns=1_000), 1_000)
    assert not probing.may_prove(three, 1_000 + probing.PROOF_PAUSE_NS - 1)
    assert probing.may_prove(three, 1_000 + probing.PROOF_PAUSE_NS)


FULL_LONG_AGO = NOW - probing.FULL_PERIOD_NS


def full_due(snapshot: FleetSnapshot, tried_ns: int = 0, **changes: Any) -> dict[str, list[str]]:
    nodes = tuple(replace(node, **{"probed_ns": FULL_LONG_AGO, **changes}) for node in snapshot.nodes)
    due = probing.full_due(replace(snapshot, nodes=nodes), dict.fromkeys([NodeId("a"), NodeId("b")], tried_ns), NOW)
    return {node: [d.uuid for d in devices] for node, devices in due.items()}


def test_a_node_gets_a_full_probe_once_a_week_when_all_that_is_sound_is_idle() -> None:
    assert full_due(fleet("..x.", "..#.")) == {"a": ["a0", "a1", "a3"]}
    assert full_due(fleet(".x", "xx")) == {}, "one device has nobody to exchange with"
    assert full_due(fleet("...."), probed_ns=FULL_LONG_AGO + 1) == {}
    assert full_due(fleet("....", ready=False)) == {}
    assert full_due(fleet("...."), tried_ns=NOW - RETRY_NS + 1) == {}


def test_a_simulated_node_gets_one_only_when_somebody_asks() -> None:
    assert full_due(fleet(".."), simulated=True) == {}
    assert full_due(fleet(".."), simulated=True, probed_ns=NOW - 2, probe_asked_ns=NOW - 1) == {"a": ["a0", "a1"]}
    assert full_due(fleet(".."), simulated=True, probed_ns=NOW - 1, probe_asked_ns=NOW - 2) == {}
