"""Questions to the inventory. Each is answered from one moment of the database."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import Session

from paceline.inventory.devices import no_such_device
from paceline.inventory.tables import (
    DeviceRow,
    EventRow,
    HostRow,
    JobRow,
    LeaseDeviceRow,
    LeaseRow,
    MetaRow,
    NodeRow,
    SessionRow,
)
from paceline.model.events import Event, EventKind
from paceline.model.hardware import DeviceState, NodeState
from paceline.model.ids import DeviceUuid, EventId, HostName, LeaseId, NodeId
from paceline.model.plan import DeviceView, FleetSnapshot, LeaseView, NodeView
from paceline.sdk import rows

CORDONED_LOOKS: Final = {True: DeviceState.QUARANTINED, False: DeviceState.DRAINING}
"""To placement a cordoned device that is well looks like one that is on its way out, and once it is held like one that is out: Ray must
not give it out, it is not probed, and the work on it goes on unless its lease is told to move."""


def revision(session: Session) -> int:
    return session.scalars(select(MetaRow.revision).where(MetaRow.id == 1)).one()


def fleet(session: Session) -> FleetSnapshot:
    """Everything that placement knows. Of each host the present raylet; retired devices are left out."""
    holders = _holders(session)
    leases = session.scalars(select(LeaseRow).where(LeaseRow.held).order_by(LeaseRow.lease_id)).all()
    gangs = seats(session, [lease.lease_id for lease in leases])
    hosts = {row.host: row for row in session.scalars(select(HostRow))}
    return FleetSnapshot(
        revision=revision(session),
        nodes=tuple(_node(node, hosts.get(node.host)) for node in _present_nodes(session)),
        devices=tuple(
            DeviceView(
                uuid=DeviceUuid(d.uuid),
                host=HostName(d.host),
                node_id=NodeId(d.node_id),
                index=d.index,
                sku=d.sku,
                state=_looks(d, hosts[d.host].cordoned_ns > 0),
                score=d.score,
                lease_id=holders[d.uuid].lease_id if d.uuid in holders else None,
                cause_id=EventId(d.cause_id),
                scored_ns=d.scored_ns,
            )
            for d in session.scalars(_in_service())
        ),
        leases=tuple(
            LeaseView(LeaseId(x.lease_id), x.attempt_id, tuple(gangs.get(x.lease_id, ())), EventId(x.moving_cause))
            for x in leases
        ),
    )


def _node(row: NodeRow, host: HostRow | None) -> NodeView:
    """A raylet may be there before its host has reported."""
    node_id, name, state = NodeId(row.node_id), HostName(row.host), NodeState(row.state)
    if host is None:
        return NodeView(node_id, name, state, row.reason)
    return NodeView(node_id, name, state, row.reason, host.simulated, host.probe_asked_ns, host.probed_ns)


def _looks(row: DeviceRow, on_cordoned: bool) -> DeviceState:
    if row.state == DeviceState.HEALTHY.value and (row.cordoned_ns or on_cordoned):
        return CORDONED_LOOKS[row.held]
    return DeviceState(row.state)


def _in_service() -> Select[DeviceRow]:
    return (
        select(DeviceRow)
        .where(DeviceRow.state != DeviceState.RETIRED.value)
        .order_by(DeviceRow.host, DeviceRow.index, DeviceRow.uuid)
    )


def _present_nodes(session: Session) -> Sequence[NodeRow]:
    """The life that each host names, and raylets whose host has not reported yet."""
    present = or_(NodeRow.node_id.in_(select(HostRow.node_id)), NodeRow.state != NodeState.LOST.value)
    return session.scalars(select(NodeRow).where(present).order_by(NodeRow.host, NodeRow.node_id)).all()


class Holder(rows.Row):
    lease_id: LeaseId
    attempt_id: str


def _holders(session: Session) -> dict[str, Holder]:
    """Who has each leased device."""
    seats = (
        select(LeaseDeviceRow.uuid, LeaseRow.lease_id, LeaseRow.attempt_id).join(LeaseRow).where(LeaseDeviceRow.held)
    )
    return {
        uuid: Holder(lease_id=LeaseId(lease), attempt_id=attempt) for uuid, lease, attempt in session.execute(seats)
    }


def seats(session: Session, lease_ids: Iterable[str]) -> dict[str, list[DeviceUuid]]:
    wanted = select(LeaseDeviceRow.lease_id, LeaseDeviceRow.uuid).where(LeaseDeviceRow.lease_id.in_(list(lease_ids)))
    seats: dict[str, list[DeviceUuid]] = {}
    for lease_id, uuid in session.execute(wanted.order_by(LeaseDeviceRow.lease_id, LeaseDeviceRow.rank)):
        seats.setdefault(lease_id, []).append(DeviceUuid(uuid))
    return seats


def hosts(session: Session) -> list[rows.HostRow]:
    """Hosts that have reported, by name."""
    holders = _holders(session)
    devices = session.scalars(_in_service()).all()
    present = select(HostRow, NodeRow).join(NodeRow, NodeRow.node_id == HostRow.node_id).order_by(HostRow.host)
    return [
        _host(host, node, [d for d in devices if d.host == host.host], holders)
        for host, node in session.execute(present)
    ]


def _host(host: HostRow, node: NodeRow, devices: Sequence[DeviceRow], holders: dict[str, Holder]) -> rows.HostRow:
    counts: dict[str, Any] = {
        "node_id": NodeId(node.node_id),
        "devices": len(devices),
        "healthy": sum(d.state == DeviceState.HEALTHY.value for d in devices),
        "leased": sum(d.uuid in holders for d in devices),
    }
    of_node = {name: getattr(node, name) for name in ("state", "reason", "since_ns", "reported_ns")}
    left = rows.HostRow.model_fields.keys() - counts.keys() - of_node.keys()
    return rows.HostRow.model_validate({name: getattr(host, name) for name in left} | counts | of_node)


def devices(session: Session) -> list[rows.DeviceRow]:
    """All devices that were ever seen, retired ones too, by host and index."""
    holders, fastest = _holders(session), _fastest(session)
    all_rows = session.scalars(select(DeviceRow).order_by(DeviceRow.host, DeviceRow.index, DeviceRow.uuid))
    return [_device(row, holders.get(row.uuid), fastest.get(row.sku)) for row in all_rows]


def _fastest(session: Session, sku: str = "") -> dict[str, float]:
    """The least score of each cohort: that of its fastest device."""
    scored = select(DeviceRow.sku, func.min(DeviceRow.score)).where(
        DeviceRow.state != DeviceState.RETIRED.value, DeviceRow.score.is_not(None)
    )
    scored = scored.where(DeviceRow.sku == sku) if sku else scored
    return {cohort: least for cohort, least in session.execute(scored.group_by(DeviceRow.sku)) if least is not None}


def device(session: Session, uuid: str) -> rows.DeviceRow:
    row = session.get(DeviceRow, uuid)
    if row is None:
        raise no_such_device(uuid)
    return _device(row, _holders(session).get(uuid), _fastest(session, row.sku).get(row.sku))


def first_seen_ns(session: Session, uuid: str) -> int:
    row = session.get(DeviceRow, uuid)
    if row is None:
        raise no_such_device(uuid)
    return row.first_seen_ns


def _device(row: DeviceRow, holder: Holder | None, fastest: float | None) -> rows.DeviceRow:
    spread = 1 - fastest / row.score if fastest is not None and row.score else None
    extra: dict[str, Any] = {"lease_id": holder.lease_id if holder else "", "spread": spread}
    extra |= {"attempt_id": holder.attempt_id if holder else ""}
    values = {name: getattr(row, name) for name in rows.DeviceRow.model_fields if name not in extra}
    return rows.DeviceRow.model_validate(values | extra)


def leases(session: Session, limit: int) -> list[rows.LeaseRow]:
    """Held leases, then ended ones, the newest first."""
    wanted = select(LeaseRow).order_by(LeaseRow.held.desc(), LeaseRow.since_ns.desc(), LeaseRow.lease_id).limit(limit)
    found = session.scalars(wanted).all()
    gangs = seats(session, [row.lease_id for row in found])
    return [_lease(row, tuple(gangs.get(row.lease_id, ()))) for row in found]


def _lease(row: LeaseRow, seats: tuple[DeviceUuid, ...]) -> rows.LeaseRow:
    state = "ended" if not row.held else "moving" if row.moving_cause else "held"
    extra: dict[str, Any] = {"state": state, "devices": seats}
    return rows.LeaseRow.model_validate(
        {n: getattr(row, n) for n in rows.LeaseRow.model_fields if n not in extra} | extra
    )


def sessions(session: Session, limit: int) -> list[rows.SessionRow]:
    """The newest first."""
    wanted = select(SessionRow).order_by(SessionRow.at_ns.desc(), SessionRow.session_id).limit(limit)
    return [rows.SessionRow.model_validate(row) for row in session.scalars(wanted)]


def events(session: Session, after: int, limit: int, entity: str | None, newest: bool) -> list[Event]:
    """Events with an id above `after`, in order of id: the first `limit` of them, or with `newest` the last."""
    wanted = select(EventRow).where(EventRow.id > after)
    if entity:
        wanted = wanted.where(EventRow.entity == entity)
    found = session.scalars(wanted.order_by(EventRow.id.desc() if newest else EventRow.id).limit(limit)).all()
    return [_event(row) for row in (reversed(found) if newest else found)]


def _event(row: EventRow) -> Event:
    return Event(
        EventId(row.id), row.at_ns, EventKind(row.kind), row.entity, row.summary, EventId(row.cause_id), dict(row.body)
    )


def story(session: Session, uuid: str, limit: int) -> rows.Story:
    """The newest `limit` events on a device with all that they caused, and the chain of causes above each; in order of id."""
    own = (
        select(EventRow.id)
        .where(EventRow.entity == f"device:{uuid}")
        .order_by(EventRow.id.desc())
        .limit(limit)
        .subquery()
    )
    caused = select(own.c.id).cte("caused", recursive=True)
    caused = caused.union(select(EventRow.id).join(caused, EventRow.cause_id == caused.c.id))
    above = select(EventRow.cause_id.label("id")).where(EventRow.id.in_(select(own.c.id))).cte("above", recursive=True)
    above = above.union(select(EventRow.cause_id).join(above, EventRow.id == above.c.id))
    wanted = select(EventRow).where(or_(EventRow.id.in_(select(caused.c.id)), EventRow.id.in_(select(above.c.id))))
    return rows.Story(
        device=device(session, uuid), events=tuple(map(_event, session.scalars(wanted.order_by(EventRow.id))))
    )


def counts(session: Session) -> dict[str, dict[str, int]]:
    """Devices by state, and jobs by state: for the metrics page."""
    by_device = session.execute(select(DeviceRow.state, func.count()).group_by(DeviceRow.state))
    by_job = session.execute(select(JobRow.state, func.count()).group_by(JobRow.state))
    return {"devices": dict(by_device.all()), "jobs": dict(by_job.all())}
