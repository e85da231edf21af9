"""The process that talks to NVML: `python -m paceline.telemetry.nvml_child`. It may hang; its parent then kills it.

Three threads: the main one reads on request, one waits for events of the driver, one reads stdin and ends the process
when the parent is gone, even while NVML hangs. Before the main thread touches a device, it writes its PCI address into
the file that the parent gave it (`--mark`): the parent of a reader that hangs reads there which device it was.
"""

import argparse
import ctypes
import os
import queue
import sys
import threading
import time
from typing import Any, Final, TextIO

import pynvml

from paceline.model.hardware import XidEvent
from paceline.model.ids import DeviceUuid
from paceline.telemetry.nvml_calls import Board
from paceline.telemetry.nvml_mark import write_mark
from paceline.telemetry.nvml_wire import Failed, Message, Noticed, Reading, Ready, Seen, encode
from paceline.telemetry.usage import rss_bytes

EVENT_WAIT_MS: Final = 1_000
"""nvmlEventSetWait returns at the event; this only bounds how long a thread is in one call."""
EVENT_RETRY_S: Final = 1.0
"""Pause after an error of the wait itself, which can come back at once and for ever (GPU is lost)."""
EVENTS: Final = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeDoubleBitEccError
    | pynvml.nvmlEventTypeSingleBitEccErrorStorm
    | pynvml.nvmlEventTypeGpuUnavailableError
    | pynvml.nvmlEventTypeGpuRecoveryAction
)
"""What is waited for, of what a device supports: a driver rejects the whole mask for one bit that it does not know."""


class Out:
    """Messages to the parent, from any thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        with self._lock:
            self._stream.write(encode(message))
            self._stream.flush()


class Events:
    """Waits for the events of the devices that were registered, in a thread of its own."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self._set = pynvml.nvmlEventSetCreate()
        self._known: dict[int, DeviceUuid] = {}

    def watch(self, board: Board) -> None:
        """Register the devices that are new. One that cannot be registered has no events, and is tried again."""
        for uuid, handle in board.handles.items():
            if _address(handle) in self._known:
                continue
            with board.at(uuid):
                self._register(uuid, handle)

    def _register(self, uuid: DeviceUuid, handle: Any) -> None:
        try:
            pynvml.nvmlDeviceRegisterEvents(handle, EVENTS & _supported(handle), self._set)
        except pynvml.NVMLError:
            return
        self._known[_address(handle)] = uuid

    def run(self) -> None:
        while True:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, EVENT_WAIT_MS)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    time.sleep(EVENT_RETRY_S)  # an error of the wait says nothing about any one device
                continue
            uuid = self._known.get(_address(event.device))
            if uuid is None:
                continue
            if event.eventType & pynvml.nvmlEventTypeXidCriticalError:
                self._out.send(XidEvent(uuid, int(event.eventData), time.time_ns(), "nvml"))
            else:
                self._out.send(Noticed(uuid, int(event.eventType)))


def _supported(handle: Any) -> int:
    """Events of the device, or the Xids alone where the driver does not tell."""
    try:
        return int(pynvml.nvmlDeviceGetSupportedEventTypes(handle))
    except pynvml.NVMLError:
        return int(pynvml.nvmlEventTypeXidCriticalError)


def serve(requests: "queue.SimpleQueue[str]", out: Out, args: argparse.Namespace) -> None:
    """Answer requests, one at a time, for ever. Raises NVMLError if NVML as a whole fails."""
    pynvml.nvmlInit()

    def mark(place: str) -> None:
        write_mark(args.mark, place)

    board = Board(mark, lambda device: out.send(Seen(device)), args.known, args.skip, args.only)
    events = Events(out)
    board.read(everything=True)
    events.watch(board)
    threading.Thread(target=events.run, name="nvml-events", daemon=True).start()
    out.send(Ready())
    slow_age_s = 0.0
    while True:
        request = requests.get().split()
        if request[0] == "with":
            board.add(request[1])
            continue
        started = time.perf_counter_ns()
        look = board.read(everything="all" in request)
        took_us = (time.perf_counter_ns() - started) // 1000
        slowest = board.calls.slowest() if look.slow_age_s <= slow_age_s else ()  # the oldest was just renewed
        slow_age_s = look.slow_age_s
        out.send(Reading(look.devices, look.samples, took_us, time.process_time(), rss_bytes(), slow_age_s, slowest))
        events.watch(board)


def listen(requests: "queue.SimpleQueue[str]") -> None:
    """Requests from stdin. Its end is the end of the parent, and of this process, whatever NVML does."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Read NVML for the health actor.")
    parser.add_argument("--mark", type=int, required=True, help="descriptor of the file for the device in hand")
    parser.add_argument("--known", nargs="*", default=[], help="PCI addresses of devices that were seen before")
    parser.add_argument("--skip", nargs="*", default=[], help="PCI addresses of devices not to touch")
    parser.add_argument("--only", action="store_true", help="look for no other devices than the known ones")
    args = parser.parse_args()
    out = Out(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # what a library prints must not end up between our messages
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(requests,), name="requests", daemon=True).start()
    try:
        serve(requests, out, args)
    except pynvml.NVMLError as error:
        out.send(Failed(str(error)))
        os._exit(3)


def _address(handle: Any) -> int:
    """A handle is a pointer; NVML gives one device the same pointer for the life of the process."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


if __name__ == "__main__":
    main()
