"""Starting and stopping processes so that only what was started is ever stopped, whatever became of its pid since."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

MARK: Final = "PACELINE_SIM_MARK"
"""Environment variable that a cluster's processes inherit; its value is drawn once for each cluster."""
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Started:
    """A process, by pid and `birth` (boot id and clock tick of its start): a reused pid is another process."""

    pid: int
    birth: str


def spawn(command: Sequence[str], env: Mapping[str, str], log: Path) -> Started:
    """Starts a process in a session of its own, without terminal; its output is added to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        child = subprocess.Popen(
            command, env=dict(env), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    return Started(child.pid, _birth(child.pid))


def end_with_parent() -> None:
    """From now on this process ends (SIGTERM) when its parent does, even by SIGKILL: the parent holds the other end of its stdin.

    Without this an orphan would go on beside the one that the next parent starts, on the same port and the same tables.
    """

    def wait() -> None:
        while os.read(0, 4096):  # not sys.stdin: its lock would abort an interpreter that ends by itself meanwhile
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="paceline-parent", daemon=True).start()


def current() -> Started:
    """This process."""
    return Started(os.getpid(), _birth(os.getpid()))


def _birth(pid: int) -> str:
    """Raises OSError if there is no such process. Ticks, not psutil's times: those move when the clock is set."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{boot}/{after_name[19]}"  # starttime is field 22 of proc_pid_stat(5); the name is field 2


def is_running(started: Started) -> bool:
    """Whether this very process still runs. A child of ours that ended is collected on the way."""
    process = _find(started)
    return process is not None and _alive(process)


def family(leaders: Iterable[Started], mark: str = "") -> list[psutil.Process]:
    """Everything that came from `leaders`: their descendants, what carries the mark, and Ray's processes of their
    sessions.

    Mark and session find those whose parent has died. The mark alone would miss Ray's workers, which overwrite their
    environment with their title. A session is looked at only in the boot in which it was made.
    """
    found: dict[int, psutil.Process] = {}
    sessions = set()
    boot = _birth(os.getpid()).partition("/")[0]
    for started in leaders:
        leader = _find(started)
        if leader is not None:
            with suppress(psutil.NoSuchProcess):
                found.update({child.pid: child for child in [leader, *leader.children(recursive=True)]})
        if leader is not None or (started.birth.startswith(boot) and not psutil.pid_exists(started.pid)):
            sessions.add(started.pid)
    for process in psutil.process_iter():
        if process.pid not in found and process.pid != os.getpid() and _belongs(process, sessions, mark):
            found[process.pid] = process
    return [process for process in found.values() if _alive(process)]


def stop(leaders: Sequence[Started], mark: str, grace_s: float) -> int:
    """Asks the leaders to end (SIGTERM); after `grace_s` kills what is left of their families. Returns how many."""
    members = {process.pid: process for process in family(leaders, mark)}
    for started in leaders:
        if process := _find(started):
            _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while any(_alive(process) for process in members.values()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return _kill(members, leaders, mark)


def kill(leaders: Sequence[Started], mark: str) -> int:
    """Kills the leaders and their families at once, as if the power had gone. Returns how many were killed."""
    return _kill({process.pid: process for process in family(leaders, mark)}, leaders, mark)


def _kill(members: dict[int, psutil.Process], leaders: Sequence[Started], mark: str) -> int:
    count = len(members)
    while members:
        for process in members.values():
            _signal(process, signal.SIGKILL)
        psutil.wait_procs(list(members.values()), timeout=2)
        members = {process.pid: process for process in family(leaders, mark)}  # born while we killed
    return count


def _find(started: Started) -> psutil.Process | None:
    with suppress(psutil.NoSuchProcess, OSError):
        process = psutil.Process(started.pid)
        if _birth(started.pid) == started.birth:
            return process
    return None


def _alive(process: psutil.Process) -> bool:
    try:
        if process.status() != psutil.STATUS_ZOMBIE:
            return bool(process.is_running())
    except psutil.NoSuchProcess:
        return False
    with suppress(ChildProcessError):  # a zombie of another parent is not ours to collect
        os.waitpid(process.pid, os.WNOHANG)
    return False


def _belongs(process: psutil.Process, sessions: set[int], mark: str) -> bool:
    try:
        if f"{process.environ().get(MARK)}/".startswith(f"{mark}/"):  # a cluster's mark covers those of its nodes
            return True
        return os.getsid(process.pid) in sessions and "ray" in " ".join(process.cmdline())
    except (psutil.Error, OSError):  # gone meanwhile, or another user's
        return False


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):  # psutil compares the start time again before it sends
        process.send_signal(number)
