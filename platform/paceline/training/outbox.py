"""Reports to the inventory, delivered in the background and in order: a run never waits for the server, and never dies of it."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Final

import structlog

from paceline.model.errors import PacelineError

log = structlog.get_logger()

LIMIT: Final = 10_000
"""Reports kept while the server is away. One is about 1 kB, a run makes one each checkpoint: days of silence."""
RETRY_S: Final = 1.0


class Outbox:
    """A thread that calls each function until it succeeds. A report that the server calls wrong is logged and dropped."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Callable[[], object]] = queue.Queue(LIMIT)
        threading.Thread(target=self._run, name="paceline-outbox", daemon=True).start()

    def put(self, what: Callable[[], object]) -> None:
        try:
            self._queue.put_nowait(what)
        except queue.Full:
            log.error("report dropped: the server has been away too long", kept=LIMIT)

    def flush(self, deadline_s: float) -> bool:
        """Wait until all is delivered; False at the deadline."""
        ends = time.monotonic() + deadline_s
        while self._queue.unfinished_tasks and time.monotonic() < ends:
            time.sleep(0.02)
        return not self._queue.unfinished_tasks

    def _run(self) -> None:
        while True:
            what = self._queue.get()
            try:
                self._deliver(what)
            finally:
                self._queue.task_done()

    def _deliver(self, what: Callable[[], object]) -> None:
        while True:
            try:
                what()
                return
            except PacelineError as error:
                if not error.retryable:
                    log.error("report refused by the server", error=str(error))
                    return
                time.sleep(RETRY_S)
            except Exception:  # a report must never end the thread that carries the ones after it
                log.exception("report failed")
                return
