"""Racks, switches and power feeds: what strikes several hosts of one is told once, on SQLite and on PostgreSQL alike."""

import time

import pytest

from command_line import Cli
from inventory_maker import Fleet, found, port_down, uuid
from paceline.health.correlate import BURST_NS
from paceline.inventory.fabric import QUIET_NS, SETTLE_NS
from paceline.inventory.nodes import SECOND_NS, SILENT_S
from paceline.inventory.sightings import LASTS_NS
from paceline.inventory.store import Store
from paceline.model.events import Event, EventKind
from paceline.model.hardware import DeviceState
from paceline.model.health import Advice
from paceline.model.ids import NodeId
from paceline.sdk.rows import AliveNode
from paceline.sdk.rows_health import AlertKind, AlertRow, MtbfScope

BURST_S = BURST_NS // SECOND_NS
SETTLE_S = SETTLE_NS // SECOND_NS
QUIET_S = QUIET_NS // SECOND_NS
STEP_S = 5
"""Short enough that a host which reports each time is not silent; all of the above are multiples of it."""

Places = dict[str, dict[str, str]]
R1: Places = {"ada": {"rack": "r1"}, "bea": {"rack": "r1"}}


def stand(fleet: Fleet, places: Places) -> None:
    """Ray calls these hosts alive, and no others, with the labels that they were started with."""
    listed = [AliveNode(node_id=NodeId(f"node-{host}"), host_hint=host, domains=told) for host, told in places.items()]
    fleet.store.nodes_alive(listed, fleet.now_ns, fleet.now_ns)


def placed(fleet: Fleet, places: Places) -> None:
    """Hosts with one good device each."""
    for host in places:
        fleet.healthy(host, 1)
    stand(fleet, places)
    fleet.store.sweep(fleet.now_ns)


def go_on(fleet: Fleet, places: Places, seconds: int, *reporting: str) -> None:
    """Time passes; Ray calls all alive, and of the hosts only some report."""
    for _ in range(seconds // STEP_S):
        fleet.pass_s(STEP_S)
        for host in reporting:
            fleet.say(host)
        stand(fleet, places)
        fleet.store.sweep(fleet.now_ns)


def fabric(fleet: Fleet) -> list[AlertRow]:
    """The oldest first."""
    return [alert for alert in reversed(fleet.store.alerts()) if alert.kind is AlertKind.FABRIC]


def told(fleet: Fleet, host: str) -> list[Event]:
    here = [event for event in fleet.events(EventKind.FINDING) if event.entity == f"node:{host}"]
    return [event for event in here if event.body["rule"] == "correlate.fabric"]


# ── silence ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_hosts_of_a_rack_that_fall_silent_are_told_of_once(fleet: Fleet) -> None:
    places = R1 | {"cyd": {"rack": "r2"}}
    placed(fleet, places)
    go_on(fleet, places, 20, "bea", "cyd")
    go_on(fleet, places, SILENT_S + SETTLE_S - STEP_S, "cyd")
    assert fabric(fleet) == [], "more hosts may follow"
    for _ in range(3):
        go_on(fleet, places, SETTLE_S, "cyd")
        fleet.pass_s(QUIET_S)
    [alert] = fabric(fleet)
    assert alert.summary == "look at the fabric: silent on 2 hosts of rack:r1 (ada, bea) within 60 s"
    assert (alert.entity, alert.body["domains"], alert.body["hosts"]) == ("node:ada", "rack:r1", "ada bea")
    events = [*told(fleet, "ada"), *told(fleet, "bea")]
    assert [event.summary for event in events] == [alert.summary] * 2
    assert alert.event_id == events[0].id
    causes = {event.id: event for event in fleet.events(EventKind.NODE)}
    assert [causes[event.cause_id].summary for event in events] == [f"READY: no report for {SILENT_S} s"] * 2
    assert told(fleet, "cyd") == []
    assert fleet.state("ada", 0) is DeviceState.UNKNOWN, "and nothing more was done to it"


@pytest.mark.parametrize("places", [{"ada": {"rack": "r1"}, "bea": {"rack": "r2"}}, {"ada": {}, "bea": {}}])
def test_hosts_that_share_nothing_are_no_domain(fleet: Fleet, places: Places) -> None:
    placed(fleet, places)
    go_on(fleet, places, SILENT_S + BURST_S + SETTLE_S)
    assert fleet.state("ada", 0) is fleet.state("bea", 0) is DeviceState.UNKNOWN
    assert fabric(fleet) == []


def test_hosts_that_fall_silent_one_after_the_other_are_no_burst(fleet: Fleet) -> None:
    placed(fleet, R1)
    go_on(fleet, R1, BURST_S + STEP_S, "bea")
    go_on(fleet, R1, SILENT_S + BURST_S + SETTLE_S)
    assert fabric(fleet) == []


def test_hosts_that_ray_no_longer_lists_are_silent_once(fleet: Fleet) -> None:
    """ada is LOST to Ray a while after it fell silent: that would be a burst with bea, were it another silence."""
    placed(fleet, R1)
    go_on(fleet, R1, BURST_S, "bea")
    go_on(fleet, {"bea": {"rack": "r1"}}, STEP_S, "bea")
    go_on(fleet, {"bea": {"rack": "r1"}}, SILENT_S + BURST_S + SETTLE_S)
    assert fabric(fleet) == []


def test_a_rack_that_comes_back_before_it_is_told_of_was_silent(fleet: Fleet) -> None:
    placed(fleet, R1)
    go_on(fleet, R1, SILENT_S)
    go_on(fleet, R1, SETTLE_S + STEP_S, *R1)
    assert len(fabric(fleet)) == 1
    causes = {event.id: event.summary for event in fleet.events(EventKind.NODE)}
    assert causes[told(fleet, "bea")[0].cause_id].endswith(f"no report for {SILENT_S} s")


def test_hosts_that_ray_lists_no_more_are_told_of_though_they_have_just_reported(fleet: Fleet) -> None:
    placed(fleet, R1)
    go_on(fleet, R1, 3 * STEP_S, *R1)
    go_on(fleet, {}, SETTLE_S + STEP_S)
    [alert] = fabric(fleet)
    assert alert.body["hosts"] == "ada bea"


def test_a_host_that_joins_the_burst_late_gets_its_event_and_no_alert(fleet: Fleet) -> None:
    places = R1 | {"cyd": {"rack": "r1"}}
    placed(fleet, places)
    go_on(fleet, places, SETTLE_S + 20, "cyd")
    go_on(fleet, places, SILENT_S + SETTLE_S)
    assert [alert.body["hosts"] for alert in fabric(fleet)] == ["ada bea"]
    assert [len(told(fleet, host)) for host in ("ada", "bea", "cyd")] == [1, 1, 1]


def test_domains_that_the_hosts_share_are_named_together_and_the_widest_wins(fleet: Fleet) -> None:
    places = {host: {"rack": rack, "switch": "leaf3", "power": "A"} for host, rack in zip("abcd", "1122", strict=True)}
    placed(fleet, places)
    go_on(fleet, places, SILENT_S + SETTLE_S + STEP_S)
    [alert] = fabric(fleet)
    assert alert.summary.endswith("silent on 4 hosts of power:A, switch:leaf3 (a, b, c, d) within 60 s")


def test_the_same_rack_is_told_of_again_when_it_falls_silent_again(fleet: Fleet) -> None:
    placed(fleet, R1)
    for _ in range(2):
        go_on(fleet, R1, SILENT_S + SETTLE_S + STEP_S)
        fleet.pass_s(QUIET_S)
        go_on(fleet, R1, STEP_S, *R1)
    assert len(fabric(fleet)) == len(told(fleet, "ada")) == 2


def test_a_rack_that_is_drained_may_go_silent(fleet: Fleet) -> None:
    placed(fleet, R1)
    for host in R1:
        fleet.store.drain(host, 60, "new power supplies", "eve", fleet.now_ns)
    go_on(fleet, R1, SILENT_S + SETTLE_S + STEP_S)
    assert fabric(fleet) == []


# ── ports and links ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_ports_down_on_two_hosts_of_a_switch_are_told_of_once(fleet: Fleet) -> None:
    places: Places = {"ada": {"rack": "r1", "switch": "leaf3"}, "bea": {"rack": "r2", "switch": "leaf3"}}
    placed(fleet, places)
    for wait_s in (0, SETTLE_S, QUIET_S - SETTLE_S, QUIET_S):
        fleet.pass_s(wait_s)
        for host in places:
            fleet.say(host, node_findings=(port_down(fleet.now_ns), port_down(fleet.now_ns + 1)))
        go_on(fleet, places, SETTLE_S + STEP_S, *places)
    [alert] = fabric(fleet)
    assert alert.summary == "look at the fabric: link.down on 2 hosts of switch:leaf3 (ada, bea) within 60 s"
    [event] = told(fleet, "bea")
    cause = next(one for one in fleet.events() if one.id == event.cause_id)
    assert (cause.entity, cause.body["rule"]) == ("node:bea", "link.down")


def test_an_old_fault_that_is_said_again_beside_a_new_one_is_no_burst(fleet: Fleet) -> None:
    placed(fleet, R1)
    fleet.say("ada", node_findings=(port_down(fleet.now_ns),))
    fleet.pass_s(LASTS_NS // SECOND_NS // 2)
    for host in R1:
        fleet.say(host, node_findings=(port_down(fleet.now_ns),))
    go_on(fleet, R1, SETTLE_S + STEP_S, *R1)
    assert fabric(fleet) == []


def test_nvlink_errors_of_devices_on_two_hosts_of_a_rack_are_the_rack(fleet: Fleet) -> None:
    """74 is an Xid of NVLink; 79, a device off the bus, says nothing of a domain."""
    placed(fleet, R1)
    for code in (79, 74):
        for host in R1:
            fleet.say(host, findings=(found(host, 0, "xid", Advice.OBSERVE, fleet.now_ns, xid=code),))
        go_on(fleet, R1, SETTLE_S + STEP_S, *R1)
        assert len(fabric(fleet)) == (code == 74)
    [event] = told(fleet, "ada")
    cause = next(one for one in fleet.events() if one.id == event.cause_id)
    assert cause.entity == f"device:{uuid('ada', 0)}"


# ── where hosts stand ────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_ray_told_before_the_first_report_is_not_lost(fleet: Fleet) -> None:
    stand(fleet, R1)
    fleet.pass_s(30)
    for host in R1:
        fleet.host(host, 1)
    assert fleet.store.host("ada").domains == {"rack": "r1"}


def test_a_node_that_is_started_with_other_labels_stands_elsewhere(fleet: Fleet) -> None:
    placed(fleet, {"ada": {"rack": "r1", "power": "A"}})
    fleet.pass_s(60)
    fleet.say("ada", "node-ada-2")
    moved = AliveNode(node_id=NodeId("node-ada-2"), host_hint="ada", domains={"rack": "r7"})
    fleet.store.nodes_alive([moved], fleet.now_ns, fleet.now_ns)
    assert fleet.store.host("ada").domains == {"rack": "r7"}
    fleet.alive()
    assert fleet.store.host("ada").domains == {"rack": "r7"}, "a host that is gone stands where it stood"


def test_failures_are_told_by_rack(fleet: Fleet) -> None:
    """r1: two hosts with three devices, one of which falls after an hour. dot has no rack."""
    for host, gpus in (("ada", 2), ("bea", 1), ("cyd", 1), ("dot", 1)):
        fleet.healthy(host, gpus)
    stand(fleet, R1 | {"cyd": {"rack": "r2"}, "dot": {"switch": "leaf3"}})
    fleet.pass_s(3600)
    fleet.quarantined("ada", 1)
    fleet.pass_s(3600)
    answer = fleet.store.reliability(fleet.now_ns, 24 * 3600 * SECOND_NS)
    by_rack = {row.name: row for row in answer.mtbf if row.scope is MtbfScope.RACK}
    assert {name: (row.device_hours, row.failures, row.mtbf_h) for name, row in by_rack.items()} == {
        "r1": (5.0, 1, 5.0),
        "r2": (2.0, 0, None),
    }


def test_the_command_line_says_where_a_host_stands(sqlite_store: Store, request: pytest.FixtureRequest) -> None:
    """A server is asked for what is past by its own clock: the fleet of `cli` is of the future."""
    past = Fleet(sqlite_store, now_ns=time.time_ns() - 3600 * SECOND_NS)
    placed(past, {"old": {"rack": "r12", "power": "A"}})
    cli: Cli = request.getfixturevalue("cli")
    assert "power:A, rack:r12" in cli.text("describe", "node", "old")
    assert "nobody has told where it stands" in cli.text("describe", "node", "bea")
    assert any(line.split()[:2] == ["rack", "r12"] for line in cli.text("get", "reliability").splitlines())
