"""What the acts of the demo share: where it lives, how it runs a user's commands, and what it has found to be true."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
from rich.console import Console

from paceline.model.errors import PacelineError
from paceline.sdk.client import Client
from paceline.sdk.rows import DeviceRow

T = TypeVar("T")

console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)


class ClaimFailedError(Exception):
    """What the demo says would not be true."""


@dataclass
class Demo:
    """One run: its home, its environment, and what it has measured and checked."""

    home: Path
    env: dict[str, str]
    claims: list[tuple[str, str]] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    serve_port: int = 0

    def claim(self, what: str, truth: bool, figures: str) -> None:
        """Say it, if it is true."""
        if not truth:
            raise ClaimFailedError(f"not true: {what} ({figures})")
        self.claims.append((what, figures))
        console.print(f"  [green]✔[/] {what} [dim]· {figures}[/]")

    @contextmanager
    def phase(self, title: str) -> Iterator[None]:
        console.print(f"[bold]{title}[/]")
        started = time.monotonic()
        yield  # a phase that fails has no time
        self.phases[title] = time.monotonic() - started
        console.print(f"  [dim]{self.phases[title]:.0f} s[/]")

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Say what takes long, while it does."""
        with console.status(f"  {what}"):
            if not console.is_terminal:
                console.print(f"  … {what}")
            yield

    @property
    def server(self) -> str:
        url: str = json.loads((self.home / "server.json").read_text())["url"]
        return url

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()

    @property
    def client(self) -> Client:
        return Client(self.server, self.token)

    def run(self, *command: str, deadline_s: float = 300) -> str:
        """Run a command as a user would; its words are shown only if it fails."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=deadline_s, check=False)
        if done.returncode != 0:
            words = (done.stdout + done.stderr)[-3000:]
            raise ClaimFailedError(f"`{' '.join(command)}` ended with status {done.returncode}:\n{words}")
        return done.stdout


def tool(name: str) -> str:
    """A program of this virtual environment."""
    return str(Path(sys.executable).parent / name)


def until(what: str, deadline_s: float, look: Callable[[], T]) -> T:
    """The first true result of `look`, which may fail meanwhile as anything may that is being restarted."""
    ends = time.monotonic() + deadline_s
    while True:
        try:
            found = look()
        except (PacelineError, httpx.HTTPError, StopIteration) as error:
            if time.monotonic() > ends:
                raise ClaimFailedError(f"not within {deadline_s:.0f} s: {what} ({error!r})") from error
        else:
            if found:
                return found
            if time.monotonic() > ends:
                raise ClaimFailedError(f"not within {deadline_s:.0f} s: {what}")
        time.sleep(0.1)


def place(device: DeviceRow) -> str:
    return f"{device.host} GPU {device.index}"
