"""What the server does unasked: it notices silence, rolls samples up, delivers alerts, and wakes long polls."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from paceline.control.alerts import deliveries
from paceline.control.watch import Watch
from paceline.inventory.store import Store
from paceline.model.errors import PacelineError

log = structlog.get_logger()

SWEEP_S: Final = 1.0
ROLL_UP_S: Final = 60.0
AGAIN_S: Final = 1.0


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Tasks that live as long as the application."""
    store: Store = app.state.store
    watch: Watch = app.state.watch
    tasks = [
        asyncio.create_task(watch.run(), name="watch"),
        asyncio.create_task(_every(SWEEP_S, "sweep", store.sweep)),
        asyncio.create_task(_every(ROLL_UP_S, "roll-up", store.roll_up)),
        asyncio.create_task(_deliver(app), name="alerts"),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _deliver(app: FastAPI) -> None:
    """Alerts to their targets, which the outbox must know before the first is written for them."""
    store: Store = app.state.store
    targets = deliveries(store, app.state.webhooks)
    while True:
        try:
            await run_in_threadpool(store.alert_targets, list(targets), time.time_ns())
            break
        except PacelineError as error:
            log.warning("alerts wait for the database", error=error.message)
        except Exception:  # without targets no alert would ever go out; the log has it
            log.exception("alerts wait")
        await asyncio.sleep(AGAIN_S)
    async with asyncio.TaskGroup() as group:
        for name, delivery in targets.items():
            group.create_task(delivery.run(), name=f"alerts to {name}")


async def _every(period_s: float, name: str, work: Callable[[int], None]) -> None:
    while True:
        try:
            await run_in_threadpool(work, time.time_ns())
        except PacelineError as error:
            log.warning("will be tried again", task=name, error=error.message)
        except Exception:  # one bad turn must not end the watch over the fleet; the log has it
            log.exception("turn failed; will be tried again", task=name)
        await asyncio.sleep(period_s)
