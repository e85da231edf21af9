"""Reads NVML through a process that can be killed: NVML can hang on a sick GPU, and "no answer" is an answer too.

Does not import pynvml: the parent must never be inside a call of the driver.
"""

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from paceline.model.hardware import XidEvent
from paceline.telemetry.nvml_wire import Failed, Reading, Ready, decode

COMMAND: Final = (sys.executable, "-m", "paceline.telemetry.nvml_child")
PERIOD_S: Final = 1.0
KILL_AFTER_S: Final = 3 * PERIOD_S
"""A reader that owes an answer for so long is killed, and NVML is declared silent."""
START_WITHIN_S: Final = 30.0
"""Without persistence mode the driver initialises each GPU at the first touch: seconds for eight of them."""
RESTART_PAUSE_S: Final = 1.0
"""Least time between two starts. A reader that dies at once must not become a fork storm."""
REAP_WITHIN_S: Final = 1.0
assert KILL_AFTER_S >= 3 * PERIOD_S, "one slow reading must not kill the reader"
assert START_WITHIN_S > KILL_AFTER_S


@dataclass(frozen=True, slots=True)
class Silence:
    """No reading. `declared` once it has lasted so long that the devices count as UNKNOWN."""

    reason: str
    declared: bool


class NvmlProbe:
    """One reader process, started at the first `read` and again whenever it is gone.

    `read` and `close` belong to one thread. `on_xid` is called in another one, at once when the event comes, and must
    not block.
    """

    def __init__(
        self,
        on_xid: Callable[[XidEvent], None],
        command: Sequence[str] = COMMAND,
        kill_after_s: float = KILL_AFTER_S,
        start_within_s: float = START_WITHIN_S,
    ) -> None:
        self._on_xid = on_xid
        self._command = tuple(command)
        self._kill_after_s = kill_after_s
        self._start_within_s = start_within_s
        self._child: _Child | None = None
        self._stuck: list[subprocess.Popen[str]] = []
        self._silent_since = time.monotonic()
        self._answered = False
        self.starts = 0
        """How often the reader was started: one more than it was restarted."""

    @property
    def pid(self) -> int | None:
        return self._child.process.pid if self._child else None

    def read(self, deadline_s: float) -> Reading | Silence:
        """A reading within `deadline_s`, or why there is none. Never raises for what NVML or its reader does.

        A request that was not answered stays asked: the next call waits for the same answer.
        """
        until = time.monotonic() + deadline_s
        child = self._running_child(deadline_s)
        if isinstance(child, Silence):
            return child
        answer = child.answer(max(0.0, until - time.monotonic()))
        if isinstance(answer, Reading):
            self._silent_since, self._answered = time.monotonic(), True
            return answer
        if isinstance(answer, Failed):
            self._drop()
            return self._silence(f"the NVML reader failed: {answer.reason}", declared=True)
        limit_s = self._kill_after_s if child.ready else self._start_within_s
        if child.waited_s < limit_s:
            return self._silence("NVML does not answer")
        self._drop()
        how = "killed and is started again" if not self._stuck else "told to end, and hangs in the driver"
        return self._silence(f"NVML does not answer; its reader was {how}", declared=True)

    def close(self) -> None:
        """End the reader."""
        if self._child:
            self._drop()

    def _silence(self, reason: str, declared: bool = False) -> Silence:
        silent_s = time.monotonic() - self._silent_since
        limit_s = self._kill_after_s if self._answered else self._start_within_s
        return Silence(f"{reason} (silent for {silent_s:.1f} s)", declared or silent_s >= limit_s)

    def _running_child(self, deadline_s: float) -> "_Child | Silence":
        if self._child:
            return self._child
        self._stuck = [process for process in self._stuck if process.poll() is None]
        if self._stuck:
            time.sleep(deadline_s)  # another reader would hang like it, and neither can be killed
            return self._silence(f"the NVML reader {self._stuck[0].pid} hangs in the driver and cannot be killed", True)
        if self.starts:
            time.sleep(min(deadline_s, RESTART_PAUSE_S))
        self._child = _Child(self._command, self._on_xid)
        self.starts += 1
        return self._child

    def _drop(self) -> None:
        assert self._child is not None
        process, self._child = self._child.process, None
        process.kill()
        if process.stdin:
            process.stdin.close()
        try:
            process.wait(REAP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._stuck.append(process)


class _Child:
    """A running reader and the thread that takes its messages."""

    def __init__(self, command: Sequence[str], on_xid: Callable[[XidEvent], None]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = False
        self._on_xid = on_xid
        self._answers: queue.Queue[Reading | Failed] = queue.Queue()
        self._asked: float | None = None
        threading.Thread(target=self._take_messages, name="nvml-messages", daemon=True).start()

    @property
    def waited_s(self) -> float:
        """How long the request that is out has been waiting."""
        return time.monotonic() - self._asked if self._asked is not None else 0.0

    def answer(self, deadline_s: float) -> Reading | Failed | None:
        """The answer to the request that is out, or to a new one; None if it does not come in time."""
        if self._asked is None:
            self._asked = time.monotonic()
            failed = self._ask()
            if failed:
                return failed
        try:
            answer = self._answers.get(timeout=deadline_s)
        except queue.Empty:
            return None
        self._asked = None
        return answer

    def _ask(self) -> Failed | None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("read\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return Failed(f"it ended with exit status {self.process.wait()}")
        return None

    def _take_messages(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            match decode(line):
                case XidEvent() as event:
                    self._on_xid(event)
                case Ready():
                    self.ready = True
                    if self._asked is not None:
                        self._asked = time.monotonic()
                case Reading() | Failed() as answer:
                    self._answers.put(answer)
        self._answers.put(Failed(f"it ended with exit status {self.process.wait()}"))
