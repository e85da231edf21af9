"""Lives of raylets: who reports, whom Ray calls alive, who fell silent."""

from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from paceline.health import machine
from paceline.inventory import alerts, devices, leases, sightings, verdicts
from paceline.inventory.tables import DeviceRow, HostRow, LeaseDeviceRow, LeaseRow, NodeRow, ReportSeenRow
from paceline.inventory.unit import Unit
from paceline.model.errors import NotFound
from paceline.model.events import EventKind
from paceline.model.hardware import NodeState
from paceline.model.health import NodeFinding, NodeReport
from paceline.model.ids import DeviceUuid, EventId
from paceline.sdk.rows import AliveNode
from paceline.sdk.rows_health import AlertKind, VerdictMode

SECOND_NS: Final = 1_000_000_000
REPORT_PERIOD_S: Final = 1
"""A health actor reports about once a second."""
SILENT_S: Final = 10
"""Without a report for this long the devices of a node are UNKNOWN. Long enough for a restart of a health actor (2 to 4 s with
its imports) and for a full garbage collection on the host; short enough that no gang is planned onto a machine that hangs."""
JOIN_GRACE_S: Final = 6
"""Ray's list of nodes is taken every 2 s; a raylet younger than three lists may not be in it yet."""
LATE_QUIET_S: Final = 7 * 24 * 3600
"""A drain that is late is told once."""
assert SILENT_S >= 5 * REPORT_PERIOD_S, "a few lost reports must not make a node UNKNOWN"
assert JOIN_GRACE_S < SILENT_S, "a node that never reports must not hide behind its youth"


_OPEN: Final[dict[str, Any]] = {
    "cordoned_ns": 0,
    "cordon_reason": "",
    "cordon_by": "",
    "cordon_event": 0,
    "drain_deadline_ns": 0,
    "drained_ns": 0,
}
"""A host that is not cordoned."""


def entity(host: str) -> str:
    return f"node:{host}"


def reporting(unit: Unit, report: NodeReport) -> NodeRow | None:
    """The life that sent `report`; None where it is no longer its host's present one, or Ray has declared it dead."""
    host = unit.session.get(HostRow, report.host.host)
    node = unit.session.get(NodeRow, report.node_id)
    if node is not None and not node.alive:
        return None
    if node is not None and host is not None and host.node_id != node.node_id and node.reported_ns:
        return None  # a late word from a raylet whose host has a newer one
    if node is None:
        node = _join(unit, report.node_id, report.host.host, report.host.address)
    _take_host(unit, report, host)
    node.host, node.address = report.host.host, report.host.address
    node.reported_ns = unit.now_ns
    _settle(unit, node, unit.session.get_one(HostRow, report.host.host))
    return node


def _settle(unit: Unit, node: NodeRow, host: HostRow) -> None:
    """A life that reports is READY, unless its host is cordoned: that outlives the raylet."""
    state, reason = settled(host)
    if node.state != state.value:
        enter(unit, node, state, reason)
    elif node.reason != reason:
        node.reason = reason
        unit.touch()


def settled(host: HostRow) -> tuple[NodeState, str]:
    """State of a node of `host` that reports, and why."""
    if not host.cordoned_ns:
        return NodeState.READY, "reports"
    why = f"{host.cordon_by}: {host.cordon_reason}"
    if not host.drain_deadline_ns:
        return NodeState.CORDONED, why
    return (NodeState.CORDONED, f"drained ({why})") if host.drained_ns else (NodeState.DRAINING, why)


def _take_host(unit: Unit, report: NodeReport, host: HostRow | None) -> None:
    facts = report.host
    if host is None:
        host = HostRow(host=facts.host, first_seen_ns=unit.now_ns, node_id=report.node_id, **_OPEN)
        unit.session.add(host)
        unit.touch()
    elif host.node_id != report.node_id:
        before = unit.session.get(NodeRow, host.node_id)
        if before is not None and before.state != NodeState.LOST.value:
            before.alive = False
            enter(unit, before, NodeState.LOST, "its host has started another raylet")
        host.node_id = report.node_id
        unit.touch()
    host.address, host.boot_id, host.simulated = facts.address, facts.boot_id, facts.simulated
    host.nvswitch, host.seen_ns = facts.nvswitch, unit.now_ns
    if report.agent is not None:
        host.agent, host.agent_ns = asdict(report.agent), unit.now_ns


def alive(unit: Unit, listed: list[AliveNode], at_ns: int) -> None:
    """The raylets that Ray calls alive, all of them. The others are LOST, and their devices UNKNOWN."""
    named: dict[str, AliveNode] = {node.node_id: node for node in listed}
    known = {row.node_id: row for row in unit.session.scalars(select(NodeRow).order_by(NodeRow.node_id))}
    for node_id, node in sorted(named.items()):
        row = known.get(node_id) or _join(unit, node_id, node.host_hint, node.address)
        row.alive, row.alive_ns, row.domains = True, unit.now_ns, node.domains
        if row.state == NodeState.LOST.value and _is_present(unit, row):
            enter(unit, row, NodeState.JOINING, "Ray lists it again")
    for row in known.values():
        young = at_ns - row.joined_ns < JOIN_GRACE_S * SECOND_NS
        if row.node_id in named or young or (row.state == NodeState.LOST.value and not row.alive):
            continue
        row.alive = False
        if row.state != NodeState.LOST.value:
            enter(unit, row, NodeState.LOST, "Ray no longer calls it alive")
        sightings.note_silence(unit, row)
        silence(unit, row, "its node is lost: Ray no longer calls it alive", EventId(row.event_id))


def sweep(unit: Unit, listening_since_ns: int) -> None:
    """Nodes that fell silent. Silence before the server listened is the server's own and does not count."""
    for row in unit.session.scalars(
        select(NodeRow).where(NodeRow.state != NodeState.LOST.value).order_by(NodeRow.node_id)
    ):
        heard = max(row.reported_ns, row.joined_ns, listening_since_ns)
        if unit.now_ns - heard < SILENT_S * SECOND_NS:
            continue
        reason = f"no report for {SILENT_S} s"
        if row.reason == reason and row.alive:
            continue
        if unit.now_ns - max(row.alive_ns, heard) >= SILENT_S * SECOND_NS:
            enter(unit, row, NodeState.LOST, f"{reason}, and Ray's list of nodes does not name it")
        else:
            row.reason = reason
            row.event_id = unit.event(
                EventKind.NODE, entity(row.host), f"{row.state}: {reason}", body={"node_id": row.node_id}
            )
            unit.touch()
        sightings.note_silence(unit, row)
        silence(unit, row, reason, EventId(row.event_id))
    for host in unit.session.scalars(
        select(HostRow).where(HostRow.drain_deadline_ns > 0, HostRow.drained_ns == 0).order_by(HostRow.host)
    ).all():
        drain_on(unit, host)
    old = unit.now_ns - 3600 * SECOND_NS
    unit.session.execute(delete(ReportSeenRow).where(ReportSeenRow.at_ns < old))


def silence(unit: Unit, node: NodeRow, reason: str, cause: devices.Cause) -> None:
    """Nothing is known any more about the devices of `node`."""
    rows = unit.session.scalars(
        select(DeviceRow).where(DeviceRow.node_id == node.node_id).order_by(DeviceRow.uuid)
    ).all()
    for row in rows:
        devices.apply(unit, row, machine.Silent(reason), cause)


# ── cordons ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def cordon(unit: Unit, host: HostRow, reason: str, by: str, event: EventId, deadline_ns: int = 0) -> None:
    """Nothing new is placed on the host. With a deadline the work on it must move by then, the way that it leaves a bad device."""
    host.cordoned_ns = host.cordoned_ns or unit.now_ns
    host.cordon_reason, host.cordon_by, host.cordon_event = reason, by, event
    host.drain_deadline_ns, host.drained_ns = deadline_ns, 0
    unit.touch()
    _show(unit, host)
    if deadline_ns:
        drain_on(unit, host)


def uncordon(unit: Unit, host: HostRow, event: EventId) -> None:
    """The host may be used again. Work that was told to move, moves."""
    for name, value in _OPEN.items():
        setattr(host, name, value)
    host.cordon_event = event
    unit.touch()
    _show(unit, host)


def drain_on(unit: Unit, host: HostRow) -> None:
    """Tell each lease on the host to move; once none is left, the drain is done. Safe to repeat: it looks at what is there."""
    seats = (
        select(DeviceRow.uuid, LeaseRow.moving_cause)
        .join(LeaseDeviceRow, LeaseDeviceRow.uuid == DeviceRow.uuid)
        .join(LeaseRow, LeaseRow.lease_id == LeaseDeviceRow.lease_id)
        .where(DeviceRow.host == host.host, LeaseDeviceRow.held)
    )
    left = unit.session.execute(seats.order_by(DeviceRow.uuid)).all()
    if not left:
        host.drained_ns = unit.now_ns
        _show(unit, host)
        return
    reason = f"{host.host} is drained by {host.cordon_by}: {host.cordon_reason}"
    for uuid, moving in left:
        if not moving:
            leases.move(unit, DeviceUuid(uuid), EventId(host.cordon_event), reason)
    if unit.now_ns > host.drain_deadline_ns:
        summary = (
            f"the deadline of the drain of {host.host} has passed, and {len(left)} of its devices are still leased"
        )
        key = f"drain:{host.host}:{host.drain_deadline_ns}"
        body = {"host": host.host, "devices": len(left), "reason": host.cordon_reason}
        alerts.tell(unit, AlertKind.DRAIN_LATE, entity(host.host), summary, host.cordon_event, body, key, LATE_QUIET_S)


def _show(unit: Unit, host: HostRow) -> None:
    """Bring the state of the host's present raylet in line with its cordon; one that is lost stays lost."""
    node = unit.session.get(NodeRow, host.node_id)
    if node is not None and node.state not in (NodeState.JOINING.value, NodeState.LOST.value):
        state, reason = settled(host)
        if (node.state, node.reason) != (state.value, reason):
            enter(unit, node, state, reason, host.cordon_event)


def advised(unit: Unit, host: HostRow, finding: NodeFinding, event: EventId, shadow: bool) -> None:
    """A rule asks for a cordon of the host: carried out, unless the rule is on trial or the circuit breaker holds. Told once."""
    node = unit.session.get_one(NodeRow, host.node_id)
    if host.cordoned_ns:
        return
    held = None if shadow else verdicts.why_node_held(unit)
    if not shadow and held is None:
        state = node.state
        cordon(unit, host, finding.summary, f"rule {finding.rule_id}", event)
        verdicts.write_node(unit, host.host, finding, VerdictMode.ENFORCE, state, finding.summary, event)
        summary = f"{host.host} is cordoned by rule {finding.rule_id}: {finding.summary}"
        body = {"host": host.host, "rule": finding.rule_id}
        alerts.tell(unit, AlertKind.NODE_CORDONED, entity(host.host), summary, event, body)
        return
    mode = VerdictMode.SHADOW if shadow else VerdictMode.HELD
    if verdicts.told_already(unit, "", host.host, finding.rule_id, mode, node.since_ns):
        return
    reason = finding.summary + (f"; {held}" if held else "")
    verdicts.write_node(unit, host.host, finding, mode, node.state, reason, event)
    if held:
        summary = f"{host.host} stays {node.state}, though {finding.rule_id} says: {finding.summary}. {held}"
        key = f"breaker:{verdicts.NODES}"
        alerts.tell(unit, AlertKind.BREAKER_HELD, entity(host.host), summary, event, {}, key, devices.BREAKER_QUIET_S)


# ── small things ─────────────────────────────────────────────────────────────────────────────────────────────────────


def get(unit: Unit, name: str) -> HostRow:
    row = unit.session.get(HostRow, name)
    if row is None:
        raise no_such_host(name)
    return row


def domains(session: Session) -> dict[str, dict[str, str]]:
    """Failure domains of each host: kind → name. They are those of its present raylet."""
    wanted = select(HostRow.host, NodeRow.domains).join(NodeRow, NodeRow.node_id == HostRow.node_id)
    return {host: dict(told) for host, told in session.execute(wanted)}


def no_such_host(name: str) -> NotFound:
    return NotFound("PL-FIND-006", f"no host {name} has reported", "`paceline get hosts` lists them")


def first_time(unit: Unit, report: NodeReport) -> bool:
    """False if this report, or a later one of the same boot, has been taken already."""
    seen = unit.session.get(ReportSeenRow, (report.node_id, report.boot))
    if seen is not None and report.seq <= seen.seq:
        return False
    if seen is None:
        seen = ReportSeenRow(node_id=report.node_id, boot=report.boot)
        unit.session.add(seen)
    seen.seq, seen.at_ns = report.seq, unit.now_ns
    return True


def _is_present(unit: Unit, row: NodeRow) -> bool:
    host = unit.session.get(HostRow, row.host)
    return host is None or host.node_id == row.node_id


def _join(unit: Unit, node_id: str, host: str, address: str) -> NodeRow:
    row = NodeRow(
        node_id=node_id,
        host=host or node_id,
        address=address,
        state=NodeState.JOINING.value,
        reason="its health actor has not reported yet",
        since_ns=unit.now_ns,
        joined_ns=unit.now_ns,
        alive=True,
        alive_ns=0,
        reported_ns=0,
        event_id=0,
    )
    unit.session.add(row)
    row.event_id = unit.event(
        EventKind.NODE, entity(row.host), "JOINING: a raylet has started", body={"node_id": node_id}
    )
    unit.touch()
    return row


def enter(unit: Unit, row: NodeRow, state: NodeState, reason: str, cause: int = 0) -> None:
    row.state, row.reason, row.since_ns = state.value, reason, unit.now_ns
    body = {"node_id": row.node_id, "reason": reason}
    row.event_id = unit.event(EventKind.NODE, entity(row.host), f"{state.value}: {reason}", cause or row.event_id, body)
    unit.touch()
