"""Acts five and six: two chat replicas behind the gateway, and a conversation whose replica is killed in mid-sentence."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from openai import OpenAI

from paceline.runtime.ports import free_port
from paceline.sdk.rows import SessionRow
from paceline.sim.demo.scene import Demo, tool, until

MODEL: Final = "smollm2"
SEED: Final = 7
TOKENS: Final = 40
FIRST_TURN: Final = "Why does riding a bicycle in a group save energy?"
NEXT_TURN: Final = "Say that in fewer words."
"""The model is too small to be quizzed; but what it says depends on every token of its prompt, and the seed on nothing else."""


def deploy(demo: Demo) -> None:
    demo.serve_port = free_port()
    script = [sys.executable, str(Path("serve_apps/chat.py").resolve()), "--model", MODEL, "--replicas", "2"]
    with demo.doing("`ray job submit -- python serve_apps/chat.py`: two replicas load SmolLM2-135M"):
        demo.run(tool("ray"), "job", "submit", "--", *script, "--port", str(demo.serve_port), deadline_s=400)
    models = httpx.get(f"{_base(demo)}/models", timeout=60).raise_for_status().json()
    names = [model["id"] for model in models["data"]]
    demo.claim("a real small model answers on an OpenAI-compatible URL", MODEL in names, f"{_base(demo)}: {names}")


def converse(demo: Demo) -> None:
    with demo.doing("an undisturbed conversation, to compare with"):
        calm, _ = talk(demo, "calm", FIRST_TURN)
        calm_next, _ = talk(demo, "calm", NEXT_TURN)
        alone, alone_tokens = talk(demo, "alone", NEXT_TURN)
    killed: list[psutil.Process] = []

    def kill(text: str) -> None:
        if not killed and len(text) > len(calm) // 3:
            killed.append(psutil.Process(int(session(demo, "ridden")["replica"]["pid"])))
            os.kill(killed[0].pid, signal.SIGKILL)

    with demo.doing("the same conversation; SIGKILL for its replica in mid-sentence"):
        ridden, first_tokens = talk(demo, "ridden", FIRST_TURN, kill)
    resumes = session(demo, "ridden")["resumes"]
    gone = bool(killed) and not killed[0].is_running()
    demo.claim(
        "a replica dies in mid-sentence and its client notices nothing",
        gone and resumes == 1 and ridden == calm and bool(calm),
        f"{resumes} resume; {len(ridden)} characters, none lost, doubled or other",
    )
    with demo.doing("the next turn, sent without the earlier ones"):
        again, next_tokens = talk(demo, "ridden", NEXT_TURN)
    demo.claim(
        "the next turn knows the earlier ones, on another replica",
        again == calm_next and again != alone and next_tokens > first_tokens + alone_tokens,
        f"a prompt of {next_tokens} tokens; without them {alone_tokens}, and another answer",
    )

    def tracked() -> SessionRow | None:
        return next(
            (s for s in demo.client.sessions() if s.session_id == "ridden" and s.turns == 2 and s.resumes), None
        )

    row = until("the inventory knows the session", 60, tracked)
    assert row is not None, "until returns true results only"
    demo.claim("the inventory tracks the session", bool(row.device), f"{row.turns} turns on {row.device[:12]}…")


def talk(demo: Demo, name: str, words: str, during: Callable[[str], None] = lambda _: None) -> tuple[str, int]:
    """One streamed turn of the official OpenAI client: its text and the tokens of its prompt. `during` hears the text so far."""
    client = OpenAI(base_url=_base(demo), api_key="none", max_retries=0, timeout=120)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": words}],
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=TOKENS,
        temperature=0.7,
        seed=SEED,
        extra_headers={"x-session-id": name},
    )
    text, prompt_tokens = "", 0
    for piece in stream:
        text += (piece.choices[0].delta.content or "") if piece.choices else ""
        prompt_tokens = piece.usage.prompt_tokens if piece.usage else prompt_tokens
        during(text)
    return text, prompt_tokens


def session(demo: Demo, name: str) -> dict[str, Any]:
    row: dict[str, Any] = httpx.get(f"{_base(demo)}/sessions/{name}", timeout=60).raise_for_status().json()
    return row


def _base(demo: Demo) -> str:
    return f"http://127.0.0.1:{demo.serve_port}/v1"
