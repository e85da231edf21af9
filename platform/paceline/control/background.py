"""What the server does unasked: it notices silence, rolls samples up, and wakes long polls."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from paceline.control.watch import Watch
from paceline.inventory.store import Store
from paceline.model.errors import PacelineError

log = structlog.get_logger()

SWEEP_S: Final = 1.0
ROLL_UP_S: Final = 60.0


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Tasks that live as long as the application."""
    store: Store = app.state.store
    watch: Watch = app.state.watch
    tasks = [
        asyncio.create_task(watch.run(), name="watch"),
        asyncio.create_task(_every(SWEEP_S, "sweep", store.sweep)),
        asyncio.create_task(_every(ROLL_UP_S, "roll-up", store.roll_up)),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _every(period_s: float, name: str, work: Callable[[int], None]) -> None:
    while True:
        try:
            await run_in_threadpool(work, time.time_ns())
        except PacelineError as error:
            log.warning("will be tried again", task=name, error=error.message)
        except Exception:  # one bad turn must not end the watch over the fleet; the log has it
            log.exception("turn failed; will be tried again", task=name)
        await asyncio.sleep(period_s)
