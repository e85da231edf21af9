"""Turns from beginning to end: refuse, journal, answer, close, report. Knows neither Ray nor HTTP."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from paceline.inventory.journal import Journal
from paceline.model.errors import NotFound, PacelineError, RunFailed
from paceline.model.ids import SessionId
from paceline.model.session import SessionUpdate
from paceline.serving import turns
from paceline.serving.contract import Message, Resume, Tokenizer
from paceline.serving.relay import Broke, Ended, Engines, Event, Relay, Resumed, Shown, Started
from paceline.serving.replay import Replay
from paceline.serving.reports import Reporter
from paceline.serving.ring import Blames
from paceline.serving.session import Merged, TurnState, merge, trim
from paceline.serving.text import TextStream
from paceline.serving.turns import JournaledTurn
from paceline.serving.watchdog import FLOOR_S, Watchdog
from paceline.serving.wire import ChatRequest

ONE_TURN: Final = "once-"
"""Prefix of sessions that nobody named: one turn, forgotten when it ends."""
MIN_ANSWER_TOKENS: Final = 16
"""Room that a prompt must leave if the client sets no limit of its own."""
CHECKPOINT_S: Final = 10.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Turn:
    """One turn that runs now. `events` ends with Ended or Broke."""

    session_id: SessionId
    number: int
    replay: Replay
    relay: Relay
    journaled: JournaledTurn
    named: bool
    events: "asyncio.Queue[Event]" = field(default_factory=asyncio.Queue)
    work: "asyncio.Task[None] | None" = None

    def extra(self) -> dict[str, object]:
        """Paceline's field of the answer: what a client may check."""
        replay = self.replay
        proof = {"checked": replay.checked, "matched": replay.matched} if replay.resumes else {}
        mode = replay.mode if replay.resumes else Resume.NONE
        about = {"session": self.session_id, "turn": self.number, "seed": replay.seed}
        return {**about, "resumes": replay.resumes, "resume": mode, **proof}

    def cancel(self) -> None:
        """The client went away. Without effect on a turn that has ended."""
        if self.work is not None:
            self.work.cancel()

    async def ended(self) -> None:
        """Until the journal has the end of the turn."""
        if self.work is not None:
            await self.work

    async def until_end(self) -> AsyncIterator[Event]:
        """All events; text that waits is joined, so a slow client costs fewer and larger chunks."""
        while True:
            event = await self.events.get()
            while isinstance(event, Shown) and not self.events.empty():
                following = self.events.get_nowait()
                if isinstance(following, Shown):
                    event = Shown(event.text + following.text, following.tokens)
                else:
                    yield event
                    event = following
            yield event
            if isinstance(event, Ended | Broke):
                return


class Chat:
    """All conversations of one gateway. `silence_floor_s` is the least silence that counts as a loss."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        journal: Journal,
        engines: Engines,
        reporter: Reporter | None = None,
        silence_floor_s: float = FLOOR_S,
    ) -> None:
        self._tokenizer = tokenizer
        self._journal = journal
        self._engines = engines
        self._reporter = reporter
        self._silence_floor_s = silence_floor_s
        self._blames = Blames()
        self._tasks: set[asyncio.Task[None]] = set()
        left = turns.recover(journal, tokenizer, time.time_ns())
        if left:
            log.warning("%d turns were open when the last gateway ended; they keep what was sent", left)

    async def begin(self, body: ChatRequest, name: str, key: str) -> Turn:
        """Refuse or start. Returns once a replica took the turn; `name` is the session's or "".

        Raises BadRequest, NotFound (model), Conflict (the session is answering), RunFailed (no replica can answer).
        """
        turn = self._open(body, name, key)
        turn.work = self._keep(self._run(turn))
        try:
            first = await turn.events.get()
        except BaseException:
            turn.cancel()
            raise
        if isinstance(first, Broke):
            raise first.error
        return turn

    def session(self, session_id: SessionId) -> dict[str, object]:
        """Who serves a session now, or did last. Raises NotFound."""
        rows = self._journal.turns(session_id)
        if not rows:
            raise NotFound("PL-FIND-103", f"no session {session_id!r}")
        replica = turns.replica_of(rows[-1])
        return {
            "session_id": session_id,
            "model": self._tokenizer.card.name,
            "state": "open" if rows[-1].state == TurnState.OPEN else "idle",
            "turns": len(rows),
            "tokens": sum(len(row.emitted_ids) for row in rows),
            "resumes": sum(row.resumes for row in rows),
            "replica": asdict(replica) if replica is not None else None,
        }

    def _open(self, body: ChatRequest, name: str, key: str) -> Turn:
        """Everything that can be refused, then the journal's record of the turn."""
        card = self._tokenizer.card
        if body.model not in (card.name, "default"):
            raise NotFound("PL-FIND-104", f"no model {body.model!r} here", f"this gateway serves {card.name!r}")
        session_id = SessionId(name or f"{ONE_TURN}{secrets.token_hex(12)}")
        stored = tuple(map(turns.stored_turn, self._journal.turns(session_id)))
        merged = merge(stored, [message.plain() for message in body.messages])
        replay = self._replay(session_id, merged, body)
        record = turns.new_turn(session_id, key, merged, replay, body.stops(), time.time_ns())
        number = self._journal.open_turn(record)
        journaled = JournaledTurn(self._journal, session_id, number)
        text = TextStream(self._tokenizer.token_bytes, body.stops())
        watchdog = Watchdog(floor_s=self._silence_floor_s)
        relay = Relay(replay, text, self._engines, journaled, self._blames, time.monotonic, watchdog)
        return Turn(session_id, number, replay, relay, journaled, bool(name))

    def _replay(self, session_id: SessionId, merged: Merged, body: ChatRequest) -> Replay:
        card = self._tokenizer.card

        def count(messages: Sequence[Message]) -> int:
            return len(self._tokenizer.render(messages))

        fitting = trim(merged.conversation, count, card.window, body.limit or MIN_ANSWER_TOKENS)
        prompt_ids = tuple(self._tokenizer.render(fitting))
        params = body.params(card.window - len(prompt_ids))
        seed = secrets.randbits(63) if body.seed is None else body.seed
        return Replay(session_id, prompt_ids, params, seed, card)

    async def _run(self, turn: Turn) -> None:
        """The turn's task. The journal has its end before the client does."""

        def show(event: Event) -> None:
            turn.events.put_nowait(event)
            if isinstance(event, Started | Resumed):
                self._report(turn, "open", event.reason if isinstance(event, Resumed) else "")

        try:
            await turn.relay.run(show)
        except asyncio.CancelledError:
            self._close(turn, TurnState.CANCELLED, "the client went away")
            raise
        except PacelineError as error:
            self._close(turn, TurnState.FAILED, error.message)
            show(Broke(error))
        except Exception as error:
            log.exception("turn %s/%d broke", turn.session_id, turn.number)
            self._close(turn, TurnState.FAILED, repr(error))
            show(Broke(RunFailed("PL-RUN-102", "the gateway failed", "see its log")))
        else:
            self._close(turn, TurnState.DONE)

    def _close(self, turn: Turn, state: TurnState, reason: str = "") -> None:
        finish = turn.replay.finish or ""
        turn.journaled.close(state, turn.relay.text.text, finish, turn.replay.resumes, time.time_ns())
        self._report(turn, "failed" if state is TurnState.FAILED else "idle", reason)
        if not turn.named:
            self._journal.forget(turn.session_id)

    def _report(self, turn: Turn, state: str, reason: str = "") -> None:
        """Turns that nobody named are news only if something happened to them."""
        if self._reporter is None or not (turn.named or turn.replay.resumes or state == "failed"):
            return
        rows = self._journal.turns(turn.session_id)
        replica = turns.replica_of(rows[-1]) if rows else None
        self._reporter.tell(
            SessionUpdate(
                session_id=turn.session_id,
                at_ns=time.time_ns(),
                turns=len(rows),
                tokens=sum(len(row.emitted_ids) for row in rows),
                resumes=sum(row.resumes for row in rows),
                replica=replica.replica_id if replica is not None else "",
                device=replica.device if replica is not None else "",
                state=state,
                reason=reason,
            )
        )

    def _keep(self, work: Any) -> "asyncio.Task[None]":
        """Start a task; with the first one, what runs beside all of them."""
        if not self._tasks:
            self._hold(self._checkpoints())
            if self._reporter is not None:
                self._hold(self._reporter.run())
        return self._hold(work)

    def _hold(self, work: Any) -> "asyncio.Task[None]":
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _checkpoints(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            await asyncio.to_thread(self._journal.checkpoint)

    async def stop(self) -> None:
        """Cancel what runs; for a gateway that ends in order."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
