"""Verdicts: each decision about a device or node with its rule and evidence, whether it was carried out, and whether it was right."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Integer, Select, func, select
from sqlalchemy.orm import Session

from paceline.health import machine
from paceline.health.breaker import LOOK_BACK_NS, Exclusion, why_held
from paceline.inventory.tables import DeviceRow, HostRow, VerdictRow
from paceline.inventory.unit import Unit
from paceline.model.errors import NotFound
from paceline.model.events import EventKind
from paceline.model.hardware import DeviceState, NodeState
from paceline.model.health import Advice, NodeFinding
from paceline.model.ids import DeviceUuid, EventId
from paceline.sdk import rows_health as rows
from paceline.sdk.rows_health import VerdictMode

EXCLUDED: Final = frozenset({DeviceState.DRAINING, DeviceState.QUARANTINED})
IN_SERVICE: Final = frozenset(
    {DeviceState.NEW, DeviceState.PROBING, DeviceState.HEALTHY, DeviceState.SUSPECT, DeviceState.UNKNOWN}
)
"""A device that leaves one of these for EXCLUDED is an exclusion. One on probation is out already: its way back in failed."""
NODES: Final = "nodes"
"""The cohort of all nodes: an automatic cordon is an exclusion, too."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What a decision rests on. `automatic` is False for an operator's."""

    rule_id: str
    rule_version: int
    advice: str
    automatic: bool = True


def ground_of(stimulus: machine.Stimulus) -> Ground | None:
    """The rule behind a stimulus; None where it decides nothing: a sign of life, a confirmation."""
    match stimulus:
        case machine.Found(finding):
            return Ground(finding.rule_id, finding.rule_version, finding.advice.value)
        case machine.Missing():
            return Ground("device.missing", 1, Advice.QUARANTINE.value)
        case machine.ProbeFailed():
            return Ground("probe.failed", 1, Advice.SUSPECT.value)
        case machine.ProbePassed():
            return Ground("probe.passed", 1, Advice.OBSERVE.value)
        case machine.Silent():
            return Ground("device.silent", 1, Advice.OBSERVE.value)
        case machine.Unreadable():
            return Ground("device.unreadable", 1, Advice.SUSPECT.value)
        case machine.OperatorQuarantine():
            return Ground("operator", 1, Advice.QUARANTINE.value, automatic=False)
        case machine.OperatorRelease() | machine.OperatorRetire() | machine.RepairStarted() | machine.RepairEnded():
            return Ground("operator", 1, Advice.OBSERVE.value, automatic=False)
        case _:
            return None


def excludes(before: DeviceState, after: DeviceState) -> bool:
    """Whether this step takes a device out of service."""
    return before in IN_SERVICE and after in EXCLUDED


# ── the circuit breaker ──────────────────────────────────────────────────────────────────────────────────────────────


def why_device_held(unit: Unit, row: DeviceRow) -> str | None:
    """Why automation must not exclude this device now, or None where it may."""
    in_service = DeviceRow.state != DeviceState.RETIRED.value
    fleet = _count(unit, select(DeviceRow.uuid).where(in_service))
    cohort = _count(unit, select(DeviceRow.uuid).where(in_service, DeviceRow.sku == row.sku))
    return why_held(_exclusions(unit, VerdictRow.uuid != ""), row.sku, cohort, fleet, unit.now_ns)


def why_node_held(unit: Unit) -> str | None:
    """Why automation must not cordon a node now, or None where it may."""
    hosts = _count(unit, select(HostRow.host))
    return why_held(_exclusions(unit, VerdictRow.uuid == ""), NODES, hosts, hosts, unit.now_ns)


def _count(unit: Unit, wanted: Select[str]) -> int:
    return unit.session.scalar(select(func.count()).select_from(wanted.subquery())) or 0


def _exclusions(unit: Unit, which: Any) -> list[Exclusion]:
    """What automation has excluded of late, as far back as the breaker wants to know."""
    wanted = select(VerdictRow).where(
        which,
        VerdictRow.at_ns > unit.now_ns - LOOK_BACK_NS,
        VerdictRow.automatic,
        VerdictRow.mode == VerdictMode.ENFORCE.value,
        VerdictRow.to_state.in_([*(s.value for s in EXCLUDED), NodeState.CORDONED.value]),
        VerdictRow.from_state.in_([*(s.value for s in IN_SERVICE), NodeState.READY.value]),
    )
    found = unit.session.scalars(wanted.order_by(VerdictRow.id))
    return [Exclusion(DeviceUuid(v.uuid or v.host), v.cohort, v.at_ns) for v in found]


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def write(
    unit: Unit,
    row: DeviceRow,
    ground: Ground,
    mode: VerdictMode,
    states: tuple[DeviceState, DeviceState],
    reason: str,
    evidence: Iterable[int],
    event: int,
) -> None:
    """A decision about a device. `states` are from and to."""
    _add(unit, ground, mode, states[0].value, states[1].value, reason, evidence, event, row.host, row.uuid, row.sku)


def write_node(
    unit: Unit, host: str, finding: NodeFinding, mode: VerdictMode, state: str, reason: str, event: EventId
) -> None:
    """A decision to cordon a node."""
    ground = Ground(finding.rule_id, finding.rule_version, finding.advice.value)
    _add(unit, ground, mode, state, NodeState.CORDONED.value, reason, [event], event, host, "", NODES)


def _add(
    unit: Unit,
    ground: Ground,
    mode: VerdictMode,
    before: str,
    after: str,
    reason: str,
    evidence: Iterable[int],
    event: int,
    host: str,
    uuid: str,
    cohort: str,
) -> None:
    unit.session.add(
        VerdictRow(
            uuid=uuid,
            host=host,
            cohort=cohort,
            rule_id=ground.rule_id,
            rule_version=ground.rule_version,
            advice=ground.advice,
            mode=mode.value,
            automatic=ground.automatic,
            from_state=before,
            to_state=after,
            reason=reason,
            evidence=sorted({number for number in evidence if number}),
            at_ns=unit.now_ns,
            event_id=event,
            label=None,
            label_by="",
            label_ns=0,
        )
    )


def told_already(unit: Unit, uuid: str, host: str, rule_id: str, mode: VerdictMode, since_ns: int) -> bool:
    """Whether the newest verdict of a rule on this device (or node: uuid is empty) was this one, and nothing moved since."""
    same = select(VerdictRow).where(VerdictRow.uuid == uuid, VerdictRow.rule_id == rule_id)
    if not uuid:
        same = same.where(VerdictRow.host == host)
    newest = unit.session.scalars(same.order_by(VerdictRow.id.desc()).limit(1)).first()
    return newest is not None and newest.mode == mode.value and newest.at_ns >= since_ns


def told(unit: Unit, uuid: str, event: EventId, mode: VerdictMode) -> bool:
    """Whether a verdict in this mode tells of `event` already."""
    same = (VerdictRow.uuid == uuid, VerdictRow.event_id == event, VerdictRow.mode == mode.value)
    return unit.session.scalar(select(VerdictRow.id).where(*same).limit(1)) is not None


def label(unit: Unit, verdict_id: int, right: bool, who: str) -> None:
    """Somebody has looked: the verdict was right, or it was not. The last word counts; the history keeps them all."""
    row = unit.session.get(VerdictRow, verdict_id)
    if row is None:
        raise NotFound("PL-FIND-005", f"there is no verdict {verdict_id}", "`paceline get verdicts` lists them")
    row.label, row.label_by, row.label_ns = right, who, unit.now_ns
    about = f"device:{row.uuid}" if row.uuid else f"node:{row.host}"
    said = "right" if right else "wrong"
    body = {"action": "label", "who": who, "verdict": row.id, "label": right}
    unit.event(EventKind.OPERATOR, about, f"{who}: the verdict of {row.rule_id} was {said}", row.event_id, body)


# ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def newest(session: Session, limit: int, uuid: str = "", host: str = "", rule_id: str = "") -> list[rows.VerdictRow]:
    """The newest first."""
    wanted = select(VerdictRow).order_by(VerdictRow.id.desc()).limit(limit)
    for column, value in ((VerdictRow.uuid, uuid), (VerdictRow.host, host), (VerdictRow.rule_id, rule_id)):
        wanted = wanted.where(column == value) if value else wanted
    return [rows.VerdictRow.model_validate(row) for row in session.scalars(wanted)]


def get(session: Session, verdict_id: int) -> rows.VerdictRow:
    return rows.VerdictRow.model_validate(session.get_one(VerdictRow, verdict_id))


def stats(session: Session) -> list[rows.RuleStats]:
    """Verdicts by rule and mode, with how many were labelled and how many of those were wrong: the false-positive rate of each."""
    labelled = func.count(VerdictRow.label)
    wrong = func.coalesce(func.sum(func.cast(VerdictRow.label.is_(False), Integer)), 0)
    wanted = select(VerdictRow.rule_id, VerdictRow.mode, func.count(), labelled, wrong)
    by_rule = wanted.group_by(VerdictRow.rule_id, VerdictRow.mode).order_by(VerdictRow.rule_id, VerdictRow.mode)
    return [
        rows.RuleStats(rule_id=rule, mode=VerdictMode(mode), verdicts=n, labelled=seen, labelled_false=int(bad))
        for rule, mode, n, seen, bad in session.execute(by_rule)
    ]


def held_since(session: Session, since_ns: int) -> int:
    """Decisions that the breaker has held since then."""
    held = select(func.count()).where(VerdictRow.mode == VerdictMode.HELD.value, VerdictRow.at_ns > since_ns)
    return session.scalar(held.select_from(VerdictRow)) or 0
