"""Only what was started is stopped: by pid and birth, with its family, never by name."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil

from paceline.runtime import processes
from waiting import until

WAITS = """
import subprocess, sys, time
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])
time.sleep(300)
"""
IGNORES = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(300)"
)
MARKED = {processes.MARK: "test-mark/host-1", "PATH": "/usr/bin:/bin"}


def start(code: str, log: Path) -> processes.Started:
    return processes.spawn([sys.executable, "-c", code], MARKED, log)


def test_a_family_is_killed_even_after_its_parent_died(tmp_path: Path) -> None:
    leader = start(WAITS, tmp_path / "log")
    family = until(lambda: found if len(found := processes.family([leader], "test-mark")) == 2 else None, 20)
    child = next(process for process in family if process.pid != leader.pid)
    psutil.Process(leader.pid).kill()
    until(lambda: not processes.is_running(leader), 10)
    assert child.is_running()
    assert processes.family([], "test-mark/host-10") == processes.family([], "test") == []
    assert processes.kill([leader], "test-mark") == 1
    assert not child.is_running()


def test_who_does_not_listen_is_killed_after_the_grace(tmp_path: Path) -> None:
    leader = start(IGNORES, tmp_path / "log")
    until(lambda: "deaf" in (tmp_path / "log").read_text(), 20)
    assert processes.stop([leader], "test-mark", grace_s=0.2) == 1
    assert not processes.is_running(leader)


def test_a_reused_pid_is_another_process() -> None:
    foreign = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        boot, _, tick = processes._birth(foreign.pid).partition("/")
        recorded = processes.Started(foreign.pid, f"{boot}/{int(tick) - 1}")
        assert not processes.is_running(recorded)
        assert processes.stop([recorded], "another-mark", grace_s=0.1) == 0
        before_reboot = replace(recorded, birth=f"another-boot/{tick}")
        assert processes.kill([before_reboot], "another-mark") == 0
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait(timeout=10)


CHILD = """
import sys
from paceline.runtime import processes
processes.end_with_parent()
{then}
"""


def child(then: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD.format(then=then)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_a_child_ends_with_its_parent() -> None:
    """The parent's death closes the pipe, however it dies."""
    with child("import signal\nsignal.pause()") as waits:
        assert waits.stdin is not None
        waits.stdin.close()
        assert waits.wait(60) == -signal.SIGTERM


def test_a_child_that_ends_first_ends_in_its_own_way() -> None:
    with child("sys.exit('its own words')") as fails:
        assert fails.stderr is not None
        assert (fails.stderr.read(), fails.wait(60)) == (b"its own words\n", 1)
