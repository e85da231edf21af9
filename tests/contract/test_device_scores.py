"""Scores in every class of work, drift, corruption and what a probe as a whole means, on SQLite and on PostgreSQL alike."""

from dataclasses import replace

import pytest
from sqlalchemy import select

from inventory_maker import Fleet, sample, uuid
from paceline.inventory.tables import DeviceScoreRow, MeasurementRow, ScoreRow
from paceline.model.events import EventKind
from paceline.model.hardware import DeviceState
from paceline.model.measurement import DeviceScore, Measurement, Workload
from paceline.placement import drift
from paceline.placement.inband import STEPS_MIN, StepTimes, measurements, paces

DAY_S = 86_400
CLASSES = {"gemm": Workload.COMPUTE, "gemm_fp32": Workload.COMPUTE_FP32, "triad": Workload.MEMORY}


def probe(fleet: Fleet, host: str, index: int, **slow: float) -> list[Measurement]:
    """One probe of a device: 10 ms in each class, but for those named."""
    return [
        replace(fleet.measurement(host, index, 0.010 * slow.get(name, 1.0)), benchmark=name, workload=workload)
        for name, workload in CLASSES.items()
    ]


def probe_all(fleet: Fleet, host: str, slow_index: int = -1, common: float = 1.0, **slow: float) -> None:
    """Probe a host's devices, one after the other and handed in together."""
    rows = []
    for index in range(fleet.gpus[host]):
        own = slow if index == slow_index else {}
        rows += probe(fleet, host, index, **{name: common * own.get(name, 1.0) for name in CLASSES})
    fleet.store.measurements(rows, fleet.now_ns)


def scores(fleet: Fleet, host: str, index: int) -> dict[str, DeviceScoreRow]:
    with fleet.store._read() as session:
        rows = session.scalars(select(DeviceScoreRow).where(DeviceScoreRow.uuid == uuid(host, index)))
        return {row.workload: row for row in rows}


def settled(fleet: Fleet, days: int = drift.BASELINE_RUNS) -> None:
    """A host of eight whose devices have a past."""
    fleet.host("ada", 8)
    for _ in range(days):
        probe_all(fleet, "ada")
        fleet.pass_s(DAY_S)


def findings(fleet: Fleet, rule: str) -> list[str]:
    return [e.entity for e in fleet.events(EventKind.FINDING) if e.body.get("rule") == rule]


def test_a_device_has_a_score_in_each_class_and_the_fleet_shows_that_of_compute(fleet: Fleet) -> None:
    fleet.host("ada", 8)
    probe_all(fleet, "ada", 3, triad=1.10)
    found = scores(fleet, "ada", 3)
    assert {work: row.score for work, row in found.items()} == {
        "compute": pytest.approx(1.0),
        "compute_fp32": pytest.approx(1.0),
        "memory": pytest.approx(1.10),
    }
    assert fleet.store.device(uuid("ada", 3)).score == pytest.approx(1.0)
    assert found["memory"].scored_ns == fleet.now_ns
    assert (found["memory"].n, found["memory"].mad, found["memory"].repeatability) == (1, None, None)


def test_a_probe_of_several_classes_is_one_pass(fleet: Fleet) -> None:
    fleet.healthy("ada", 8)
    fleet.store.quarantine(uuid("ada", 0), "a test", "ada", fleet.now_ns)
    fleet.store.holds([uuid("ada", 0)], [], fleet.now_ns)
    fleet.store.release(uuid("ada", 0), "a test", "ada", fleet.now_ns)
    for passes in (1, 2):
        fleet.store.measurements(probe(fleet, "ada", 0), fleet.pass_s(10))
        device = fleet.store.device(uuid("ada", 0))
        assert (device.state, device.clean_probes) == (DeviceState.PROBATION, passes)
    fleet.store.measurements(probe(fleet, "ada", 0), fleet.pass_s(10))
    assert fleet.state("ada", 0) is DeviceState.HEALTHY


def test_a_probe_that_is_slow_in_every_class_is_one_bad_finding(fleet: Fleet) -> None:
    fleet.host("ada", 8)
    probe_all(fleet, "ada", 2, **dict.fromkeys(CLASSES, 1.4))
    device = fleet.store.device(uuid("ada", 2))
    assert (device.state, device.bad_findings) == (DeviceState.PROBING, 1)
    assert findings(fleet, "probe.slow") == [f"device:{uuid('ada', 2)}"]


def test_a_slow_class_alone_condemns_when_three_probes_agree(fleet: Fleet) -> None:
    fleet.host("ada", 8)
    for _ in range(3):
        probe_all(fleet, "ada", 2, triad=1.4)
        fleet.pass_s(10)
    assert fleet.state("ada", 2) is DeviceState.DRAINING
    assert fleet.store.device(uuid("ada", 2)).score == pytest.approx(1.0)


def test_one_class_that_fails_is_no_pass(fleet: Fleet) -> None:
    fleet.host("ada", 2)
    good, bad, last = probe(fleet, "ada", 0)
    bad = replace(bad, ok=False, repetitions_s=(), error="CUDA error 719")
    fleet.store.measurements([good, bad, last], fleet.now_ns)
    device = fleet.store.device(uuid("ada", 0))
    assert device.state is DeviceState.DRAINING
    assert "CUDA error 719" in device.reason


def test_a_healthy_device_that_computes_something_wrong_is_quarantined_at_once(fleet: Fleet) -> None:
    fleet.healthy("ada", 8)
    fleet.pass_s(10)
    first, *others = probe(fleet, "ada", 0)
    fleet.store.measurements([replace(first, ok=False, error="corrupt: row 17 is wrong"), *others], fleet.now_ns)
    device = fleet.store.device(uuid("ada", 0))
    assert device.state is DeviceState.DRAINING
    assert device.reason.startswith("silent data corruption: row 17 is wrong")
    [finding] = [e for e in fleet.events(EventKind.FINDING) if e.body["rule"] == "probe.corrupt"]
    measured = next(e for e in fleet.events() if e.id == finding.cause_id)
    assert measured.kind is EventKind.MEASURED
    assert fleet.state("ada", 1) is DeviceState.HEALTHY


def test_a_device_that_has_become_five_per_cent_slower_is_told_and_goes_on_working(fleet: Fleet) -> None:
    settled(fleet)
    for _ in range(2):
        assert findings(fleet, "probe.drift") == []
        fleet.pass_s(DAY_S)
        probe_all(fleet, "ada", 5, triad=1.05)
    assert findings(fleet, "probe.drift") == [f"device:{uuid('ada', 5)}"]
    assert scores(fleet, "ada", 5)["memory"].drift == pytest.approx(0.05, abs=0.001)
    assert scores(fleet, "ada", 5)["compute"].drift == pytest.approx(0.0, abs=0.001)
    assert fleet.state("ada", 5) is DeviceState.HEALTHY


def test_a_warm_day_and_a_device_that_always_was_slow_are_told_of_nobody(fleet: Fleet) -> None:
    fleet.host("ada", 8)
    for day in range(drift.BASELINE_RUNS + 3):
        warm = 1.0 if day < drift.BASELINE_RUNS else 1.06
        probe_all(fleet, "ada", 5, common=warm, gemm=1.08, triad=1.08)
        fleet.pass_s(DAY_S)
    assert findings(fleet, "probe.drift") == findings(fleet, "probe.slow") == []
    assert scores(fleet, "ada", 5)["compute"].score == pytest.approx(1.08)


def test_drift_waits_for_the_peers_of_its_time(fleet: Fleet) -> None:
    """The first devices of a sweep are judged when enough others were measured, too."""
    settled(fleet)
    for _ in range(2):
        fleet.pass_s(DAY_S)
        fleet.store.measurements(probe(fleet, "ada", 0, triad=1.05), fleet.now_ns)
        assert scores(fleet, "ada", 0)["memory"].drift is None
        for index in range(1, 8):
            fleet.store.measurements(probe(fleet, "ada", index), fleet.pass_s(60))
        assert scores(fleet, "ada", 0)["memory"].drift == pytest.approx(0.05, abs=0.001)
    assert findings(fleet, "probe.drift") == [f"device:{uuid('ada', 0)}"], "once for its own newest probe"


def test_a_baseline_is_of_the_first_probes_and_of_none_that_drift(fleet: Fleet) -> None:
    settled(fleet, drift.BASELINE_MIN)
    assert scores(fleet, "ada", 0)["memory"].baseline_n == drift.BASELINE_MIN
    for _ in range(4):
        probe_all(fleet, "ada", 0, triad=1.06)
        fleet.pass_s(DAY_S)
    drifting, sound = scores(fleet, "ada", 0)["memory"], scores(fleet, "ada", 1)["memory"]
    assert (drifting.baseline_n, sound.baseline_n) == (drift.BASELINE_MIN, drift.BASELINE_RUNS)
    assert drifting.baseline_s == pytest.approx(0.010)


def test_a_new_version_of_a_benchmark_begins_a_new_past(fleet: Fleet) -> None:
    settled(fleet)
    rows = [replace(m, version=2, repetitions_s=(0.5,)) for i in range(8) for m in probe(fleet, "ada", i)]
    fleet.store.measurements(rows, fleet.now_ns)
    row = scores(fleet, "ada", 0)["memory"]
    assert (row.version, row.baseline_s, row.baseline_n, row.drift) == (2, None, 0, None)
    assert row.score == pytest.approx(1.0)


def test_repeatability_comes_from_the_last_scores(fleet: Fleet) -> None:
    settled(fleet, 3)
    row = scores(fleet, "ada", 0)["compute"]
    assert (row.n, row.mad, row.repeatability) == (3, 0.0, 0.0)
    probe_all(fleet, "ada", 0, gemm=1.02)
    row = scores(fleet, "ada", 0)["compute"]
    assert row.n == 4
    assert row.repeatability == pytest.approx(0.0, abs=0.001), "one odd run moves no median"


def test_steps_of_a_run_feed_a_score_and_move_no_device(fleet: Fleet) -> None:
    fleet.healthy("ada", 8)
    fleet.pass_s(10)
    steps = replace(fleet.measurement("ada", 0), benchmark="steps", workload=Workload.STEP)
    rows = [replace(steps, uuid=uuid("ada", i), repetitions_s=(1.5 if i == 4 else 1.0,)) for i in range(8)]
    told: tuple[DeviceScore, ...] = fleet.store.measurements(rows, fleet.now_ns)
    assert {row.workload for row in told} == {"step"}
    assert scores(fleet, "ada", 4)["step"].score == pytest.approx(1.5)
    assert fleet.store.device(uuid("ada", 4)).score == pytest.approx(1.0)
    assert {fleet.state("ada", i) for i in range(8)} == {DeviceState.HEALTHY}
    assert findings(fleet, "probe.slow") == []


def test_steps_of_runs_are_shown_beside_the_probes_and_change_nothing_else(fleet: Fleet) -> None:
    """A device whose gangs wait for it from some day on: that is told, and neither drift nor a past is made of it."""
    settled(fleet)
    before = fleet.store.fleet()
    shown = fleet.store.device_health(uuid("ada", 4), fleet.now_ns)
    gang = [uuid("ada", i) for i in range(8)]
    for day in range(drift.BASELINE_RUNS + drift.WINDOW + 1):
        late_s = 0.01 if day >= drift.BASELINE_RUNS else 0.0
        step = {u: StepTimes(0.1, 0.01 if u == uuid("ada", 4) else 0.01 + late_s) for u in gang}
        told = measurements(paces([step] * STEPS_MIN), dict.fromkeys(gang, 1.0), fleet.now_ns)
        fleet.store.measurements(told, fleet.now_ns)
        fleet.pass_s(DAY_S)
    assert fleet.store.fleet() == before
    health = fleet.store.device_health(uuid("ada", 4), fleet.now_ns)
    [own] = [row for row in health.scores if row.workload == "step"]
    assert (own.score, own.drift) == (pytest.approx(1.1), None)
    assert scores(fleet, "ada", 4)["step"].baseline_n == 0
    assert [row for row in health.scores if row is not own] == list(shown.scores)
    assert (health.device, health.findings, health.verdicts) == (shown.device, shown.findings, shown.verdicts)
    last = [e for e in fleet.events(EventKind.MEASURED) if e.entity == f"device:{uuid('ada', 4)}"][-1]
    assert last.summary == "20 steps of a run: late in its gang, relative time 1.100"


def test_conditions_are_kept_with_the_time_in_hardware_slowdown(fleet: Fleet) -> None:
    fleet.host("ada", 1)
    for second, throttled in enumerate((100, 100, 900, 1600)):
        reading = replace(sample("ada", 0, fleet.now_ns + second * 10**9), throttle_ns=throttled)
        fleet.say("ada", samples=(reading,))
    fleet.pass_s(4)
    said = {"sm_clock_mhz": 1400.0, "power_w": 690.0, "temperature_c": 71.0, "probe_s": 2.5}
    fleet.store.measurements([replace(fleet.measurement("ada", 0), conditions=said)], fleet.now_ns)
    with fleet.store._read() as session:
        row = session.scalars(select(MeasurementRow)).one()
        assert row.conditions == said | {"throttle_ns": 1500.0}
        assert session.scalars(select(ScoreRow.workload)).all() == ["compute"]
    [measured] = fleet.events(EventKind.MEASURED)
    assert measured.summary.endswith(", 1400 MHz, 690 W, 71 °C")
