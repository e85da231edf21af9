"""Ports of hosts: the last reading of each."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from paceline.inventory.tables import LinkRow
from paceline.inventory.unit import Unit
from paceline.model.hardware import LinkSample
from paceline.sdk import rows_health as rows


def store(unit: Unit, host: str, samples: tuple[LinkSample, ...]) -> None:
    """Keep the newest reading of each port; one that is older than what is known changes nothing."""
    if not samples:
        return
    known = {row.name: row for row in unit.session.scalars(select(LinkRow).where(LinkRow.host == host))}
    for sample in sorted(samples, key=lambda s: (s.at_ns, s.name)):
        row = known.get(sample.name)
        if row is None:
            row = known[sample.name] = LinkRow(host=host, name=sample.name, up=sample.up, since_ns=sample.at_ns)
            unit.session.add(row)
        elif sample.at_ns < row.at_ns:
            continue
        if row.up != sample.up:
            row.up, row.since_ns = sample.up, sample.at_ns
        row.kind, row.at_ns = sample.kind, sample.at_ns
        row.rate_gbps, row.link_downed, row.errors = sample.rate_gbps, sample.link_downed, sample.errors


def all_of(session: Session, host: str = "") -> list[rows.LinkRow]:
    wanted = select(LinkRow).order_by(LinkRow.host, LinkRow.name)
    wanted = wanted.where(LinkRow.host == host) if host else wanted
    return [rows.LinkRow.model_validate(row) for row in session.scalars(wanted)]
