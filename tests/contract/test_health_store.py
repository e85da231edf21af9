"""What the inventory promises about health, on SQLite and on PostgreSQL alike: verdicts, the breaker, cordons, repairs, replay."""

import pytest

from inventory_maker import Fleet, facts, found, port_down, uuid, xid_finding
from paceline.health.breaker import BURST
from paceline.inventory.tables import StimulusRow
from paceline.model.errors import BadRequest, Conflict, NotFound
from paceline.model.events import EventKind
from paceline.model.hardware import DeviceState, LinkSample, NodeState, XidEvent
from paceline.model.health import Advice, AgentStats, RepairAction, RuleMode
from paceline.model.ids import DeviceUuid
from paceline.sdk.rows_health import AlertKind, VerdictMode


def kinds(fleet: Fleet) -> list[AlertKind]:
    """Alerts, the oldest first."""
    return [alert.kind for alert in reversed(fleet.store.alerts())]


def look(fleet: Fleet, host: str, index: int) -> DeviceState:
    """The state that placement sees."""
    return next(d.state for d in fleet.store.fleet().devices if d.uuid == uuid(host, index))


def folds(fleet: Fleet) -> None:
    """Every device is what its stimuli, folded again, make of it."""
    for device in fleet.store.devices():
        again = fleet.store.refold(device.uuid)
        assert (again.state, again.since_ns, again.reason) == (device.state, device.since_ns, device.reason)
        assert (again.clean_probes, again.bad_findings) == (device.clean_probes, device.bad_findings)


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_verdict_names_its_rule_and_rests_on_finding_and_reading(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    fleet.fall("ada", 1)
    [verdict] = fleet.store.verdicts(uuid=uuid("ada", 1), rule_id="xid")
    assert (verdict.rule_id, verdict.rule_version, verdict.advice) == ("xid", 1, "QUARANTINE")
    assert (verdict.mode, verdict.automatic) == (VerdictMode.ENFORCE, True)
    assert (verdict.from_state, verdict.to_state) == ("HEALTHY", "DRAINING")
    by_id = {event.id: event for event in fleet.events()}
    assert [by_id[event].kind for event in verdict.evidence] == [EventKind.TELEMETRY, EventKind.FINDING]
    assert by_id[verdict.event_id].kind is EventKind.VERDICT
    assert kinds(fleet) == [AlertKind.QUARANTINE]


def test_a_rule_on_trial_is_written_down_and_moves_nothing(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    before = fleet.store.fleet()
    assert next(r.mode for r in fleet.store.rules() if r.rule_id == "pcie.degraded") is RuleMode.SHADOW
    for _ in range(4):
        fleet.pass_s(60)
        narrow = found("ada", 2, "pcie.degraded", Advice.QUARANTINE, fleet.now_ns, pcie_width=8)
        fleet.say("ada", findings=(narrow,))
    assert fleet.store.fleet() == before
    [verdict] = fleet.store.verdicts(rule_id="pcie.degraded")
    assert (verdict.mode, verdict.from_state, verdict.to_state) == (VerdictMode.SHADOW, "HEALTHY", "DRAINING")
    assert kinds(fleet) == []


def test_a_rule_that_no_table_knows_is_on_trial(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)
    fleet.say("ada", findings=(found("ada", 0, "homemade", Advice.QUARANTINE, fleet.now_ns),))
    assert fleet.state("ada", 0) is DeviceState.HEALTHY
    assert [v.mode for v in fleet.store.verdicts(rule_id="homemade")] == [VerdictMode.SHADOW]


def test_labels_make_the_false_positive_rate_of_a_rule(fleet: Fleet) -> None:
    fleet.healthy("ada", 8)
    for index in range(3):
        fleet.pass_s(86_400)
        fleet.say("ada")
        fleet.fall("ada", index)
        fleet.store.retire(uuid("ada", index), "sold", "ada", fleet.now_ns)
        narrow = found("ada", 7, "pcie.degraded", Advice.SUSPECT, fleet.now_ns)
        fleet.say("ada", devices=tuple(facts("ada", i) for i in range(index + 1, 8)), findings=(narrow,))
    first, second, third = fleet.store.verdicts(rule_id="xid")
    fleet.store.label(first.id, False, "ada", fleet.now_ns)
    fleet.store.label(second.id, False, "ada", fleet.now_ns)
    fleet.store.label(second.id, True, "bea", fleet.now_ns)
    stats = {(s.rule_id, s.mode): s for s in fleet.store.false_positive_rate()}
    xid = stats["xid", VerdictMode.ENFORCE]
    assert (xid.verdicts, xid.labelled, xid.labelled_false, xid.false_rate) == (3, 2, 1, 0.5)
    assert stats["pcie.degraded", VerdictMode.SHADOW].false_rate is None
    assert fleet.store.verdicts(rule_id="xid")[2].label is third.label is None
    assert fleet.store.verdicts(rule_id="xid")[1].label_by == "bea"
    [rule] = [r for r in fleet.store.rules() if r.rule_id == "xid"]
    assert (rule.labelled, rule.false_rate) == (2, 0.5)
    assert [e.body["who"] for e in fleet.events(EventKind.OPERATOR)][-3:] == ["ada", "ada", "bea"]
    with pytest.raises(NotFound, match="no verdict 999"):
        fleet.store.label(999, True, "ada", fleet.now_ns)


# ── the circuit breaker ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_rule_with_a_bug_cannot_quarantine_the_fleet(fleet: Fleet) -> None:
    """Two hosts of eight; the rule condemns all sixteen, again and again for five minutes."""
    hosts = ("ada", "bea")
    for host in hosts:
        fleet.healthy(host, 8)
    lease = fleet.lease("job", 1, *(uuid("bea", i) for i in range(8)))
    fired = 0
    for _ in range(5):
        for host in hosts:
            buggy = [found(host, i, "throttle.hardware", Advice.QUARANTINE, fleet.now_ns) for i in range(8)]
            fleet.say(host, findings=tuple(buggy))
            fired += len(buggy)
        fleet.pass_s(60)
    assert fired == 80, "the rule did speak"
    out = [d for d in fleet.store.devices() if d.state is not DeviceState.HEALTHY]
    assert len(out) == BURST.devices(16) == 2
    held = [v for v in fleet.store.verdicts() if v.mode is VerdictMode.HELD]
    assert len(held) == 14, "each device that is kept is told once"
    assert {v.to_state for v in held} == {"DRAINING"}
    assert fleet.held_lease(lease.lease_id) is not None
    assert kinds(fleet) == [AlertKind.QUARANTINE, AlertKind.QUARANTINE, AlertKind.BREAKER_HELD]
    assert "the circuit breaker holds" in fleet.store.alerts()[0].summary
    assert fleet.store.health_figures(fleet.now_ns).held == 14
    folds(fleet)


def test_what_was_held_is_judged_again_when_it_comes_again(fleet: Fleet) -> None:
    fleet.healthy("ada", 8)
    for index in (0, 1, 2):
        fleet.say("ada", findings=(xid_finding("ada", index, 79, fleet.now_ns),))
    assert [fleet.state("ada", i) for i in (0, 1, 2)] == [DeviceState.DRAINING] * 2 + [DeviceState.HEALTHY]
    fleet.now_ns += BURST.window_ns
    fleet.say("ada", findings=(xid_finding("ada", 2, 79, fleet.now_ns),))
    assert fleet.state("ada", 2) is DeviceState.DRAINING
    assert [v.mode for v in fleet.store.verdicts(uuid=uuid("ada", 2), rule_id="xid")] == [
        VerdictMode.ENFORCE,
        VerdictMode.HELD,
    ]


def test_an_operator_is_never_held(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    for index in range(4):
        fleet.store.quarantine(uuid("ada", index), "the room is on fire", "ada", fleet.now_ns)
    assert {fleet.state("ada", i) for i in range(4)} == {DeviceState.DRAINING}
    assert {v.automatic for v in fleet.store.verdicts(rule_id="operator")} == {False}
    fleet.healthy("bea", 4)
    fleet.fall("bea", 0)
    assert fleet.state("bea", 0) is DeviceState.DRAINING, "an operator's exclusions do not count against automation"


def test_devices_that_are_gone_are_unknown_where_the_breaker_holds(fleet: Fleet) -> None:
    fleet.healthy("ada", 8)
    for _ in range(3):
        fleet.say("ada", devices=())
        fleet.pass_s(1)
    states = sorted(fleet.state("ada", i).value for i in range(8))
    assert states == ["DRAINING"] * 2 + ["UNKNOWN"] * 6
    assert kinds(fleet) == [AlertKind.DEVICE_LOST, AlertKind.DEVICE_LOST, AlertKind.BREAKER_HELD]
    assert len([v for v in fleet.store.verdicts() if v.mode is VerdictMode.HELD]) == 6
    fleet.say("ada")
    assert sorted(fleet.state("ada", i).value for i in range(8)) == ["DRAINING"] * 2 + ["HEALTHY"] * 6
    folds(fleet)


# ── single devices ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_device_that_hangs_nvml_is_unknown_alone(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    for _ in range(3):
        fleet.say("ada", unreadable=(uuid("ada", 1),))
        fleet.pass_s(1)
    assert [fleet.state("ada", i).value for i in range(4)] == ["HEALTHY", "UNKNOWN", "HEALTHY", "HEALTHY"]
    assert len(fleet.store.verdicts(uuid=uuid("ada", 1), rule_id="device.unreadable")) == 1
    fleet.say("ada")
    assert fleet.state("ada", 1) is DeviceState.SUSPECT, "it was the device's own doing: probes decide"
    folds(fleet)


def test_an_xid_that_a_restarted_actor_reads_again_in_the_kernel_log_is_history(fleet: Fleet) -> None:
    """The boot id of the reports is another one; the same line comes again, and beside it one that is new."""
    fleet.healthy("ada", 4)
    at_ns = fleet.now_ns
    old = found("ada", 1, "xid", Advice.SUSPECT, at_ns, xid=63)
    fleet.say("ada", xids=(XidEvent(uuid("ada", 1), 63, at_ns + 1_000_000_000, "nvml"),), findings=(old,))
    assert fleet.state("ada", 1) is DeviceState.SUSPECT
    before = fleet.store.verdicts(uuid=uuid("ada", 1))
    fleet.pass_s(30)
    new = found("ada", 2, "xid", Advice.SUSPECT, fleet.now_ns, xid=63)
    lines = (
        XidEvent(uuid("ada", 1), 63, at_ns, "kmsg", "told before"),
        XidEvent(uuid("ada", 2), 63, fleet.now_ns, "kmsg", "new"),
    )
    fleet.say("ada", boot="after the restart", xids=lines, findings=(old, new))
    assert fleet.store.verdicts(uuid=uuid("ada", 1)) == before
    assert fleet.state("ada", 2) is DeviceState.SUSPECT
    folds(fleet)


def test_an_unknown_xid_is_told_once_a_day_and_acts_on_nothing(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    for index in (0, 1):
        fleet.pass_s(120)
        odd = found("ada", index, "xid", Advice.OBSERVE, fleet.now_ns, xid=999, known=False)
        fleet.say("ada", xids=(XidEvent(uuid("ada", index), 999, fleet.now_ns, "kmsg", "who knows"),), findings=(odd,))
    assert kinds(fleet) == [AlertKind.UNKNOWN_XID]
    assert {fleet.state("ada", i) for i in range(4)} == {DeviceState.HEALTHY}
    telemetry = [e for e in fleet.events(EventKind.TELEMETRY) if e.summary.startswith("Xid 999")]
    assert telemetry[0].body["detail"] == "who knows"
    fleet.pass_s(86_400)
    fleet.say("ada", findings=(found("ada", 2, "xid", Advice.OBSERVE, fleet.now_ns, xid=999, known=False),))
    assert len(kinds(fleet)) == 2


def test_the_program_that_ran_there_excuses_a_suspicion(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    fleet.lease("job", 1, *(uuid("ada", i) for i in range(3)))
    burst = tuple(xid_finding("ada", i, 94, fleet.now_ns, Advice.SUSPECT) for i in range(3))
    alone = xid_finding("ada", 3, 94, fleet.now_ns, Advice.SUSPECT)
    fleet.say("ada", findings=(*burst, alone))
    assert [fleet.state("ada", i).value for i in range(4)] == ["HEALTHY"] * 3 + ["SUSPECT"]
    excused = [v for v in fleet.store.verdicts() if v.mode is VerdictMode.EXCUSED]
    assert [v.uuid for v in reversed(excused)] == [uuid("ada", i) for i in range(3)]
    assert "3 devices of job job" in excused[0].reason
    assert "not held against the device" in fleet.store.story(uuid("ada", 0)).events[-1].summary


def test_no_program_excuses_what_must_be_quarantined(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    fleet.lease("job", 1, uuid("ada", 0), uuid("ada", 1))
    fleet.say("ada", findings=tuple(xid_finding("ada", i, 94, fleet.now_ns) for i in range(2)))
    assert [fleet.state("ada", i) for i in range(2)] == [DeviceState.DRAINING] * 2


def test_one_code_under_several_jobs_points_at_the_hardware(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    for number in (1, 2):
        lease = fleet.lease(f"job-{number}", 1, uuid("ada", 0))
        fleet.say("ada", findings=(xid_finding("ada", 0, 48, fleet.now_ns, Advice.SUSPECT),))
        fleet.store.end_lease(lease.lease_id, "done", fleet.now_ns)
        if number == 1:
            fleet.pass_s(120)
            for _ in range(3):
                fleet.pass_s(30)
                fleet.measure("ada")
    told = [e for e in fleet.events(EventKind.FINDING) if e.summary.startswith("hardware is to blame")]
    assert len(told) == 1
    assert "in 2 jobs" in told[0].summary


# ── replay ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_state_is_the_fold_of_what_is_kept(fleet: Fleet) -> None:
    fleet.ride_through_a_fault()
    fleet.store.release(uuid("ada", 1), "reseated", "ada", fleet.now_ns)
    for _ in range(4):
        fleet.pass_s(60)
        fleet.say("ada")
        fleet.measure("ada")
    assert fleet.state("ada", 1) is DeviceState.HEALTHY
    fleet.say("bea", devices=(), samples=(), nvml_error="no answer")
    folds(fleet)


def test_a_device_from_before_stimuli_were_kept_folds_from_where_it_was(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)
    fleet.pass_s(60)
    with fleet.store._write(fleet.now_ns) as unit:
        unit.session.query(StimulusRow).delete()
    fleet.fall("ada", 0)
    assert fleet.store.refold(uuid("ada", 0)).state is DeviceState.DRAINING
    assert fleet.store.refold(uuid("ada", 0)).since_ns == fleet.now_ns


# ── cordons and drains ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_rule_cordons_a_node_and_its_work_goes_on(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    fleet.healthy("bea", 4)
    lease = fleet.lease("job", 1, uuid("ada", 0))
    for _ in range(3):
        fleet.say("ada", node_findings=(port_down(fleet.now_ns),))
        fleet.pass_s(60)
    nodes = {n.host: n for n in fleet.store.fleet().nodes}
    assert (nodes["ada"].state, nodes["bea"].state) == (NodeState.CORDONED, NodeState.READY)
    assert nodes["ada"].reason == "rule link.down: mlx5_0/1 is down"
    held = fleet.held_lease(lease.lease_id)
    assert held is not None
    assert held.moving_cause == 0
    with pytest.raises(Conflict, match="its node ada is cordoned now: mlx5_0/1 is down"):
        fleet.lease("other", 1, uuid("ada", 1))
    assert kinds(fleet) == [AlertKind.NODE_CORDONED]
    [verdict] = fleet.store.verdicts(host="ada", rule_id="link.down")
    assert (verdict.uuid, verdict.mode, verdict.to_state) == ("", VerdictMode.ENFORCE, "CORDONED")
    assert len([e for e in fleet.events(EventKind.FINDING) if e.entity == "node:ada"]) == 1
    fleet.say("ada", "node-ada-2")
    assert next(n.state for n in fleet.store.fleet().nodes if n.host == "ada") is NodeState.CORDONED, (
        "a restart heals no port"
    )
    assert fleet.store.uncordon("ada", "cable is new", "ada", fleet.now_ns).state is NodeState.READY
    assert fleet.lease("other", 1, uuid("ada", 1)).devices == (uuid("ada", 1),)


def test_a_rule_with_a_bug_cannot_cordon_the_fleet(fleet: Fleet) -> None:
    for name in "abcde":
        fleet.healthy(name, 1)
        fleet.say(name, node_findings=(port_down(fleet.now_ns),))
    states = [n.state for n in fleet.store.fleet().nodes]
    assert states.count(NodeState.CORDONED) == 2
    assert [v.mode for v in fleet.store.verdicts(rule_id="link.down")].count(VerdictMode.HELD) == 3
    assert kinds(fleet) == [AlertKind.NODE_CORDONED, AlertKind.NODE_CORDONED, AlertKind.BREAKER_HELD]


def test_a_drain_moves_the_work_and_ends_when_it_is_gone(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    fleet.healthy("bea", 4)
    mine = fleet.lease("job", 1, uuid("ada", 0), uuid("bea", 0))
    other = fleet.lease("other", 1, uuid("bea", 1))
    row = fleet.store.drain("ada", 60, "a fan is loud", "ada", fleet.now_ns)
    assert (row.state, row.reason, row.drain_deadline_ns) == (
        NodeState.DRAINING,
        "ada: a fan is loud",
        fleet.now_ns + 60 * 10**9,
    )
    moving = fleet.held_lease(mine.lease_id)
    assert moving is not None
    event = next(e for e in fleet.events() if e.id == moving.moving_cause)
    assert (event.kind, event.body["reason"]) == (EventKind.LEASE_MOVING, "ada is drained by ada: a fan is loud")
    stays = fleet.held_lease(other.lease_id)
    assert stays is not None
    assert stays.moving_cause == 0
    assert look(fleet, "ada", 0) is DeviceState.DRAINING, (
        "placement takes the devices from the gang, as it does a bad one"
    )
    fleet.store.sweep(fleet.pass_s(5))
    assert fleet.store.host("ada").state is NodeState.DRAINING
    fleet.store.end_lease(mine.lease_id, "moved", fleet.now_ns)
    fleet.say("ada")
    fleet.store.sweep(fleet.pass_s(1))
    assert fleet.store.host("ada").state is NodeState.CORDONED
    assert fleet.store.host("ada").reason == "drained (ada: a fan is loud)"
    assert {fleet.state("ada", i) for i in range(4)} == {DeviceState.HEALTHY}, "the devices are well"
    assert kinds(fleet) == []


def test_a_drain_that_is_late_is_told_once(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)
    fleet.lease("job", 1, uuid("ada", 0))
    fleet.store.drain("ada", 5, "x", "ada", fleet.now_ns)
    for _ in range(4):
        fleet.say("ada")
        fleet.store.sweep(fleet.pass_s(3))
    assert kinds(fleet) == [AlertKind.DRAIN_LATE]
    assert fleet.store.host("ada").state is NodeState.DRAINING


def test_an_idle_node_is_drained_at_once(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)
    assert fleet.store.drain("ada", 5, "x", "ada", fleet.now_ns).state is NodeState.CORDONED


def test_what_cannot_be_cordoned_or_drained_is_said(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)
    with pytest.raises(NotFound, match="no host nix"):
        fleet.store.cordon("nix", "x", "ada", fleet.now_ns)
    with pytest.raises(BadRequest, match="needs a reason"):
        fleet.store.cordon("ada", " ", "ada", fleet.now_ns)
    with pytest.raises(BadRequest, match="not cordoned: it is READY"):
        fleet.store.uncordon("ada", "x", "ada", fleet.now_ns)
    fleet.store.cordon("ada", "loud", "ada", fleet.now_ns)
    with pytest.raises(BadRequest, match="cordoned already, by ada: loud"):
        fleet.store.cordon("ada", "x", "bea", fleet.now_ns)
    with pytest.raises(BadRequest, match="a drain in 0 s"):
        fleet.store.drain("ada", 0, "x", "bea", fleet.now_ns)
    assert fleet.store.host("ada").cordon_by == "ada"


def test_a_cordoned_device_is_well_and_not_given_out(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)
    lease = fleet.lease("job", 1, uuid("ada", 0))
    fleet.store.cordon_device(uuid("ada", 0), "kept for a test", "ada", fleet.now_ns)
    assert (fleet.state("ada", 0), look(fleet, "ada", 0)) == (DeviceState.HEALTHY, DeviceState.DRAINING)
    held = fleet.held_lease(lease.lease_id)
    assert held is not None
    assert held.moving_cause == 0
    fleet.store.end_lease(lease.lease_id, "done", fleet.now_ns)
    with pytest.raises(Conflict, match="cordoned now: kept for a test"):
        fleet.lease("other", 1, uuid("ada", 0))
    before = fleet.store.revision()
    fleet.store.holds([uuid("ada", 0)], [], fleet.now_ns)
    assert (look(fleet, "ada", 0), fleet.store.revision()) == (DeviceState.QUARANTINED, before + 1)
    fleet.store.uncordon_device(uuid("ada", 0), "done", "ada", fleet.now_ns)
    assert look(fleet, "ada", 0) is DeviceState.HEALTHY
    assert fleet.lease("other", 1, uuid("ada", 0)).devices == (uuid("ada", 0),)
    with pytest.raises(BadRequest, match="not cordoned"):
        fleet.store.uncordon_device(uuid("ada", 0), "x", "ada", fleet.now_ns)


# ── repairs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_repair_leads_to_probation_and_is_kept_by_serial(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    sick = uuid("ada", 1)
    with pytest.raises(BadRequest, match="HEALTHY, not quarantined"):
        fleet.store.repair(sick, None, "x", "ada", fleet.now_ns)
    fleet.say("ada", findings=(found("ada", 1, "remap.pending", Advice.QUARANTINE, fleet.now_ns),))
    fleet.store.holds([sick], [], fleet.now_ns)
    advice = fleet.store.device_health(sick, fleet.now_ns).advice
    assert advice is not None
    assert (advice.action, advice.reason) == (RepairAction.RESET_GPU, "RESET_GPU is what remap.pending asks for")
    assert fleet.store.repair(sick, None, "as advised", "ada", fleet.now_ns).state is DeviceState.REPAIR
    fleet.pass_s(30)
    fleet.say("ada")
    assert fleet.store.repair_done(sick, True, "reset", "ada", fleet.now_ns).state is DeviceState.PROBATION
    [kept] = fleet.store.device_health(sick, fleet.now_ns).repairs
    assert (kept.serial, kept.action, kept.code, kept.ok) == ("1650001", RepairAction.RESET_GPU, "remap.pending", True)
    assert kept.ended_ns - kept.at_ns == 30 * 10**9
    with pytest.raises(BadRequest, match="no repair"):
        fleet.store.repair_done(sick, True, "x", "ada", fleet.now_ns)
    folds(fleet)


def test_the_ladder_ends_with_replacement_and_an_alert(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    sick = uuid("ada", 1)
    fleet.say("ada", findings=(found("ada", 1, "remap.pending", Advice.QUARANTINE, fleet.now_ns),))
    fleet.store.holds([sick], [], fleet.now_ns)
    for wanted in (RepairAction.RESET_GPU, RepairAction.REBOOT_NODE):
        assert kinds(fleet) == [AlertKind.QUARANTINE]
        fleet.store.repair(sick, None, "as advised", "ada", fleet.pass_s(60))
        assert fleet.store.device_health(sick, fleet.now_ns).repairs[0].action is wanted
        assert fleet.store.repair_done(sick, False, "still there", "ada", fleet.now_ns).state is DeviceState.QUARANTINED
    assert kinds(fleet) == [AlertKind.QUARANTINE, AlertKind.REPLACE]
    advice = fleet.store.device_health(sick, fleet.now_ns).advice
    assert advice is not None
    assert advice.action is RepairAction.REPLACE
    assert fleet.store.retire(sick, "sent back", "ada", fleet.now_ns).state is DeviceState.RETIRED
    with pytest.raises(BadRequest, match="retired already"):
        fleet.store.retire(sick, "x", "ada", fleet.now_ns)
    assert sick not in {d.uuid for d in fleet.store.fleet().devices}


def test_a_rule_on_trial_advises_no_repair(fleet: Fleet) -> None:
    """pcie.degraded is in shadow: what it says later changes neither the advice nor what the repair is for."""
    fleet.healthy("ada", 4)
    sick = uuid("ada", 1)
    fleet.say("ada", findings=(found("ada", 1, "remap.pending", Advice.QUARANTINE, fleet.now_ns),))
    fleet.store.holds([sick], [], fleet.now_ns)
    fleet.pass_s(60)
    fleet.say("ada", findings=(found("ada", 1, "pcie.degraded", Advice.SUSPECT, fleet.now_ns, pcie_width=8),))
    advice = fleet.store.device_health(sick, fleet.now_ns).advice
    assert advice is not None
    assert (advice.action, advice.reason) == (RepairAction.RESET_GPU, "RESET_GPU is what remap.pending asks for")
    fleet.store.repair(sick, None, "as advised", "ada", fleet.now_ns)
    assert fleet.store.device_health(sick, fleet.now_ns).repairs[0].code == "remap.pending"


def test_a_device_that_is_retired_in_its_repair_was_not_healed(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    sick = uuid("ada", 1)
    fleet.store.quarantine(sick, "smells", "ada", fleet.now_ns)
    fleet.store.holds([sick], [], fleet.now_ns)
    fleet.store.repair(sick, RepairAction.REBOOT_NODE, "try it", "ada", fleet.now_ns)
    fleet.store.retire(sick, "sent back", "ada", fleet.pass_s(60))
    [step] = fleet.store.device_health(sick, fleet.now_ns).repairs
    assert (step.ok, step.ended_ns) == (False, fleet.now_ns)


def test_a_device_that_nobody_knows_how_to_heal_needs_a_word(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)
    fleet.store.quarantine(uuid("ada", 0), "smells", "ada", fleet.now_ns)
    fleet.store.holds([uuid("ada", 0)], [], fleet.now_ns)
    with pytest.raises(BadRequest, match="no repair is advised"):
        fleet.store.repair(uuid("ada", 0), None, "x", "ada", fleet.now_ns)
    chosen = fleet.store.repair(uuid("ada", 0), RepairAction.REBOOT_NODE, "try it", "ada", fleet.now_ns)
    assert chosen.state is DeviceState.REPAIR


# ── what else a report tells ─────────────────────────────────────────────────────────────────────────────────────────


def test_ports_and_the_cost_of_the_watch_are_kept(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)
    stats = AgentStats(12.5, 90 << 20, 40 << 20, 900, 2500, 1, "read")

    def port(up: bool, at_ns: int) -> LinkSample:
        return LinkSample("mlx5_0/1", "ib", at_ns, up, 400.0 if up else None, 3, None)

    fleet.say("ada", links=(port(True, fleet.now_ns),), agent=stats)
    went = fleet.pass_s(10)
    fleet.say("ada", links=(port(False, went),))
    fleet.say("ada", links=(port(False, fleet.pass_s(10)),))
    fleet.say("ada", links=(port(True, went - 1),))
    detail = fleet.store.host("ada")
    assert (detail.agent, [d.index for d in detail.cards]) == (stats, [0, 1])
    [link] = detail.links
    assert (link.up, link.since_ns, link.at_ns, link.rate_gbps) == (False, went, fleet.now_ns, None)
    with pytest.raises(NotFound):
        fleet.store.host("nix")


def test_the_description_of_a_device_has_what_led_there(fleet: Fleet) -> None:
    fleet.ride_through_a_fault()
    fleet.store.holds([uuid("ada", 1)], [], fleet.now_ns)
    health = fleet.store.device_health(uuid("ada", 1), fleet.now_ns)
    assert [f.rule_id for f in health.findings] == ["xid"]
    assert health.verdicts[0].to_state == "DRAINING"
    assert [s.workload for s in health.scores] == ["compute"]
    well = fleet.store.device_health(uuid("bea", 1), fleet.now_ns)
    assert (well.findings, well.repairs, well.advice) == ((), (), None)
    assert well.device.spread == pytest.approx(0.0)
    with pytest.raises(NotFound):
        fleet.store.device_health(DeviceUuid("GPU-nix"), fleet.now_ns)


def test_verdicts_without_a_rule_are_listed_with_what_they_rest_on(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)
    fleet.store.quarantine(uuid("ada", 0), "fan noise", "eve", fleet.now_ns)
    told = {row.rule_id: row.sentence for row in fleet.store.rules() if row.version == 0}
    assert told == {
        "operator": "An operator has ordered it",
        "probe.passed": "A device has proved by its probes that it is sound",
    }
