"""What was seen where, and under which job: so that one finding is judged beside the others. `health.correlate` decides."""

from typing import Final

from sqlalchemy import delete, or_, select

from paceline.health.correlate import BURST_NS, LOOK_BACK_NS, Correlation, Kind, Sighting, code_of, explain
from paceline.inventory.tables import DeviceRow, EventRow, LeaseDeviceRow, LeaseRow, SightingRow
from paceline.inventory.unit import Unit
from paceline.model.events import EventKind
from paceline.model.health import Finding
from paceline.model.ids import DeviceUuid, EventId, HostName, JobId

KEPT_NS: Final = 2 * LOOK_BACK_NS


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


def excuse(unit: Unit, device: DeviceRow, finding: Finding) -> str | None:
    """Why the program that ran there, and not the device, is to blame for a finding; None where nothing says so."""
    seen = _around(unit, device.uuid, unit.now_ns - BURST_NS)
    for one in explain(seen, unit.now_ns):
        if one.kind is Kind.APPLICATION and one.code_or_rule == code_of(finding) and finding.uuid in one.uuids:
            return one.why
    return None


def record(unit: Unit, device: DeviceRow, finding: Finding, event: EventId) -> None:
    """Write down what points at the hardware or at the fabric, as an event that the finding has caused. Once a day."""
    code = code_of(finding)
    for one in explain(_around(unit, device.uuid, unit.now_ns - LOOK_BACK_NS), unit.now_ns):
        if one.kind is not Kind.APPLICATION and finding.uuid in one.uuids and one.code_or_rule in (code, ""):
            _tell(unit, device, one, event)


def _tell(unit: Unit, device: DeviceRow, one: Correlation, event: EventId) -> None:
    entity = f"device:{device.uuid}"
    summary = f"{one.kind.value.lower()} is to blame: {one.why}"
    since = EventRow.at_ns > unit.now_ns - LOOK_BACK_NS
    told = select(EventRow.id).where(EventRow.entity == entity, EventRow.summary == summary, since).limit(1)
    if unit.session.scalar(told) is None:
        body = {"rule": one.rule_id, "kind": one.kind.value, "devices": list(one.uuids), "domain": one.domain}
        unit.event(EventKind.FINDING, entity, summary, event, body)


def _around(unit: Unit, uuid: str, since_ns: int) -> list[Sighting]:
    """Sightings on a device, and on the others of the jobs that had it."""
    mine = select(SightingRow.job_id).where(SightingRow.uuid == uuid, SightingRow.at_ns > since_ns)
    jobs = {job for job in unit.session.scalars(mine.distinct()) if job}
    here = or_(SightingRow.uuid == uuid, SightingRow.job_id.in_(jobs))
    found = select(SightingRow).where(here, SightingRow.at_ns > since_ns).order_by(SightingRow.id)
    return [
        Sighting(DeviceUuid(s.uuid), HostName(s.host), "", s.code_or_rule, JobId(s.job_id), s.at_ns)
        for s in unit.session.scalars(found)
    ]


def drop_old(unit: Unit) -> None:
    unit.session.execute(delete(SightingRow).where(SightingRow.at_ns < unit.now_ns - KEPT_NS))
