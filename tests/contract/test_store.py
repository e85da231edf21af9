"""What the inventory promises, on SQLite and on PostgreSQL alike."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from inventory_maker import SECOND_NS, Fleet, facts, sample, uuid, xid_finding
from paceline.model.errors import BadRequest, Conflict, NotFound
from paceline.model.events import EventKind
from paceline.model.hardware import DeviceState, NodeState, XidEvent
from paceline.model.health import Advice, Finding
from paceline.model.ids import DeviceUuid, JobId, SessionId
from paceline.model.plan import Plan
from paceline.model.session import SessionUpdate
from paceline.model.workload import GangRequest, RunState


def test_a_new_host_is_probed_and_measured_before_it_is_given_out(fleet: Fleet) -> None:
    fleet.host("ada", 8)
    assert {fleet.state("ada", i) for i in range(8)} == {DeviceState.PROBING}
    fleet.measure("ada")
    snapshot = fleet.store.fleet()
    assert {d.state for d in snapshot.devices} == {DeviceState.HEALTHY}
    assert all(d.score == pytest.approx(1.0) for d in snapshot.devices)
    assert [n.state for n in snapshot.nodes] == [NodeState.READY]


def test_the_revision_grows_with_what_a_snapshot_shows_and_with_nothing_else(fleet: Fleet) -> None:
    fleet.healthy("ada", 8)
    before = fleet.store.fleet()
    fleet.pass_s(1)
    fleet.say("ada")
    fleet.store.holds([], [uuid("ada", 0)], fleet.now_ns)
    assert fleet.store.fleet() == before
    fleet.lease("job", 1, uuid("ada", 0))
    assert fleet.store.revision() == before.revision + 1


def test_a_report_sent_again_changes_nothing(fleet: Fleet) -> None:
    fleet.healthy("ada", 8)
    report = fleet.report_of("ada", xids=(XidEvent(uuid("ada", 3), 48, fleet.now_ns, "nvml"),))
    assert fleet.store.report(report, fleet.now_ns)
    events = fleet.events()
    assert not fleet.store.report(report, fleet.pass_s(1))
    assert not fleet.store.report(replace(report, seq=report.seq - 1), fleet.now_ns)
    assert fleet.events() == events


def test_the_slow_device_of_a_host_is_found_and_its_peers_are_not(fleet: Fleet) -> None:
    fleet.host("ada", 8)
    for _ in range(3):
        assert fleet.state("ada", 2) is DeviceState.PROBING, "one slow probe may be the host's fault"
        fleet.measure("ada", 0.010, 0.0101, 0.0135)
        fleet.pass_s(10)
    states = [fleet.state("ada", i) for i in range(8)]
    assert states.pop(2) is DeviceState.DRAINING
    assert set(states) == {DeviceState.HEALTHY}
    finding = fleet.events(EventKind.FINDING)[-1]
    assert "slower than the median" in finding.summary
    measured = next(e for e in fleet.events() if e.id == finding.cause_id)
    assert (measured.kind, measured.entity) == (EventKind.MEASURED, f"device:{uuid('ada', 2)}")
    fleet.pass_s(60)
    fleet.store.measurements([fleet.measurement("ada", 0)], fleet.now_ns)
    assert len(fleet.events(EventKind.FINDING)) == 3, "measuring a peer is no new evidence against a device"


def test_a_probe_that_fails_condemns_a_device_that_was_never_measured(fleet: Fleet) -> None:
    fleet.host("ada", 2)
    fleet.store.measurements([fleet.measurement("ada", 0, error="CUDA error 719")], fleet.now_ns)
    device = fleet.store.device(uuid("ada", 0))
    assert device.state is DeviceState.DRAINING
    assert "CUDA error 719" in device.reason


def test_a_measurement_handed_in_again_counts_once(fleet: Fleet) -> None:
    fleet.host("ada", 8)
    given = [fleet.measurement("ada", i) for i in range(8)]
    first = fleet.store.measurements(given, fleet.now_ns)
    events = fleet.events()
    assert fleet.store.measurements(given, fleet.now_ns) == first
    assert len(first) == 8
    assert fleet.events() == events


def test_an_xid_becomes_one_chain_from_telemetry_to_the_resumed_attempt(fleet: Fleet) -> None:
    fleet.ride_through_a_fault()
    story = fleet.store.story(uuid("ada", 1))
    by_id = {e.id: e for e in story.events}
    event = next(e for e in story.events if e.kind is EventKind.ATTEMPT_RESUMED)
    chain = [event]
    while event.cause_id:
        event = by_id[event.cause_id]
        chain.append(event)
    assert [e.kind for e in reversed(chain)] == [
        EventKind.TELEMETRY,
        EventKind.FINDING,
        EventKind.VERDICT,
        EventKind.LEASE_MOVING,
        EventKind.ATTEMPT_ENDED,
        EventKind.ATTEMPT_STARTED,
        EventKind.ATTEMPT_RESUMED,
    ]
    assert chain[0].summary == "attempt 2 resumed at step 200"
    assert chain[-1].summary == "Xid 79 (from nvml)"
    quarantined = next(e for e in story.events if e.kind is EventKind.QUARANTINED)
    assert by_id[quarantined.cause_id].kind is EventKind.VERDICT
    assert [e.id for e in story.events] == sorted(by_id)
    assert fleet.state("ada", 1) is DeviceState.QUARANTINED


def test_the_other_devices_have_no_part_in_that_story(fleet: Fleet) -> None:
    fleet.ride_through_a_fault()
    kinds = {e.kind for e in fleet.store.story(uuid("bea", 0)).events}
    assert kinds == {EventKind.TELEMETRY, EventKind.VERDICT, EventKind.MEASURED}


def test_an_event_never_comes_before_its_cause(fleet: Fleet) -> None:
    fleet.ride_through_a_fault()
    for event in fleet.events():
        assert event.cause_id < event.id
        assert event.at_ns <= fleet.now_ns


def test_a_finding_without_an_xid_rests_on_the_sample_that_made_it(fleet: Fleet) -> None:
    fleet.healthy("ada", 8)
    hot = Finding("throttle.hardware", 1, uuid("ada", 2), Advice.SUSPECT, fleet.now_ns, "hardware slowdown", {})
    fleet.say("ada", findings=(hot,))
    [finding] = fleet.events(EventKind.FINDING)
    telemetry = next(e for e in fleet.events() if e.id == finding.cause_id)
    assert telemetry.summary == "1980 MHz, 61 °C, 402 W, 97 % busy"
    assert telemetry.body["sm_clock_mhz"] == 1980
    assert fleet.state("ada", 2) is DeviceState.SUSPECT


def test_a_finding_that_holds_is_told_once_and_counts_each_time(fleet: Fleet) -> None:
    fleet.healthy("ada", 8)
    for _ in range(3):
        fleet.pass_s(60)
        fleet.say(
            "ada", findings=(Finding("throttle.hardware", 1, uuid("ada", 2), Advice.SUSPECT, fleet.now_ns, "hot", {}),)
        )
    assert len(fleet.events(EventKind.FINDING)) == 1
    assert fleet.state("ada", 2) is DeviceState.DRAINING, "three bad findings are too many"


def test_a_device_that_nvml_shows_no_more_is_drained(fleet: Fleet) -> None:
    fleet.healthy("ada", 8)
    fleet.say("ada", devices=tuple(facts("ada", i) for i in range(7)))
    assert fleet.state("ada", 7) is DeviceState.DRAINING
    assert {fleet.state("ada", i) for i in range(7)} == {DeviceState.HEALTHY}
    assert "7 devices, and not this one" in fleet.store.story(uuid("ada", 7)).events[-2].summary
    events = fleet.events()
    fleet.pass_s(1)
    fleet.say("ada", devices=tuple(facts("ada", i) for i in range(7)))
    assert fleet.events() == events, "an empty slot is told once"


def test_a_silent_nvml_makes_devices_unknown_and_a_report_brings_them_back(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    fleet.say("ada", devices=(), samples=(), nvml_error="no answer within 5 s")
    assert {fleet.state("ada", i) for i in range(4)} == {DeviceState.UNKNOWN}
    fleet.pass_s(1)
    fleet.say("ada")
    assert {fleet.state("ada", i) for i in range(4)} == {DeviceState.HEALTHY}


def test_silence_makes_devices_unknown_and_only_a_dead_raylet_makes_a_node_lost(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    fleet.healthy("bea", 4)
    fleet.store.sweep(fleet.now_ns)
    fleet.pass_s(9)
    fleet.say("bea")
    fleet.alive("ada", "bea")
    fleet.store.sweep(fleet.pass_s(1))
    assert fleet.state("ada", 0) is DeviceState.UNKNOWN
    assert fleet.state("bea", 0) is DeviceState.HEALTHY
    nodes = {n.host: n for n in fleet.store.fleet().nodes}
    assert nodes["ada"].state is NodeState.READY
    assert "no report" in nodes["ada"].reason
    fleet.pass_s(1)
    fleet.say("bea")
    fleet.alive("bea")
    nodes = {n.host: n for n in fleet.store.fleet().nodes}
    assert (nodes["ada"].state, nodes["bea"].state) == (NodeState.LOST, NodeState.READY)
    assert not fleet.say("ada"), "Ray has declared that raylet dead"


def test_the_silence_of_the_server_itself_is_held_against_nobody(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    fleet.store.sweep(fleet.pass_s(3600))
    assert fleet.state("ada", 0) is DeviceState.HEALTHY
    fleet.store.sweep(fleet.pass_s(10))
    assert fleet.state("ada", 0) is DeviceState.UNKNOWN


def test_a_sweep_of_a_silent_node_is_told_once(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    fleet.store.sweep(fleet.now_ns)
    fleet.store.sweep(fleet.pass_s(11))
    told = fleet.events()
    fleet.store.sweep(fleet.pass_s(1))
    assert fleet.events() == told


def test_a_host_that_starts_a_new_raylet_keeps_its_devices_and_loses_its_holds(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    fleet.fall("ada", 1)
    fleet.store.holds([uuid("ada", 1)], [], fleet.now_ns)
    fleet.pass_s(5)
    fleet.say("ada", "node-ada-2")
    devices = {d.index: d for d in fleet.store.devices()}
    assert {d.node_id for d in devices.values()} == {"node-ada-2"}
    assert devices[1].state is DeviceState.QUARANTINED, "a restart heals nothing"
    assert not devices[1].held
    assert not fleet.say("ada"), "a late word of the old raylet"
    assert [n.node_id for n in fleet.store.fleet().nodes] == ["node-ada-2"]


def test_a_young_raylet_that_rays_list_does_not_name_yet_is_not_lost(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)
    fleet.alive()
    assert fleet.store.fleet().nodes[0].state is NodeState.READY


def test_a_lease_refuses_what_is_sick_or_taken(fleet: Fleet) -> None:
    fleet.healthy("ada", 8)
    fleet.fall("ada", 1)
    with pytest.raises(Conflict, match="is DRAINING now") as sick:
        fleet.lease("job-1", 1, uuid("ada", 0), uuid("ada", 1))
    assert sick.value.code == "PL-REV-001"
    fleet.lease("job-1", 1, uuid("ada", 0))
    with pytest.raises(Conflict, match="leased by job-1/run/1"):
        fleet.lease("job-2", 1, uuid("ada", 0), uuid("ada", 2))
    assert len(fleet.store.fleet().leases) == 1, "a gang is whole or absent"


def test_a_lease_is_given_once_for_each_attempt_and_replaces_the_one_before(fleet: Fleet) -> None:
    fleet.healthy("ada", 8)
    first = fleet.lease("job", 1, uuid("ada", 0), uuid("ada", 1))
    assert fleet.lease("job", 1, uuid("ada", 0), uuid("ada", 1)) == first
    second = fleet.lease("job", 2, uuid("ada", 1), uuid("ada", 2))
    assert [x.lease_id for x in fleet.store.fleet().leases] == [second.lease_id]
    fleet.store.end_lease(second.lease_id, "done", fleet.now_ns)
    fleet.store.end_lease(second.lease_id, "done", fleet.now_ns)
    assert fleet.store.fleet().leases == ()
    assert len(fleet.events(EventKind.LEASE_ENDED)) == 2


def test_a_request_of_an_earlier_attempt_that_comes_late_takes_nothing_back(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    newer = fleet.lease("job", 2, uuid("ada", 0))
    with pytest.raises(Conflict, match="attempt 2 of this run has taken over"):
        fleet.lease("job", 1, uuid("ada", 1))
    assert [x.lease_id for x in fleet.store.fleet().leases] == [newer.lease_id]


def test_a_plan_that_is_not_the_request_is_refused(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    request = GangRequest(JobId("job"), "run", 1, 2, 0.03)
    with pytest.raises(BadRequest, match="asks for 2 devices"):
        fleet.store.create_lease(request, Plan(1, (uuid("ada", 0),), 0.0, 1.0, ""), fleet.now_ns)
    with pytest.raises(NotFound):
        fleet.lease("job", 1, DeviceUuid("GPU-nowhere"))
    with pytest.raises(NotFound):
        fleet.store.end_lease("lease-x", "", fleet.now_ns)


def test_a_corrected_lease_names_where_the_gang_sits_and_moves_off_a_sick_device(fleet: Fleet) -> None:
    fleet.healthy("ada", 4)
    lease = fleet.lease("job", 1, uuid("ada", 0), uuid("ada", 1))
    fleet.fall("ada", 3)
    moved = fleet.store.correct_lease(lease.lease_id, (uuid("ada", 2), uuid("ada", 1)), fleet.now_ns)
    assert (moved.devices, moved.moving_cause) == ((uuid("ada", 2), uuid("ada", 1)), 0)
    sick = fleet.store.correct_lease(lease.lease_id, (uuid("ada", 2), uuid("ada", 3)), fleet.now_ns)
    assert sick.moving_cause


def test_many_planners_at_once_never_give_a_device_twice(fleet: Fleet) -> None:
    fleet.healthy("ada", 8)

    def try_one(number: int) -> int:
        mine = (uuid("ada", number % 4), uuid("ada", (number + 1) % 4))
        try:
            fleet.lease(f"job-{number}", 1, *mine)
        except Conflict:
            return 0
        return 1

    with ThreadPoolExecutor(8) as pool:
        given = sum(pool.map(try_one, range(24)))
    leases = fleet.store.fleet().leases
    devices = [uuid for lease in leases for uuid in lease.devices]
    assert len(leases) == given == 2
    assert len(devices) == len(set(devices)) == 4


def test_events_of_writers_at_once_are_in_the_order_of_their_commits(fleet: Fleet) -> None:
    for name in "abcd":
        fleet.healthy(name, 2)
    seen: list[int] = []

    def write(number: int) -> None:
        fleet.store.quarantine(uuid("abcd"[number % 4], number // 4 % 2), f"reason {number}", "ada", fleet.now_ns)

    with ThreadPoolExecutor(8) as pool:
        writing = [pool.submit(write, n) for n in range(8)]
        while not all(f.done() for f in writing):
            seen += [e.id for e in fleet.store.events(after=seen[-1] if seen else 0)]
    seen += [e.id for e in fleet.store.events(after=seen[-1] if seen else 0, limit=5000)]
    assert seen == [e.id for e in fleet.events()], "a reader that goes on from the last id misses nothing"


def test_the_end_of_a_run_takes_back_its_gang(fleet: Fleet) -> None:
    lease = fleet.ride_through_a_fault()
    fleet.job("job-1", RunState.SUCCEEDED)
    assert fleet.held_lease(lease.lease_id) is None
    job = fleet.store.job("job-1")
    assert [a.state for a in job.attempts] == ["ended", "ended"]
    assert (job.state, job.devices, job.starts, job.step) == (RunState.SUCCEEDED, 0, 2, 200)
    assert [a.resumed_step for a in job.attempts] == [0, 200]
    assert job.attempts[1].devices == lease.devices
    assert [r.host for r in job.attempts[0].ranks] == ["ada"] * 4


def test_a_job_update_that_comes_late_changes_nothing(fleet: Fleet) -> None:
    fleet.job("job", RunState.RUNNING)
    late = fleet.now_ns
    fleet.pass_s(10)
    fleet.job("job", RunState.SUCCEEDED)
    fleet.now_ns = late
    fleet.job("job", RunState.QUEUED)
    assert fleet.store.job("job/run").state is RunState.SUCCEEDED
    assert [e.summary for e in fleet.events(EventKind.JOB)] == ["RUNNING", "SUCCEEDED"]


def test_attempts_and_checkpoints_are_told_once(fleet: Fleet) -> None:
    lease = fleet.ride_through_a_fault()
    events = fleet.events()
    for kind in ("started", "resumed"):
        fleet.attempt(lease, kind, 200)
    fleet.checkpoint(lease, 250, 0.7)
    fleet.checkpoint(lease, 250, 0.7)
    assert [e.kind for e in fleet.events()[len(events) :]] == [EventKind.CHECKPOINT]


def test_a_loss_that_is_not_a_number_is_kept_as_unknown(fleet: Fleet) -> None:
    lease = fleet.ride_through_a_fault()
    fleet.checkpoint(lease, 250, math.nan)
    assert fleet.store.job("job-1").checkpoints[-1].metrics == {"loss": None}


def test_an_attempt_that_dies_with_its_node_names_the_lost_device_as_its_cause(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)
    fleet.healthy("bea", 2)
    lease = fleet.lease("job", 1, uuid("ada", 0), uuid("bea", 0))
    fleet.attempt(lease, "started")
    fleet.pass_s(20)
    fleet.alive("ada")
    fleet.attempt(lease, "ended", reason="worker died")
    story = fleet.store.story(uuid("bea", 0))
    assert [e.kind for e in story.events][-3:] == [EventKind.NODE, EventKind.VERDICT, EventKind.ATTEMPT_ENDED]


def test_an_operator_must_say_why(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)
    with pytest.raises(BadRequest, match="needs a reason"):
        fleet.store.quarantine(uuid("ada", 0), "  ", "ada", fleet.now_ns)
    fleet.store.quarantine(uuid("ada", 0), "smells of smoke", "ada", fleet.now_ns)
    assert fleet.state("ada", 0) is DeviceState.DRAINING
    with pytest.raises(BadRequest, match="still being drained"):
        fleet.store.release(uuid("ada", 0), "was toast", "ada", fleet.now_ns)
    fleet.store.holds([uuid("ada", 0)], [], fleet.now_ns)
    assert fleet.store.release(uuid("ada", 0), "was toast", "ada", fleet.now_ns).state is DeviceState.PROBATION
    told = fleet.events(EventKind.OPERATOR)
    assert [(e.body["who"], e.body["action"]) for e in told] == [("ada", "quarantine"), ("ada", "release")]


def test_a_released_device_earns_its_place_by_clean_probes(fleet: Fleet) -> None:
    fleet.healthy("ada", 8)
    fleet.fall("ada", 1)
    fleet.store.holds([uuid("ada", 1)], [], fleet.now_ns)
    fleet.store.release(uuid("ada", 1), "reseated", "ada", fleet.now_ns)
    for _ in range(3):
        assert fleet.state("ada", 1) is DeviceState.PROBATION
        fleet.pass_s(10)
        fleet.store.measurements([fleet.measurement("ada", 1)], fleet.now_ns)
    assert fleet.state("ada", 1) is DeviceState.HEALTHY


def test_holds_are_remembered_and_their_end_is_told_once(fleet: Fleet) -> None:
    fleet.host("ada", 1)
    fleet.store.holds([uuid("ada", 0)], [], fleet.now_ns)
    assert fleet.store.device(uuid("ada", 0)).held
    fleet.measure("ada")
    for _ in range(2):
        fleet.store.holds([], [uuid("ada", 0), "GPU-unknown"], fleet.now_ns)
    assert not fleet.store.device(uuid("ada", 0)).held
    assert len(fleet.events(EventKind.RELEASED)) == 1


def test_sessions_tell_of_resumes_and_of_the_device_behind_them(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)

    def turn(turns: int, device: int, resumes: int = 0, state: str = "idle") -> None:
        told = SessionUpdate(
            SessionId("s"), fleet.now_ns, turns, turns * 10, resumes, f"engine#{device}", uuid("ada", device), state
        )
        fleet.store.report_sessions([told], fleet.now_ns)

    turn(1, 0)
    turn(2, 0)
    fleet.fall("ada", 0)
    fleet.pass_s(1)
    turn(3, 1, resumes=1)
    opened, resumed = fleet.events(EventKind.SESSION)
    assert (opened.summary, resumed.summary) == ("opened on engine#0", "resumed on engine#1 after 30 tokens")
    assert resumed in fleet.store.story(uuid("ada", 0)).events
    [row] = fleet.store.sessions()
    assert (row.turns, row.resumes, row.device) == (3, 1, uuid("ada", 1))


def test_samples_are_rolled_up_and_the_raw_ones_dropped(fleet: Fleet) -> None:
    fleet.gpus["ada"] = 1
    fleet.now_ns = fleet.now_ns // (60 * SECOND_NS) * 60 * SECOND_NS
    for second in range(180):
        fleet.say("ada", samples=(sample("ada", 0, fleet.now_ns, clock_mhz=1000 + second),))
        fleet.pass_s(1)
    for _ in range(2):
        fleet.store.roll_up(fleet.now_ns)
    assert len(fleet.store.device_samples(uuid("ada", 0), 0).raw) == 180
    fleet.store.roll_up(fleet.pass_s(1200))
    found = fleet.store.device_samples(uuid("ada", 0), 0)
    assert found.raw == ()
    assert [(m.count, m.clock_min_mhz, m.clock_avg_mhz, m.clock_max_mhz) for m in found.minutes] == [
        (60, 1000, 1029.5, 1059),
        (60, 1060, 1089.5, 1119),
        (60, 1120, 1149.5, 1179),
    ]
    fleet.store.roll_up(fleet.pass_s(31 * 24 * 3600))
    assert fleet.store.device_samples(uuid("ada", 0), 0).minutes == ()


def test_tokens_are_known_by_their_hash_and_can_be_revoked(fleet: Fleet) -> None:
    token = fleet.store.add_first_token("admin", fleet.now_ns)
    assert token is not None
    assert fleet.store.add_first_token("admin", fleet.now_ns) is None
    other = fleet.store.add_token("agents", fleet.now_ns)
    assert (fleet.store.token_holder(token), fleet.store.token_holder(other)) == ("admin", "agents")
    assert fleet.store.token_holder(token[:-1]) is None
    assert fleet.store.revoke_tokens("agents", fleet.now_ns) == 1
    assert fleet.store.token_holder(other) is None


def test_questions_about_what_is_not_there(fleet: Fleet) -> None:
    for ask in (fleet.store.device, fleet.store.story, fleet.store.job):
        with pytest.raises(NotFound):
            ask("nothing")


def test_a_job_with_two_runs_is_asked_for_by_its_newest_or_by_name(fleet: Fleet) -> None:
    fleet.job("job", RunState.SUCCEEDED, run="pre")
    fleet.pass_s(1)
    fleet.job("job", RunState.RUNNING, run="post")
    assert fleet.store.job("job").run_name == "post"
    assert fleet.store.job("job/pre").state is RunState.SUCCEEDED
    assert fleet.store.job("job").runs == ("post", "pre")


def test_an_xid_told_by_two_sources_is_two_samples_and_one_verdict(fleet: Fleet) -> None:
    fleet.healthy("ada", 2)
    told = tuple(XidEvent(uuid("ada", 0), 79, fleet.now_ns, source) for source in ("nvml", "kmsg"))
    fleet.say("ada", xids=told, findings=(xid_finding("ada", 0, 79, fleet.now_ns),))
    verdicts = [e for e in fleet.events(EventKind.VERDICT) if e.body["to"] == "DRAINING"]
    assert len(verdicts) == 1
    assert len([e for e in fleet.events(EventKind.TELEMETRY) if e.summary.startswith("Xid 79")]) == 2
