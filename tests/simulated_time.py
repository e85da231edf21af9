"""An event loop whose clock is simulated: what waits for a time gets there at once, in order, on any machine."""

import asyncio
import selectors


class _JumpingSelector(selectors.DefaultSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout else timeout)
        if timeout and not ready:
            self.now_s += timeout
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Its `time()` stands still while anything can run, and then jumps to the next timer."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s
