"""The gateway's journal: nothing written twice, nothing lost with the process."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.inventory.journal import Closing, Journal, NewTurn
from paceline.model.errors import Conflict, HostSetup, NotFound
from paceline.model.ids import SessionId

S = SessionId("s")


def new(keep: int = 0, session: SessionId = S) -> NewTurn:
    return NewTurn(session, "char", "key", "[]", (1, 2, 70_000), "{}", 2**62, 1, keep)


def done(reply: str = "text") -> Closing:
    return Closing("done", reply, "stop", 1, 9)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "deep" / "journal.db")


def test_a_turn_comes_back_as_it_went_in(journal: Journal) -> None:
    number = journal.open_turn(new())
    journal.assign(S, number, '{"pid": 1}', "rev", 1)
    journal.append(S, number, 0, (5,))
    journal.append(S, number, 1, (6, 7))
    journal.close_turn(S, number, done())
    turn = journal.turn(S, number)
    assert (turn.prompt_ids, turn.emitted_ids, turn.seed) == ((1, 2, 70_000), (5, 6, 7), 2**62)
    assert (turn.state, turn.reply, turn.finish, turn.resumes, turn.revision) == ("done", "text", "stop", 1, "rev")
    assert journal.turns(S) == (turn,)


def test_no_position_is_written_twice(journal: Journal) -> None:
    number = journal.open_turn(new())
    journal.append(S, number, 0, (5,))
    with pytest.raises(sqlite3.IntegrityError):
        journal.append(S, number, 0, (5,))
    assert journal.turn(S, number).emitted_ids == (5,)


def test_one_open_turn_a_session(journal: Journal) -> None:
    number = journal.open_turn(new())
    with pytest.raises(Conflict):
        journal.open_turn(new())
    assert journal.open_turn(new(session=SessionId("other"))) == 1
    journal.close_turn(S, number, done())
    assert journal.open_turn(new(keep=1)) == 2


def test_turns_after_the_kept_ones_are_superseded(journal: Journal) -> None:
    for keep in (0, 1, 1):
        journal.close_turn(S, journal.open_turn(new(keep)), done())
    assert [turn.number for turn in journal.turns(S)] == [1, 3]
    assert journal.turn(S, 2).state == "superseded"


def test_forget_takes_turns_and_tokens(journal: Journal) -> None:
    journal.append(S, journal.open_turn(new()), 0, (5,))
    journal.forget(S)
    assert journal.turns(S) == ()
    with pytest.raises(NotFound):
        journal.turn(S, 1)
    number = journal.open_turn(new())
    assert journal.turn(S, number).emitted_ids == ()


def test_checkpoint_from_beside(journal: Journal) -> None:
    journal.append(S, journal.open_turn(new()), 0, (5,))
    journal.checkpoint()
    assert journal.turn(S, 1).emitted_ids == (5,)


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    Journal(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(HostSetup, match="99"):
        Journal(path)


WRITER = """
import sys
from pathlib import Path
from paceline.inventory.journal import Journal, NewTurn
from paceline.model.ids import SessionId
journal = Journal(Path(sys.argv[1]))
number = journal.open_turn(NewTurn(SessionId("s"), "char", "", "[]", (1,), "{}", 1, 1))
for position in range(10**9):
    journal.append(SessionId("s"), number, position, (position,))
    print(position, flush=True)
"""


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) == 200:
            break
    os.kill(writer.pid, signal.SIGKILL)
    acknowledged = [200, *(int(line) for line in writer.stdout.read().split())][-1]
    assert writer.wait() == -signal.SIGKILL
    journal = Journal(path)
    (left,) = journal.open_turns()
    assert left.emitted_ids[: acknowledged + 1] == tuple(range(acknowledged + 1))
    assert len(left.emitted_ids) <= acknowledged + 2
    journal.close_turn(S, left.number, done())
    assert journal.open_turns() == ()
