"""Engines for SQLite (one server) and PostgreSQL (several), set up so that both keep the same promises."""

import sqlite3
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from paceline.model.errors import Unreachable

BUSY_TIMEOUT_MS: Final = 60_000
"""Writers wait for each other. SkyPilot, with the same engine, met `database is locked` with less."""
WRITES: Final = "paceline_writes"
"""Execution option of the writing side: on SQLite its transactions take the write lock at once, not at the first write."""


def open_engine(url: str) -> Engine:
    """An engine for `sqlite:///path` or `postgresql://…`; nothing is connected yet."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        return create_engine(
            parsed.set(drivername="postgresql+psycopg"), pool_pre_ping=True, pool_size=16, max_overflow=32
        )
    engine = create_engine(parsed, pool_size=16, max_overflow=32)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def reading(engine: Engine) -> Engine:
    """The same pool; each transaction sees one moment of the database."""
    if engine.dialect.name == "postgresql":
        return engine.execution_options(isolation_level="REPEATABLE READ")
    return engine.execution_options()


def writing(engine: Engine) -> Engine:
    """The same pool, for transactions that begin by locking the meta row."""
    return engine.execution_options(**{WRITES: True})


def unreachable(error: OperationalError) -> Unreachable:
    """The driver's complaint as an error of ours. Not retried here: the caller knows its deadline."""
    reason = str(error.orig).strip().splitlines()[0] if error.orig is not None else str(error)
    return Unreachable(
        "PL-NET-002", f"the database does not answer: {reason}", "check that it runs and that the server may reach it"
    )


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # the driver must not begin transactions by itself: _begin_sqlite does
    # The timeout first: the journal's mode, too, waits for whoever writes just now, and for 5 s only by default.
    for pragma in (f"busy_timeout={BUSY_TIMEOUT_MS}", "journal_mode=WAL", "foreign_keys=ON", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    options: dict[str, Any] = dict(connection.get_execution_options())
    connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get(WRITES) else "BEGIN")
