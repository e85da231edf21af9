"""One answer over engines that die, freeze, skip and repeat: the client sees every token once."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from paceline.model.errors import RunFailed, Unreachable
from paceline.serving.contract import (
    BEAT_S,
    Beat,
    Checked,
    EngineRequest,
    Frame,
    Hello,
    ModelCard,
    Params,
    ReplicaFacts,
    Resume,
    Tokens,
)
from paceline.serving.relay import Ended, Event, Relay, Resumed, Shown
from paceline.serving.replay import Finish, Replay
from paceline.serving.ring import Blames
from paceline.serving.text import TextStream
from paceline.serving.watchdog import Watchdog
from simulated_time import SimulatedLoop

CARD = ModelCard("m", "r1", "t1", 1000, frozenset({0}), Resume.EXACT)
ANSWER = tuple(b"the quick brown fox jumps over the lazy dog")

Attempt = Callable[[EngineRequest], AsyncGenerator[Frame]]


def facts(name: str) -> ReplicaFacts:
    return ReplicaFacts(name, 0, 1, "n")


async def good(request: EngineRequest) -> AsyncGenerator[Frame]:
    done = len(request.emitted_ids)
    yield Hello(facts("good"), CARD)
    if done:
        yield Checked(done, done)
    for position in range(done, len(ANSWER)):
        yield Tokens(position, (ANSWER[position],))
    yield Tokens(len(ANSWER), (0,))


def dies_after(count: int) -> Attempt:
    async def attempt(request: EngineRequest) -> AsyncGenerator[Frame]:
        yield Hello(facts("dying"), CARD)
        at = len(request.emitted_ids)
        yield Tokens(at, ANSWER[at : at + count])
        raise Unreachable("PL-NET-106", "dead")

    return attempt


async def freezes(request: EngineRequest) -> AsyncGenerator[Frame]:
    yield Hello(facts("frozen"), CARD)
    yield Tokens(len(request.emitted_ids), ANSWER[len(request.emitted_ids) :][:2])
    await asyncio.Event().wait()


async def frozen_from_the_start(request: EngineRequest) -> AsyncGenerator[Frame]:
    request.trail.append("frozen")
    await asyncio.Event().wait()
    yield Beat()


async def skips(request: EngineRequest) -> AsyncGenerator[Frame]:
    yield Hello(facts("skipping"), CARD)
    at = len(request.emitted_ids) + 1
    yield Tokens(at, ANSWER[at : at + 3])


async def repeats(request: EngineRequest) -> AsyncGenerator[Frame]:
    yield Hello(facts("repeating"), CARD)
    at = len(request.emitted_ids)
    yield Tokens(at, ANSWER[at : at + 1])
    yield Tokens(at, ANSWER[at : at + 1])


async def ends_early(request: EngineRequest) -> AsyncGenerator[Frame]:
    yield Hello(facts("early"), CARD)
    yield Tokens(len(request.emitted_ids), ANSWER[len(request.emitted_ids) :][:4])


@dataclass
class Script:
    """Engines: one behaviour an attempt, then good ones."""

    behaviours: list[Attempt]
    requests: list[EngineRequest] = field(default_factory=list)

    def attempt(self, request: EngineRequest) -> AsyncGenerator[Frame]:
        self.requests.append(request)
        at = len(self.requests) - 1
        return (self.behaviours[at] if at < len(self.behaviours) else good)(request)


@dataclass
class Log:
    ids: list[int] = field(default_factory=list)

    def append(self, position: int, ids: Sequence[int]) -> None:
        assert position == len(self.ids)
        self.ids.extend(ids)

    def replica(self, replica: ReplicaFacts, revision: str, resumes: int) -> None:
        assert revision == CARD.revision


@dataclass
class Outcome:
    events: list[Event]
    replay: Replay
    script: Script
    log: Log

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Shown))


def answer(*behaviours: Attempt, max_tokens: int = 500, stop: tuple[str, ...] = ()) -> Outcome:
    log, script, events = Log(), Script(list(behaviours)), list[Event]()
    replay = Replay("s", (1, 2, 3), Params(max_tokens), 7, CARD)
    text = TextStream(lambda token_id: bytes((token_id,)) if token_id else b"", stop)

    def show(event: Event) -> None:
        if isinstance(event, Shown):
            assert len(log.ids) >= event.tokens, "shown before it was journaled"
        events.append(event)

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        clock_s = runner.get_loop().time
        runner.run(Relay(replay, text, script, log, Blames(), clock_s, Watchdog(floor_s=0.5)).run(show))
    return Outcome(events, replay, script, log)


@pytest.mark.parametrize(
    "behaviours",
    [
        (),
        (dies_after(5),),
        (dies_after(5), dies_after(1), dies_after(9)),
        (freezes,),
        (skips, repeats, ends_early, freezes, dies_after(3)),
    ],
)
def test_every_token_comes_once(behaviours: tuple[Attempt, ...]) -> None:
    seen = answer(*behaviours)
    assert seen.text.encode() == bytes(ANSWER)
    assert seen.log.ids == [*ANSWER, 0]
    assert len(seen.script.requests) == len(behaviours) + 1, "a fault did not fire"
    assert seen.events[-1] == Ended(Finish.STOP)
    assert seen.replay.completion_tokens == len(ANSWER)


def test_attempts_start_at_the_next_position_and_avoid_the_lost_replica() -> None:
    seen = answer(dies_after(5))
    assert seen.script.requests[1].emitted_ids == ANSWER[:5]
    assert seen.script.requests[1].avoid == ("dying",)
    assert seen.replay.resumes == 1
    assert seen.replay.mode is Resume.EXACT
    assert [event.position for event in seen.events if isinstance(event, Resumed)] == [5]


def test_replica_that_never_greets_is_blamed_by_the_routers_trail() -> None:
    seen = answer(frozen_from_the_start)
    assert seen.script.requests[1].avoid == ("frozen",)
    assert seen.replay.resumes == 0, "nothing was emitted: a plain new start"


def test_resume_that_samples_otherwise_is_not_called_exact() -> None:
    async def differs(request: EngineRequest) -> AsyncGenerator[Frame]:
        yield Hello(facts("other"), CARD)
        yield Checked(5, 4)
        yield Tokens(5, (*ANSWER[5:], 0))

    assert answer(dies_after(5), differs).replay.mode is Resume.PREFIX


def test_resume_on_another_revision_is_a_prefix_at_best() -> None:
    async def newer(request: EngineRequest) -> AsyncGenerator[Frame]:
        yield Hello(facts("newer"), ModelCard("m", "r2", "t1", 1000, frozenset({0}), Resume.EXACT))
        yield Checked(5, 5)
        yield Tokens(5, (*ANSWER[5:], 0))

    assert answer(dies_after(5), newer).replay.mode is Resume.PREFIX


def test_another_tokenizer_is_never_resumed_on() -> None:
    async def foreign(request: EngineRequest) -> AsyncGenerator[Frame]:
        yield Hello(facts("foreign"), ModelCard("m", "r1", "t2", 1000, frozenset({0}), Resume.EXACT))
        yield Tokens(5, (9, 9, 9))

    seen = answer(dies_after(5), foreign)
    assert seen.text.encode() == bytes(ANSWER)


def test_length_and_stop_end_the_answer() -> None:
    cut = answer(dies_after(2), max_tokens=9)
    assert (cut.text, cut.replay.finish, len(cut.log.ids)) == ("the quick", Finish.LENGTH, 9)
    stopped = answer(dies_after(6), stop=("brown",))
    assert (stopped.text, stopped.replay.finish) == ("the quick ", Finish.STOP)


def test_a_batch_is_cut_where_the_answer_ends() -> None:
    async def batch(request: EngineRequest) -> AsyncGenerator[Frame]:
        yield Hello(facts("batch"), CARD)
        yield Tokens(0, (*ANSWER, 0, 65, 66))

    seen = answer(batch)
    assert seen.log.ids == [*ANSWER, 0]


def test_it_gives_up_in_the_end() -> None:
    with pytest.raises(RunFailed, match="attempts failed"):
        answer(*[dies_after(0)] * 20)


def test_beats_keep_a_slow_replica_alive() -> None:
    async def slow(request: EngineRequest) -> AsyncGenerator[Frame]:
        yield Hello(facts("slow"), CARD)
        for _ in range(80):
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), BEAT_S)
            yield Beat()
        yield Tokens(0, (*ANSWER, 0))

    seen = answer(slow)
    assert seen.replay.resumes == 0
    assert len(seen.script.requests) == 1
