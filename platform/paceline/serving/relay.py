"""Carries one answer from whichever replica is alive to the journal and on to the client.

Order is the whole point: tokens are journaled before they may be shown, and each attempt begins at the next position.
Knows neither Ray nor HTTP: engines, journal and clock come in as ports.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Protocol

from paceline.model.errors import PacelineError, RunFailed, Unreachable
from paceline.serving.contract import Beat, Checked, EngineRequest, Frame, Hello, ReplicaFacts, Tokens
from paceline.serving.replay import Finish, Replay
from paceline.serving.ring import Blames
from paceline.serving.text import TextStream
from paceline.serving.watchdog import CAPACITY_S, Watchdog

MAX_LOSSES: Final = 12
"""Attempts that may fail in one turn. More than replicas on a small node, few enough to end when all of them are
sick."""

POLL_S: Final = 0.05
"""How late, at most, a silence is noticed after its limit; also how soon a waiting attempt is seen to have been
sent."""


class Engines(Protocol):
    def attempt(self, request: EngineRequest) -> AsyncGenerator[Frame]:
        """Run one attempt. Raises Unreachable if the replica dies; closing the generator cancels the work."""


class TurnLog(Protocol):
    """The journal, bound to one turn. Each call is durable against the death of this process when it returns."""

    def append(self, position: int, ids: Sequence[int]) -> None: ...

    def replica(self, replica: ReplicaFacts, revision: str, resumes: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Started:
    replica: ReplicaFacts


@dataclass(frozen=True, slots=True)
class Shown:
    """Text that the client may see, and the number of tokens behind it so far."""

    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Resumed:
    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    finish: Finish


@dataclass(frozen=True, slots=True)
class Broke:
    error: PacelineError


Event = Started | Shown | Resumed | Ended | Broke


@dataclass(slots=True)
class Relay:
    replay: Replay
    text: TextStream
    engines: Engines
    log: TurnLog
    blames: Blames
    clock_s: Callable[[], float]
    watchdog: Watchdog = field(default_factory=Watchdog)

    async def run(self, show: Callable[[Event], None]) -> None:
        """Run the answer to its end. `show` gets each event after the journal has it. Raises RunFailed if it cannot
        end."""
        for _ in range(MAX_LOSSES):
            request = self.replay.request(self.blames.avoid(self.clock_s()))
            try:
                await self._attempt(request, show)
            except Unreachable as loss:
                self._lost(request, loss, show)
            else:
                return
        raise RunFailed(
            "PL-RUN-101",
            f"{MAX_LOSSES} attempts failed at token {len(self.replay.emitted)}",
            "look at the engine replicas",
        )

    async def _attempt(self, request: EngineRequest, show: Callable[[Event], None]) -> None:
        async with (
            aclosing(self.engines.attempt(request)) as frames,
            aclosing(self._watched(frames, request)) as watched,
        ):
            async for frame in watched:
                self._take(frame, show)
                if self.replay.finish is not None:
                    return
        raise Unreachable("PL-NET-104", f"the engine ended the answer early, at token {len(self.replay.emitted)}")

    async def _watched(self, frames: AsyncIterator[Frame], request: EngineRequest) -> AsyncGenerator[Frame]:
        """The frames, as long as they keep coming. Raises Unreachable on silence."""
        source = aiter(frames)
        last_s = last_token_s = self.clock_s()
        greeted = False
        while True:
            try:
                frame = await self._next(source, request, greeted)
            except StopAsyncIteration:
                return
            now_s = self.clock_s()
            if greeted:
                self.watchdog.saw(now_s - last_s)
            greeted, last_s = True, now_s
            if isinstance(frame, Tokens):
                last_token_s = now_s
            elif now_s - last_token_s > self.watchdog.stall_s(len(request.prompt_ids)):
                raise Unreachable("PL-NET-105", f"the replica beats but gave no token for {now_s - last_token_s:.0f} s")
            yield frame

    async def _next(self, source: AsyncIterator[Frame], request: EngineRequest, greeted: bool) -> Frame:
        began_s = self.clock_s()
        pending = asyncio.ensure_future(anext(source))
        try:
            while True:
                limit_s = self._limit_s(request, greeted)
                waited_s = self.clock_s() - began_s
                await asyncio.wait({pending}, timeout=min(POLL_S, max(0.0, limit_s - waited_s)))
                if pending.done():
                    return pending.result()
                if self.clock_s() - began_s >= self._limit_s(request, greeted):
                    self.watchdog.fooled()
                    raise Unreachable("PL-NET-101", f"the replica was silent for {waited_s:.2f} s")
        finally:
            if not pending.done():
                pending.cancel()
                await asyncio.wait({pending})

    def _limit_s(self, request: EngineRequest, greeted: bool) -> float:
        if greeted:
            return self.watchdog.silence_s
        return self.watchdog.hello_s if request.trail else CAPACITY_S  # no trail: not sent, waits for a free replica

    def _take(self, frame: Frame, show: Callable[[Event], None]) -> None:
        match frame:
            case Hello(replica=replica):
                self.replay.greeted(frame)
                self.log.replica(replica, self.replay.revision, self.replay.resumes)
                show(Started(replica))
            case Checked():
                self.replay.verified(frame)
            case Tokens(position, ids):
                self._take_tokens(position, ids, show)
            case Beat():
                pass

    def _take_tokens(self, position: int, ids: tuple[int, ...], show: Callable[[Event], None]) -> None:
        self.replay.expect(position)
        if not ids:
            return
        taken, shown = self._until_end(ids)
        self.replay.accept(taken)
        self.log.append(position, taken)
        if self.replay.replica is not None:
            self.blames.acquit(self.replay.replica.replica_id)
        if self.text.stopped:
            self.replay.finish = Finish.STOP
        if self.replay.finish is not None and not self.text.stopped:
            shown += self.text.finish()
        if shown:
            show(Shown(shown, len(self.replay.emitted)))
        if self.replay.finish is not None:
            show(Ended(self.replay.finish))

    def _until_end(self, ids: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
        """Of a batch, the tokens up to the end of the answer, and their text."""
        room = self.replay.params.max_tokens - len(self.replay.emitted)
        shown = ""
        for count, token_id in enumerate(ids[:room], start=1):
            if token_id in self.replay.card.eos_ids:
                return ids[:count], shown
            shown += self.text.push(token_id)
            if self.text.stopped:
                return ids[:count], shown
        return ids[:room], shown

    def _lost(self, request: EngineRequest, loss: Unreachable, show: Callable[[Event], None]) -> None:
        name = self.replay.replica.replica_id if self.replay.replica is not None else next(iter(request.trail), "")
        if name:
            self.blames.blame(name, self.clock_s())
        self.replay.lost()
        if self.replay.emitted:
            show(Resumed(len(self.replay.emitted), loss.message))
