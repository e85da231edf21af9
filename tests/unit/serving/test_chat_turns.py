"""Turns of a gateway without Ray and HTTP: sessions, conflicts, cancellation, recovery and reports."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.inventory.journal import Journal
from paceline.model.errors import BadRequest, Conflict, NotFound, Unreachable
from paceline.model.ids import SessionId
from paceline.model.session import SessionUpdate
from paceline.serving.chat import ONE_TURN, Chat, Turn
from paceline.serving.contract import EngineRequest, Frame, Hello, ReplicaFacts, Tokens
from paceline.serving.engine_char import CARD, CharTokenizer
from paceline.serving.relay import Broke
from paceline.serving.reports import Reporter
from paceline.serving.wire import ChatRequest, status_of

FACTS = ReplicaFacts("replica-1", 0, 77, "node", "GPU-1", "0")
OTHER = ReplicaFacts("replica-2", 1, 78, "node", "GPU-2", "1")


class Spell:
    """Spells one text; waits at `hold` until released."""

    def __init__(self, text: str = "once upon a time", hold: int = -1) -> None:
        self.text, self.hold = text, hold
        self.release = asyncio.Event()
        self.prompts: list[str] = []

    async def attempt(self, request: EngineRequest) -> AsyncGenerator[Frame]:
        self.prompts.append(bytes(request.prompt_ids).decode())
        yield Hello(FACTS, CARD)
        for position, token_id in enumerate(self.text.encode()):
            if position == self.hold:
                await self.release.wait()
            yield Tokens(position, (token_id,))


def request(text: str, **more: Any) -> ChatRequest:
    messages = [{"role": "user", "content": text}]
    return ChatRequest.model_validate({"model": "char", "messages": messages, "max_tokens": 16, **more})


async def finished(turn: Turn) -> str:
    async for event in turn.until_end():
        assert not isinstance(event, Broke), event
    await turn.ended()
    return turn.relay.text.text


def with_chat(
    path: Path, engines: Spell, use: Callable[[Chat], Awaitable[None]], reporter: Reporter | None = None
) -> None:
    async def run() -> None:
        journal = Journal(path / "j.db")
        chat = Chat(CharTokenizer(), journal, engines, reporter)
        try:
            await use(chat)
        finally:
            await chat.stop()
            journal.close()

    asyncio.run(run())


def test_second_turn_gets_the_first_ones_words(tmp_path: Path) -> None:
    engines = Spell()

    async def use(chat: Chat) -> None:
        assert await finished(await chat.begin(request("tell"), "s", "")) == "once upon a time"
        await finished(await chat.begin(request("more"), "s", ""))
        assert engines.prompts[1] == "user: tell\nassistant: once upon a time\nuser: more\nassistant: "
        assert chat.session(SessionId("s"))["turns"] == 2

    with_chat(tmp_path, engines, use)


def test_the_next_turn_avoids_the_replica_that_lost_an_answer(tmp_path: Path) -> None:
    class DiesOnce(Spell):
        async def attempt(self, request: EngineRequest) -> AsyncGenerator[Frame]:
            avoided.append(request.avoid)
            if len(avoided) == 1:
                yield Hello(FACTS, CARD)
                raise Unreachable("PL-NET-106", "dead")
            async for frame in super().attempt(request):
                yield replace(frame, replica=OTHER) if isinstance(frame, Hello) else frame

    avoided: list[tuple[str, ...]] = []

    async def use(chat: Chat) -> None:
        await finished(await chat.begin(request("tell"), "s", ""))
        await finished(await chat.begin(request("more"), "s", ""))

    with_chat(tmp_path, DiesOnce(), use)
    assert avoided == [(), (FACTS.replica_id,), (FACTS.replica_id,)]


def test_turns_without_a_name_leave_nothing(tmp_path: Path) -> None:
    async def use(chat: Chat) -> None:
        turn = await chat.begin(request("tell"), "", "")
        assert turn.session_id.startswith(ONE_TURN)
        await finished(turn)
        with pytest.raises(NotFound):
            chat.session(turn.session_id)

    with_chat(tmp_path, Spell(), use)


def test_a_session_answers_one_request_at_a_time(tmp_path: Path) -> None:
    engines = Spell(hold=4)

    async def use(chat: Chat) -> None:
        turn = await chat.begin(request("tell"), "s", "")
        with pytest.raises(Conflict):
            await chat.begin(request("tell"), "s", "")
        engines.release.set()
        await finished(turn)
        await finished(await chat.begin(request("more"), "s", ""))

    with_chat(tmp_path, engines, use)


def test_cancelled_turn_is_marked_and_part_of_the_talk(tmp_path: Path) -> None:
    engines = Spell(hold=4)

    async def use(chat: Chat) -> None:
        turn = await chat.begin(request("tell"), "s", "")
        async for _ in turn.until_end():
            if turn.relay.text.text == "once":
                break
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn.ended()
        engines.hold = -1
        await finished(await chat.begin(request("more"), "s", ""))
        assert engines.prompts[1] == "user: tell\nassistant: once\nuser: more\nassistant: "

    with_chat(tmp_path, engines, use)
    states = [turn.state for turn in Journal(tmp_path / "j.db").turns(SessionId("s"))]
    assert states == ["cancelled", "done"]


@pytest.mark.parametrize(
    "more", [{"n": 2}, {"tools": [{"type": "function"}]}, {"response_format": {"type": "json_object"}}]
)
def test_what_would_be_ignored_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        request("x", **more).check()


def test_session_id_comes_from_header_or_metadata() -> None:
    assert request("x", metadata={"session_id": "m"}).session_id("") == "m"
    assert request("x", metadata={"session_id": "m"}).session_id("h") == "h"
    assert request("x", user="u").session_id("") == ""
    with pytest.raises(BadRequest):
        request("x").session_id("a\nb")


def test_bad_requests_are_400_for_openais_clients() -> None:
    assert status_of(BadRequest("PL-REQ-1", "no")) == 400
    assert status_of(Conflict("PL-REV-1", "no")) == 409


def test_reports_wait_for_a_server_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.serving.reports.PERIOD_S", 0.01)
    monkeypatch.setattr("paceline.serving.reports.RETRY_S", 0.01)
    sent: list[SessionUpdate] = []
    failures = [Unreachable("PL-NET-1", "away")] * 2
    told = threading.Event()

    def send(updates: Sequence[SessionUpdate]) -> None:
        if failures:
            raise failures.pop()
        sent.extend(updates)
        if sent[-1].state == "idle":
            told.set()

    async def use(chat: Chat) -> None:
        await finished(await chat.begin(request("tell"), "s", ""))
        assert await asyncio.to_thread(told.wait, 10)

    with_chat(tmp_path, Spell(), use, Reporter(send))
    assert failures == [], "the fault did not fire"
    last = sent[-1]
    assert (last.session_id, last.turns, last.tokens, last.replica, last.device) == ("s", 1, 16, "replica-1", "GPU-1")
