"""Delivers alerts: to the log, and to each webhook. One task a target, so one that is slow holds up no other and nothing else."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

import structlog
from starlette.concurrency import run_in_threadpool

from paceline.inventory.store import Store
from paceline.model.errors import BadRequest, Unreachable
from paceline.sdk.rows_health import AlertRow
from paceline.sdk.webhook import Sender, Webhook

log = structlog.get_logger()

LOG: Final = "log"
"""The target that is always there."""
LOOK_S: Final = 0.5
"""An alert is on its way within this time, whichever server has written it."""


class Deliver(Protocol):
    """Hands an alert over. Returns once it is acknowledged; Unreachable: try again; BadRequest: it will never be taken."""

    async def send(self, alert: AlertRow, now_s: float) -> None: ...
    async def close(self) -> None: ...


class ToLog:
    async def send(self, alert: AlertRow, now_s: float) -> None:
        log.warning("alert", id=alert.id, kind=alert.kind.value, entity=alert.entity, summary=alert.summary)

    async def close(self) -> None:
        pass


class Delivery:
    """Brings the alerts of the outbox to one target, in order, each until it is acknowledged."""

    def __init__(
        self, store: Store, target: str, to: Deliver, clock_ns: Callable[[], int] = time.time_ns, look_s: float = LOOK_S
    ) -> None:
        self._store, self._target, self._to = store, target, to
        self._clock_ns, self._look_s = clock_ns, look_s

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                try:
                    more = await self.turn()
                except Unreachable as error:
                    log.warning("the outbox cannot be read; looked for again", target=self._target, error=error.message)
                    more = False
                except Exception:  # one bad turn must not end the alerts; the log has it
                    log.exception("turn failed; alerts are tried again", target=self._target)
                    more = False
                if not more:
                    await asyncio.sleep(self._look_s)
        finally:
            await self._to.close()

    async def turn(self) -> bool:
        """Deliver the next alert; False if none is due, or it was not taken. Raises Unreachable while the database is away."""
        alert = await run_in_threadpool(self._store.alert_due, self._target, self._clock_ns())
        if alert is None:
            return False
        try:
            await self._to.send(alert, self._clock_ns() / 1e9)
        except Unreachable as error:
            log.warning("alert not delivered; tried again", target=self._target, id=alert.id, error=error.message)
            await run_in_threadpool(self._store.alert_failed, self._target, error.message, self._clock_ns())
            return False
        except BadRequest as error:
            log.error("alert refused; it is given up", target=self._target, id=alert.id, error=error.message)
        await run_in_threadpool(self._store.alert_delivered, self._target, alert.id, self._clock_ns())
        return True


def deliveries(store: Store, webhooks: tuple[Webhook, ...]) -> dict[str, Delivery]:
    """One for each target, by name."""
    targets: dict[str, Deliver] = {LOG: ToLog(), **{hook.name: Sender(hook) for hook in webhooks}}
    return {name: Delivery(store, name, to) for name, to in targets.items()}
