"""What a client sees when the replica that answers it is killed, beside plain Ray Serve in the same run.

    make bench ONLY=serving

Starts a Ray cluster of its own on this machine, on loopback, with the model `char` at 20 ms a token. Each round
streams one answer, sends SIGKILL to the replica that serves it, and compares every token with an answer that nothing
disturbed. The rival is one Serve app with the same engine as its ingress, and a client that asks again after an error.
"""

import json
import os
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from paceline.benchmark.figures import Figure
from paceline.model.errors import TimedOut
from paceline.serving import chat_app
from paceline.serving.contract import Message, Params
from paceline.serving.engine_char import CharEngine, CharTokenizer

TOKEN_PERIOD_S: Final = 0.02
TOKENS: Final = 100
KILL_AFTER: Final = 25
"""Tokens seen before the kill: the answer is well under way and far from its end."""
QUESTION: Final = [{"role": "user", "content": "How does a generator differ from a list?"}]
SEED: Final = 11
READY_S: Final = 120.0
GAP_P50_BAR_MS: Final = 50.0
GAP_MAX_BAR_MS: Final = 150.0
RIVAL: Final = "plain Serve"


@dataclass
class Answer:
    """What came over the wire: pieces of text, each with the seconds since the one before."""

    pieces: list[str] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    error_after_s: float | None = None
    resumes: int = 0

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass
class Count:
    """Tokens of one answer against the undisturbed one. A token of `char` is one byte of its text."""

    lost: int
    doubled: int
    wrong: int


class PlainReplica:
    """The rival: the same engine, straight behind Serve's proxy."""

    def __init__(self) -> None:
        self._engine = CharEngine(TOKEN_PERIOD_S)
        self._prompt = CharTokenizer().render([Message(**message) for message in QUESTION])

    async def __call__(self, request: Request) -> Response:
        if request.url.path.endswith("/pid"):
            return JSONResponse({"pid": os.getpid()})
        return StreamingResponse(self._tokens(), media_type="text/event-stream", headers={"x-pid": str(os.getpid())})

    async def _tokens(self) -> AsyncIterator[str]:
        async for _, token_id in self._engine.generate(self._prompt, (), Params(TOKENS, 0.9), SEED):
            yield f"data: {json.dumps({'text': chr(token_id)})}\n\n"


def count(seen: str, undisturbed: str) -> Count:
    """Exact where the answer is right. Else: tokens missing at the end, tokens too many, positions that differ."""
    wrong = sum(a != b for a, b in zip(seen, undisturbed, strict=False))
    return Count(max(0, len(undisturbed) - len(seen)), max(0, len(seen) - len(undisturbed)), wrong)


def read(lines: Iterator[str], text_of: Callable[[dict[str, Any]], str], after: Callable[[int], None]) -> Answer:
    """Read an event stream to its end or its break; `after(n)` is called after the n-th piece of text."""
    answer = Answer()
    last_s = time.perf_counter()
    try:
        for line in lines:
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            answer.resumes = chunk.get("paceline", {}).get("resumes", answer.resumes)
            text = text_of(chunk)
            if text:
                now_s = time.perf_counter()
                answer.pieces.append(text)
                answer.gaps_s.append(now_s - last_s)
                last_s = now_s
                after(len(answer.pieces))
    except httpx.HTTPError:
        answer.error_after_s = time.perf_counter() - last_s
    return answer


@dataclass
class Bench:
    url: str
    client: httpx.Client

    def ours(self, session: str, kill: bool) -> Answer:
        body = {"model": "char", "stream": True, "max_tokens": TOKENS, "temperature": 0.9, "seed": SEED}
        killed: list[int] = []

        def after(pieces: int) -> None:
            if kill and pieces == KILL_AFTER:
                killed.append(self.client.get(f"/v1/sessions/{session}").json()["replica"]["pid"])
                os.kill(killed[0], signal.SIGKILL)

        def text_of(chunk: dict[str, Any]) -> str:
            return str(chunk["choices"][0]["delta"].get("content", ""))

        headers = {"x-session-id": session}
        with self.client.stream(
            "POST", "/v1/chat/completions", json={**body, "messages": QUESTION}, headers=headers
        ) as answer:
            answer.raise_for_status()
            seen = read(answer.iter_lines(), text_of, after)
        self.client.delete(f"/v1/sessions/{session}")
        if kill and not (killed and seen.resumes == 1):
            raise TimedOut("PL-TIME-110", f"the kill did not cause one resume but {seen.resumes}")
        return seen

    def plain(self, kill: bool) -> tuple[Answer, float]:
        """The broken answer, and the seconds from its last token to the first one that a retry adds to it."""
        with self.client.stream("GET", "/plain/") as answer:
            pid = int(answer.headers["x-pid"])

            def after(pieces: int) -> None:
                if kill and pieces == KILL_AFTER:
                    os.kill(pid, signal.SIGKILL)

            seen = read(answer.iter_lines(), lambda chunk: str(chunk["text"]), after)
        return seen, (seen.error_after_s or 0.0) + self._retry_s(len(seen.pieces)) if kill else 0.0

    def _retry_s(self, had: int) -> float:
        """Plain Serve begins again: the client gets all that it had once more before anything new."""
        began_s = time.perf_counter()
        while time.perf_counter() - began_s < READY_S:
            with self.client.stream("GET", "/plain/") as answer:
                if answer.status_code == 200:
                    tokens = (line for line in answer.iter_lines() if line)
                    for _ in zip(range(had + 1), tokens, strict=False):
                        pass
                    return time.perf_counter() - began_s
        raise TimedOut("PL-TIME-111", "plain Serve did not answer again")

    def wait_whole(self) -> None:
        """Until two replicas answer on both sides, so that each round starts alike."""
        deadline_s = time.monotonic() + READY_S
        while not (self._ours_whole() and self._plain_whole()):
            if time.monotonic() > deadline_s:
                raise TimedOut("PL-TIME-112", "the replicas did not come back")
            time.sleep(0.2)

    def _ours_whole(self) -> bool:
        pids = set()
        body = {"model": "char", "max_tokens": 1, "messages": QUESTION}
        for number in range(6):
            session = f"look-{number}"
            self.client.post("/v1/chat/completions", json=body, headers={"x-session-id": session}).raise_for_status()
            pids.add(self.client.get(f"/v1/sessions/{session}").json()["replica"]["pid"])
            self.client.delete(f"/v1/sessions/{session}")
        return len(pids) == 2

    def _plain_whole(self) -> bool:
        answers = [self.client.get("/plain/pid") for _ in range(12)]
        return len({answer.json()["pid"] for answer in answers if answer.status_code == 200}) == 2


@contextmanager
def cluster() -> Iterator[Bench]:
    """A Ray cluster of its own with both services."""
    with tempfile.TemporaryDirectory(prefix="pb", dir="/tmp", ignore_cleanup_errors=True) as short:
        os.environ["RAY_AUTH_MODE"] = "disabled"
        ray.init(
            address="local",
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=short,
            namespace="paceline",
        )
        try:
            port = _free_port()
            journal = str(Path(short) / "journal.db")
            service = chat_app("char", port=port, gpus_per_replica=0, token_period_s=TOKEN_PERIOD_S, journal=journal)
            plain = serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0}, max_ongoing_requests=64)
            serve.run(plain(PlainReplica).bind(), name="plain", route_prefix="/plain")
            with httpx.Client(base_url=service.url, timeout=60) as client:
                yield Bench(service.url, client)
        finally:
            serve.shutdown()
            ray.shutdown()


def figures(kills: int = 12) -> list[Figure]:
    """Run `kills` rounds. Each takes about 10 s: most of it is waiting for the killed replicas' replacements."""
    ours: list[Answer] = []
    plain: list[tuple[Answer, float]] = []
    with cluster() as bench:
        bench.wait_whole()
        undisturbed = bench.ours("undisturbed", kill=False).text
        for number in range(kills):
            bench.wait_whole()
            ours.append(bench.ours(f"kill-{number}", kill=True))
            plain.append(bench.plain(kill=True))
    return rows(ours, plain, undisturbed)


def rows(ours: Sequence[Answer], plain: Sequence[tuple[Answer, float]], undisturbed: str) -> list[Figure]:
    gaps_ms = [1000 * max(answer.gaps_s[KILL_AFTER:]) for answer in ours]
    retries_ms = [1000 * retry_s for _, retry_s in plain]
    counts = [count(answer.text, undisturbed) for answer in ours]
    rival = [count(answer.text, undisturbed) for answer, _ in plain]
    # A retry sends again what the client had: those tokens come twice.
    p50, worst = statistics.median(gaps_ms), max(gaps_ms)
    doubled = sum(len(answer.pieces) for answer, _ in plain)
    return [
        Figure("serving.kill_gap_p50_ms", p50, "ms", statistics.median(retries_ms), RIVAL, f"≤ {GAP_P50_BAR_MS:g}"),
        Figure("serving.kill_gap_max_ms", worst, "ms", max(retries_ms), RIVAL, f"≤ {GAP_MAX_BAR_MS:g}"),
        Figure("serving.tokens_lost", sum(c.lost for c in counts), "tokens", sum(c.lost for c in rival), RIVAL, "0"),
        Figure("serving.tokens_doubled", sum(c.doubled for c in counts), "tokens", doubled, RIVAL, "0"),
        Figure("serving.tokens_wrong", sum(c.wrong for c in counts), "tokens", sum(c.wrong for c in rival), RIVAL, "0"),
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
