"""The repair ladder of each piece of hardware: what was tried on it, and what comes next. `health.repair` decides."""

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from paceline.health import repair
from paceline.health.correlate import code_of
from paceline.health.rules import Rule, mode_of
from paceline.inventory.tables import (
    DeviceRow,
    EventRow,
    FindingRow,
    HostRow,
    LeaseDeviceRow,
    RepairRow,
    SampleRow,
)
from paceline.inventory.unit import Unit
from paceline.model.health import Advice, Finding, RepairAction, RuleMode
from paceline.model.ids import DeviceUuid, EventId
from paceline.sdk import rows_health as rows


def advise(session: Session, row: DeviceRow, rules: Mapping[str, Rule], now_ns: int) -> rows.RepairAdvice | None:
    """The next step for a device that is out of service; None where a human must look."""
    finding = _worst(session, row, rules)
    if finding is None:
        return None
    newest = select(SampleRow.recovery_action).where(SampleRow.uuid == row.uuid).order_by(SampleRow.at_ns.desc())
    wanted = repair.wanted(finding, rules.get(finding.rule_id), session.scalar(newest.limit(1)))
    if wanted is None:
        return None
    tried = select(RepairRow).where(RepairRow.serial == row.serial, RepairRow.ok.is_not(None)).order_by(RepairRow.id)
    history = [
        repair.RepairRecord(RepairAction(r.action), r.code, r.ended_ns, bool(r.ok)) for r in session.scalars(tried)
    ]
    host = session.get(HostRow, row.host)
    peers = (
        select(DeviceRow.uuid)
        .join(LeaseDeviceRow, LeaseDeviceRow.uuid == DeviceRow.uuid)
        .where(DeviceRow.host == row.host, DeviceRow.uuid != row.uuid, LeaseDeviceRow.held)
    )
    busy = [DeviceUuid(uuid) for uuid in session.scalars(peers.order_by(DeviceRow.uuid))]
    plan = repair.next_action(wanted, code_of(finding), history, now_ns, bool(host and host.nvswitch), busy)
    return rows.RepairAdvice(action=plan.action, reason=plan.reason, wait_for=plan.wait_for)


def _worst(session: Session, row: DeviceRow, rules: Mapping[str, Rule]) -> Finding | None:
    """The newest finding on a device that asked for more than a look, by a rule that is in force."""
    bad = select(FindingRow).where(FindingRow.uuid == row.uuid, FindingRow.advice != Advice.OBSERVE.value)
    newest = session.scalars(bad.order_by(FindingRow.last_ns.desc(), FindingRow.event_id.desc()))
    found = next((one for one in newest if mode_of(rules, one.rule_id) is RuleMode.ENFORCE), None)
    event = session.get(EventRow, found.event_id) if found is not None else None
    if found is None or event is None:
        return None
    advice, evidence = Advice(found.advice), event.body["evidence"]
    uuid = DeviceUuid(row.uuid)
    return Finding(found.rule_id, found.rule_version, uuid, advice, found.last_ns, event.summary, evidence)


def start(unit: Unit, row: DeviceRow, action: RepairAction, reason: str, who: str, event: EventId) -> None:
    """Write down that a step has begun. The device's machine is told by the caller."""
    finding = _worst(unit.session, row, unit.rules)
    unit.session.add(
        RepairRow(
            serial=row.serial,
            uuid=row.uuid,
            action=action.value,
            code=code_of(finding) if finding else "",
            at_ns=unit.now_ns,
            ended_ns=0,
            ok=None,
            reason=reason,
            who=who,
            event_id=event,
        )
    )


def end(unit: Unit, row: DeviceRow, ok: bool) -> None:
    """Write down how the step that goes on has ended, if one does."""
    going_on = select(RepairRow).where(RepairRow.uuid == row.uuid, RepairRow.ok.is_(None))
    for step in unit.session.scalars(going_on.order_by(RepairRow.id)):
        step.ok, step.ended_ns = ok, unit.now_ns


def of_device(session: Session, uuid: str) -> tuple[rows.RepairRow, ...]:
    """The newest first."""
    wanted = select(RepairRow).where(RepairRow.uuid == uuid).order_by(RepairRow.id.desc())
    return tuple(rows.RepairRow.model_validate(row) for row in session.scalars(wanted))
