"""Reports of health actors: samples, Xids and findings become rows, events, verdicts and stimuli."""

from dataclasses import asdict
from typing import Final

from sqlalchemy import select

from paceline.health import machine
from paceline.health.rules import mode_of
from paceline.inventory import alerts, devices, links, nodes, samples, sightings, verdicts
from paceline.inventory.tables import DeviceRow, FindingRow, HostRow, SampleRow, XidRow
from paceline.inventory.unit import Unit
from paceline.model.events import EventKind
from paceline.model.hardware import Sample
from paceline.model.health import Advice, Finding, NodeAdvice, NodeFinding, NodeReport, RuleMode
from paceline.model.ids import NO_CAUSE, DeviceUuid, EventId
from paceline.sdk.rows_health import AlertKind, VerdictMode

FINDING_REPEAT_S: Final = 90
"""A rule that fires again within this time still means the same thing: counted, not told again. Rules that hold speak once a minute."""
SAME_XID_NS: Final = 5 * nodes.SECOND_NS
"""NVML and the kernel log tell of one Xid within this time of each other; the rules take a second one in it for the same, too."""
UNKNOWN_QUIET_S: Final = 24 * 3600
"""An Xid that is in no catalog is told of once a day, whichever device has it: somebody must look it up once."""


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
    links.store(unit, report.host.host, report.links)
    xids = _take_xids(unit, report)
    fresh = tuple(finding for finding in report.findings if not _told_in_another_life(unit, report, finding))
    sightings.note(unit, report.host.host, fresh)
    _take_findings(unit, report, fresh, xids)
    if report.nvml_error:
        reason = f"NVML does not answer: {report.nvml_error}"
        nodes.silence(unit, node, reason, _once(unit, nodes.entity(node.host), reason))
    else:
        _take_presence(unit, report)
    _take_node_findings(unit, report)
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
        if uuid in report.unreadable:
            reason = "NVML does not answer for it, and does for others"
            devices.apply(unit, row, machine.Unreadable(reason), _once(unit, devices.entity(uuid), reason))
        elif uuid in listed:
            devices.apply(unit, row, machine.Reported(), again)
        else:
            summary = f"NVML on {host} shows {len(listed)} devices, and not this one"
            devices.apply(unit, row, machine.Missing(), _once(unit, devices.entity(uuid), summary))


def _take_xids(unit: Unit, report: NodeReport) -> dict[tuple[DeviceUuid, int], EventId]:
    """The event of the newest Xid by (device, code). One that was told before keeps its event."""
    events: dict[tuple[DeviceUuid, int], EventId] = {}
    for xid in sorted(report.xids, key=lambda x: (x.at_ns, x.uuid, x.code, x.source)):
        same = (
            XidRow.uuid == xid.uuid,
            XidRow.code == xid.code,
            XidRow.at_ns == xid.at_ns,
            XidRow.source == xid.source,
        )
        row = unit.session.scalars(select(XidRow).where(*same)).one_or_none()
        if row is None:
            body = {"code": xid.code, "source": xid.source, "at_ns": xid.at_ns}
            body |= {"detail": xid.detail} if xid.detail else {}
            event = unit.event(
                EventKind.TELEMETRY, devices.entity(xid.uuid), f"Xid {xid.code} (from {xid.source})", body=body
            )
            row = XidRow(uuid=xid.uuid, code=xid.code, at_ns=xid.at_ns, source=xid.source, detail=xid.detail)
            row.boot, row.event_id = report.boot, event
            unit.session.add(row)
        events[xid.uuid, xid.code] = EventId(row.event_id)
    return events


def _take_findings(
    unit: Unit, report: NodeReport, findings: tuple[Finding, ...], xids: dict[tuple[DeviceUuid, int], EventId]
) -> None:
    newest = {sample.uuid: sample for sample in sorted(report.samples, key=lambda s: s.at_ns)}
    evidence: dict[DeviceUuid, EventId] = {}
    for finding in sorted(findings, key=lambda f: (f.at_ns, f.uuid, f.rule_id)):
        row = unit.session.get(FindingRow, (finding.uuid, finding.rule_id))
        basis = _xid_behind(unit, finding, xids)
        if basis == NO_CAUSE and row is not None and _repeats(unit, row, finding):
            basis = EventId(row.basis_id)
        if basis == NO_CAUSE:
            if finding.uuid not in evidence:
                evidence[finding.uuid] = _sample_event(unit, finding.uuid, newest.get(finding.uuid))
            basis = evidence[finding.uuid]
        found(unit, finding, basis)


def _told_in_another_life(unit: Unit, report: NodeReport, finding: Finding) -> bool:
    """Whether this is an Xid that was judged before the actor's restart: a new one reads the kernel log from the boot on."""
    code = finding.evidence.get("xid")
    if not isinstance(code, int):
        return False
    same = (XidRow.uuid == finding.uuid, XidRow.code == code, XidRow.boot != report.boot)
    near = XidRow.at_ns.between(finding.at_ns - SAME_XID_NS, finding.at_ns + SAME_XID_NS)
    return unit.session.scalar(select(XidRow.id).where(*same, near).limit(1)) is not None


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
        _alert_unknown(unit, finding, row.event_id)
    device = unit.session.get(DeviceRow, finding.uuid)
    if device is not None:
        _judge(unit, device, finding, EventId(row.event_id))


def _judge(unit: Unit, device: DeviceRow, finding: Finding, event: EventId) -> None:
    """Feed a finding to the device's machine, unless its rule is on trial, or the program that ran there explains it.

    What explains a suspicion never softens a quarantine.
    """
    if mode_of(unit.rules, finding.rule_id) is RuleMode.SHADOW:
        _write_only(unit, device, finding, event, VerdictMode.SHADOW, finding.summary)
        return
    if finding.advice is not Advice.OBSERVE and "xid" in finding.evidence:
        why = sightings.excuse(unit, device, finding) if finding.advice is Advice.SUSPECT else None
        if why is not None:
            _write_only(unit, device, finding, event, VerdictMode.EXCUSED, why)
            return
        sightings.record(unit, device, finding, event)
    devices.apply(unit, device, machine.Found(finding), event)


def _write_only(
    unit: Unit, device: DeviceRow, finding: Finding, event: EventId, mode: VerdictMode, reason: str
) -> None:
    """A verdict that moves nothing: what would have come of the finding. Once for each finding."""
    before = devices.state_of(device)
    after, instructions = machine.step(before, machine.Found(finding), unit.now_ns)
    ground = verdicts.ground_of(machine.Found(finding))
    if (after == before and not instructions) or ground is None or verdicts.told(unit, device.uuid, event, mode):
        return
    evidence = devices.evidence(unit, event, machine.Found(finding))
    if mode is VerdictMode.EXCUSED:
        unit.event(EventKind.FINDING, devices.entity(device.uuid), f"not held against the device: {reason}", event)
    verdicts.write(unit, device, ground, mode, (before.state, after.state), reason, evidence, event)


def _alert_unknown(unit: Unit, finding: Finding, event: int) -> None:
    if finding.evidence.get("known") is False:
        code = finding.evidence.get("xid")
        body = {"xid": code, "summary": finding.summary}
        key = f"unknown-xid:{code}"
        entity = devices.entity(finding.uuid)
        alerts.tell(unit, AlertKind.UNKNOWN_XID, entity, finding.summary, event, body, key, UNKNOWN_QUIET_S)


def _take_node_findings(unit: Unit, report: NodeReport) -> None:
    host = unit.session.get_one(HostRow, report.host.host)
    for finding in sorted(report.node_findings, key=lambda f: (f.at_ns, f.rule_id)):
        sightings.note_on_node(unit, host.host, finding)
        event = node_event(unit, nodes.entity(host.host), finding)
        if finding.advice is NodeAdvice.CORDON:
            nodes.advised(unit, host, finding, event, mode_of(unit.rules, finding.rule_id) is RuleMode.SHADOW)


def node_event(unit: Unit, entity: str, finding: NodeFinding) -> EventId:
    """The event of a finding on a machine. One that holds is counted, not told again."""
    row = unit.session.get(FindingRow, (entity, finding.rule_id))
    recent = row is not None and unit.now_ns - row.last_ns <= FINDING_REPEAT_S * nodes.SECOND_NS
    if row is not None and recent and row.advice == finding.advice.value:
        row.last_ns, row.repeats = unit.now_ns, row.repeats + 1
        return EventId(row.event_id)
    row = row or FindingRow(uuid=entity, rule_id=finding.rule_id)
    row.rule_version, row.advice = finding.rule_version, finding.advice.value
    row.first_ns, row.last_ns, row.repeats, row.basis_id = unit.now_ns, unit.now_ns, 0, NO_CAUSE
    body = {"rule": finding.rule_id, "version": finding.rule_version, "advice": finding.advice.value}
    body |= {"at_ns": finding.at_ns, "evidence": dict(finding.evidence)}
    event = unit.event(EventKind.FINDING, entity, finding.summary, body=body)
    row.event_id = event
    unit.session.add(row)
    return event


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
