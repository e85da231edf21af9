"""Reads NVML through a process that can be killed: NVML can hang on a sick GPU, and "no answer" is an answer too.

Does not import pynvml: the parent must never be inside a call of the driver.

A reader that hangs was at one device, and the mark (nvml_mark.py) says which. The next reader leaves that device out
and the others are read on; a reader of its own tries the device again after a pause, so that a new hang holds up nobody.
Where no device was in hand (NVML's start, its count of devices), NVML as a whole is silent.
"""

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from paceline.model.hardware import DeviceFacts, XidEvent
from paceline.model.ids import DeviceUuid
from paceline.telemetry.nvml_mark import open_mark, read_mark
from paceline.telemetry.nvml_wire import Failed, Noticed, Reading, Ready, Seen, decode

COMMAND: Final = (sys.executable, "-m", "paceline.telemetry.nvml_child")
PERIOD_S: Final = 1.0
KILL_AFTER_S: Final = 3 * PERIOD_S
"""A reader that owes an answer for so long is killed, and NVML is declared silent, or a device unreadable."""
START_WITHIN_S: Final = 30.0
"""Without persistence mode the driver initialises each GPU at the first touch: seconds for eight of them."""
START_DEVICE: Final = 2
"""The longest that a starting reader may be at one device, in KILL_AFTER_S: the first touch takes longer."""
DECLARE: Final = 3
"""Without a reading for so many KILL_AFTER_S NVML is silent, even while a reader starts that leaves a device out."""
RESTART_PAUSE_S: Final = 1.0
"""Least time between two starts. A reader that dies at once must not become a fork storm."""
REAP_WITHIN_S: Final = 1.0
FIRST_RETRY_S: Final = 60.0
LAST_RETRY_S: Final = 900.0
"""A device that hung is tried again after FIRST_RETRY_S; the pause doubles up to this while it goes on to hang."""
assert KILL_AFTER_S >= 3 * PERIOD_S, "one slow reading must not kill the reader"
assert 1 < START_DEVICE < DECLARE
assert DECLARE * KILL_AFTER_S + PERIOD_S <= 10, "hung NVML is declared within ten seconds"
assert START_WITHIN_S > START_DEVICE * KILL_AFTER_S


@dataclass(frozen=True, slots=True)
class Silence:
    """No reading. `declared` once it has lasted so long that all devices count as UNKNOWN; `unreadable` already do."""

    reason: str
    declared: bool
    unreadable: tuple[DeviceUuid, ...] = ()


@dataclass(slots=True)
class _Sick:
    """A device on which NVML hangs. `process` hangs in the driver for it, and cannot be killed."""

    device: DeviceFacts
    pause_s: float
    retry_at: float
    process: "subprocess.Popen[str] | None" = None


class NvmlProbe:
    """One reader process, started at the first `read` and again whenever it is gone.

    `read` and `close` belong to one thread. `on_xid` and `on_event` are called in another one, at once when the event
    comes, and must not block; after either, the next reading is of everything.
    """

    def __init__(
        self,
        on_xid: Callable[[XidEvent], None],
        on_event: Callable[[Noticed], None] = lambda event: None,
        command: Sequence[str] = COMMAND,
        kill_after_s: float = KILL_AFTER_S,
        start_within_s: float = START_WITHIN_S,
        first_retry_s: float = FIRST_RETRY_S,
    ) -> None:
        self._on_xid, self._on_event = on_xid, on_event
        self._command = tuple(command)
        self._kill_after_s, self._start_within_s = kill_after_s, start_within_s
        self._first_retry_s = first_retry_s
        self._child: _Child | None = None
        self._trial: _Child | None = None
        self._tried = ""
        self._known: dict[str, DeviceFacts] = {}
        self._sick: dict[str, _Sick] = {}
        self._recovered: dict[str, tuple[float, float]] = {}
        self._stuck: list[subprocess.Popen[str]] = []
        self._silent_since = time.monotonic()
        self._answered = False
        self._blamed = False
        self.starts = 0
        """How often the reader was started: one more than it was restarted. Trials of one device do not count."""

    @property
    def pid(self) -> int | None:
        return self._child.process.pid if self._child else None

    @property
    def unreadable(self) -> tuple[DeviceUuid, ...]:
        """Devices on which NVML hangs."""
        return tuple(sorted(sick.device.uuid for sick in self._sick.values()))

    def read(self, deadline_s: float) -> Reading | Silence:
        """A reading within `deadline_s`, or why there is none. Never raises for what NVML or its reader does.

        A request that was not answered stays asked: the next call waits for the same answer.
        """
        until = time.monotonic() + deadline_s
        self._try_again()
        child = self._running_child(deadline_s)
        if isinstance(child, Silence):
            return child
        answer = child.answer(max(0.0, until - time.monotonic()))
        if isinstance(answer, Reading):
            return self._with_the_sick(answer)
        if isinstance(answer, Failed):
            self._drop(child)
            return self._silence(f"the NVML reader failed: {answer.reason}", declared=True)
        if not self._hangs(child):
            return self._silence("NVML does not answer")
        return self._end_hanging(child)

    def close(self) -> None:
        """End the reader."""
        for child in (self._child, self._trial):
            if child:
                self._drop(child)

    def _with_the_sick(self, reading: Reading) -> Reading:
        self._silent_since, self._answered, self._blamed = time.monotonic(), True, False
        self._known = {device.pci_bus_id: device for device in reading.devices}
        left_out = [sick.device for place, sick in sorted(self._sick.items()) if place not in self._known]
        return replace(reading, devices=(*reading.devices, *left_out), unreadable=self.unreadable)

    def _hangs(self, child: "_Child") -> bool:
        if child.ready:
            return child.waited_s >= self._kill_after_s
        return child.waited_s >= self._start_within_s or child.at_device_s() >= START_DEVICE * self._kill_after_s

    def _end_hanging(self, child: "_Child") -> Silence:
        self._known |= child.seen
        device = self._known.get(child.mark)
        process = self._drop(child)
        if device is None:
            how = "killed and is started again" if process is None else "told to end, and hangs in the driver"
            self._stuck += [process] if process else []
            return self._silence(f"NVML does not answer; its reader was {how}", declared=True)
        self._leave_out(device, process)
        self._blamed = True
        return self._silence(f"NVML does not answer for {device.uuid}; the others are read again without it")

    def _leave_out(self, device: DeviceFacts, process: "subprocess.Popen[str] | None") -> None:
        now = time.monotonic()
        pause_s, until = self._recovered.pop(device.pci_bus_id, (0.0, 0.0))
        again = now < until
        pause_s = min(2 * pause_s, LAST_RETRY_S) if again else self._first_retry_s
        self._sick[device.pci_bus_id] = _Sick(device, pause_s, now + pause_s, process)

    def _silence(self, reason: str, declared: bool = False) -> Silence:
        silent_s = time.monotonic() - self._silent_since
        limit_s = self._kill_after_s if self._answered else self._start_within_s
        if self._blamed:
            limit_s = DECLARE * self._kill_after_s
        declared = declared or silent_s >= limit_s
        return Silence(f"{reason} (silent for {silent_s:.1f} s)", declared, self.unreadable)

    def _running_child(self, deadline_s: float) -> "_Child | Silence":
        if self._child:
            return self._child
        self._stuck = [process for process in self._stuck if process.poll() is None]
        if self._stuck:
            time.sleep(deadline_s)  # another reader would hang like it, and neither can be killed
            return self._silence(f"the NVML reader {self._stuck[0].pid} hangs in the driver and cannot be killed", True)
        if self.starts and not self._blamed:
            time.sleep(min(deadline_s, RESTART_PAUSE_S))
        known = [place for place in self._known if place not in self._sick]
        self._child = self._start("--known", *known, "--skip", *self._sick)
        self.starts += 1
        return self._child

    def _start(self, *options: str) -> "_Child":
        return _Child(self._command, options, self._on_xid, self._on_event)

    def _try_again(self) -> None:
        """Begin, or go on, to try one of the devices that hung, in a reader of its own."""
        if self._trial is not None:
            self._follow_trial(self._trial, self._sick[self._tried])
            return
        now = time.monotonic()
        due = [place for place, sick in sorted(self._sick.items()) if now >= sick.retry_at and not _lives(sick.process)]
        if due and self._child:
            self._tried = due[0]
            self._trial = self._start("--known", self._tried, "--only")

    def _follow_trial(self, trial: "_Child", sick: _Sick) -> None:
        answer = trial.answer(0.0)
        if answer is None and not self._hangs(trial):
            return
        process = self._drop(trial)
        if isinstance(answer, Reading):
            del self._sick[self._tried]
            self._recovered[self._tried] = (sick.pause_s, time.monotonic() + LAST_RETRY_S)
            if self._child:
                self._child.tell(f"with {self._tried}")
            return
        sick.process, sick.pause_s = process, min(2 * sick.pause_s, LAST_RETRY_S)
        sick.retry_at = time.monotonic() + sick.pause_s

    def _drop(self, child: "_Child") -> "subprocess.Popen[str] | None":
        """Kill a reader. Returns its process if that is in vain."""
        if child is self._child:
            self._child = None
        if child is self._trial:
            self._trial = None
        return child.kill()


def _lives(process: "subprocess.Popen[str] | None") -> bool:
    return process is not None and process.poll() is None


@dataclass(slots=True)
class _Place:
    """Where a reader is, and since when."""

    at: str = ""
    since: float = field(default_factory=time.monotonic)


class _Child:
    """A running reader and the thread that takes its messages."""

    def __init__(
        self,
        command: Sequence[str],
        options: Sequence[str],
        on_xid: Callable[[XidEvent], None],
        on_event: Callable[[Noticed], None],
    ) -> None:
        self._mark = open_mark()
        self.process = subprocess.Popen(
            [*command, "--mark", str(self._mark), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(self._mark,),
        )
        self.ready = False
        self.seen: dict[str, DeviceFacts] = {}
        self._on_xid, self._on_event = on_xid, on_event
        self._answers: queue.Queue[Reading | Failed] = queue.Queue()
        self._asked: float | None = None
        self._everything = False
        self._place = _Place()
        threading.Thread(target=self._take_messages, name="nvml-messages", daemon=True).start()

    @property
    def waited_s(self) -> float:
        """How long the request that is out has been waiting."""
        return time.monotonic() - self._asked if self._asked is not None else 0.0

    @property
    def mark(self) -> str:
        """PCI address of the device in hand; empty, or an index, where none can be named."""
        return read_mark(self._mark)

    def at_device_s(self) -> float:
        """For how long a starting reader has been at one device, as far as this was called. 0 between devices."""
        mark = self.mark
        if mark != self._place.at:
            self._place = _Place(mark)
        return time.monotonic() - self._place.since if mark else 0.0

    def answer(self, deadline_s: float) -> Reading | Failed | None:
        """The answer to the request that is out, or to a new one; None if it does not come in time."""
        if self._asked is None:
            self._asked = time.monotonic()
            everything, self._everything = self._everything, False
            if not self.tell("read all" if everything else "read"):
                return Failed(f"it ended with exit status {self.process.wait()}")
        try:
            answer = self._answers.get(timeout=deadline_s) if deadline_s > 0 else self._answers.get_nowait()
        except queue.Empty:
            return None
        self._asked = None
        return answer

    def tell(self, request: str) -> bool:
        """False if it is gone."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return False
        return True

    def kill(self) -> "subprocess.Popen[str] | None":
        """End it. Returns the process if it hangs in the driver and lives on."""
        self.process.kill()
        with suppress(BrokenPipeError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        try:
            self.process.wait(REAP_WITHIN_S)
        except subprocess.TimeoutExpired:
            return self.process
        finally:
            os.close(self._mark)
        return None

    def _take_messages(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            match decode(line):
                case XidEvent() as xid:
                    self._everything = True
                    self._on_xid(xid)
                case Noticed() as event:
                    self._everything = True
                    self._on_event(event)
                case Seen(device):
                    self.seen[device.pci_bus_id] = device
                case Ready():
                    self.ready = True
                    if self._asked is not None:
                        self._asked = time.monotonic()
                case Reading() | Failed() as answer:
                    self._answers.put(answer)
        self._answers.put(Failed(f"it ended with exit status {self.process.wait()}"))
