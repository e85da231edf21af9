"""Lives of raylets: who reports, whom Ray calls alive, who fell silent."""

from typing import Final

from sqlalchemy import delete, select

from paceline.health import machine
from paceline.inventory import devices
from paceline.inventory.tables import DeviceRow, HostRow, NodeRow, ReportSeenRow
from paceline.inventory.unit import Unit
from paceline.model.events import EventKind
from paceline.model.hardware import NodeState
from paceline.model.health import NodeReport
from paceline.model.ids import EventId
from paceline.sdk.rows import AliveNode

SECOND_NS: Final = 1_000_000_000
REPORT_PERIOD_S: Final = 1
"""A health actor reports about once a second."""
SILENT_S: Final = 10
"""Without a report for this long the devices of a node are UNKNOWN. Long enough for a restart of a health actor (2 to 4 s with
its imports) and for a full garbage collection on the host; short enough that no gang is planned onto a machine that hangs."""
JOIN_GRACE_S: Final = 6
"""Ray's list of nodes is taken every 2 s; a raylet younger than three lists may not be in it yet."""
assert SILENT_S >= 5 * REPORT_PERIOD_S, "a few lost reports must not make a node UNKNOWN"
assert JOIN_GRACE_S < SILENT_S, "a node that never reports must not hide behind its youth"


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
    if node.state in (NodeState.JOINING.value, NodeState.LOST.value):
        _enter(unit, node, NodeState.READY, "reports")
    elif node.reason != "reports":
        node.reason = "reports"
        unit.touch()
    return node


def _take_host(unit: Unit, report: NodeReport, host: HostRow | None) -> None:
    facts = report.host
    if host is None:
        host = HostRow(host=facts.host, first_seen_ns=unit.now_ns, node_id=report.node_id)
        unit.session.add(host)
        unit.touch()
    elif host.node_id != report.node_id:
        before = unit.session.get(NodeRow, host.node_id)
        if before is not None and before.state != NodeState.LOST.value:
            before.alive = False
            _enter(unit, before, NodeState.LOST, "its host has started another raylet")
        host.node_id = report.node_id
        unit.touch()
    host.address, host.boot_id, host.simulated = facts.address, facts.boot_id, facts.simulated
    host.seen_ns = unit.now_ns


def alive(unit: Unit, listed: list[AliveNode], at_ns: int) -> None:
    """The raylets that Ray calls alive, all of them. The others are LOST, and their devices UNKNOWN."""
    named: dict[str, AliveNode] = {node.node_id: node for node in listed}
    known = {row.node_id: row for row in unit.session.scalars(select(NodeRow).order_by(NodeRow.node_id))}
    for node_id, node in sorted(named.items()):
        row = known.get(node_id) or _join(unit, node_id, node.host_hint, node.address)
        row.alive, row.alive_ns = True, unit.now_ns
        if row.state == NodeState.LOST.value and _is_present(unit, row):
            _enter(unit, row, NodeState.JOINING, "Ray lists it again")
    for row in known.values():
        young = at_ns - row.joined_ns < JOIN_GRACE_S * SECOND_NS
        if row.node_id in named or young or (row.state == NodeState.LOST.value and not row.alive):
            continue
        row.alive = False
        if row.state != NodeState.LOST.value:
            _enter(unit, row, NodeState.LOST, "Ray no longer calls it alive")
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
            _enter(unit, row, NodeState.LOST, f"{reason}, and Ray's list of nodes does not name it")
        else:
            row.reason = reason
            row.event_id = unit.event(
                EventKind.NODE, entity(row.host), f"{row.state}: {reason}", body={"node_id": row.node_id}
            )
            unit.touch()
        silence(unit, row, reason, EventId(row.event_id))
    old = unit.now_ns - 3600 * SECOND_NS
    unit.session.execute(delete(ReportSeenRow).where(ReportSeenRow.at_ns < old))


def silence(unit: Unit, node: NodeRow, reason: str, cause: devices.Cause) -> None:
    """Nothing is known any more about the devices of `node`."""
    rows = unit.session.scalars(
        select(DeviceRow).where(DeviceRow.node_id == node.node_id).order_by(DeviceRow.uuid)
    ).all()
    for row in rows:
        devices.apply(unit, row, machine.Silent(reason), cause)


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


def _enter(unit: Unit, row: NodeRow, state: NodeState, reason: str) -> None:
    row.state, row.reason, row.since_ns = state.value, reason, unit.now_ns
    body = {"node_id": row.node_id, "reason": reason}
    row.event_id = unit.event(EventKind.NODE, entity(row.host), f"{state.value}: {reason}", row.event_id, body)
    unit.touch()
