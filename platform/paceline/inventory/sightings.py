"""What was seen where, and under which job: so that one finding is judged beside the others. `health.correlate` decides.

Of what is kept here, `fabric.py` looks at what several hosts of one domain have.
"""

from typing import Final

from sqlalchemy import delete, or_, select

from paceline.health.correlate import (
    BURST_NS,
    LOOK_BACK_NS,
    SILENT,
    Correlation,
    Kind,
    Sighting,
    code_of,
    explain,
)
from paceline.health.links import REPEAT_AFTER_NS
from paceline.health.xid_rules import XID_QUIET_MOST_NS
from paceline.inventory.tables import (
    DeviceRow,
    EventRow,
    FindingRow,
    HostRow,
    LeaseDeviceRow,
    LeaseRow,
    NodeRow,
    SightingRow,
)
from paceline.inventory.unit import Unit
from paceline.model.events import EventKind
from paceline.model.health import Finding, NodeFinding
from paceline.model.ids import DeviceUuid, EventId, HostName, JobId

KEPT_NS: Final = 2 * LOOK_BACK_NS
LASTS_NS: Final = 1200 * 1_000_000_000
"""A rule on a machine that speaks again within this time speaks of what it saw before."""
assert max(REPEAT_AFTER_NS, XID_QUIET_MOST_NS) < LASTS_NS, "what lasts must not look as if it began now"


def note(unit: Unit, host: str, findings: tuple[Finding, ...]) -> None:
    """Keep what a report tells, all of it, before any of it is judged."""
    uuids = {finding.uuid for finding in findings}
    if not uuids:
        return
    seats = select(LeaseDeviceRow.uuid, LeaseRow.job_id).join(LeaseRow).where(LeaseDeviceRow.held)
    jobs = dict(unit.session.execute(seats.where(LeaseDeviceRow.uuid.in_(uuids))).all())
    for uuid, code in sorted({(finding.uuid, code_of(finding)) for finding in findings}):
        unit.session.add(
            SightingRow(uuid=uuid, host=host, code_or_rule=code, job_id=jobs.get(uuid, ""), at_ns=unit.now_ns)
        )


def note_on_node(unit: Unit, host: str, finding: NodeFinding) -> None:
    """Keep the first word of a rule on a machine; before its FindingRow is brought up to date. What lasts it says again and again, and
    two hosts whose old faults are told in the same minute have no cause in common."""
    row = unit.session.get(FindingRow, (f"node:{host}", finding.rule_id))
    if row is None or unit.now_ns - row.last_ns > LASTS_NS:
        _note_host(unit, host, finding.rule_id)


def note_silence(unit: Unit, node: NodeRow) -> None:
    """A host that has reported does so no more. Once for each silence. One that is drained is meant to go away."""
    host = unit.session.get(HostRow, node.host)
    if host is None or host.node_id != node.node_id or host.drain_deadline_ns:
        return
    same = (SightingRow.host == host.host, SightingRow.code_or_rule == SILENT, SightingRow.at_ns > node.reported_ns)
    if unit.session.scalar(select(SightingRow.id).where(*same).limit(1)) is None:
        _note_host(unit, host.host, SILENT)


def _note_host(unit: Unit, host: str, code: str) -> None:
    unit.session.add(SightingRow(uuid="", host=host, code_or_rule=code, job_id="", at_ns=unit.now_ns))


def excuse(unit: Unit, device: DeviceRow, finding: Finding) -> str | None:
    """Why the program that ran there, and not the device, is to blame for a finding; None where nothing says so."""
    seen = _around(unit, device.uuid, unit.now_ns - BURST_NS)
    for one in explain(seen, unit.now_ns):
        if one.kind is Kind.APPLICATION and one.code_or_rule == code_of(finding) and finding.uuid in one.uuids:
            return one.why
    return None


def record(unit: Unit, device: DeviceRow, finding: Finding, event: EventId) -> None:
    """Write down what points at the hardware, as an event that the finding has caused. Once a day."""
    code = code_of(finding)
    for one in explain(_around(unit, device.uuid, unit.now_ns - LOOK_BACK_NS), unit.now_ns):
        if one.kind is Kind.HARDWARE and finding.uuid in one.uuids and one.code_or_rule == code:
            _tell(unit, device, one, event)


def _tell(unit: Unit, device: DeviceRow, one: Correlation, event: EventId) -> None:
    entity = f"device:{device.uuid}"
    summary = f"{one.kind.value.lower()} is to blame: {one.why}"
    since = EventRow.at_ns > unit.now_ns - LOOK_BACK_NS
    told = select(EventRow.id).where(EventRow.entity == entity, EventRow.summary == summary, since).limit(1)
    if unit.session.scalar(told) is None:
        body = {"rule": one.rule_id, "kind": one.kind.value, "devices": list(one.uuids)}
        unit.event(EventKind.FINDING, entity, summary, event, body)


def _around(unit: Unit, uuid: str, since_ns: int) -> list[Sighting]:
    """Sightings on a device, and on the others of the jobs that had it. Where their hosts stand is no matter here."""
    mine = select(SightingRow.job_id).where(SightingRow.uuid == uuid, SightingRow.at_ns > since_ns)
    jobs = {job for job in unit.session.scalars(mine.distinct()) if job}
    here = or_(SightingRow.uuid == uuid, SightingRow.job_id.in_(jobs))
    found = select(SightingRow).where(here, SightingRow.at_ns > since_ns).order_by(SightingRow.id)
    return [sighting(row, "") for row in unit.session.scalars(found)]


def sighting(row: SightingRow, domain: str) -> Sighting:
    """What was seen, as seen from one domain of its host."""
    return Sighting(DeviceUuid(row.uuid), HostName(row.host), domain, row.code_or_rule, JobId(row.job_id), row.at_ns)


def drop_old(unit: Unit) -> None:
    unit.session.execute(delete(SightingRow).where(SightingRow.at_ns < unit.now_ns - KEPT_NS))
