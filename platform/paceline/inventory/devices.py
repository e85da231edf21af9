"""A device and the stimuli that move it. `health.machine` decides; here its decision becomes rows and events."""

from collections.abc import Callable
from typing import Any, assert_never

from sqlalchemy import select

from paceline.health import machine
from paceline.health.machine import Hold, MoveLease, Probe, Stimulus, Unhold
from paceline.inventory import leases
from paceline.inventory.tables import DeviceRow
from paceline.inventory.unit import Unit
from paceline.model.errors import BadRequest, NotFound
from paceline.model.events import EventKind
from paceline.model.hardware import DeviceFacts, DeviceState
from paceline.model.health import NodeReport
from paceline.model.ids import DeviceUuid, EventId

Cause = EventId | Callable[[], EventId]
"""Why a stimulus came: an event, or a function that writes that event, called only if something comes of the stimulus."""


def entity(uuid: str) -> str:
    return f"device:{uuid}"


def get(unit: Unit, uuid: str) -> DeviceRow:
    row = unit.session.get(DeviceRow, uuid)
    if row is None:
        raise no_such_device(uuid)
    return row


def no_such_device(uuid: str) -> NotFound:
    return NotFound("PL-FIND-001", f"no device {uuid} is known", "`paceline get devices` lists them")


def apply(unit: Unit, row: DeviceRow, stimulus: Stimulus, cause: Cause, kind: EventKind = EventKind.VERDICT) -> bool:
    """Feed one stimulus. Writes a `kind` event if the state changed; returns whether it did."""
    before = _state_of(row)
    after, instructions = machine.step(before, stimulus, unit.now_ns)
    if after == before and not instructions:
        return False
    row.clean_probes, row.bad_findings = after.clean_probes, after.bad_findings
    row.before_unknown = after.before_unknown.value if after.before_unknown else None
    row.reason, row.since_ns = after.reason, after.since_ns
    moved = after.state is not before.state
    if moved:
        row.state = after.state.value
        row.cause_id = unit.event(
            kind,
            entity(row.uuid),
            f"{before.state.value} → {after.state.value}: {after.reason}",
            cause() if callable(cause) else cause,
            {
                "from": before.state.value,
                "to": after.state.value,
                "reason": after.reason,
                "host": row.host,
                "index": row.index,
            }
            | {"instructions": [type(i).__name__ for i in instructions]},
        )
        unit.touch()
    for instruction in instructions:
        _carry_out(unit, row, instruction)
    return moved


def _carry_out(unit: Unit, row: DeviceRow, instruction: machine.Instruction) -> None:
    match instruction:
        case MoveLease(uuid, reason):
            leases.move(unit, uuid, EventId(row.cause_id), reason)
        case Hold() | Unhold() | Probe():
            pass  # the state says it: placement holds, gives back and probes by what the snapshot shows
        case _:
            assert_never(instruction)


def _state_of(row: DeviceRow) -> machine.Device:
    return machine.Device(
        uuid=DeviceUuid(row.uuid),
        state=DeviceState(row.state),
        since_ns=row.since_ns,
        reason=row.reason,
        clean_probes=row.clean_probes,
        bad_findings=row.bad_findings,
        before_unknown=DeviceState(row.before_unknown) if row.before_unknown else None,
    )


def on_host(unit: Unit, host: str) -> dict[str, DeviceRow]:
    """Devices that the inventory places on `host`, by uuid; retired ones left out."""
    wanted = select(DeviceRow).where(DeviceRow.host == host, DeviceRow.state != DeviceState.RETIRED.value)
    return {row.uuid: row for row in unit.session.scalars(wanted.order_by(DeviceRow.uuid))}


def see(unit: Unit, facts: DeviceFacts, report: NodeReport, row: DeviceRow | None) -> DeviceRow:
    """The device is in a report: its row, new or brought up to date. Feeds no stimulus but Appeared.

    `row` is what its host is known to hold; None also for a device that has moved here.
    """
    row = row or unit.session.get(DeviceRow, facts.uuid)
    if row is None:
        return _appear(unit, facts, report)
    place = {"host": report.host.host, "node_id": report.node_id, "index": facts.index, "sku": facts.sku}
    changed = {key: value for key, value in (place | _facts(facts)).items() if getattr(row, key) != value}
    if not changed:
        row.seen_ns = unit.now_ns
        return row
    if "node_id" in changed:
        row.held = False  # a hold dies with the raylet that kept it
    if changed.keys() & {"host", "index", "driver_version", "serial"}:
        what = ", ".join(f"{key} is now {value}" for key, value in sorted(changed.items()) if key != "node_id")
        unit.event(EventKind.TELEMETRY, entity(row.uuid), what, body={"changed": changed})
    if changed.keys() & place.keys():
        unit.touch()
    for key, value in changed.items():
        setattr(row, key, value)
    row.seen_ns = unit.now_ns
    return row


def _facts(facts: DeviceFacts) -> dict[str, Any]:
    names = ("serial", "pci_bus_id", "product", "memory_bytes", "power_cap_w", "driver_version", "mig_profile")
    return {name: getattr(facts, name) for name in names}


def _appear(unit: Unit, facts: DeviceFacts, report: NodeReport) -> DeviceRow:
    row = DeviceRow(
        uuid=facts.uuid,
        host=report.host.host,
        node_id=report.node_id,
        index=facts.index,
        sku=facts.sku,
        first_seen_ns=unit.now_ns,
        seen_ns=unit.now_ns,
        state=DeviceState.NEW.value,
        since_ns=unit.now_ns,
        reason="",
        clean_probes=0,
        bad_findings=0,
        cause_id=0,
        held=False,
        **_facts(facts),
    )
    unit.session.add(row)
    seen = unit.event(
        EventKind.TELEMETRY,
        entity(facts.uuid),
        f"first seen on {row.host} as GPU {row.index}: {row.sku}",
        body={"host": row.host, "index": row.index, "sku": row.sku, "serial": row.serial},
    )
    apply(unit, row, machine.Appeared(), seen)
    return row


def holds(unit: Unit, held: list[str], released: list[str]) -> None:
    """Placement has checked on Ray that `held` cannot be given out and that `released` may be. Unknown ones are ignored."""
    wanted = select(DeviceRow).where(DeviceRow.uuid.in_({*held, *released})).order_by(DeviceRow.uuid)
    for row in unit.session.scalars(wanted).all():
        if row.uuid in held:
            row.held = True
            apply(unit, row, machine.HoldConfirmed(), EventId(row.cause_id), EventKind.QUARANTINED)
        elif row.held:
            row.held = False
            unit.event(EventKind.RELEASED, entity(row.uuid), "Ray may give the device out again", row.cause_id)


def quarantine(unit: Unit, uuid: str, reason: str, who: str) -> None:
    """An operator takes a device out of service."""
    row = get(unit, uuid)
    done = _operator(unit, row, "quarantine", reason, who)
    apply(unit, row, machine.OperatorQuarantine(reason), done)


def release(unit: Unit, uuid: str, reason: str, who: str) -> None:
    """An operator lets a device prove itself again. Raises BadRequest where that would change nothing."""
    row = get(unit, uuid)
    why_not = machine.why_not_release(_state_of(row))
    if why_not is not None:
        raise BadRequest(
            "PL-REQ-011",
            f"{uuid} cannot be released: {why_not}",
            f"`paceline story device {uuid}` tells how it got there",
        )
    done = _operator(unit, row, "release", reason, who)
    apply(unit, row, machine.OperatorRelease(reason), done)


def _operator(unit: Unit, row: DeviceRow, action: str, reason: str, who: str) -> EventId:
    if not reason.strip():
        raise BadRequest("PL-REQ-010", f"a {action} needs a reason", 'say why: --reason "…"; it is kept in the history')
    body = {"action": action, "who": who, "reason": reason, "state": row.state}
    return unit.event(EventKind.OPERATOR, entity(row.uuid), f"{who}: {action} ({reason})", row.cause_id, body)
