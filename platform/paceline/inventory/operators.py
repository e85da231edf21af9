"""What an operator does by hand. Each act needs a reason, is written down with the name of the token, and is never held by the breaker."""

from typing import Any, Final

from paceline.health import machine
from paceline.inventory import devices, nodes, repairs
from paceline.inventory.tables import DeviceRow, HostRow
from paceline.inventory.unit import Unit
from paceline.model.errors import BadRequest
from paceline.model.events import EventKind
from paceline.model.hardware import DeviceState
from paceline.model.health import RepairAction
from paceline.model.ids import EventId

SHORTEST_DRAIN_S: Final = 1
LONGEST_DRAIN_S: Final = 7 * 24 * 3600


def quarantine(unit: Unit, uuid: str, reason: str, who: str) -> None:
    """Take a device out of service."""
    row = devices.get(unit, uuid)
    devices.apply(unit, row, machine.OperatorQuarantine(reason), _act(unit, row, "quarantine", reason, who))


def release(unit: Unit, uuid: str, reason: str, who: str) -> None:
    """Let a device prove itself again. Raises BadRequest where that would change nothing."""
    row = devices.get(unit, uuid)
    why_not = machine.why_not_release(devices.state_of(row))
    if why_not is not None:
        raise BadRequest(
            "PL-REQ-011",
            f"{uuid} cannot be released: {why_not}",
            f"`paceline story device {uuid}` tells how it got there",
        )
    event = _act(unit, row, "release", reason, who)
    repairs.end(unit, row, ok=True)
    devices.apply(unit, row, machine.OperatorRelease(reason), event)


def retire(unit: Unit, uuid: str, reason: str, who: str) -> None:
    """Take a device out of the fleet for good; work on it is moved."""
    row = devices.get(unit, uuid)
    if row.state == DeviceState.RETIRED.value:
        raise BadRequest("PL-REQ-017", f"{uuid} is retired already: {row.reason}", "nothing is left to do")
    event = _act(unit, row, "retire", reason, who)
    repairs.end(unit, row, ok=False)
    devices.apply(unit, row, machine.OperatorRetire(reason), event)


def repair(unit: Unit, uuid: str, action: RepairAction | None, reason: str, who: str) -> None:
    """A step of the repair ladder begins; None: the one that is advised."""
    row = devices.get(unit, uuid)
    why_not = machine.why_not_repair(devices.state_of(row))
    if why_not is not None:
        hint = "paceline quarantine DEVICE --reason … takes it out of service; wait until Ray has let it go"
        raise BadRequest("PL-REQ-018", f"{uuid} cannot be repaired now: {why_not}", hint)
    chosen = action or _advised(unit, row)
    event = _act(unit, row, "repair", reason, who, {"repair": chosen.value})
    repairs.start(unit, row, chosen, reason, who, event)
    devices.apply(unit, row, machine.RepairStarted(chosen), event)


def _advised(unit: Unit, row: DeviceRow) -> RepairAction:
    advice = repairs.advise(unit.session, row, unit.rules, unit.now_ns)
    if advice is None:
        raise BadRequest(
            "PL-REQ-024",
            f"no repair is advised for {row.uuid}: look at it",
            "name the one you choose: --action reset_gpu",
        )
    return advice.action


def repair_done(unit: Unit, uuid: str, ok: bool, reason: str, who: str) -> None:
    """The step is over: the device proves itself on probation, or stays in quarantine and the next step is due."""
    row = devices.get(unit, uuid)
    if row.state != DeviceState.REPAIR.value:
        raise BadRequest(
            "PL-REQ-019",
            f"no repair of {uuid} goes on: it is {row.state}",
            "paceline repair DEVICE --reason … begins one",
        )
    event = _act(unit, row, "repair done", reason, who, {"ok": ok})
    repairs.end(unit, row, ok)
    devices.apply(unit, row, machine.RepairEnded(ok, reason), event)
    if not ok:
        devices.tell_replacement(unit, row)


def cordon_device(unit: Unit, uuid: str, reason: str, who: str) -> None:
    """Keep a device from new work, whatever its health; the work on it goes on."""
    row = devices.get(unit, uuid)
    if row.cordoned_ns:
        raise _cordoned_already(f"{row.host}/{row.index}", row.cordon_by, row.cordon_reason)
    _act(unit, row, "cordon", reason, who)
    row.cordoned_ns, row.cordon_reason, row.cordon_by = unit.now_ns, reason, who
    unit.touch()


def uncordon_device(unit: Unit, uuid: str, reason: str, who: str) -> None:
    row = devices.get(unit, uuid)
    if not row.cordoned_ns:
        raise _not_cordoned(f"{row.host}/{row.index}", row.state)
    _act(unit, row, "uncordon", reason, who)
    row.cordoned_ns, row.cordon_reason, row.cordon_by = 0, "", ""
    unit.touch()


def cordon(unit: Unit, host: str, reason: str, who: str) -> None:
    """Nothing new is placed on a host; the work on it goes on."""
    row = nodes.get(unit, host)
    if row.cordoned_ns:
        raise _cordoned_already(host, row.cordon_by, row.cordon_reason)
    nodes.cordon(unit, row, reason, who, _act_on(unit, row, "cordon", reason, who))


def uncordon(unit: Unit, host: str, reason: str, who: str) -> None:
    row = nodes.get(unit, host)
    if not row.cordoned_ns:
        raise _not_cordoned(host, nodes.settled(row)[0].value)
    nodes.uncordon(unit, row, _act_on(unit, row, "uncordon", reason, who))


def drain(unit: Unit, host: str, deadline_s: float, reason: str, who: str) -> None:
    """Nothing new is placed on a host, and the work on it must move by the deadline. Again: another deadline."""
    row = nodes.get(unit, host)
    if not SHORTEST_DRAIN_S <= deadline_s <= LONGEST_DRAIN_S:
        raise BadRequest(
            "PL-REQ-022", f"a drain in {deadline_s:g} s cannot be", "give a deadline from 1 s to 7 days: --deadline 10m"
        )
    deadline_ns = unit.now_ns + int(deadline_s * nodes.SECOND_NS)
    event = _act_on(unit, row, "drain", reason, who, {"deadline_ns": deadline_ns})
    nodes.cordon(unit, row, reason, who, event, deadline_ns)


def probe(unit: Unit, host: str, reason: str, who: str) -> None:
    """A full probe of a host, as soon as its sound devices are idle."""
    row = nodes.get(unit, host)
    _act_on(unit, row, "full probe", reason, who)
    row.probe_asked_ns = unit.now_ns
    unit.touch()


def _cordoned_already(what: str, by: str, reason: str) -> BadRequest:
    return BadRequest(
        "PL-REQ-015", f"{what} is cordoned already, by {by}: {reason}", f"paceline uncordon {what} --reason … ends it"
    )


def _not_cordoned(what: str, state: str) -> BadRequest:
    return BadRequest("PL-REQ-016", f"{what} is not cordoned: it is {state}", "a quarantine ends by `paceline release`")


def _act(unit: Unit, row: DeviceRow, action: str, reason: str, who: str, more: dict[str, Any] | None = None) -> EventId:
    body = {"state": row.state} | (more or {})
    return _write_down(unit, devices.entity(row.uuid), action, reason, who, body, row.cause_id)


def _act_on(
    unit: Unit, row: HostRow, action: str, reason: str, who: str, more: dict[str, Any] | None = None
) -> EventId:
    return _write_down(unit, nodes.entity(row.host), action, reason, who, more or {}, row.cordon_event)


def _write_down(
    unit: Unit, entity: str, action: str, reason: str, who: str, body: dict[str, Any], cause: int
) -> EventId:
    if not reason.strip():
        raise BadRequest("PL-REQ-010", f"a {action} needs a reason", 'say why: --reason "…"; it is kept in the history')
    told = {"action": action, "who": who, "reason": reason} | body
    return unit.event(EventKind.OPERATOR, entity, f"{who}: {action} ({reason})", cause, told)
