"""Questions about health: why a device is as it is, what a host's watch costs, how the rules do."""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from paceline.health.rules import Rule
from paceline.inventory import full_probes, links, nodes, reads, repairs, verdicts
from paceline.inventory.nodes import no_such_host
from paceline.inventory.tables import DeviceRow, DeviceScoreRow, EventRow, FindingRow, HostRow, VerdictRow
from paceline.model.hardware import DeviceState
from paceline.model.health import AgentStats, RuleMode
from paceline.sdk import rows_health as rows
from paceline.sdk.rows_health import VerdictMode

VERDICTS_SHOWN: Final = 20
_NOT_RULES: Final = {
    "operator": "An operator has ordered it",
    "probe.passed": "A device has proved by its probes that it is sound",
}
_OUT: Final = frozenset({DeviceState.DRAINING.value, DeviceState.QUARANTINED.value, DeviceState.REPAIR.value})


def device(session: Session, uuid: str, rules: Mapping[str, Rule], now_ns: int) -> rows.DeviceHealth:
    shown = reads.device(session, uuid)
    row = session.get_one(DeviceRow, uuid)
    return rows.DeviceHealth(
        device=shown,
        verdicts=tuple(verdicts.newest(session, VERDICTS_SHOWN, uuid=uuid)),
        findings=_open_findings(session, uuid),
        repairs=repairs.of_device(session, uuid),
        advice=repairs.advise(session, row, rules, now_ns) if row.state in _OUT else None,
        scores=tuple(
            rows.ScoreRow.model_validate(score)
            for score in session.scalars(
                select(DeviceScoreRow).where(DeviceScoreRow.uuid == uuid).order_by(DeviceScoreRow.workload)
            )
        ),
    )


def _open_findings(session: Session, uuid: str) -> tuple[rows.FindingRow, ...]:
    """Those since the device was HEALTHY last, the newest first."""
    healthy = select(func.max(VerdictRow.at_ns)).where(
        VerdictRow.uuid == uuid,
        VerdictRow.to_state == DeviceState.HEALTHY.value,
        VerdictRow.mode == VerdictMode.ENFORCE.value,
    )
    since_ns = session.scalar(healthy) or 0
    wanted = (
        select(FindingRow, EventRow.summary)
        .join(EventRow, EventRow.id == FindingRow.event_id)
        .where(FindingRow.uuid == uuid, FindingRow.last_ns >= since_ns)
        .order_by(FindingRow.last_ns.desc(), FindingRow.rule_id)
    )
    found = []
    for row, summary in session.execute(wanted):
        values = {name: getattr(row, name) for name in rows.FindingRow.model_fields if name != "summary"}
        found.append(rows.FindingRow.model_validate(values | {"summary": summary}))
    return tuple(found)


def host(session: Session, name: str) -> rows.HostDetail:
    found = next((row for row in reads.hosts(session) if row.host == name), None)
    if found is None:
        raise no_such_host(name)
    row = session.get_one(HostRow, name)
    extra: dict[str, Any] = {
        "domains": nodes.domains(session).get(name, {}),
        "cards": [d for d in reads.devices(session) if d.host == name and d.state != DeviceState.RETIRED],
        "links": links.all_of(session, name),
        "exchanges": full_probes.newest(session, name),
        "verdicts": verdicts.newest(session, VERDICTS_SHOWN, host=name),
        "agent": agent_of(row),
        "agent_ns": row.agent_ns,
    }
    return rows.HostDetail.model_validate(dict(found) | extra)


def agent_of(row: HostRow) -> AgentStats | None:
    return AgentStats(**row.agent) if row.agent else None


def agents(session: Session) -> dict[str, AgentStats]:
    """What the watch of each host costs, as last told."""
    found = session.scalars(select(HostRow).order_by(HostRow.host))
    return {row.host: stats for row in found if (stats := agent_of(row)) is not None}


def rules(session: Session, known: Mapping[str, Rule]) -> list[rows.RuleRow]:
    """The rules in force, and any other that has left verdicts: an operator's word, or a rule of an earlier version."""
    by_rule: dict[str, list[rows.RuleStats]] = {}
    for one in verdicts.stats(session):
        by_rule.setdefault(one.rule_id, []).append(one)
    return [_rule(rule_id, known.get(rule_id), by_rule.get(rule_id, [])) for rule_id in sorted({*known, *by_rule})]


def _rule(rule_id: str, rule: Rule | None, stats: list[rows.RuleStats]) -> rows.RuleRow:
    counts = {one.mode: one.verdicts for one in stats}
    labelled = sum(one.labelled for one in stats)
    wrong = sum(one.labelled_false for one in stats)
    return rows.RuleRow(
        rule_id=rule_id,
        version=rule.version if rule else 0,
        mode=rule.mode if rule else RuleMode.ENFORCE,
        sentence=rule.sentence if rule else _NOT_RULES.get(rule_id, "a rule of an earlier version"),
        verdicts=sum(counts.values()),
        shadow=counts.get(VerdictMode.SHADOW, 0),
        held=counts.get(VerdictMode.HELD, 0),
        excused=counts.get(VerdictMode.EXCUSED, 0),
        labelled=labelled,
        labelled_false=wrong,
        false_rate=wrong / labelled if labelled else None,
    )


def states(session: Session) -> dict[tuple[str, str], int]:
    """Devices by host and state."""
    by_host = select(DeviceRow.host, DeviceRow.state, func.count()).group_by(DeviceRow.host, DeviceRow.state)
    return {(host, state): count for host, state, count in session.execute(by_host)}
