"""What each connection to SQLite is told before it is used."""

from pathlib import Path

from sqlalchemy import event, text

from paceline.inventory.engine import BUSY_TIMEOUT_MS, open_engine


def test_a_connection_waits_for_writers_from_its_first_word_on(tmp_path: Path) -> None:
    """Servers that start together upgrade the schema one after the other; with the driver's five seconds the last ones gave up."""
    engine = open_engine(f"sqlite:///{tmp_path / 'inventory.db'}")
    said: list[str] = []
    event.listen(engine, "connect", lambda connection, _: connection.set_trace_callback(said.append), insert=True)
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA busy_timeout")).scalar() == BUSY_TIMEOUT_MS
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
    engine.dispose()
    assert next(one for one in said if "=" in one) == f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}", (
        "before any other setting"
    )
