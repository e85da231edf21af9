"""The process that talks to NVML: `python -m paceline.telemetry.nvml_child`. It may hang; its parent then kills it.

Three threads: the main one reads on request, one waits for Xid events, one reads stdin and ends the process when the
parent is gone, even while NVML hangs.
"""

import ctypes
import os
import queue
import resource
import sys
import threading
import time
from typing import Any, Final, TextIO

import pynvml

from paceline.model.hardware import XidEvent
from paceline.model.ids import DeviceUuid
from paceline.telemetry.nvml_calls import Board
from paceline.telemetry.nvml_wire import Failed, Message, Reading, Ready, encode

EVENT_WAIT_MS: Final = 1_000
"""nvmlEventSetWait returns at the event; this only bounds how long a thread is in one call."""
EVENT_RETRY_S: Final = 1.0
"""Pause after an error of the wait itself, which can come back at once and for ever (GPU is lost)."""
PAGE_BYTES: Final = resource.getpagesize()


class Out:
    """Messages to the parent, from any thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        with self._lock:
            self._stream.write(encode(message))
            self._stream.flush()


class XidEvents:
    """Waits for the Xids of the devices that were registered, in a thread of its own."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self._set = pynvml.nvmlEventSetCreate()
        self._known: dict[int, DeviceUuid] = {}
        self._registered: set[DeviceUuid] = set()

    def watch(self, handles: dict[DeviceUuid, Any]) -> None:
        """Register the devices that are new. One that cannot be registered has no events, and is tried again."""
        for uuid, handle in handles.items():
            if uuid in self._registered:
                continue
            try:
                supported = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
                wanted = supported & pynvml.nvmlEventTypeXidCriticalError
                pynvml.nvmlDeviceRegisterEvents(handle, wanted, self._set)
            except pynvml.NVMLError:
                continue
            self._known[_address(handle)] = uuid
            self._registered.add(uuid)

    def run(self) -> None:
        while True:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, EVENT_WAIT_MS)
            except pynvml.NVMLError as error:
                if error.value != pynvml.NVML_ERROR_TIMEOUT:
                    time.sleep(EVENT_RETRY_S)  # an error of the wait says nothing about any one device
                continue
            uuid = self._known.get(_address(event.device))
            if uuid and event.eventType & pynvml.nvmlEventTypeXidCriticalError:
                self._out.send(XidEvent(uuid, int(event.eventData), time.time_ns(), "nvml"))


def serve(requests: "queue.SimpleQueue[str]", out: Out) -> None:
    """Answer requests, one at a time, for ever. Raises NVMLError if NVML as a whole fails."""
    pynvml.nvmlInit()
    board, events = Board(), XidEvents(out)
    events.watch(board.read()[2])
    threading.Thread(target=events.run, name="xid-events", daemon=True).start()
    out.send(Ready())
    while True:
        requests.get()
        started = time.perf_counter_ns()
        devices, samples, handles = board.read()
        took_us = (time.perf_counter_ns() - started) // 1000
        out.send(Reading(tuple(devices), tuple(samples), took_us, time.process_time(), _rss_bytes()))
        events.watch(handles)


def listen(requests: "queue.SimpleQueue[str]") -> None:
    """Requests from stdin. Its end is the end of the parent, and of this process, whatever NVML does."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


def main() -> None:
    out = Out(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # what a library prints must not end up between our messages
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(requests,), name="requests", daemon=True).start()
    try:
        serve(requests, out)
    except pynvml.NVMLError as error:
        out.send(Failed(str(error)))
        os._exit(3)


def _address(handle: Any) -> int:
    """A handle is a pointer; NVML gives one device the same pointer for the life of the process."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _rss_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * PAGE_BYTES


if __name__ == "__main__":
    main()
