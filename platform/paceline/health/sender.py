"""Brings reports to the server, in order, in a thread of its own; keeps them while the server is away."""

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from paceline.health import backlog
from paceline.health.backlog import Backlog
from paceline.model.errors import PacelineError, Refused
from paceline.model.health import NodeReport

log = structlog.get_logger()

FIRST_PAUSE_S: Final = 0.2
LAST_PAUSE_S: Final = 5.0
"""Pauses double up to this. A server that is back is told within it; a fleet does not overrun it."""
assert 0 < FIRST_PAUSE_S <= LAST_PAUSE_S


class Server(Protocol):
    """What the sender needs of the SDK's client. Blocks up to the client's own deadline; raises PacelineError only."""

    def report(self, report: NodeReport) -> object: ...


class Sender:
    """`add` never blocks. A report is sent again until the server has it; one that it rejects is dropped and logged."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._backlog = Backlog()
        self._changed = threading.Condition()
        self._closing = False
        self._try_at = 0.0
        self._pause_s = FIRST_PAUSE_S
        self.sent = 0
        self.rejected = 0

    @property
    def pending(self) -> int:
        return len(self._backlog.reports)

    @property
    def thinned(self) -> int:
        return self._backlog.thinned

    def add(self, report: NodeReport, urgent: bool = False) -> None:
        """`urgent` ends a pause: the server may just be back."""
        with self._changed:
            self._backlog = backlog.add(self._backlog, report)
            if urgent:
                self._try_at = 0.0
            self._changed.notify()

    def reconnect(self, server: Server) -> None:
        with self._changed:
            self._server, self._try_at = server, 0.0
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()

    def run(self) -> None:
        """Send until `close`."""
        while (job := self._next()) is not None:
            report, server = job
            self._settle(report, self._send(report, server))

    def _next(self) -> tuple[NodeReport, Server] | None:
        with self._changed:
            while not self._closing:
                left_s = self._try_at - time.monotonic()
                report = self._backlog.oldest
                if report and left_s <= 0:
                    return report, self._server
                self._changed.wait(left_s if report else None)
        return None

    def _send(self, report: NodeReport, server: Server) -> PacelineError | None:
        try:
            server.report(report)
        except PacelineError as error:
            return error
        return None

    def _settle(self, report: NodeReport, error: PacelineError | None) -> None:
        again = error is not None and (error.retryable or isinstance(error, Refused))  # a token may yet be renewed
        with self._changed:
            if again:
                if self._pause_s == FIRST_PAUSE_S:
                    log.warning("the server does not take reports; they are kept", error=str(error))
                self._try_at = time.monotonic() + self._pause_s
                self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
                return
            self._backlog = backlog.acknowledged(self._backlog, report.seq)
            self._try_at, self._pause_s = 0.0, FIRST_PAUSE_S
            self.sent += error is None
            self.rejected += error is not None
        if error is not None:
            log.error("the server rejects a report; it is dropped", seq=report.seq, error=str(error))


def start(target: Callable[[], None], name: str, died: Callable[[BaseException], None]) -> threading.Thread:
    """A daemon thread whose death by an unforeseen error does not go unnoticed: `died` is told."""

    def guarded() -> None:
        try:
            target()
        except BaseException as error:
            died(error)
            raise

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread
