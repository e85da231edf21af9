"""Measurements: kept, scored against all devices of their SKU, and fed to the devices' machines."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import aliased

from paceline.health import machine
from paceline.health.rules import mode_of
from paceline.inventory import devices, reports
from paceline.inventory.tables import DeviceRow, DeviceScoreRow, FindingRow, MeasurementRow, SampleRow, ScoreRow
from paceline.inventory.unit import Unit
from paceline.model.events import EventKind
from paceline.model.hardware import DeviceState
from paceline.model.health import Advice, Finding, RuleMode
from paceline.model.ids import DeviceUuid, EventId
from paceline.model.measurement import DeviceScore, Measurement, Workload
from paceline.placement import drift
from paceline.placement.drift import Baseline, Drift, Run, Track
from paceline.placement.score import (
    CORRUPT_RULE,
    cohort_of,
    corrupt_findings,
    repeatability,
    score,
    slow_findings,
)

_PROBED: Final = (DeviceState.PROBING.value, DeviceState.PROBATION.value, DeviceState.SUSPECT.value)
_UNITS: Final = {"sm_clock_mhz": "MHz", "power_w": "W", "temperature_c": "°C"}
SCORES_IN_MIND: Final = 8
"""Scores of a device from which its repeatability is told."""


@dataclass(frozen=True, slots=True)
class _Fresh:
    """A measurement that was not taken before, and its event."""

    measurement: Measurement
    event_id: EventId

    @property
    def key(self) -> tuple[DeviceUuid, str]:
        return self.measurement.uuid, self.measurement.benchmark


@dataclass(frozen=True, slots=True)
class _Cohort:
    """All devices of one SKU in one benchmark: scores, and what is known of the drift of those that were measured of late."""

    scores: tuple[DeviceScore, ...]
    drifts: dict[DeviceUuid, tuple[Drift, Baseline]]


def take(unit: Unit, measurements: Iterable[Measurement]) -> tuple[DeviceScore, ...]:
    """Keep measurements and act on them. Returns the scores of the measured devices that have one.

    A probe in which a device was far too slow is a finding and no pass, and so is one that computed something wrong.
    """
    given = sorted(measurements, key=lambda m: (m.uuid, m.at_ns, m.benchmark))
    fresh = [_Fresh(m, event) for m in given if (event := _keep(unit, m)) is not None]
    unit.session.flush()
    measured = {new.key for new in fresh if new.measurement.ok}
    cohorts = [_judge(unit, *which, measured) for which in _cohorts_of(unit, (new.measurement for new in fresh))]
    scores = [row for cohort in cohorts for row in cohort.scores]
    found = _findings(unit, cohorts, fresh)
    for finding in found:
        _tell(unit, finding, {new.key[0]: new.event_id for new in fresh if not new.measurement.ok})
    barred = {finding.uuid for finding in found if _is_acted_on(unit, finding)}
    _end_rounds(unit, fresh, {(row.uuid, row.benchmark): row.score for row in scores}, barred)
    return _scores_of(unit, given, scores)


def _keep(unit: Unit, m: Measurement) -> EventId | None:
    """The event of a new measurement; None if it was taken before."""
    device = devices.get(unit, m.uuid)
    same = select(MeasurementRow.id).where(MeasurementRow.uuid == m.uuid, MeasurementRow.benchmark == m.benchmark)
    if (
        unit.session.scalar(same.where(MeasurementRow.version == m.version, MeasurementRow.at_ns == m.at_ns))
        is not None
    ):
        return None
    cause = device.cause_id if device.state in _PROBED else 0
    m = replace(m, conditions=m.conditions | _throttled(unit, m))
    values = asdict(m) | {"repetitions_s": list(m.repetitions_s), "workload": str(m.workload)}
    body = {name: values[name] for name in values if name not in ("uuid", "at_ns")}
    event = unit.event(EventKind.MEASURED, devices.entity(m.uuid), _in_words(m), cause, body)
    unit.session.add(MeasurementRow(**values, sku=device.sku, event_id=event))
    return event


def _throttled(unit: Unit, m: Measurement) -> dict[str, float]:
    """Time in hardware slowdown over the whole probe, by what the health actor has read of the device; nothing where it is not known."""
    own = select(SampleRow.throttle_ns).where(SampleRow.uuid == m.uuid, SampleRow.throttle_ns.is_not(None))
    newest = own.order_by(SampleRow.at_ns.desc()).limit(1)
    began_ns = m.at_ns - int(m.conditions.get("probe_s", 0.0) * 1e9)
    after = unit.session.scalar(newest.where(SampleRow.at_ns <= m.at_ns, SampleRow.at_ns > began_ns))
    before = unit.session.scalar(newest.where(SampleRow.at_ns <= began_ns))
    if after is None or before is None or after < before:  # the driver counts since it was loaded
        return {}
    return {"throttle_ns": float(after - before)}


def _in_words(m: Measurement) -> str:
    if not m.ok:
        return f"{m.benchmark} failed: {m.error or 'no reason given'}"
    if m.workload == Workload.STEP and m.repetitions_s:
        late = "late in its gang" if m.conditions.get("lags") else "in time"
        return f"{m.conditions.get('steps', 0):.0f} steps of a run: {late}, relative time {median(m.repetitions_s):.3f}"
    best = f", best {min(m.repetitions_s) * 1e3:.2f} ms" if m.repetitions_s else ""
    told = "".join(f", {m.conditions[name]:.0f} {unit}" for name, unit in _UNITS.items() if name in m.conditions)
    return f"{m.benchmark}: {len(m.repetitions_s)} repetitions{best}{told}"


# ── scores ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _cohorts_of(unit: Unit, given: Iterable[Measurement]) -> list[tuple[str, str]]:
    return sorted({(devices.get(unit, m.uuid).sku, m.benchmark) for m in given})


def _judge(unit: Unit, sku: str, benchmark: str, measured: Collection[tuple[DeviceUuid, str]]) -> _Cohort:
    """Score all devices of a SKU, find the drift of those measured now or waiting for peers, and keep both."""
    mine = {uuid for uuid, name in measured if name == benchmark}
    runs = _newest(unit, sku, benchmark)
    if not runs:
        return _Cohort((), {})
    cohorts = _cohort_names(unit, sku)
    scores = score([rows[0] for rows in runs.values()], dict.fromkeys(runs, sku), cohorts=cohorts)
    known = _known(unit, scores)
    tracks = {row.uuid: _track(runs[row.uuid], known.get(row.uuid)) for row in scores}
    drifts = {}
    for row in scores:
        own = tracks[row.uuid].baseline
        if own is not None and (row.uuid in mine or _waits_for_peers(unit, runs[row.uuid][0], known.get(row.uuid))):
            beside = {uuid: track for uuid, track in tracks.items() if cohorts[uuid] == row.cohort}
            drifts[row.uuid] = (drift.judge(row.uuid, beside), own)
    told = [replace(row, drift=drifts[row.uuid][0].value) if row.uuid in drifts else row for row in scores]
    _record(unit, told, mine, known, runs)
    for uuid in sorted(mine & tracks.keys()):
        if uuid not in drifts or not drifts[uuid][0].over:
            _settle_baseline(unit, known[uuid])
    return _Cohort(tuple(told), drifts)


def _newest(unit: Unit, sku: str, benchmark: str) -> dict[DeviceUuid, list[Measurement]]:
    """The last good measurements of each device in service, by the newest version of the benchmark, the newest first."""
    same = (MeasurementRow.sku == sku, MeasurementRow.benchmark == benchmark, MeasurementRow.ok)
    version = select(func.max(MeasurementRow.version)).where(*same).scalar_subquery()
    nth = func.row_number().over(partition_by=MeasurementRow.uuid, order_by=MeasurementRow.at_ns.desc())
    ranked = select(MeasurementRow, nth.label("nth")).where(*same, MeasurementRow.version == version).subquery()
    row = aliased(MeasurementRow, ranked)
    in_service = select(DeviceRow.uuid).where(DeviceRow.sku == sku, DeviceRow.state != DeviceState.RETIRED.value)
    wanted = select(row).where(ranked.c.nth <= drift.WINDOW, row.uuid.in_(in_service)).order_by(row.uuid, ranked.c.nth)
    runs: dict[DeviceUuid, list[Measurement]] = defaultdict(list)
    for r in unit.session.scalars(wanted):
        usable = r.repetitions_s and min(r.repetitions_s) > 0
        if usable:
            m = Measurement(DeviceUuid(r.uuid), r.benchmark, r.version, r.at_ns, tuple(r.repetitions_s), ok=True)
            runs[m.uuid].append(replace(m, workload=r.workload))
    return runs


def _cohort_names(unit: Unit, sku: str) -> dict[DeviceUuid, str]:
    wanted = select(DeviceRow.uuid, DeviceRow.driver_version).where(DeviceRow.sku == sku)
    return {DeviceUuid(uuid): cohort_of(sku, driver) for uuid, driver in unit.session.execute(wanted)}


def _known(unit: Unit, scores: Sequence[DeviceScore]) -> dict[DeviceUuid, DeviceScoreRow]:
    if not scores:
        return {}
    wanted = select(DeviceScoreRow).where(
        DeviceScoreRow.workload == str(scores[0].workload), DeviceScoreRow.uuid.in_([row.uuid for row in scores])
    )
    return {DeviceUuid(row.uuid): row for row in unit.session.scalars(wanted)}


def _track(runs: Sequence[Measurement], known: DeviceScoreRow | None) -> Track:
    own = None
    if known is not None and known.baseline_s is not None and known.version == runs[0].version:
        own = Baseline(known.baseline_s, known.baseline_sigma or 0.0, known.baseline_n)
    return Track(own, tuple(Run(m.at_ns, median(m.repetitions_s)) for m in runs))


def _waits_for_peers(unit: Unit, newest: Measurement, known: DeviceScoreRow | None) -> bool:
    """It was measured before its peers of this round were: nothing could be taken away then."""
    return known is not None and known.drift is None and unit.now_ns - newest.at_ns <= drift.PEERS_WITHIN_NS


def _record(
    unit: Unit,
    scores: Iterable[DeviceScore],
    measured: Collection[DeviceUuid],
    known: dict[DeviceUuid, DeviceScoreRow],
    runs: dict[DeviceUuid, list[Measurement]],
) -> None:
    """The median moves with each measurement, so all scores of a SKU move; the history keeps those of the measured devices."""
    for value in scores:
        row = known.get(value.uuid)
        if row is None:
            row = known[value.uuid] = DeviceScoreRow(uuid=value.uuid, workload=str(value.workload), n=0, baseline_n=0)
            unit.session.add(row)
        version = runs[value.uuid][0].version
        if row.version != version:
            row.baseline_s, row.baseline_sigma, row.baseline_n = None, None, 0
        row.benchmark, row.version, row.score, row.noise = value.benchmark, version, value.score, value.noise
        if value.uuid in measured or value.drift is not None:
            row.drift = value.drift
        if value.uuid in measured:
            row.scored_ns = unit.now_ns
            unit.session.add(ScoreRow(at_ns=unit.now_ns, **(asdict(value) | {"workload": str(value.workload)})))
            unit.session.flush()
            row.n, row.mad, row.repeatability = _repeatability(unit, value)
        if value.workload == Workload.COMPUTE:
            _show(unit, value, value.uuid in measured)


def _show(unit: Unit, value: DeviceScore, measured: bool) -> None:
    """The score that gangs are planned by is a part of the fleet's snapshot."""
    device = devices.get(unit, value.uuid)
    scored_ns = unit.now_ns if measured else device.scored_ns
    shown = (value.score, value.noise, scored_ns)
    if (device.score, device.noise, device.scored_ns) != shown:
        device.score, device.noise, device.scored_ns = shown
        unit.touch()


def _repeatability(unit: Unit, value: DeviceScore) -> tuple[int, float | None, float | None]:
    own = select(ScoreRow.score).where(ScoreRow.uuid == value.uuid, ScoreRow.benchmark == value.benchmark)
    last = unit.session.scalars(own.order_by(ScoreRow.at_ns.desc(), ScoreRow.id.desc()).limit(SCORES_IN_MIND))
    values = list(last)
    return len(values), *repeatability(values)


def _settle_baseline(unit: Unit, row: DeviceScoreRow) -> None:
    """One more of the device's first probes; BASELINE_RUNS of them are its past for good. A probe that drifts is none.

    Nor are the steps of a run: they are relative to whatever gang it was in, so that no drift can be told from them.
    """
    if row.baseline_n >= drift.BASELINE_RUNS or row.workload == Workload.STEP:
        return
    own = select(MeasurementRow.repetitions_s).where(
        MeasurementRow.uuid == row.uuid, MeasurementRow.benchmark == row.benchmark, MeasurementRow.ok
    )
    first = own.where(MeasurementRow.version == row.version).order_by(MeasurementRow.at_ns).limit(drift.BASELINE_RUNS)
    settled = drift.baseline([median(repetitions) for repetitions in unit.session.scalars(first) if repetitions])
    if settled is not None:
        row.baseline_s, row.baseline_sigma, row.baseline_n = settled.seconds, settled.sigma, settled.runs


def _scores_of(unit: Unit, given: Sequence[Measurement], scores: Sequence[DeviceScore]) -> tuple[DeviceScore, ...]:
    """Also of measurements that were taken before: a reply may have been lost."""
    by_key = {(row.uuid, row.benchmark): row for row in scores}
    again = [m for m in given if (m.uuid, m.benchmark) not in by_key]
    for which in _cohorts_of(unit, again):
        by_key |= {(row.uuid, row.benchmark): row for row in _judge(unit, *which, ()).scores}
    wanted = {(m.uuid, m.benchmark) for m in given}
    return tuple(by_key[key] for key in sorted(by_key.keys() & wanted, key=lambda key: (key[1], key[0])))


# ── what comes of them ───────────────────────────────────────────────────────────────────────────────────────────────


def _findings(unit: Unit, cohorts: Sequence[_Cohort], fresh: Sequence[_Fresh]) -> list[Finding]:
    """Corrupt, slow, drifting: each rule at most once a device."""
    found = list(corrupt_findings((new.measurement for new in fresh), unit.now_ns))
    found += slow_findings([row for cohort in cohorts for row in cohort.scores], unit.now_ns)
    drifts: dict[DeviceUuid, dict[str, tuple[Drift, Baseline]]] = defaultdict(dict)
    for cohort in cohorts:
        workloads = {row.uuid: str(row.workload) for row in cohort.scores}
        for uuid, judged in cohort.drifts.items():
            drifts[uuid][workloads[uuid]] = judged
    by_device = (drift.finding(uuid, by_workload, unit.now_ns) for uuid, by_workload in sorted(drifts.items()))
    return found + [finding for finding in by_device if finding is not None]


def _is_acted_on(unit: Unit, finding: Finding) -> bool:
    """A rule in shadow mode must not keep a device from passing, either."""
    return finding.advice is not Advice.OBSERVE and mode_of(unit.rules, finding.rule_id) is RuleMode.ENFORCE


def _tell(unit: Unit, finding: Finding, failed: dict[DeviceUuid, EventId]) -> None:
    """A device is found once by each probe of its own, however often its peers are measured."""
    if finding.rule_id == CORRUPT_RULE:
        reports.found(unit, finding, failed[finding.uuid])
        return
    own = select(MeasurementRow.event_id).where(
        MeasurementRow.uuid == finding.uuid, MeasurementRow.ok, MeasurementRow.workload != str(Workload.STEP)
    )
    newest = own.order_by(MeasurementRow.at_ns.desc(), MeasurementRow.id.desc()).limit(1)
    basis = EventId(unit.session.scalars(newest).one())
    known = unit.session.get(FindingRow, (finding.uuid, finding.rule_id))
    if known is None or known.basis_id != basis:
        reports.found(unit, finding, basis)


def _end_rounds(
    unit: Unit, fresh: Sequence[_Fresh], scores: dict[tuple[DeviceUuid, str], float], barred: Collection[DeviceUuid]
) -> None:
    """One pass or failure for each probe of a device: the measurements of all workloads that were taken at once."""
    rounds: dict[tuple[int, DeviceUuid], list[_Fresh]] = defaultdict(list)
    for new in fresh:
        if new.measurement.workload != Workload.STEP:
            rounds[new.measurement.at_ns, new.measurement.uuid].append(new)
    for (_, uuid), probe in sorted(rounds.items(), key=lambda entry: entry[0]):
        device = devices.get(unit, uuid)
        bad = next((new for new in probe if not new.measurement.ok or new.key not in scores), None)
        if bad is not None:
            reason = bad.measurement.error or "no usable repetition"
            devices.apply(unit, device, machine.ProbeFailed(reason), bad.event_id)
        elif uuid not in barred:
            devices.apply(unit, device, machine.ProbePassed(scores[probe[0].key]), probe[0].event_id)
