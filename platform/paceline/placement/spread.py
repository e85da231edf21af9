"""Median absolute deviation: how far values lie from their middle, whatever a few of them do. Pure."""

from collections.abc import Iterable
from statistics import median
from typing import Final

MAD_TO_SIGMA: Final = 1.4826
"""A normal distribution's sigma over its median absolute deviation."""


def mad(values: Iterable[float]) -> float:
    values = list(values)
    middle = median(values)
    return median(abs(value - middle) for value in values)
