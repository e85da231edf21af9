"""The gateway's journal: every turn and every token, written before the client may see it.

One SQLite file beside the gateway (WAL, standard library), apart from the inventory's SQL: a token must never wait for
another machine. Each call commits when it returns, with `synchronous=NORMAL`: that survives the death of the process
and of Python, not the loss of power in the same moment. About 10 µs a call. Checkpoints run in a thread of their own.

    session 1 ── n turn 1 ── n emission (position, ids)
"""

import sqlite3
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from paceline.model.errors import Conflict, HostSetup, NotFound
from paceline.model.ids import SessionId

VERSION: Final = 1
"""`PRAGMA user_version` of the file."""

_SCHEMA: Final = """
CREATE TABLE session (
    id TEXT PRIMARY KEY,
    model TEXT NOT NULL,
    created_ns INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE turn (
    session_id TEXT NOT NULL REFERENCES session (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    request_key TEXT NOT NULL,
    messages TEXT NOT NULL,
    prompt_ids BLOB NOT NULL,
    params TEXT NOT NULL,
    seed INTEGER NOT NULL,
    state TEXT NOT NULL,
    reply TEXT NOT NULL DEFAULT '',
    finish TEXT NOT NULL DEFAULT '',
    revision TEXT NOT NULL DEFAULT '',
    replica TEXT NOT NULL DEFAULT '',
    resumes INTEGER NOT NULL DEFAULT 0,
    opened_ns INTEGER NOT NULL,
    closed_ns INTEGER,
    PRIMARY KEY (session_id, number)
) WITHOUT ROWID;
CREATE INDEX turn_open ON turn (state) WHERE state = 'open';
CREATE TABLE emission (
    session_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    position INTEGER NOT NULL,
    ids BLOB NOT NULL,
    PRIMARY KEY (session_id, number, position),
    FOREIGN KEY (session_id, number) REFERENCES turn (session_id, number) ON DELETE CASCADE
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class NewTurn:
    """What is known before the first token. `messages`, `params` are JSON; turns after number `keep` are superseded."""

    session_id: SessionId
    model: str
    request_key: str
    messages: str
    prompt_ids: tuple[int, ...]
    params: str
    seed: int
    opened_ns: int
    keep: int = 0


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One turn as stored. `state`: open, done, cancelled, interrupted, failed, superseded. `replica` is JSON, "" if
    none."""

    session_id: SessionId
    number: int
    request_key: str
    messages: str
    prompt_ids: tuple[int, ...]
    params: str
    seed: int
    state: str
    reply: str
    finish: str
    revision: str
    replica: str
    resumes: int
    emitted_ids: tuple[int, ...]
    opened_ns: int
    closed_ns: int | None


@dataclass(frozen=True, slots=True)
class Closing:
    """How a turn ended. `reply` is the text that was shown."""

    state: str
    reply: str
    finish: str
    resumes: int
    closed_ns: int


class Journal:
    """Not thread-safe but for `checkpoint`; several processes on one host may open the same file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._db = _connect(path)
        _migrate(self._db, path)

    def close(self) -> None:
        self._db.close()

    def open_turn(self, turn: NewTurn) -> int:
        """Store a turn before anything of it is computed; its number, from 1. Conflict while another turn is open."""
        with self._transaction() as db:
            if db.execute("SELECT 1 FROM turn WHERE session_id = ? AND state = 'open'", (turn.session_id,)).fetchone():
                raise Conflict(
                    "PL-REV-101", f"session {turn.session_id} is answering another request", "wait for its end"
                )
            db.execute(
                "INSERT INTO session VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (turn.session_id, turn.model, turn.opened_ns),
            )
            db.execute(
                "UPDATE turn SET state = 'superseded' WHERE session_id = ? AND number > ?", (turn.session_id, turn.keep)
            )
            (last,) = db.execute("SELECT max(number) FROM turn WHERE session_id = ?", (turn.session_id,)).fetchone()
            number = int(last or 0) + 1
            db.execute(
                "INSERT INTO turn"
                " (session_id, number, request_key, messages, prompt_ids, params, seed, state, opened_ns)"
                " VALUES (:session_id, :number, :request_key, :messages, :ids, :params, :seed, 'open', :opened_ns)",
                {**asdict(turn), "prompt_ids": None, "number": number, "ids": _pack(turn.prompt_ids)},
            )
        return number

    def append(self, session_id: SessionId, number: int, position: int, ids: Sequence[int]) -> None:
        """Tokens from `position` on. sqlite3.IntegrityError if that position was written before: nothing comes
        twice."""
        self._db.execute("INSERT INTO emission VALUES (?, ?, ?, ?)", (session_id, number, position, _pack(ids)))

    def assign(self, session_id: SessionId, number: int, replica: str, revision: str, resumes: int) -> None:
        """A replica took the turn. `replica` is JSON."""
        self._db.execute(
            "UPDATE turn SET replica = ?, revision = ?, resumes = ? WHERE session_id = ? AND number = ?",
            (replica, revision, resumes, session_id, number),
        )

    def close_turn(self, session_id: SessionId, number: int, end: Closing) -> None:
        self._db.execute(
            "UPDATE turn SET state = ?, reply = ?, finish = ?, resumes = ?, closed_ns = ?"
            " WHERE session_id = ? AND number = ?",
            (end.state, end.reply, end.finish, end.resumes, end.closed_ns, session_id, number),
        )

    def turns(self, session_id: SessionId) -> tuple[TurnRow, ...]:
        """The turns that count, in order: all but the superseded. Empty for an unknown session."""
        rows = self._db.execute(f"{_SELECT} session_id = ? AND state <> 'superseded' ORDER BY number", (session_id,))
        return tuple(self._row(row) for row in rows.fetchall())

    def open_turns(self) -> tuple[TurnRow, ...]:
        """Turns that nobody has closed. After a start these are what the last process left behind."""
        rows = self._db.execute(f"{_SELECT} state = 'open' ORDER BY session_id, number")
        return tuple(self._row(row) for row in rows.fetchall())

    def turn(self, session_id: SessionId, number: int) -> TurnRow:
        rows = self._db.execute(f"{_SELECT} session_id = ? AND number = ?", (session_id, number))
        row = rows.fetchone()
        if row is None:
            raise NotFound("PL-FIND-102", f"session {session_id} has no turn {number}")
        return self._row(row)

    def forget(self, session_id: SessionId) -> None:
        """Delete a session with all of its turns and tokens."""
        with self._transaction() as db:
            db.execute("DELETE FROM session WHERE id = ?", (session_id,))

    def checkpoint(self) -> None:
        """Move the WAL into the file. Takes a disk's time: call it from a thread."""
        with closing(_connect(self._path)) as db:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _row(self, row: tuple[Any, ...]) -> TurnRow:
        emitted = self._db.execute(
            "SELECT ids FROM emission WHERE session_id = ? AND number = ? ORDER BY position", row[:2]
        ).fetchall()
        values = dict(zip(_COLUMNS, row, strict=True))
        values["prompt_ids"] = _unpack(values["prompt_ids"])
        return TurnRow(**values, emitted_ids=_unpack(b"".join(ids for (ids,) in emitted)))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


_COLUMNS: Final = tuple(item.name for item in fields(TurnRow) if item.name != "emitted_ids")
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM turn WHERE"


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=5.0, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    return db


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    """Bring the file to VERSION, under a lock: two gateways may start at once."""
    db.execute("BEGIN IMMEDIATE")
    (found,) = db.execute("PRAGMA user_version").fetchone()
    if found == 0:
        for statement in filter(str.strip, _SCHEMA.split(";")):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {VERSION}")
    db.execute("COMMIT")
    if found > VERSION:
        raise HostSetup("PL-HOST-103", f"{path} is of version {found}, this program knows {VERSION}", "update Paceline")


def _pack(ids: Sequence[int]) -> bytes:
    return array("i", ids).tobytes()


def _unpack(blob: bytes) -> tuple[int, ...]:
    ids = array("i")
    ids.frombytes(blob)
    return tuple(ids)
