"""How often devices fail and which hosts are lemons, asked of fleets whose histories are known, on SQLite and on PostgreSQL alike."""

import asyncio
import json
import time

import pytest

from command_line import Cli
from inventory_maker import SECOND_NS, START_NS, Fleet, ahead_ns, facts, found, port_down, uuid, xid_finding
from paceline.analysis.reliability import LEMON_FLEET_MIN, Signal, mtbf_h
from paceline.control import auth
from paceline.control.app import create_app
from paceline.inventory.reads_reliability import watched_ns
from paceline.inventory.store import Store
from paceline.model.errors import BadRequest
from paceline.model.hardware import DeviceState, XidEvent
from paceline.model.health import Advice, RepairAction
from paceline.model.workload import RunState
from paceline.sdk.aio import AsyncClient
from paceline.sdk.client import Client
from paceline.sdk.rows_health import MtbfRow, MtbfScope, Reliability, VerdictMode
from running_server import serve

HOUR_S = 3600
DAY_S = 24 * HOUR_S
WINDOW_NS = 28 * DAY_S * SECOND_NS


def ask(fleet: Fleet, days: float = 28) -> Reliability:
    return fleet.store.reliability(fleet.now_ns, int(days * DAY_S) * SECOND_NS)


def of(answer: Reliability, scope: MtbfScope) -> dict[str, tuple[float, int]]:
    """(device-hours, failures) by name."""
    return {row.name: (row.device_hours, row.failures) for row in answer.mtbf if row.scope is scope}


def device(fleet: Fleet, host: str, index: int, days: float = 28) -> tuple[float, int]:
    return of(ask(fleet, days), MtbfScope.DEVICE)[uuid(host, index)]


def back_in_service(fleet: Fleet, host: str, index: int) -> None:
    """An operator releases the device, and three clean probes make it HEALTHY."""
    fleet.say(host)
    fleet.store.release(uuid(host, index), "reseated", "ada", fleet.now_ns)
    for _ in range(3):
        fleet.store.measurements([fleet.measurement(host, i) for i in range(fleet.gpus[host])], fleet.now_ns)
        fleet.pass_s(1)
    assert fleet.state(host, index) is DeviceState.HEALTHY


# ── hours, failures, bounds ──────────────────────────────────────────────────────────────────────────────────────────


def test_hours_failures_and_bounds_are_exact(fleet: Fleet) -> None:
    """ada: 4 devices, one falls after 10 h. bea: 2 of another SKU, 6 h later. Asked after 20 h."""
    fleet.healthy("ada", 4)
    fleet.pass_s(6 * HOUR_S)
    fleet.gpus["bea"] = 2
    fleet.say("bea", devices=tuple(facts("bea", i, "NVIDIA H200") for i in range(2)))
    fleet.pass_s(4 * HOUR_S)
    fleet.quarantined("ada", 1)
    fleet.pass_s(10 * HOUR_S)
    answer = ask(fleet)
    assert (answer.from_ns, answer.to_ns) == (fleet.now_ns - WINDOW_NS, fleet.now_ns)
    h100, h200 = facts("ada", 0).sku, facts("bea", 0, "NVIDIA H200").sku
    assert of(answer, MtbfScope.SKU) == {h100: (70.0, 1), h200: (28.0, 0)}
    assert of(answer, MtbfScope.HOST) == {"ada": (70.0, 1), "bea": (28.0, 0)}
    by_device = {uuid("ada", i): (20.0, 0) for i in range(4)} | {uuid("bea", i): (14.0, 0) for i in range(2)}
    assert of(answer, MtbfScope.DEVICE) == by_device | {uuid("ada", 1): (10.0, 1)}
    failed, sound = (row for row in answer.mtbf if row.scope is MtbfScope.HOST)
    wanted = mtbf_h(1, 70.0)
    assert (failed.mtbf_h, failed.low_h, failed.high_h) == (70.0, wanted.low, wanted.high)
    assert (sound.mtbf_h, sound.low_h, sound.high_h) == (None, pytest.approx(28 / 3.6889, rel=1e-4), None)
    assert [row.scope for row in answer.mtbf] == [MtbfScope.SKU] * 2 + [MtbfScope.HOST] * 2 + [MtbfScope.DEVICE] * 6


def test_time_out_of_service_is_no_exposure(fleet: Fleet) -> None:
    """10 h of service, 5 h in quarantine and on the bench, 2 h of service, and a second failure."""
    fleet.healthy("ada", 2)
    fleet.pass_s(10 * HOUR_S)
    fleet.quarantined("ada", 0)
    fleet.pass_s(2 * HOUR_S)
    fleet.store.repair(uuid("ada", 0), RepairAction.RESET_GPU, "try it", "ada", fleet.now_ns)
    fleet.pass_s(HOUR_S)
    fleet.store.repair_done(uuid("ada", 0), False, "still there", "ada", fleet.now_ns)
    fleet.pass_s(2 * HOUR_S)
    assert device(fleet, "ada", 0) == (10.0, 1)
    began = fleet.now_ns
    back_in_service(fleet, "ada", 0)
    in_service_ns = fleet.now_ns - SECOND_NS  # the last probe was a second ago
    assert in_service_ns > began
    fleet.now_ns = in_service_ns + 2 * HOUR_S * SECOND_NS
    fleet.fall("ada", 0)
    fleet.pass_s(HOUR_S)
    assert device(fleet, "ada", 0) == (12.0, 2)
    assert device(fleet, "ada", 1)[1] == 0


def test_a_failure_on_probation_is_not_told_twice(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)
    fleet.quarantined("ada", 0)
    fleet.pass_s(HOUR_S)
    fleet.say("ada")
    fleet.store.release(uuid("ada", 0), "reseated", "ada", fleet.now_ns)
    fleet.pass_s(HOUR_S)
    fleet.fall("ada", 0)
    assert fleet.state("ada", 0) is DeviceState.QUARANTINED
    assert device(fleet, "ada", 0) == (0.0, 1)


def test_nobody_watches_a_device_whose_host_is_silent(fleet: Fleet) -> None:
    fleet.healthy("ada", 1)
    fleet.store.sweep(fleet.now_ns)
    fleet.pass_s(3 * HOUR_S)
    fleet.store.sweep(fleet.now_ns)
    assert fleet.state("ada", 0) is DeviceState.UNKNOWN
    fleet.pass_s(5 * HOUR_S)
    fleet.say("ada")
    fleet.pass_s(HOUR_S)
    assert device(fleet, "ada", 0) == (4.0, 0)


def test_a_retired_device_counts_until_it_went(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)
    fleet.pass_s(10 * HOUR_S)
    fleet.store.retire(uuid("ada", 0), "sold", "ada", fleet.now_ns)
    fleet.pass_s(10 * HOUR_S)
    assert device(fleet, "ada", 0) == (10.0, 0)
    assert of(ask(fleet, days=10 / 24), MtbfScope.DEVICE) == {uuid("ada", 1): (10.0, 0)}


def test_only_the_window_counts(fleet: Fleet) -> None:
    """Ten days, a failure after the third, back after the fifth; asked for the last six."""
    fleet.healthy("ada", 2)
    fleet.pass_s(3 * DAY_S)
    fleet.quarantined("ada", 0)
    fleet.pass_s(2 * DAY_S)
    back_in_service(fleet, "ada", 0)
    fleet.now_ns = START_NS + 10 * DAY_S * SECOND_NS
    assert device(fleet, "ada", 0, days=10) == (pytest.approx(8 * 24, abs=0.001), 1)
    assert device(fleet, "ada", 0, days=6) == (pytest.approx(5 * 24, abs=0.001), 0)
    assert device(fleet, "ada", 1, days=6) == (6 * 24.0, 0)
    assert device(fleet, "ada", 0, days=1) == (24.0, 0)


def test_what_was_excused_held_or_on_trial_is_no_failure(fleet: Fleet) -> None:
    for host in ("ada", "bea", "cyd", "dan"):
        fleet.healthy(host, 8)
    fleet.pass_s(HOUR_S)
    narrow = found("ada", 0, "pcie.degraded", Advice.QUARANTINE, fleet.now_ns, pcie_width=8)
    fleet.say("ada", findings=(narrow,))
    gang = tuple(uuid("bea", i) for i in range(4))
    fleet.lease("job-1", 1, *gang)
    crash = tuple(xid_finding("bea", i, 13, fleet.now_ns, Advice.SUSPECT) for i in range(4))
    fleet.say("bea", findings=crash)
    fleet.say("cyd", findings=tuple(xid_finding("cyd", i, 79, fleet.now_ns) for i in range(8)))
    modes = [verdict.mode for verdict in fleet.store.verdicts()]
    assert {VerdictMode.SHADOW, VerdictMode.EXCUSED, VerdictMode.HELD, VerdictMode.ENFORCE} <= set(modes)
    really = sum(d.state is DeviceState.DRAINING for d in fleet.store.devices())
    assert 0 < really < 8
    by_host = {host: failures for host, (_, failures) in of(ask(fleet), MtbfScope.HOST).items()}
    assert by_host == {"ada": 0, "bea": 0, "cyd": really, "dan": 0}


def test_a_label_false_takes_a_failure_back_and_an_operators_quarantine_is_one(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    fleet.pass_s(HOUR_S)
    fleet.fall("ada", 0)
    fleet.store.quarantine(uuid("ada", 1), "loud", "ada", fleet.now_ns)
    fleet.store.cordon_device(uuid("ada", 2), "a test", "ada", fleet.now_ns)
    assert of(ask(fleet), MtbfScope.HOST) == {"ada": (4.0, 2)}
    [xid] = fleet.store.verdicts(rule_id="xid")
    fleet.store.label(xid.id, True, "ada", fleet.now_ns)
    assert of(ask(fleet), MtbfScope.HOST) == {"ada": (4.0, 2)}
    fleet.store.label(xid.id, False, "ada", fleet.now_ns)
    assert of(ask(fleet), MtbfScope.HOST) == {"ada": (4.0, 1)}
    assert device(fleet, "ada", 0) == (1.0, 0)


def test_an_empty_fleet_has_nothing_to_tell(fleet: Fleet) -> None:
    answer = ask(fleet)
    assert (answer.mtbf, answer.lemons) == ((), None)


def test_a_day_old_fleet_has_a_lower_bound_only(fleet: Fleet) -> None:
    for number in range(LEMON_FLEET_MIN):
        fleet.healthy(f"n{number}", 1)
    assert ask(fleet).mtbf == (), "no time has passed"
    fleet.pass_s(DAY_S)
    answer = ask(fleet)
    [sku] = [row for row in answer.mtbf if row.scope is MtbfScope.SKU]
    hours = 24.0 * LEMON_FLEET_MIN
    low = mtbf_h(0, hours).low
    assert sku == MtbfRow(
        scope=MtbfScope.SKU,
        name=facts("n0", 0).sku,
        device_hours=hours,
        failures=0,
        mtbf_h=None,
        low_h=low,
        high_h=None,
    )
    assert answer.lemons == ()
    assert Reliability.model_validate_json(answer.model_dump_json()) == answer


def test_a_clock_that_went_back_counts_no_time_twice() -> None:
    moves = [(10, "PROBING"), (30, "HEALTHY"), (20, "DRAINING"), (40, "QUARANTINED")]
    assert watched_ns(moves, "HEALTHY", 0, 50) == 10 + 20 + 10
    assert watched_ns(moves, "HEALTHY", 60, 50) == 0


# ── lemons ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def hosts(fleet: Fleet, count: int = 12) -> None:
    for number in range(count):
        fleet.healthy(f"n{number:02}", 2)


def falls(fleet: Fleet, host: str) -> None:
    """The host's first device falls, and comes back into service an hour later."""
    fleet.quarantined(host, 0)
    fleet.pass_s(HOUR_S)
    back_in_service(fleet, host, 0)
    fleet.store.holds([], [uuid(host, 0)], fleet.now_ns)


def falls_each_day(fleet: Fleet, host: str, days: int) -> None:
    for _ in range(days):
        falls(fleet, host)
        fleet.pass_s(DAY_S)


def signals(fleet: Fleet) -> dict[str, dict[str, int]]:
    """Counts of what is over, by lemon."""
    found = ask(fleet).lemons
    assert found is not None
    return {lemon.host: {one.signal: one.count for one in lemon.over} for lemon in found}


def test_a_planted_lemon_is_named_with_its_signals(fleet: Fleet) -> None:
    hosts(fleet)
    falls(fleet, "n03")
    falls_each_day(fleet, "n07", 5)
    assert signals(fleet) == {"n07": {Signal.XIDS: 5, Signal.OUTS: 5}}
    answer = ask(fleet)
    assert answer.lemons is not None
    assert answer.lemons[0].why.startswith("in 28 days: xid_cnt 5 (")
    assert set(answer.signals) == set(Signal) - {Signal.EXCLUDED_BY_JOBS}, "no job names hosts that it avoids"
    assert ask(fleet, days=1).lemons == answer.lemons, "whatever the window"
    fleet.pass_s(28 * DAY_S)
    for number in range(12):
        fleet.say(f"n{number:02}")
    assert signals(fleet) == {}


def test_false_alarms_make_no_lemon(fleet: Fleet) -> None:
    hosts(fleet)
    falls_each_day(fleet, "n07", 5)
    for verdict in fleet.store.verdicts(host="n07", rule_id="xid"):
        fleet.store.label(verdict.id, False, "ada", fleet.now_ns)
    assert signals(fleet) == {}


def test_jobs_that_end_by_a_fault_count_for_its_host(fleet: Fleet) -> None:
    """Four attempts on two hosts, n07 the cause of each end; a day later five on n07 alone, the last ended by the run's failure."""
    hosts(fleet)
    for number in range(1, 5):
        lease = fleet.lease("wide", number, uuid("n07", 0), uuid("n02", number % 2))
        fleet.attempt(lease, "started")
        fleet.fall("n07", 0)
        fleet.attempt(lease, "ended", reason="moved off a sick device")
        falls(fleet, "n07")
    assert signals(fleet) == {"n07": {Signal.OUTS: 4, Signal.MULTI_NODE_FAILS: 4}}, "a code counts once a day"
    fleet.job("wide", RunState.CANCELLED)
    fleet.pass_s(DAY_S)
    for number in range(1, 6):
        lease = fleet.lease("narrow", number, uuid("n07", 0), uuid("n07", 1))
        fleet.attempt(lease, "started")
        fleet.fall("n07", 0)
        if number < 5:
            fleet.attempt(lease, "ended", reason="moved off a sick device")
        else:
            fleet.job("narrow", RunState.FAILED)
        falls(fleet, "n07")
    told = signals(fleet)["n07"]
    assert (told[Signal.OUTS], told[Signal.MULTI_NODE_FAILS], told[Signal.SINGLE_NODE_FAILS]) == (9, 4, 5)
    wrong = fleet.store.verdicts(host="n07", rule_id="xid")[0]
    fleet.store.label(wrong.id, False, "ada", fleet.now_ns)
    told = signals(fleet)["n07"]
    assert (told[Signal.OUTS], told[Signal.MULTI_NODE_FAILS], told[Signal.SINGLE_NODE_FAILS]) == (8, 4, 4)


def test_jobs_that_end_well_or_by_hand_blame_nobody(fleet: Fleet) -> None:
    """On n07 and n02 runs end well beside a device that has just failed; on n08 they fail because an operator drains it."""
    hosts(fleet)
    for number in range(4):
        lease = fleet.lease(f"good-{number}", 1, uuid("n07", 0), uuid("n02", 0))
        fleet.attempt(lease, "started")
        fleet.fall("n07", 0)
        fleet.job(f"good-{number}", RunState.SUCCEEDED)
        falls(fleet, "n07")
    assert signals(fleet) == {}, "it has been out, and that alone"
    for number in range(4):
        lease = fleet.lease(f"moved-{number}", 1, uuid("n08", 0), uuid("n08", 1))
        fleet.attempt(lease, "started")
        fleet.store.drain("n08", 60, "new fan", "ada", fleet.now_ns)
        fleet.attempt(lease, "ended", reason="its host is drained")
        fleet.job(f"moved-{number}", RunState.FAILED)
        fleet.store.uncordon("n08", "done", "ada", fleet.now_ns)
    assert signals(fleet) == {}, "nor is n08 more than out"


def test_a_lost_host_takes_its_jobs_along(fleet: Fleet) -> None:
    hosts(fleet)
    names = [f"n{number:02}" for number in range(12)]
    for number in range(1, 5):
        lease = fleet.lease("job", number, uuid("n07", 0), uuid("n02", 0))
        fleet.attempt(lease, "started")
        fleet.pass_s(60)
        fleet.alive(*(name for name in names if name != "n07"))
        assert fleet.state("n07", 0) is DeviceState.UNKNOWN
        fleet.attempt(lease, "ended", reason="a worker died")
        fleet.pass_s(60)
        fleet.alive(*names)
        fleet.say("n07")
    assert signals(fleet) == {"n07": {Signal.OUTS: 4, Signal.MULTI_NODE_FAILS: 4}}


def test_cordons_drains_and_repairs_count(fleet: Fleet) -> None:
    """A drain that follows a cordon is the same one; a rule's cordon is one, too; a wrong one is none."""
    hosts(fleet)
    for number in range(6):
        if number % 2:
            fleet.store.cordon("n07", "noise", "ada", fleet.now_ns)
            fleet.pass_s(60)
            fleet.store.drain("n07", 60, "noise", "ada", fleet.now_ns)
            fleet.pass_s(60)
            fleet.store.drain("n07", 600, "later", "ada", fleet.now_ns)
        else:
            fleet.say("n07", node_findings=(port_down(fleet.now_ns),))
        fleet.pass_s(HOUR_S)
        fleet.store.uncordon("n07", "done", "ada", fleet.now_ns)
        fleet.pass_s(HOUR_S)
        fleet.say("n07")
    fleet.quarantined("n07", 0)
    for _ in range(6):
        fleet.store.repair(uuid("n07", 0), RepairAction.RESET_GPU, "try it", "ada", fleet.now_ns)
        fleet.store.repair_done(uuid("n07", 0), False, "still there", "ada", fleet.now_ns)
    assert signals(fleet) == {"n07": {Signal.TICKETS: 6, Signal.OUTS: 7}}
    for verdict in fleet.store.verdicts(host="n07", rule_id="link.down"):
        fleet.store.label(verdict.id, False, "ada", fleet.now_ns)
    assert signals(fleet) == {"n07": {Signal.TICKETS: 6, Signal.OUTS: 4}}


def test_one_report_that_takes_many_devices_out_is_one_incident(fleet: Fleet) -> None:
    """Four failures, and each of the four devices is repaired; but the host was out once."""
    hosts(fleet, 16)
    fleet.healthy("n99", 8)
    fleet.say(
        "n99",
        findings=tuple(xid_finding("n99", i, 79, fleet.now_ns) for i in range(4)),
        xids=tuple(XidEvent(uuid("n99", i), 79, fleet.now_ns, "nvml") for i in range(4)),
    )
    fleet.store.holds([uuid("n99", i) for i in range(4)], [], fleet.now_ns)
    for index in range(4):
        fleet.store.repair(uuid("n99", index), RepairAction.RESET_GPU, "try it", "ada", fleet.now_ns)
    assert of(ask(fleet), MtbfScope.HOST)["n99"] == (0.0, 4)
    assert signals(fleet) == {}


def test_a_host_that_is_gone_for_a_month_is_no_yardstick(fleet: Fleet) -> None:
    hosts(fleet, LEMON_FLEET_MIN)
    assert ask(fleet).lemons == ()
    fleet.pass_s(28 * DAY_S)
    fleet.say("n00")
    assert ask(fleet).lemons is None


# ── surfaces ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def aged(sqlite_store: Store) -> Fleet:
    """Nine hosts that joined ten days ago, of which one has failed each day for five days. They report on while a server runs."""
    fleet = Fleet(sqlite_store, now_ns=time.time_ns() - 10 * DAY_S * SECOND_NS)
    for number in range(9):
        fleet.healthy(f"n{number}", 1)
    falls_each_day(fleet, "n7", 5)
    fleet.now_ns = ahead_ns()
    for host in fleet.gpus:
        fleet.say(host)
    return fleet


def test_the_command_line_shows_mtbf_and_lemons(aged: Fleet, cli: Cli) -> None:
    """A server is asked for what is past by its own clock: the fleet of `cli` is of the future."""
    lines = cli.text("get", "reliability").splitlines()
    assert lines[0].split() == ["SCOPE", "NAME", "DEVICE-HOURS", "FAILURES", "MTBF", "H", "95", "%", "BOUNDS"]
    assert [line.split()[0] for line in lines[1:20]] == ["sku"] + ["host"] * 9 + ["device"] * 9
    assert lines[1].split()[-6:] == ["2155.0", "5", "431.0", "184.7", "to", "1327"]
    sound, lemon = (next(line for line in lines if line.startswith(f"host    {host} ")) for host in ("n0", "n7"))
    assert sound.split()[1:] == ["n0", "240.0", "0", "-", "65.1", "to", "∞"]
    assert lemon.split()[1:] == ["n7", "235.0", "5", "47.0", "20.1", "to", "144.7"]
    told = [line.split() for line in lines[21:]]
    assert told[:3] == [
        ["LEMON", "SIGNAL", "IN", "28", "DAYS", "EXPECTED"],
        ["n7", "xid_cnt", "5", "0.1"],
        ["out_count", "5", "0.1"],
    ]
    assert told[3][:3] == ["signals:", "xid_cnt,", "tickets,"]
    answer = json.loads(cli.run("get", "reliability", "-o", "json")[1])
    assert set(answer) == {"from_ns", "to_ns", "mtbf", "lemons", "signals"}
    assert answer["lemons"][0]["host"] == "n7"
    assert uuid("n7", 0) in cli.run("get", "reliability", "-o", "wide")[1]


def test_the_command_line_says_why_it_names_no_lemon(sqlite_store: Store, request: pytest.FixtureRequest) -> None:
    few = Fleet(sqlite_store, now_ns=time.time_ns() - DAY_S * SECOND_NS)
    few.healthy("n0", 1)
    cli: Cli = request.getfixturevalue("cli")
    assert "too few hosts to tell lemons (signals: xid_cnt, " in cli.text("get", "reliability")


def test_the_command_line_says_that_nothing_was_watched(cli: Cli) -> None:
    assert cli.run("get", "reliability") == (0, "", "no device was watched in the last 28 days\n")


def test_clients_ask_for_days(aged: Fleet) -> None:
    token = auth.issue_token(aged.store, "tester")
    with serve(create_app(aged.store)) as url:
        with Client(url, token) as client:
            month, day = client.reliability(), client.reliability(days=1)
            for days in (0, 3651):
                with pytest.raises(BadRequest):
                    client.reliability(days)
        assert asyncio.run(asked(url, token)).mtbf[1].name == "n0"
    assert month.to_ns - month.from_ns == WINDOW_NS
    assert [(m.device_hours, m.failures) for m in day.mtbf if m.scope is MtbfScope.HOST] == [(24.0, 0)] * 9
    assert sum(m.failures for m in month.mtbf if m.scope is MtbfScope.HOST) == 5
    assert month.lemons == day.lemons


async def asked(url: str, token: str) -> Reliability:
    async with AsyncClient(url, token) as client:
        return await client.reliability(1)
