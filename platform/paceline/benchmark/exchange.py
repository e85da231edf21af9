"""What a full probe measures, and what its ranks say together."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from paceline.benchmark import child
from paceline.benchmark.probe import Reading
from paceline.sim.pace import exchange_s

P2P: Final = ("p2p", 1)
ALL_REDUCE: Final = ("all_reduce", 1)
FULL: Final = (P2P, ALL_REDUCE)
"""(benchmark, version). Another version is another yardstick: raise it when a kernel changes."""

REPETITIONS: Final = 7
SIM_TRIES: Final = 3
"""Of the exchanges on a simulated machine the third is kept that its busy host has held up least."""
CHILD_DEADLINE_S: Final = 200.0
"""Importing torch, making the contexts and connections, and 2 × 10 exchanges of up to 1 GiB."""


def run(index: int, rank: int, world: int, meet: str) -> tuple[Reading, ...]:
    """One rank's readings, on device `index` of this host. Raises what the exchange raises."""
    simulated_s = exchange_s(index)
    paced = () if simulated_s is None else ("--exchange-s", str(simulated_s))
    # The ranks are on one machine: gloo need not find out how it is called in the network.
    env = dict(os.environ) if simulated_s is None else os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    arguments = ("--rank", str(rank), "--world", str(world), "--meet", meet, *paced)
    rows = child.answer("paceline.benchmark.full_probe", *arguments, deadline_s=CHILD_DEADLINE_S, env=env)
    return tuple(Reading(**{**row, "seconds": tuple(row["seconds"])}) for row in rows)


def together(ranks: Sequence[Sequence[Reading]]) -> tuple[Reading, ...]:
    """One reading a benchmark: an exchange has taken as long as it took the last rank. Errors of all ranks are kept."""
    return tuple(_merged(same) for same in zip(*ranks, strict=True))


def _merged(same: Sequence[Reading]) -> Reading:
    seconds = sorted(max(times) for times in zip(*(reading.seconds for reading in same), strict=True))[:REPETITIONS]
    errors = "; ".join(reading.error for reading in same if reading.error)
    return replace(same[0], seconds=tuple(seconds), error=errors)
