"""One command against the inventory: one transaction, its events, and at most one step of the revision."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from paceline.health.rules import Rule
from paceline.inventory.tables import Base, EventRow, MetaRow
from paceline.model.events import EventKind
from paceline.model.ids import NO_CAUSE, EventId


class Unit:
    """An open writing transaction at `now_ns`, under `rules`. Created by `Store` only, after the meta row was locked."""

    def __init__(self, session: Session, now_ns: int, rules: Mapping[str, Rule]) -> None:
        self.session = session
        self.now_ns = now_ns
        self.rules = rules
        self._changed = False

    def event(
        self, kind: EventKind, entity: str, summary: str, cause: int = NO_CAUSE, body: dict[str, Any] | None = None
    ) -> EventId:
        """Append to the event log; the id is known at once."""
        row = EventRow(
            at_ns=self.now_ns, kind=kind.value, entity=entity, summary=summary, cause_id=cause, body=body or {}
        )
        self.session.add(row)
        self.session.flush()
        return EventId(row.id)

    def touch(self) -> None:
        """Something that a FleetSnapshot shows has changed."""
        self._changed = True

    def add_new(self, table: type[Base], rows: list[dict[str, Any]]) -> None:
        """Insert rows and leave alone those whose key is there already."""
        if not rows:
            return
        insert = postgresql.insert if self.session.get_bind().dialect.name == "postgresql" else sqlite.insert
        self.session.execute(insert(table).on_conflict_do_nothing(), rows)

    def lock(self) -> None:
        """Wait for all other writers. First statement of the transaction; on SQLite BEGIN IMMEDIATE has done it."""
        self.session.execute(select(MetaRow.id).where(MetaRow.id == 1).with_for_update())

    def close(self) -> None:
        """Last statement of the transaction."""
        if self._changed:
            self.session.execute(update(MetaRow).where(MetaRow.id == 1).values(revision=MetaRow.revision + 1))
