"""Long polls: one look at the revision serves every waiting client."""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog
from starlette.concurrency import run_in_threadpool

from paceline.model.errors import Unreachable

log = structlog.get_logger()

LOOK_S: Final = 0.05
"""A change reaches a waiting client within this time, whichever server made it; one indexed read of one row each time."""


class Watch:
    """Waits for the revision to grow. `read` blocks; it runs in the thread pool, and only while somebody waits."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._revision = -1
        self._waiting = 0
        self._grown = asyncio.Condition()

    async def above(self, after: int, wait_s: float) -> None:
        """Returns when the revision is above `after`, or after `wait_s`."""
        if await run_in_threadpool(self._read) > after:
            return
        self._waiting += 1
        try:
            async with asyncio.timeout(wait_s), self._grown:
                await self._grown.wait_for(lambda: self._revision > after)
        except TimeoutError:
            return
        finally:
            self._waiting -= 1

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            if self._waiting:
                await self._look()
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        try:
            revision = await run_in_threadpool(self._read)
        except Unreachable as error:
            log.warning("the revision cannot be read; looked for again", error=error.message)
            return
        if revision != self._revision:
            async with self._grown:
                self._revision = revision
                self._grown.notify_all()
