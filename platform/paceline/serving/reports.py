"""Tells the control server about sessions, in the background. A server that is away delays the news and nothing
else."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from paceline.model.errors import PacelineError
from paceline.model.ids import SessionId
from paceline.model.session import SessionUpdate
from paceline.sdk.client import Client

PERIOD_S: Final = 0.5
RETRY_S: Final = 5.0
KEPT_SESSIONS: Final = 10_000
"""Sessions whose latest news waits while the server is away; the oldest news is dropped beyond this."""

log = logging.getLogger(__name__)


class Reporter:
    """Latest news of each session wins: the server needs the state, not each step. `send` blocks; it runs in a
    thread."""

    def __init__(self, send: Callable[[Sequence[SessionUpdate]], None]) -> None:
        self._send = send
        self._waiting: dict[SessionId, SessionUpdate] = {}
        self._away = False

    def tell(self, update: SessionUpdate) -> None:
        self._waiting.pop(update.session_id, None)
        self._waiting[update.session_id] = update
        if len(self._waiting) > KEPT_SESSIONS:
            self._waiting.pop(next(iter(self._waiting)))

    async def run(self) -> None:
        """For ever: until cancelled."""
        while True:
            await asyncio.sleep(RETRY_S if self._away else PERIOD_S)
            if self._waiting:
                await self._flush()

    async def _flush(self) -> None:
        batch, self._waiting = self._waiting, {}
        try:
            await asyncio.to_thread(self._send, tuple(batch.values()))
        except PacelineError as error:
            if not self._away:
                log.warning("the control server takes no session reports, they wait: %s", error)
            self._away = True
            self._waiting = batch | self._waiting
        else:
            self._away = False


def reporter_for(address: str, token_file: str) -> Reporter | None:
    """None without an address: this gateway then stands alone. The file holds the token of Paceline's own processes."""
    if not address:
        return None
    token = Path(token_file).read_text().strip() if token_file else ""
    return Reporter(Client(address, token).report_sessions)
