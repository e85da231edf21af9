"""When silence means that a replica is gone. Pure.

A healthy replica is never silent for long: it beats every `BEAT_S` while it has no token. So the limit need not know
how fast the model is; it follows the gaps that this gateway has really seen, on this host, under this load.
"""

from dataclasses import dataclass
from typing import Final

from paceline.serving.contract import BEAT_S

FLOOR_S: Final = 0.5
FACTOR: Final = 8.0
"""Silence this many times longer than the usual gap is no jitter."""
CEILING_S: Final = 10.0
SMOOTHING: Final = 0.2

HELLO_S: Final = 1.0
"""A sent attempt must be greeted within this (and within the limit): the first answer may need a new connection."""
CAPACITY_S: Final = 60.0
"""How long a turn waits while no replica can take it: a replacement must load its model first."""
STALL_S: Final = 60.0
STALL_PER_PROMPT_TOKEN_S: Final = 0.05
"""A replica that beats but brings no token hangs in its kernel. Generous: reading a long prompt on a CPU takes long."""

assert FLOOR_S >= 4 * BEAT_S, "a few late beats are no silence"


@dataclass(slots=True)
class Watchdog:
    """Limits of one turn. `usual_s` is a moving mean of the gaps between frames."""

    floor_s: float = FLOOR_S
    usual_s: float = 0.0
    stretch: float = 1.0

    def saw(self, gap_s: float) -> None:
        self.usual_s += SMOOTHING * (gap_s - self.usual_s)

    def fooled(self) -> None:
        """Silence made us move. Be slower to believe it next time: a loaded host must not chase a turn around."""
        self.stretch *= 2

    @property
    def silence_s(self) -> float:
        return min(CEILING_S, max(self.floor_s, FACTOR * self.usual_s) * self.stretch)

    @property
    def hello_s(self) -> float:
        return max(HELLO_S * self.stretch, self.silence_s)

    @staticmethod
    def stall_s(prompt_tokens: int) -> float:
        return STALL_S + STALL_PER_PROMPT_TOKEN_S * prompt_tokens
