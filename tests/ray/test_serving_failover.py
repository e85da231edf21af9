"""A conversation outlives the replica under it: on a real Ray cluster, with real processes killed and frozen."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from paceline.inventory.journal import Journal
from paceline.model.ids import SessionId
from waiting import until

pytestmark = pytest.mark.ray

SCRIPT = Path(__file__).with_name("serving_cluster.py")
QUESTION = [{"role": "user", "content": "How does a generator differ from a list?"}]
ANSWER = {"model": "char", "max_tokens": 120, "temperature": 0.9, "seed": 11}


@dataclass
class Service:
    url: str
    journal: Path

    def body(self, messages: list[dict[str, str]], **more: Any) -> dict[str, Any]:
        return {**ANSWER, "messages": messages, **more}

    def ask(self, session: str, messages: list[dict[str, str]], **more: Any) -> dict[str, Any]:
        headers = {"x-session-id": session}
        answer = httpx.post(
            f"{self.url}/v1/chat/completions", json=self.body(messages, **more), headers=headers, timeout=60
        )
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def session(self, session: str) -> dict[str, Any]:
        answer = httpx.get(f"{self.url}/v1/sessions/{session}", timeout=20)
        answer.raise_for_status()
        body: dict[str, Any] = answer.json()
        return body

    def forget(self, session: str) -> None:
        httpx.delete(f"{self.url}/v1/sessions/{session}", timeout=20)


@dataclass
class Streamed:
    text: str = ""
    last: dict[str, Any] = field(default_factory=dict)
    comments: list[str] = field(default_factory=list)
    done: bool = False


def stream(service: Service, session: str, messages: list[dict[str, str]], on_chunk: Callable[[int], None]) -> Streamed:
    """Read an answer as it comes; `on_chunk(n)` is called after the n-th chunk of text."""
    seen, chunks = Streamed(), 0
    body, headers = service.body(messages, stream=True), {"x-session-id": session}
    with httpx.stream("POST", f"{service.url}/v1/chat/completions", json=body, headers=headers, timeout=60) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith(":"):
                seen.comments.append(line)
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                seen.done = True
                break
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            seen.last = chunk
            text = chunk["choices"][0]["delta"].get("content", "")
            if text:
                seen.text += text
                chunks += 1
                on_chunk(chunks)
    return seen


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def replica_count(service: Service) -> int:
    """Distinct replicas that answer now, seen from sessions that spread over the ring."""
    pids = set()
    for number in range(8):
        service.ask(f"spread-{number}", QUESTION, max_tokens=1)
        pids.add(service.session(f"spread-{number}")["replica"]["pid"])
        service.forget(f"spread-{number}")
    return len(pids)


@contextmanager
def running(home: Path, **arguments: Any) -> Iterator[Service]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="ps", dir="/tmp", ignore_cleanup_errors=True) as short:
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PACELINE_"))},
            "RAY_TMPDIR": short,
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PACELINE_HOME": str(home),
        }
        command = [sys.executable, str(SCRIPT), json.dumps({"port": port, "gpus_per_replica": 0, **arguments})]
        errors = (home / "cluster.log").open("w")
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=env
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, (home / "cluster.log").read_text()[-3000:]
            told = json.loads(line)
            yield Service(told["url"], Path(told["journal"]))
        finally:
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
            errors.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("home"), model="char", replicas=2, token_period_s=0.02) as up:
        yield up


@pytest.fixture
def undisturbed(service: Service) -> str:
    """The answer that no fault touched."""
    until(lambda: replica_count(service) == 2, 60, "both replicas answer")
    text: str = service.ask("undisturbed", QUESTION)["choices"][0]["message"]["content"]
    service.forget("undisturbed")
    assert len(text) == ANSWER["max_tokens"]
    return text


def strike(service: Service, session: str, number: int, struck: list[int]) -> Callable[[int], None]:
    """Send `number` to the serving replica after 30 chunks, once."""

    def on_chunk(count: int) -> None:
        if count == 30 and not struck:
            struck.append(service.session(session)["replica"]["pid"])
            os.kill(struck[0], number)

    return on_chunk


def test_killed_replica_costs_no_token(service: Service, undisturbed: str) -> None:
    struck: list[int] = []
    seen = stream(service, "killed", QUESTION, strike(service, "killed", signal.SIGKILL, struck))
    assert gone(struck[0]), "the fault did not fire"
    assert seen.done
    assert seen.text == undisturbed
    extra = seen.last["paceline"]
    assert (extra["resumes"], extra["resume"]) == (1, "exact")
    assert extra["matched"] == extra["checked"] > 0
    assert len(seen.comments) == 1
    after = service.session("killed")
    assert (after["turns"], after["tokens"], after["resumes"]) == (1, ANSWER["max_tokens"], 1)
    assert after["replica"]["pid"] != struck[0]


def test_next_turn_after_a_kill_knows_the_earlier_ones(service: Service, undisturbed: str) -> None:
    struck: list[int] = []
    seen = stream(service, "two-turns", QUESTION, strike(service, "two-turns", signal.SIGKILL, struck))
    assert gone(struck[0]), "the fault did not fire"
    follow = service.ask("two-turns", [{"role": "user", "content": "And a tuple?"}])
    first, second = Journal(service.journal).turns(SessionId("two-turns"))
    assert follow["usage"]["prompt_tokens"] == len(second.prompt_ids) > len(first.prompt_ids) + len(seen.text)
    assert seen.text.encode() in bytes(second.prompt_ids)
    history = [*QUESTION, {"role": "assistant", "content": seen.text}, {"role": "user", "content": "And a tuple?"}]
    again = service.ask("two-turns", history)
    assert again["choices"][0]["message"]["content"] == follow["choices"][0]["message"]["content"]
    assert again["usage"]["prompt_tokens"] == follow["usage"]["prompt_tokens"], "the stored history was doubled"


def test_frozen_replica_is_left(service: Service, undisturbed: str) -> None:
    struck: list[int] = []
    try:
        seen = stream(service, "frozen", QUESTION, strike(service, "frozen", signal.SIGSTOP, struck))
        assert not gone(struck[0]), "it was to be frozen, not dead"
        assert seen.text == undisturbed
        assert seen.last["paceline"]["resumes"] == 1
        service.ask("frozen", [{"role": "user", "content": "And a tuple?"}], max_tokens=1)
        assert service.session("frozen")["replica"]["pid"] != struck[0]
    finally:
        os.kill(struck[0], signal.SIGKILL)


def test_openai_client_sees_a_plain_answer(service: Service, undisturbed: str) -> None:
    client = openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)
    struck: list[int] = []
    on_chunk = strike(service, "client", signal.SIGKILL, struck)
    answer = client.chat.completions.create(
        model="char",
        messages=[{"role": "user", "content": QUESTION[0]["content"]}],
        max_tokens=120,
        temperature=0.9,
        seed=11,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"x-session-id": "client"},
    )
    texts, usage, finish = [], None, None
    for chunk in answer:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            if choice.delta.content:
                texts.append(choice.delta.content)
                on_chunk(len(texts))
    assert gone(struck[0]), "the fault did not fire"
    assert "".join(texts) == undisturbed
    assert finish == "length"
    assert usage is not None
    assert usage.completion_tokens == 120


def test_errors_before_the_first_byte_are_openai_errors(service: Service) -> None:
    client = openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)
    ask = client.chat.completions.create
    with pytest.raises(openai.NotFoundError):
        ask(model="other", messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.BadRequestError):
        ask(model="char", messages=[{"role": "user", "content": "hi"}], max_tokens=100_000)
    with pytest.raises(openai.BadRequestError):
        ask(model="char", messages=[{"role": "user", "content": "hi"}], n=2)
    assert [model.id for model in client.models.list()] == ["char"]


def test_client_that_leaves_cancels_its_turn(service: Service) -> None:
    body, headers = service.body(QUESTION, stream=True, max_tokens=4000), {"x-session-id": "left"}
    with httpx.stream("POST", f"{service.url}/v1/chat/completions", json=body, headers=headers, timeout=60) as answer:
        lines = answer.iter_lines()
        for _ in range(20):
            next(lines)
    journal = Journal(service.journal)
    until(lambda: journal.turns(SessionId("left"))[0].state == "cancelled", 30, "the turn is marked")
    (turn,) = journal.turns(SessionId("left"))
    assert 0 < len(turn.emitted_ids) < 4000
    assert bytes(turn.emitted_ids).startswith(turn.reply.encode())


def test_sessions_outlive_the_gateway(service: Service, undisturbed: str) -> None:
    first = service.ask("kept", QUESTION)
    pid = gateway_pid(service)
    cut = threading.Thread(target=lambda: open_stream(service, "cut"), daemon=True)
    cut.start()
    journal = Journal(service.journal)
    until(lambda: any(turn.emitted_ids for turn in journal.turns(SessionId("cut"))), 30, "the other turn runs")
    os.kill(pid, signal.SIGKILL)
    until(lambda: gone(pid), 30, "the gateway is gone")
    until(lambda: alive(service, pid), 60, "it is back")
    kept = service.session("kept")
    assert (kept["turns"], kept["tokens"]) == (1, ANSWER["max_tokens"])
    follow = service.ask("kept", [{"role": "user", "content": "And a tuple?"}])
    assert follow["usage"]["prompt_tokens"] > first["usage"]["total_tokens"]
    (half,) = journal.turns(SessionId("cut"))
    assert half.state == "interrupted"
    assert half.reply.encode() == bytes(half.emitted_ids)
    assert undisturbed.startswith(half.reply)


def open_stream(service: Service, session: str) -> None:
    with pytest.raises(httpx.HTTPError):
        stream(service, session, QUESTION, lambda _: None)


def gateway_pid(service: Service) -> int:
    """The process that holds the journal open. Engines and this test's own handles are told apart by name."""
    for entry in Path("/proc").iterdir():
        is_gateway = entry.name.isdigit() and "ServeReplica:gateway" in command_of(entry)
        if is_gateway and str(service.journal) in open_files(entry):
            return int(entry.name)
    raise AssertionError("no gateway process")


def command_of(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_text()
    except OSError:
        return ""


def open_files(entry: Path) -> list[str]:
    try:
        return [os.readlink(file) for file in (entry / "fd").iterdir()]
    except OSError:
        return []


def alive(service: Service, old_pid: int) -> bool:
    try:
        return httpx.get(f"{service.url}/v1/models", timeout=5).status_code == 200 and gateway_pid(service) != old_pid
    except (httpx.HTTPError, AssertionError):
        return False


def test_real_model_survives_a_kill(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    question = [{"role": "user", "content": "Name three colours of the rainbow and say one sentence about each."}]
    more = {"model": "smollm2", "max_tokens": 40, "temperature": 0.7, "seed": 5}
    with running(tmp_path, model="smollm2", replicas=2) as real:
        whole = real.ask("plain", question, **more)["choices"][0]["message"]["content"]
        struck: list[int] = []
        texts: list[str] = []
        body, headers = real.body(question, stream=True, **more), {"x-session-id": "struck"}
        last: dict[str, Any] = {}
        with httpx.stream("POST", f"{real.url}/v1/chat/completions", json=body, headers=headers, timeout=60) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    last = json.loads(line.removeprefix("data: "))
                    texts.append(last["choices"][0]["delta"].get("content", ""))
                    if len(texts) == 10:
                        struck.append(real.session("struck")["replica"]["pid"])
                        os.kill(struck[0], signal.SIGKILL)
        assert gone(struck[0]), "the fault did not fire"
        assert "".join(texts) == whole
        assert (last["paceline"]["resumes"], last["paceline"]["resume"]) == (1, "exact")
