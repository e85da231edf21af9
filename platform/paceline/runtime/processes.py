"""Processes that Paceline started: named by pid and start time, so that a reused pid is never touched."""

import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

STOP_GRACE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Started:
    pid: int
    started: float

    def find(self) -> psutil.Process | None:
        """The process, if it still is the one that was started."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < 0.02 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return process if same else None

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """SIGTERM, then SIGKILL for what is left of it and its children after the grace."""
        process = self.find()
        if process is None:
            return
        family = [process, *process.children(recursive=True)]
        process.terminate()
        psutil.wait_procs([process], timeout=grace_s)
        for survivor in (p for p in family if p.is_running()):
            try:
                survivor.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(family, timeout=5)


def start(module: str, *args: str, log: Path, env: Mapping[str, str] | None = None) -> Started:
    """Start `python -m module` as a session of its own, with both outputs in `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *args],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=dict(env) if env is not None else None,
        )
    return Started(process.pid, psutil.Process(process.pid).create_time())


def free_port(preferred: int = 0, host: str = "127.0.0.1") -> int:
    """`preferred` if nobody listens there, else any free port."""
    for port in (preferred, 0):
        with closing(socket.socket()) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free port")
