"""What strikes several hosts of one rack, switch or power feed at once: told to people, and nothing is done about it.

That holds in every mode of `correlate.fabric`, as it does for an Xid that nobody knows: somebody must go and look.
"""

from typing import Final

from sqlalchemy import func, select

from paceline.health.correlate import (
    BURST_NS,
    FABRIC_CODES,
    HOSTS_OF_A_DOMAIN,
    SECOND_NS,
    SILENT,
    XID,
    Correlation,
    Kind,
    Sighting,
    explain,
)
from paceline.inventory import alerts, nodes, sightings
from paceline.inventory.tables import AlertRow, EventRow, FindingRow, SightingRow
from paceline.inventory.unit import Unit
from paceline.model.domains import spell
from paceline.model.events import EventKind
from paceline.model.ids import NO_CAUSE, EventId
from paceline.sdk.rows_health import AlertKind

SETTLE_NS: Final = 15 * SECOND_NS
"""A burst is told of this long after its second host. Ports are read every 10 s and silence is noticed within two: the other hosts
have been seen by then, and with them the widest domain."""
_SEEN_NS: Final = BURST_NS + 2 * SETTLE_NS
"""A burst is in sight for a while after it has settled: a sweep may come late."""
QUIET_NS: Final = 600 * SECOND_NS
"""A domain is told of once in this time: hosts that lost power or a switch come and go for some minutes."""
assert _SEEN_NS < QUIET_NS, "a burst must be out of sight before its domain is told of again"


def sweep(unit: Unit) -> None:
    """Tell of each burst once. To be called about once a second."""
    seen = _seen(unit)
    settled = _struck(unit, [one for one in seen if one.at_ns <= unit.now_ns - SETTLE_NS])
    ripe = {domain for one in settled for domain in one.domains}
    for one in _struck(unit, seen) if ripe else ():
        if ripe.intersection(one.domains):
            _tell(unit, one)


def _seen(unit: Unit) -> list[Sighting]:
    """What the hosts had in the last burst, one for each domain of a host."""
    recent = SightingRow.at_ns >= unit.now_ns - _SEEN_NS
    wanted = select(SightingRow).where(recent, SightingRow.code_or_rule.in_(sorted(FABRIC_CODES)))
    rows = unit.session.scalars(wanted.order_by(SightingRow.id)).all()
    if len({row.host for row in rows}) < HOSTS_OF_A_DOMAIN:
        return []
    stands = nodes.domains(unit.session)
    return [sightings.sighting(row, name) for row in rows for name in spell(stands.get(row.host, {}))]


def _struck(unit: Unit, seen: list[Sighting]) -> list[Correlation]:
    return [one for one in explain(seen, unit.now_ns) if one.kind is Kind.FABRIC]


def _tell(unit: Unit, one: Correlation) -> None:
    """An event on each host that was not told of yet, and an alert if it is the first that is heard of these domains."""
    summary = f"look at the fabric: {one.why}"
    body = {"rule": one.rule_id, "domains": " ".join(one.domains), "hosts": " ".join(one.hosts)}
    fresh = [host for host in one.hosts if not _is_told(unit, host, body["domains"])]
    events = [unit.event(EventKind.FINDING, nodes.entity(host), summary, _cause(unit, host), body) for host in fresh]
    if events and not _named_lately(unit).intersection(one.domains):
        alerts.tell(unit, AlertKind.FABRIC, nodes.entity(fresh[0]), summary, events[0], body)


def _is_told(unit: Unit, host: str, domains: str) -> bool:
    mine = (EventRow.entity == nodes.entity(host), EventRow.kind == EventKind.FINDING.value)
    bodies = unit.session.scalars(select(EventRow.body).where(*mine, EventRow.at_ns > unit.now_ns - QUIET_NS))
    return any(body.get("domains") == domains for body in bodies)


def _named_lately(unit: Unit) -> set[str]:
    """Domains in alerts. One alert names several, so that its `key` cannot keep them quiet."""
    recent = (AlertRow.kind == AlertKind.FABRIC.value, AlertRow.at_ns > unit.now_ns - QUIET_NS)
    bodies = unit.session.scalars(select(AlertRow.body).where(*recent))
    return {domain for body in bodies for domain in body["domains"].split()}


def _cause(unit: Unit, host: str) -> EventId:
    """The event behind the last that was seen on the host: of its silence, or of the finding."""
    wanted = select(SightingRow).where(SightingRow.host == host, SightingRow.code_or_rule.in_(sorted(FABRIC_CODES)))
    row = unit.session.scalars(wanted.order_by(SightingRow.id.desc()).limit(1)).one()
    if row.code_or_rule == SILENT:
        fell = (
            EventRow.entity == nodes.entity(host),
            EventRow.kind == EventKind.NODE.value,
            EventRow.at_ns == row.at_ns,
        )
        return EventId(unit.session.scalar(select(func.max(EventRow.id)).where(*fell)) or NO_CAUSE)
    rule = "xid" if row.code_or_rule.startswith(XID) else row.code_or_rule
    finding = unit.session.get(FindingRow, (row.uuid or nodes.entity(host), rule))
    return EventId(finding.event_id) if finding else NO_CAUSE
