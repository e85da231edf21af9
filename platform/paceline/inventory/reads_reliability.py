"""How often devices fail while they are watched, and which hosts fail more than chance lets them. `analysis.reliability` judges.

By SKU, rack, host and device; hosts whose rack nobody has told are in no rack. A device counts for the host where it is now, and for
the rack where that stands now, with all of its hours and failures.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby
from typing import Final

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from paceline.analysis.reliability import (
    LEMON_FLEET_MIN,
    LEMON_WINDOW_NS,
    Exposure,
    Happened,
    Happening,
    NodeHistory,
    Signal,
    lemons,
    mtbf_by,
)
from paceline.inventory import nodes
from paceline.inventory.tables import (
    AttemptRow,
    DeviceRow,
    EventRow,
    HostRow,
    JobRow,
    RankRow,
    RepairRow,
    VerdictRow,
    XidRow,
)
from paceline.inventory.verdicts import EXCLUDED, IN_SERVICE
from paceline.model.domains import DomainKind
from paceline.model.events import EventKind
from paceline.model.hardware import DeviceState, NodeState
from paceline.model.ids import DeviceUuid, HostName
from paceline.model.workload import RunState
from paceline.sdk import rows_health as rows
from paceline.sdk.rows_health import MtbfScope, VerdictMode

HOUR_NS: Final = 3_600_000_000_000
WATCHED: Final = frozenset(state.value for state in IN_SERVICE - {DeviceState.UNKNOWN})
"""A device in one of these is exposed to failure, and would be seen to fail. One that is UNKNOWN nobody watches."""
SIGNALS: Final = tuple(signal for signal in Signal if signal is not Signal.EXCLUDED_BY_JOBS)
"""What the inventory knows of lemons. No job names hosts that it avoids; a ticket is a repair that was begun."""
_MOVES: Final = (EventKind.VERDICT.value, EventKind.QUARANTINED.value)
"""Events that tell how a device's state changed."""

Moves = dict[str, list[tuple[int, str]]]
"""By device: (when, the state that it left), the oldest first."""
Told = Iterator[tuple[str, Happening]]
"""What happened, each with its host."""


def reliability(session: Session, now_ns: int, window_ns: int) -> rows.Reliability:
    """MTBF over the last `window_ns`; lemons over LEMON_WINDOW_NS, whatever the window."""
    exposures, host_of = _exposures(session, now_ns - window_ns, now_ns)
    histories = _histories(session, now_ns - LEMON_WINDOW_NS, now_ns)
    found = lemons(histories, now_ns)
    return rows.Reliability(
        from_ns=now_ns - window_ns,
        to_ns=now_ns,
        mtbf=(
            *_mtbf(MtbfScope.SKU, exposures, lambda one: one.sku),
            *_mtbf(MtbfScope.RACK, [one for one in exposures if one.rack], lambda one: one.rack),
            *_mtbf(MtbfScope.HOST, exposures, lambda one: host_of[one.uuid]),
            *_mtbf(MtbfScope.DEVICE, exposures, lambda one: one.uuid),
        ),
        lemons=tuple(map(rows.LemonRow.model_validate, found)) if len(histories) >= LEMON_FLEET_MIN else None,
        signals=tuple(signal.value for signal in SIGNALS),
    )


def _within(at_ns: InstrumentedAttribute[int], since_ns: int, now_ns: int) -> ColumnElement[bool]:
    return and_(at_ns > since_ns, at_ns <= now_ns)


# ── exposure and failures ────────────────────────────────────────────────────────────────────────────────────────────


def _exposures(session: Session, since_ns: int, now_ns: int) -> tuple[list[Exposure], dict[str, str]]:
    """What each device has gone through, and its host by uuid. A device that was not watched and did not fail is left out."""
    failures = Counter(verdict.uuid for verdict in _exclusions(session, since_ns, now_ns))
    moves = _moves(session, since_ns)
    stands = nodes.domains(session)
    exposures, host_of = [], {}
    for row in session.scalars(select(DeviceRow).order_by(DeviceRow.uuid)):
        span = (max(row.first_seen_ns, since_ns), now_ns)
        hours = watched_ns(moves.get(row.uuid, []), row.state, *span) / HOUR_NS
        if hours or failures[row.uuid]:
            rack = stands.get(row.host, {}).get(DomainKind.RACK, "")
            exposures.append(Exposure(DeviceUuid(row.uuid), row.sku, rack, hours, failures[row.uuid]))
            host_of[row.uuid] = row.host
    return exposures, host_of


def _exclusions(session: Session, since_ns: int, now_ns: int) -> Sequence[VerdictRow]:
    """Failures: verdicts that took a device out of service, a rule's or an operator's, unless somebody has called them wrong.

    An operator who wants a sound device out of the way cordons it; for that and for a retirement there is no such verdict.
    """
    wanted = select(VerdictRow).where(
        _within(VerdictRow.at_ns, since_ns, now_ns),
        VerdictRow.uuid != "",
        VerdictRow.mode == VerdictMode.ENFORCE.value,
        VerdictRow.from_state.in_([state.value for state in IN_SERVICE]),
        VerdictRow.to_state.in_([state.value for state in EXCLUDED]),
        VerdictRow.label.is_not(False),
    )
    return session.scalars(wanted.order_by(VerdictRow.id)).all()


def _moves(session: Session, since_ns: int) -> Moves:
    wanted = select(EventRow).where(EventRow.at_ns > since_ns, EventRow.kind.in_(_MOVES)).order_by(EventRow.id)
    moves: Moves = {}
    for event in session.scalars(wanted):
        moves.setdefault(event.entity.removeprefix("device:"), []).append((event.at_ns, event.body["from"]))
    return moves


def watched_ns(moves: Sequence[tuple[int, str]], state: str, begin_ns: int, end_ns: int) -> int:
    """How long a device was in WATCHED between `begin_ns` and `end_ns`. `moves` are all since the beginning; `state` came of them."""
    total, cursor = 0, begin_ns
    for at_ns, before in [*moves, (end_ns, state)]:
        until_ns = max(cursor, min(at_ns, end_ns))
        total += until_ns - cursor if before in WATCHED else 0
        cursor = until_ns
    return total


def _mtbf(scope: MtbfScope, exposures: list[Exposure], group: Callable[[Exposure], str]) -> Iterator[rows.MtbfRow]:
    estimates = mtbf_by(exposures, group)
    for name, members in groupby(sorted(exposures, key=group), group):
        mine, estimate = list(members), estimates.get(name)
        failures = sum(one.failures for one in mine)
        yield rows.MtbfRow(
            scope=scope,
            name=name,
            device_hours=sum(one.device_hours for one in mine),
            failures=failures,
            mtbf_h=estimate.value if estimate and failures else None,
            low_h=estimate.low if estimate else None,
            high_h=estimate.high if estimate and failures else None,
        )


# ── lemons ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _histories(session: Session, since_ns: int, now_ns: int) -> list[NodeHistory]:
    """What happened to each host that has reported since then."""
    hosts = session.scalars(select(HostRow.host).where(HostRow.seen_ns > since_ns).order_by(HostRow.host))
    happened: dict[str, list[Happening]] = {host: [] for host in hosts}
    told = (_xids, _repairs, _exclusions_told, _losses, _cordons, _attempts)
    for host, one in chain.from_iterable(ask(session, since_ns, now_ns) for ask in told):
        if host in happened:
            happened[host].append(one)
    return [NodeHistory(HostName(host), tuple(mine)) for host, mine in happened.items()]


def _xids(session: Session, since_ns: int, now_ns: int) -> Told:
    wanted = select(DeviceRow.host, XidRow.at_ns, XidRow.code).join(DeviceRow, DeviceRow.uuid == XidRow.uuid)
    for host, at_ns, code in session.execute(wanted.where(_within(XidRow.at_ns, since_ns, now_ns))):
        yield host, Happening(Happened.XID, at_ns, str(code))


def _repairs(session: Session, since_ns: int, now_ns: int) -> Told:
    wanted = select(DeviceRow.host, RepairRow.at_ns, RepairRow.id).join(DeviceRow, DeviceRow.uuid == RepairRow.uuid)
    for host, at_ns, number in session.execute(wanted.where(_within(RepairRow.at_ns, since_ns, now_ns))):
        yield host, Happening(Happened.TICKET, at_ns, f"repair {number}")


def _exclusions_told(session: Session, since_ns: int, now_ns: int) -> Told:
    """Devices of a host that go out in the same moment, by one report, are one."""
    for verdict in _exclusions(session, since_ns, now_ns):
        yield verdict.host, Happening(Happened.OUT, verdict.at_ns, f"devices {verdict.at_ns}")


def _losses(session: Session, since_ns: int, now_ns: int) -> Told:
    lost = EventRow.summary.startswith(f"{NodeState.LOST.value}:")
    wanted = select(EventRow).where(EventRow.kind == EventKind.NODE.value, _within(EventRow.at_ns, since_ns, now_ns))
    for event in session.scalars(wanted.where(lost).order_by(EventRow.id)):
        yield event.entity.removeprefix("node:"), Happening(Happened.OUT, event.at_ns, f"lost {event.id}")


def _cordons(session: Session, since_ns: int, now_ns: int) -> Told:
    """Cordons and drains, by a rule or by hand. A drain that follows a cordon before that has ended is the same one."""
    by_hand = select(EventRow).where(
        _within(EventRow.at_ns, since_ns, now_ns),
        EventRow.kind == EventKind.OPERATOR.value,
        EventRow.entity.startswith("node:"),
    )
    acts = [(e.at_ns, e.entity.removeprefix("node:"), e.body["action"]) for e in session.scalars(by_hand)]
    by_rule = select(VerdictRow.at_ns, VerdictRow.host).where(
        _within(VerdictRow.at_ns, since_ns, now_ns),
        VerdictRow.uuid == "",
        VerdictRow.mode == VerdictMode.ENFORCE.value,
        VerdictRow.to_state == NodeState.CORDONED.value,
        VerdictRow.label.is_not(False),
    )
    acts += [(at_ns, host, "cordon") for at_ns, host in session.execute(by_rule)]
    ended: Counter[str] = Counter()
    for at_ns, host, action in sorted(acts):
        if action == "uncordon":
            ended[host] += 1
        elif action in ("cordon", "drain"):
            yield host, Happening(Happened.OUT, at_ns, f"cordon {ended[host]}")


def _attempts(session: Session, since_ns: int, now_ns: int) -> Told:
    """Attempts that ended: each is a job of its own, as a requeued one is in the paper. One that placed no rank ran nowhere."""
    recent = _within(AttemptRow.ended_ns, since_ns, now_ns)
    ranks = select(RankRow.attempt_id, RankRow.host).join(AttemptRow, AttemptRow.attempt_id == RankRow.attempt_id)
    hosts: dict[str, set[str]] = {}
    for attempt_id, host in session.execute(ranks.where(recent, RankRow.host != "").distinct()):
        hosts.setdefault(attempt_id, set()).add(host)
    faults = {verdict.event_id for verdict in _exclusions(session, since_ns, now_ns)}
    end, cause, root = aliased(EventRow), aliased(EventRow), aliased(EventRow)
    wanted = (
        select(AttemptRow, JobRow, cause, root)
        .outerjoin(JobRow, (JobRow.job_id == AttemptRow.job_id) & (JobRow.run_name == AttemptRow.run_name))
        .outerjoin(end, end.id == AttemptRow.ended_event)
        .outerjoin(cause, cause.id == end.cause_id)
        .outerjoin(root, root.id == cause.cause_id)
        .where(recent)
        .order_by(AttemptRow.job_id, AttemptRow.run_name, AttemptRow.number)
    )
    ended = session.execute(wanted).all()
    last = {(attempt.job_id, attempt.run_name): attempt.number for attempt, *_ in ended}
    for attempt, run, why, behind in ended:
        places = hosts.get(attempt.attempt_id, set())
        alone = len(places) == 1
        if alone:
            yield min(places), Happening(Happened.SINGLE_NODE_JOB, attempt.ended_ns, attempt.attempt_id)
        moved = why is not None and why.kind == EventKind.LEASE_MOVING.value
        fine = run is not None and _is_fine(attempt, run, last[attempt.job_id, attempt.run_name])
        host = "" if fine else _culprit(behind if moved else why, faults)
        if host in places:
            kind = Happened.SINGLE_NODE_FAIL if alone else Happened.MULTI_NODE_FAIL
            yield host, Happening(kind, attempt.ended_ns, attempt.attempt_id)


def _is_fine(attempt: AttemptRow, run: JobRow, last: int) -> bool:
    """Whether the end of an attempt is no failure, whatever its devices did then: its run has succeeded by it, or was cancelled."""
    if run.state == RunState.SUCCEEDED.value:
        return attempt.number == last
    return run.state == RunState.CANCELLED.value and attempt.ended_ns >= run.since_ns


def _culprit(event: EventRow | None, faults: set[int]) -> str:
    """The host whose device, by `event`, made an attempt end: it failed, or nothing was heard of it. Empty where none did."""
    if event is None or event.kind != EventKind.VERDICT.value:
        return ""
    lost = event.body["to"] == DeviceState.UNKNOWN.value
    return str(event.body["host"]) if lost or event.id in faults else ""
