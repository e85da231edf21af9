"""`paceline server`: keeps the control API and the reconciler alive, each a process of its own, and tells others where they are."""

import argparse
import fcntl
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

import structlog

from paceline.model.errors import Unreachable
from paceline.runtime import processes
from paceline.runtime.ports import free_port
from paceline.runtime.settings import Settings
from paceline.sdk.client import Client

log = structlog.get_logger()

CHECK_S: Final = 0.5
BACKOFF_MAX_S: Final = 10.0
STABLE_S: Final = 30.0
"""A child that has run this long starts again at once when it dies."""
STARTUP_DEADLINE_S: Final = 120.0
STOP_GRACE_S: Final = 10.0


@dataclass
class Child:
    """A process that is started again whenever it ends, with a growing pause while it keeps ending early."""

    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    not_before: float = 0.0
    failures: int = field(default=0)

    def check(self, now: float) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        if self.process is not None:
            self._ended(self.process.returncode, now)
        if now >= self.not_before:
            with self.log.open("ab") as out:
                self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=out, stderr=out)
            self.started = now

    def _ended(self, status: int, now: float) -> None:
        self.failures = 0 if now - self.started > STABLE_S else self.failures + 1
        self.not_before = now + min(BACKOFF_MAX_S, 0.25 * 2**self.failures if self.failures else 0.0)
        log.warning(
            "process ended; it is started again", command=self.command[2], status=status, failures=self.failures
        )
        self.process = None

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Server:
    def __init__(self, settings: Settings, ray_address: str) -> None:
        self._settings, self._ray_address = settings, ray_address
        port = settings.port or free_port(_last_port(settings))
        self.url = f"http://{settings.host}:{port}"
        settings.logs.mkdir(parents=True, exist_ok=True)
        python = [sys.executable, "-m"]
        self._api = Child([*python, "paceline.runtime.api", "--port", str(port)], settings.logs / "api.log")
        self._reconciler = Child(
            [
                *python,
                "paceline.runtime.reconciler",
                "--ray-address",
                ray_address,
                "--server-url",
                self.url,
                "--token-file",
                str(settings.agent_token_file),
            ],
            settings.logs / "reconciler.log",
        )
        self._stop = False

    def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        with (self._settings.home / "server.lock").open("w") as only_one:
            try:
                fcntl.flock(only_one, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sys.exit(f"another server runs for {self._settings.home}")
            self._keep_running()

    def _keep_running(self) -> None:
        try:
            self._wait_for_api()
            _announce(self._settings, self.url, self._ray_address)
            while not self._stop:
                for child in (self._api, self._reconciler):
                    child.check(time.monotonic())
                time.sleep(CHECK_S)
        finally:
            self._reconciler.stop()
            self._api.stop()

    def _wait_for_api(self) -> None:
        deadline = time.monotonic() + STARTUP_DEADLINE_S
        while not self._stop:
            self._api.check(time.monotonic())
            try:
                Client(self.url, "", deadline_s=1).health()
                return
            except Unreachable:
                if time.monotonic() > deadline:
                    sys.exit(f"the API does not answer at {self.url}; its log: {self._api.log}")
            time.sleep(0.2)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop = True


def _last_port(settings: Settings) -> int:
    """The port of the start before, so that actors and bookmarks find the server again."""
    try:
        return int(json.loads(settings.server_file.read_text())["url"].rsplit(":", 1)[1])
    except (OSError, ValueError, KeyError, IndexError):
        return 0


def _announce(settings: Settings, url: str, ray_address: str) -> None:
    me = processes.current()
    temporary = settings.server_file.with_suffix(".new")
    temporary.write_text(json.dumps({"url": url, "pid": me.pid, "birth": me.birth, "ray_address": ray_address}))
    temporary.replace(settings.server_file)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ray-address", required=True)
    args = parser.parse_args()
    Server(Settings(), args.ray_address).run()


if __name__ == "__main__":
    main()
