"""Measurements: kept, scored against the whole cohort, and fed to the devices' machines."""

from collections.abc import Iterable
from dataclasses import asdict

from sqlalchemy import func, select
from sqlalchemy.orm import aliased

from paceline.health import machine
from paceline.inventory import devices, reports
from paceline.inventory.tables import DeviceRow, FindingRow, MeasurementRow, ScoreRow
from paceline.inventory.unit import Unit
from paceline.model.events import EventKind
from paceline.model.hardware import DeviceState
from paceline.model.health import Finding
from paceline.model.ids import DeviceUuid, EventId
from paceline.model.measurement import DeviceScore, Measurement
from paceline.placement.score import score, slow_findings

_PROBED = (DeviceState.PROBING.value, DeviceState.PROBATION.value, DeviceState.SUSPECT.value)


def take(unit: Unit, measurements: Iterable[Measurement]) -> tuple[DeviceScore, ...]:
    """Keep measurements and act on them. Returns the scores of the measured devices that have one.

    A probe in which a device was far too slow is a finding and no pass.
    """
    given = sorted(measurements, key=lambda m: (m.uuid, m.benchmark, m.at_ns))
    fresh = [(m, row) for m in given if (row := _keep(unit, m)) is not None]
    unit.session.flush()
    cohorts = {(row.sku, m.benchmark) for m, row in fresh if m.ok}
    scores = [s for sku, benchmark in sorted(cohorts) for s in _rescore(unit, sku, benchmark)]
    _record(unit, scores, {(m.uuid, m.benchmark) for m, _ in fresh})
    found = slow_findings(scores, unit.now_ns)
    for finding in found:
        _found_slow(unit, finding.uuid, finding)
    slow = {finding.uuid for finding in found}
    by_key = {(s.uuid, s.benchmark): s for s in scores}
    for m, row in fresh:
        device = devices.get(unit, m.uuid)
        scored = by_key.get((m.uuid, m.benchmark))
        if m.ok and m.uuid in slow:
            continue
        if m.ok and scored is not None:
            devices.apply(unit, device, machine.ProbePassed(scored.score), EventId(row.event_id))
        else:
            reason = m.error or "no usable repetition"
            devices.apply(unit, device, machine.ProbeFailed(reason), EventId(row.event_id))
    return tuple(s for s in _all_scores(unit, given) if (s.uuid, s.benchmark) in {(m.uuid, m.benchmark) for m in given})


def _keep(unit: Unit, m: Measurement) -> MeasurementRow | None:
    """The row of a new measurement; None if it was taken before."""
    device = devices.get(unit, m.uuid)
    same = select(MeasurementRow.id).where(MeasurementRow.uuid == m.uuid, MeasurementRow.benchmark == m.benchmark)
    if (
        unit.session.scalar(same.where(MeasurementRow.version == m.version, MeasurementRow.at_ns == m.at_ns))
        is not None
    ):
        return None
    cause = device.cause_id if device.state in _PROBED else 0
    body = {
        "benchmark": m.benchmark,
        "version": m.version,
        "repetitions_s": list(m.repetitions_s),
        "ok": m.ok,
        "error": m.error,
    }
    event = unit.event(EventKind.MEASURED, devices.entity(m.uuid), _in_words(m), cause, body)
    row = MeasurementRow(
        uuid=m.uuid,
        benchmark=m.benchmark,
        version=m.version,
        at_ns=m.at_ns,
        sku=device.sku,
        repetitions_s=list(m.repetitions_s),
        ok=m.ok,
        error=m.error,
        event_id=event,
    )
    unit.session.add(row)
    return row


def _in_words(m: Measurement) -> str:
    if not m.ok:
        return f"{m.benchmark} failed: {m.error or 'no reason given'}"
    best = f", best {min(m.repetitions_s) * 1e3:.2f} ms" if m.repetitions_s else ""
    return f"{m.benchmark}: {len(m.repetitions_s)} repetitions{best}"


def _rescore(unit: Unit, sku: str, benchmark: str) -> tuple[DeviceScore, ...]:
    """Scores of the whole cohort, from the newest good measurement of each device."""
    nth = func.row_number().over(
        partition_by=MeasurementRow.uuid, order_by=(MeasurementRow.version.desc(), MeasurementRow.at_ns.desc())
    )
    same = (MeasurementRow.sku == sku, MeasurementRow.benchmark == benchmark, MeasurementRow.ok)
    ranked = select(MeasurementRow, nth.label("nth")).where(*same).subquery()
    newest = aliased(MeasurementRow, ranked)
    in_service = select(DeviceRow.uuid).where(DeviceRow.sku == sku, DeviceRow.state != DeviceState.RETIRED.value)
    rows = unit.session.scalars(
        select(newest).where(ranked.c.nth == 1, newest.uuid.in_(in_service)).order_by(newest.uuid)
    ).all()
    values = [
        Measurement(DeviceUuid(r.uuid), r.benchmark, r.version, r.at_ns, tuple(r.repetitions_s), r.ok, r.error)
        for r in rows
    ]
    return score(values, {value.uuid: sku for value in values})


def _record(unit: Unit, scores: Iterable[DeviceScore], measured: set[tuple[DeviceUuid, str]]) -> None:
    """The median moves with each measurement, so all scores of a cohort move; the history keeps those of the measured devices."""
    for value in scores:
        device = devices.get(unit, value.uuid)
        if (device.score, device.noise) != (value.score, value.noise):
            device.score, device.noise = value.score, value.noise
            unit.touch()
        if (value.uuid, value.benchmark) in measured:
            device.scored_ns = unit.now_ns
            unit.session.add(ScoreRow(at_ns=unit.now_ns, **asdict(value)))


def _found_slow(unit: Unit, uuid: DeviceUuid, finding: Finding) -> None:
    """A slow device is found once by each measurement of its own, however often its peers are measured."""
    benchmark = finding.evidence["benchmark"]
    own = select(MeasurementRow.event_id).where(
        MeasurementRow.uuid == uuid, MeasurementRow.benchmark == benchmark, MeasurementRow.ok
    )
    basis = EventId(
        unit.session.scalars(own.order_by(MeasurementRow.version.desc(), MeasurementRow.at_ns.desc()).limit(1)).one()
    )
    known = unit.session.get(FindingRow, (uuid, finding.rule_id))
    if known is None or known.basis_id != basis:
        reports.found(unit, finding, basis)


def _all_scores(unit: Unit, given: Iterable[Measurement]) -> Iterable[DeviceScore]:
    cohorts = {(devices.get(unit, m.uuid).sku, m.benchmark) for m in given}
    return [s for sku, benchmark in sorted(cohorts) for s in _rescore(unit, sku, benchmark)]
