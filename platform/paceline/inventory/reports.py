"""Reports of health actors: samples, Xids and findings become rows, events and stimuli."""

from dataclasses import asdict
from typing import Final

from sqlalchemy import select

from paceline.health import machine
from paceline.inventory import devices, nodes, samples
from paceline.inventory.tables import DeviceRow, FindingRow, SampleRow, XidRow
from paceline.inventory.unit import Unit
from paceline.model.events import EventKind
from paceline.model.hardware import Sample, XidEvent
from paceline.model.health import Finding, NodeReport
from paceline.model.ids import NO_CAUSE, DeviceUuid, EventId

FINDING_REPEAT_S: Final = 90
"""A rule that fires again within this time still means the same thing: counted, not told again. Rules that hold speak once a minute."""


def take(unit: Unit, report: NodeReport) -> bool:
    """Take a report. False if it was taken before, or comes from a life that is over; it changes nothing then."""
    if not nodes.first_time(unit, report):
        return False
    node = nodes.reporting(unit, report)
    if node is None:
        return False
    known = devices.on_host(unit, report.host.host)
    for facts in sorted(report.devices, key=lambda facts: facts.uuid):
        devices.see(unit, facts, report, known.get(facts.uuid))
    samples.store(unit, report.samples)
    _take_findings(unit, report, _take_xids(unit, report.xids))
    if report.nvml_error:
        reason = f"NVML does not answer: {report.nvml_error}"
        nodes.silence(unit, node, reason, _once(unit, nodes.entity(node.host), reason))
    else:
        _take_presence(unit, report)
    return True


def _once(unit: Unit, entity: str, summary: str) -> devices.Cause:
    """A TELEMETRY event that is written when it is first needed, and then shared."""
    written: list[EventId] = []

    def cause() -> EventId:
        if not written:
            written.append(unit.event(EventKind.TELEMETRY, entity, summary))
        return written[0]

    return cause


def _take_presence(unit: Unit, report: NodeReport) -> None:
    """Who is there and who is not. After the findings, so that an Xid 79 is the cause and the empty slot only confirms it."""
    host = report.host.host
    listed = {facts.uuid for facts in report.devices}
    again = _once(unit, nodes.entity(host), f"{host} reports again")
    for uuid, row in devices.on_host(unit, host).items():
        if uuid in listed:
            devices.apply(unit, row, machine.Reported(), again)
        else:
            summary = f"NVML on {host} shows {len(listed)} devices, and not this one"
            devices.apply(unit, row, machine.Missing(), _once(unit, devices.entity(uuid), summary))


def _take_xids(unit: Unit, xids: tuple[XidEvent, ...]) -> dict[tuple[DeviceUuid, int], EventId]:
    """The event of the newest Xid by (device, code). One that was told before keeps its event."""
    events: dict[tuple[DeviceUuid, int], EventId] = {}
    for xid in sorted(xids, key=lambda x: (x.at_ns, x.uuid, x.code, x.source)):
        same = (
            XidRow.uuid == xid.uuid,
            XidRow.code == xid.code,
            XidRow.at_ns == xid.at_ns,
            XidRow.source == xid.source,
        )
        row = unit.session.scalars(select(XidRow).where(*same)).one_or_none()
        if row is None:
            body = {"code": xid.code, "source": xid.source, "at_ns": xid.at_ns}
            event = unit.event(
                EventKind.TELEMETRY, devices.entity(xid.uuid), f"Xid {xid.code} (from {xid.source})", body=body
            )
            row = XidRow(uuid=xid.uuid, code=xid.code, at_ns=xid.at_ns, source=xid.source, event_id=event)
            unit.session.add(row)
        events[xid.uuid, xid.code] = EventId(row.event_id)
    return events


def _take_findings(unit: Unit, report: NodeReport, xids: dict[tuple[DeviceUuid, int], EventId]) -> None:
    newest = {sample.uuid: sample for sample in sorted(report.samples, key=lambda s: s.at_ns)}
    evidence: dict[DeviceUuid, EventId] = {}
    for finding in sorted(report.findings, key=lambda f: (f.at_ns, f.uuid, f.rule_id)):
        row = unit.session.get(FindingRow, (finding.uuid, finding.rule_id))
        basis = _xid_behind(unit, finding, xids)
        if basis == NO_CAUSE and row is not None and _repeats(unit, row, finding):
            basis = EventId(row.basis_id)
        if basis == NO_CAUSE:
            if finding.uuid not in evidence:
                evidence[finding.uuid] = _sample_event(unit, finding.uuid, newest.get(finding.uuid))
            basis = evidence[finding.uuid]
        found(unit, finding, basis)


def found(unit: Unit, finding: Finding, basis: EventId) -> None:
    """Keep a finding that rests on event `basis`, and feed it to the device's machine."""
    row = unit.session.get(FindingRow, (finding.uuid, finding.rule_id))
    if row is not None and row.basis_id == basis and row.advice == finding.advice.value:
        row.last_ns, row.repeats = unit.now_ns, row.repeats + 1
    else:
        row = row or FindingRow(uuid=finding.uuid, rule_id=finding.rule_id)
        row.rule_version, row.advice = finding.rule_version, finding.advice.value
        row.first_ns, row.last_ns, row.repeats, row.basis_id = unit.now_ns, unit.now_ns, 0, basis
        body = {"rule": finding.rule_id, "version": finding.rule_version, "advice": finding.advice.value}
        body |= {"at_ns": finding.at_ns, "evidence": dict(finding.evidence)}
        row.event_id = unit.event(EventKind.FINDING, devices.entity(finding.uuid), finding.summary, basis, body)
        unit.session.add(row)
    device = unit.session.get(DeviceRow, finding.uuid)
    if device is not None:
        devices.apply(unit, device, machine.Found(finding), EventId(row.event_id))


def _repeats(unit: Unit, row: FindingRow, finding: Finding) -> bool:
    """Whether it was told a moment ago, and the device has not been moved since (by an operator, say)."""
    device = unit.session.get(DeviceRow, finding.uuid)
    moved = device is not None and device.since_ns > row.last_ns
    recent = unit.now_ns - row.last_ns <= FINDING_REPEAT_S * nodes.SECOND_NS
    return row.advice == finding.advice.value and recent and not moved


def _xid_behind(unit: Unit, finding: Finding, told: dict[tuple[DeviceUuid, int], EventId]) -> EventId:
    code = finding.evidence.get("xid")
    if not isinstance(code, int):
        return NO_CAUSE
    if (finding.uuid, code) in told:
        return told[finding.uuid, code]
    earlier = select(XidRow.event_id).where(XidRow.uuid == finding.uuid, XidRow.code == code)
    return EventId(unit.session.scalar(earlier.order_by(XidRow.at_ns.desc(), XidRow.id.desc()).limit(1)) or NO_CAUSE)


def _sample_event(unit: Unit, uuid: DeviceUuid, sample: Sample | None) -> EventId:
    """Write down the reading that a finding was made of; raw samples are not kept for long."""
    if sample is None:
        stored = unit.session.scalars(
            select(SampleRow).where(SampleRow.uuid == uuid).order_by(SampleRow.at_ns.desc()).limit(1)
        ).one_or_none()
        if stored is None:
            return NO_CAUSE
        sample = samples.sample_of(stored)
    return unit.event(EventKind.TELEMETRY, devices.entity(uuid), samples.in_words(sample), body=asdict(sample))
