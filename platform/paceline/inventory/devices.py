"""A device and the stimuli that move it. `health.machine` decides; here its decision becomes rows and events."""

from collections.abc import Callable
from typing import Any, Final, assert_never

from sqlalchemy import select

from paceline.health import machine
from paceline.health.machine import Hold, MoveLease, Probe, Stimulus, Unhold
from paceline.inventory import alerts, leases, repairs, stimuli, verdicts
from paceline.inventory.tables import DeviceRow, EventRow, HostRow
from paceline.inventory.unit import Unit
from paceline.model.errors import NotFound
from paceline.model.events import EventKind
from paceline.model.hardware import DeviceFacts, DeviceState
from paceline.model.health import NodeReport, RepairAction
from paceline.model.ids import NO_CAUSE, DeviceUuid, EventId
from paceline.sdk.rows_health import AlertKind, VerdictMode

Cause = EventId | Callable[[], EventId]
"""Why a stimulus came: an event, or a function that writes that event, called only if something comes of the stimulus."""

BREAKER_QUIET_S: Final = 600
"""One alert for each cohort while the breaker's window lasts: a rule with a bug speaks for hundreds of devices."""
REPLACE_QUIET_S: Final = 24 * 3600


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
    """Feed one stimulus. Writes a `kind` event if the state changed; returns whether it did.

    An exclusion that the circuit breaker holds is written down and moves nothing; only a device that is not there any more becomes
    UNKNOWN then: whatever the breaker says, no gang can use it.
    """
    before = state_of(row)
    after, instructions = machine.step(before, stimulus, unit.now_ns)
    if after == before and not instructions:
        return False
    ground = verdicts.ground_of(stimulus)
    missing = isinstance(stimulus, machine.Missing)
    excluded = verdicts.excludes(before.state, after.state)
    if excluded and ground is not None and ground.automatic:
        why = verdicts.why_device_held(unit, row)
        if why is not None:
            _hold_back(unit, row, ground, (before, after), why, cause)
            return missing and apply(unit, row, machine.Silent(f"{after.reason}; {why}"), cause, kind)
    _set(row, after)
    moved = after.state is not before.state
    decided = moved or isinstance(stimulus, machine.Found)
    basis = _id(cause) if decided else NO_CAUSE
    if moved:
        row.cause_id = _moved(unit, row, (before, after), basis, kind, instructions)
        unit.touch()
    stimuli.keep(unit, before, stimulus, row.cause_id if moved else NO_CAUSE)
    if ground is not None and decided:
        event = row.cause_id if moved else basis
        states, rests_on = (before.state, after.state), evidence(unit, basis, stimulus)
        verdicts.write(unit, row, ground, VerdictMode.ENFORCE, states, after.reason, rests_on, event)
    if excluded:
        _alert(unit, row, AlertKind.DEVICE_LOST if missing else AlertKind.QUARANTINE)
    for instruction in instructions:
        _carry_out(unit, row, instruction)
    return moved


def _set(row: DeviceRow, device: machine.Device) -> None:
    row.state, row.reason, row.since_ns = device.state.value, device.reason, device.since_ns
    row.clean_probes, row.bad_findings = device.clean_probes, device.bad_findings
    row.before_unknown = device.before_unknown.value if device.before_unknown else None
    row.bad_ns, row.pardoned_ns = device.bad_ns, device.pardoned_ns


def _id(cause: Cause) -> EventId:
    return cause() if callable(cause) else cause


def _moved(
    unit: Unit,
    row: DeviceRow,
    states: tuple[machine.Device, machine.Device],
    cause: EventId,
    kind: EventKind,
    instructions: tuple[machine.Instruction, ...],
) -> EventId:
    before, after = states
    body: dict[str, Any] = {"from": before.state.value, "to": after.state.value, "reason": after.reason}
    body |= {"host": row.host, "index": row.index, "instructions": [type(i).__name__ for i in instructions]}
    summary = f"{before.state.value} → {after.state.value}: {after.reason}"
    return unit.event(kind, entity(row.uuid), summary, cause, body)


def evidence(unit: Unit, basis: EventId, stimulus: Stimulus) -> list[int]:
    """The cause; for a finding what that rests on, too: the reading, the Xid, the measurement."""
    event = unit.session.get(EventRow, basis) if isinstance(stimulus, machine.Found) else None
    return [basis, event.cause_id if event else NO_CAUSE]


def _hold_back(
    unit: Unit,
    row: DeviceRow,
    ground: verdicts.Ground,
    states: tuple[machine.Device, machine.Device],
    why: str,
    cause: Cause,
) -> None:
    """The circuit breaker holds an exclusion. Told once, however often the rule says it again."""
    if verdicts.told_already(unit, row.uuid, row.host, ground.rule_id, VerdictMode.HELD, row.since_ns):
        return
    before, after = states
    basis = _id(cause)
    body = {"rule": ground.rule_id, "to": after.state.value, "reason": after.reason, "why": why}
    event = unit.event(EventKind.FINDING, entity(row.uuid), f"not quarantined: {why}", basis, body)
    states_held = (before.state, after.state)
    verdicts.write(unit, row, ground, VerdictMode.HELD, states_held, f"{after.reason}; {why}", [basis], event)
    summary = f"{row.host}/{row.index} stays {row.state}, though {ground.rule_id} says: {after.reason}. {why}"
    key = f"breaker:{row.sku}"
    alerts.tell(unit, AlertKind.BREAKER_HELD, entity(row.uuid), summary, event, body, key, BREAKER_QUIET_S)


def _alert(unit: Unit, row: DeviceRow, kind: AlertKind) -> None:
    """The device has left service: tell it, and tell if nothing but its replacement helps."""
    where = f"{row.host}/{row.index}"
    body = {"host": row.host, "index": row.index, "serial": row.serial, "state": row.state, "reason": row.reason}
    alerts.tell(unit, kind, entity(row.uuid), f"{where} is {row.state}: {row.reason}", row.cause_id, body)
    tell_replacement(unit, row)


def tell_replacement(unit: Unit, row: DeviceRow) -> None:
    """An alert if the repair ladder has come to its end for this piece of hardware."""
    advice = repairs.advise(unit.session, row, unit.rules, unit.now_ns)
    if advice is not None and advice.action is RepairAction.REPLACE:
        summary = f"{row.host}/{row.index} (serial {row.serial}) is to be replaced: {advice.reason}"
        body = {"host": row.host, "index": row.index, "serial": row.serial, "reason": advice.reason}
        key = f"replace:{row.serial}"
        alerts.tell(unit, AlertKind.REPLACE, entity(row.uuid), summary, row.cause_id, body, key, REPLACE_QUIET_S)


def _carry_out(unit: Unit, row: DeviceRow, instruction: machine.Instruction) -> None:
    match instruction:
        case MoveLease(uuid, reason):
            leases.move(unit, uuid, EventId(row.cause_id), reason)
        case Hold() | Unhold() | Probe():
            pass  # the state says it: placement holds, gives back and probes by what the snapshot shows
        case _:
            assert_never(instruction)


def state_of(row: DeviceRow) -> machine.Device:
    return machine.Device(
        uuid=DeviceUuid(row.uuid),
        state=DeviceState(row.state),
        since_ns=row.since_ns,
        reason=row.reason,
        clean_probes=row.clean_probes,
        bad_findings=row.bad_findings,
        before_unknown=DeviceState(row.before_unknown) if row.before_unknown else None,
        bad_ns=row.bad_ns,
        pardoned_ns=row.pardoned_ns,
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
        bad_ns=0,
        pardoned_ns=0,
        cause_id=0,
        held=False,
        cordoned_ns=0,
        cordon_reason="",
        cordon_by="",
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
    cordoned = set(unit.session.scalars(select(HostRow.host).where(HostRow.cordoned_ns > 0)))
    wanted = select(DeviceRow).where(DeviceRow.uuid.in_({*held, *released})).order_by(DeviceRow.uuid)
    for row in unit.session.scalars(wanted).all():
        if row.held != (row.uuid in held) and (row.cordoned_ns or row.host in cordoned):
            unit.touch()  # the snapshot shows a cordoned device by its hold
        if row.uuid in held:
            row.held = True
            apply(unit, row, machine.HoldConfirmed(), EventId(row.cause_id), EventKind.QUARANTINED)
        elif row.held:
            row.held = False
            unit.event(EventKind.RELEASED, entity(row.uuid), "Ray may give the device out again", row.cause_id)
