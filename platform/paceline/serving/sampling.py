"""Dice that any replica can throw again: a number from (seed, position), and a token from a distribution. Pure."""

from collections.abc import Sequence
from hashlib import sha256


def uniform(seed: int, position: int) -> float:
    """In [0, 1), with 53 bits. Depends on the seed and the absolute position only: not on who draws, nor on how
    often."""
    digest = sha256(f"{seed}/{position}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53


def pick(weights: Sequence[float], draw: float) -> int:
    """Index whose share of the summed weights covers `draw`; zero weights are never picked."""
    target = draw * sum(weights)
    reached = 0.0
    last = 0
    for index, weight in enumerate(weights):
        if weight > 0.0:
            reached += weight
            last = index
            if target < reached:
                return index
    return last


def shape(weights: Sequence[float], temperature: float, top_p: float) -> list[float]:
    """Apply temperature and nucleus (top-p) to probabilities. `temperature` > 0; ties are broken by index."""
    peak = max(weights)
    shaped = [(weight / peak) ** (1.0 / temperature) if weight > 0.0 else 0.0 for weight in weights]
    if top_p >= 1.0:
        return shaped
    budget = top_p * sum(shaped)
    kept = [0.0] * len(shaped)
    reached = 0.0
    for index in sorted(range(len(shaped)), key=lambda i: (-shaped[i], i)):
        kept[index] = shaped[index]
        reached += shaped[index]
        if reached >= budget:
            break
    return kept
