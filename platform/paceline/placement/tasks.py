"""What a service does beside its calls: loops that outlive a bad turn, and tasks of which one at a time runs for each purpose."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog

from paceline.model.errors import PacelineError, Unreachable

log = structlog.get_logger()

Work = Coroutine[Any, Any, None]

PAUSE_S: Final = 1.0
"""After a turn that failed."""


class Tasks:
    """By key; a tuple's first part says what kind of task it is. Errors are logged: what is to be done is looked for again and again."""

    def __init__(self) -> None:
        self._by_key: dict[object, asyncio.Task[None]] = {}

    def loop(self, name: str, once: Callable[[], Work]) -> None:
        """Do it for ever, unless it is being done."""
        if name not in self._by_key:
            self._by_key[name] = asyncio.create_task(_forever(name, once))

    def spawn(self, key: object, work: Work) -> None:
        """Do it beside everything else, unless a task of this key does."""
        running = self._by_key.get(key)
        if running is not None and not running.done():
            work.close()
            return
        self._by_key[key] = asyncio.create_task(_guarded(key, work))
        self._by_key[key].add_done_callback(functools.partial(self._forget, key))

    def _forget(self, key: object, task: asyncio.Task[None]) -> None:
        if self._by_key.get(key) is task:  # else another of its key has begun
            del self._by_key[key]

    def running(self) -> list[asyncio.Task[None]]:
        return [task for task in self._by_key.values() if not task.done()]

    async def end(self, kind: str) -> None:
        """Cancel the tasks of a kind, and wait until they have cleaned up."""
        mine = [task for key, task in self._by_key.items() if isinstance(key, tuple) and key[0] == kind]
        await asyncio.sleep(0)  # each has begun: one that is cancelled before that would not clean up
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)


async def _guarded(key: object, work: Work) -> None:
    try:
        await work
    except PacelineError as error:
        log.warning("will be tried again", what=key, error=str(error))
    except Exception:  # of one task of many; the service and the next turn must not suffer from it
        log.exception("will be tried again", what=key)


async def _forever(name: str, once: Callable[[], Work]) -> None:
    while True:
        try:
            await once()
        except Unreachable:
            await asyncio.sleep(PAUSE_S)  # the server restarts; it will be back
        except Exception:  # a loop of a service must outlive any one bad turn; the next one looks again
            log.exception("turn failed", loop=name)
            await asyncio.sleep(PAUSE_S)
