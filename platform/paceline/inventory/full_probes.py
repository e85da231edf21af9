"""Full probes of hosts: kept, compared with hosts that are alike, and fed to the rules about machines."""

from collections.abc import Iterable, Sequence
from statistics import median

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from paceline.health.rules import mode_of
from paceline.inventory import devices, nodes, reports
from paceline.inventory.tables import HostRow, NodeMeasurementRow
from paceline.inventory.unit import Unit
from paceline.model.events import EventKind
from paceline.model.health import NodeFinding, RuleMode
from paceline.model.ids import EventId, HostName
from paceline.model.measurement import NodeMeasurement
from paceline.placement import exchange_score
from paceline.sdk import rows_health as rows


def take(unit: Unit, measurements: Iterable[NodeMeasurement]) -> None:
    """Keep the measurements of one full probe and act on them. What was taken before changes nothing."""
    fresh = [m for m in sorted(measurements, key=lambda m: m.benchmark) if not _is_known(unit, m)]
    if not fresh:
        return
    host = nodes.get(unit, fresh[0].host)
    slow = [finding for m in fresh if (finding := _keep(unit, host, m)) is not None]
    host.probed_ns = unit.now_ns
    unit.touch()
    for finding in (*exchange_score.wrong(fresh), *slow):
        event = reports.node_event(unit, nodes.entity(host.host), finding)
        nodes.advised(unit, host, finding, event, mode_of(unit.rules, finding.rule_id) is RuleMode.SHADOW)


def _is_known(unit: Unit, m: NodeMeasurement) -> bool:
    same = select(NodeMeasurementRow.id).where(
        NodeMeasurementRow.host == m.host,
        NodeMeasurementRow.benchmark == m.benchmark,
        NodeMeasurementRow.at_ns == m.at_ns,
    )
    return unit.session.scalar(same) is not None


def _keep(unit: Unit, host: HostRow, m: NodeMeasurement) -> NodeFinding | None:
    """The finding that it is slow, if it is."""
    sku = devices.get(unit, m.devices[0]).sku if m.devices else ""
    row = NodeMeasurementRow(
        host=m.host,
        sku=sku,
        devices=len(m.devices),
        benchmark=m.benchmark,
        version=m.version,
        at_ns=m.at_ns,
        repetitions_s=list(m.repetitions_s),
        ok=m.ok,
        error=m.error,
        bytes=m.bytes,
        relative=None,
    )
    row.event_id = _tell(unit, host, m)
    unit.session.add(row)
    unit.session.flush()
    if not m.ok or not m.repetitions_s:
        return None
    alike = _newest_of_each(unit.session, row)
    row.relative = exchange_score.relative(alike)[m.host]
    return exchange_score.slow(m.host, m.benchmark, alike, unit.now_ns)


def _tell(unit: Unit, host: HostRow, m: NodeMeasurement) -> EventId:
    said = f"failed: {m.error}" if not m.ok else f"median {median(m.repetitions_s) * 1e3:.2f} ms"
    summary = f"full probe of {len(m.devices)} devices: {m.benchmark} {said}"
    body = {"devices": list(m.devices), "benchmark": m.benchmark, "version": m.version, "ok": m.ok}
    body |= {"repetitions_s": list(m.repetitions_s), "error": m.error}
    return unit.event(EventKind.MEASURED, nodes.entity(host.host), summary, body=body)


def _newest_of_each(session: Session, row: NodeMeasurementRow) -> dict[HostName, float]:
    """Seconds of the newest good measurement of each host with as many devices of the same SKU."""
    table = NodeMeasurementRow
    same = (table.sku == row.sku, table.benchmark == row.benchmark, table.version == row.version)
    newest = select(func.max(table.at_ns)).where(*same, table.devices == row.devices, table.ok)
    by_host = newest.add_columns(table.host).group_by(table.host).subquery()
    wanted = select(table).join(by_host, (table.host == by_host.c.host) & (table.at_ns == by_host.c[0]))
    found = session.scalars(wanted.where(*same).order_by(table.host))
    return {HostName(one.host): median(one.repetitions_s) for one in found if one.repetitions_s}


def newest(session: Session, host: str) -> Sequence[rows.NodeMeasurementRow]:
    """The last one of each benchmark."""
    last = (
        select(NodeMeasurementRow.benchmark, func.max(NodeMeasurementRow.at_ns).label("at_ns"))
        .where(NodeMeasurementRow.host == host)
        .group_by(NodeMeasurementRow.benchmark)
        .subquery()
    )
    wanted = select(NodeMeasurementRow).join(
        last, (NodeMeasurementRow.benchmark == last.c.benchmark) & (NodeMeasurementRow.at_ns == last.c.at_ns)
    )
    found = session.scalars(wanted.where(NodeMeasurementRow.host == host).order_by(NodeMeasurementRow.benchmark))
    return [_row(row) for row in found]


def _row(row: NodeMeasurementRow) -> rows.NodeMeasurementRow:
    seconds = median(row.repetitions_s) if row.repetitions_s else None
    return rows.NodeMeasurementRow(
        benchmark=row.benchmark,
        devices=row.devices,
        at_ns=row.at_ns,
        ok=row.ok,
        error=row.error,
        seconds=seconds,
        bus_gbps=row.bytes / seconds / 1e9 if seconds else None,
        relative=row.relative,
    )
