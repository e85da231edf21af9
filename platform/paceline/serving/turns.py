"""Turns in the journal: how a conversation is stored, read back and recovered."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from paceline.inventory.journal import Closing, Journal, NewTurn, TurnRow
from paceline.model.ids import SessionId
from paceline.serving.contract import Message, ReplicaFacts, Tokenizer
from paceline.serving.replay import Replay
from paceline.serving.session import Merged, StoredTurn, TurnState
from paceline.serving.text import TextStream


@dataclass(slots=True)
class JournaledTurn:
    """The port `relay.TurnLog` over the journal."""

    journal: Journal
    session_id: SessionId
    number: int

    def append(self, position: int, ids: Sequence[int]) -> None:
        self.journal.append(self.session_id, self.number, position, ids)

    def replica(self, replica: ReplicaFacts, revision: str, resumes: int) -> None:
        self.journal.assign(self.session_id, self.number, json.dumps(asdict(replica)), revision, resumes)

    def close(self, state: TurnState, reply: str, finish: str, resumes: int, now_ns: int) -> None:
        self.journal.close_turn(self.session_id, self.number, Closing(state, reply, finish, resumes, now_ns))


def new_turn(
    session_id: SessionId,
    key: str,
    merged: Merged,
    replay: Replay,
    stops: Sequence[str],
    now_ns: int,
) -> NewTurn:
    return NewTurn(
        session_id=session_id,
        model=replay.card.name,
        request_key=key,
        messages=json.dumps([asdict(message) for message in merged.added], ensure_ascii=False),
        prompt_ids=replay.prompt_ids,
        params=json.dumps({**asdict(replay.params), "stop": list(stops)}),
        seed=replay.seed,
        opened_ns=now_ns,
        keep=merged.kept[-1].number if merged.kept else 0,
    )


def stored_turn(row: TurnRow) -> StoredTurn:
    messages = tuple(Message(**message) for message in json.loads(row.messages))
    return StoredTurn(row.number, messages, row.reply, row.state == TurnState.DONE)


def replica_of(row: TurnRow) -> ReplicaFacts | None:
    return ReplicaFacts(**json.loads(row.replica)) if row.replica else None


def recover(journal: Journal, tokenizer: Tokenizer, now_ns: int) -> int:
    """Close the turns that a dead gateway left open, with the text of the tokens it had journaled; how many there
    were."""
    left = journal.open_turns()
    for row in left:
        text = TextStream(tokenizer.token_bytes, json.loads(row.params)["stop"])
        for token_id in row.emitted_ids:
            if not text.stopped:
                text.push(token_id)
        end = Closing(TurnState.INTERRUPTED, text.text, "", row.resumes, now_ns)
        journal.close_turn(row.session_id, row.number, end)
    return len(left)
