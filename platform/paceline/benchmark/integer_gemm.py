"""Silent data corruption, found by arithmetic: products of small integers are exact in floating point, whichever kernel computes them.

The right answer is not stored for each SKU and library (a float result depends on the order of its sums), nor computed a second time: for
a vector v, C·v must be A·(B·v), which costs n² instead of n³ and is exact in integers (Freivalds, IFIP 1977; Huang and Abraham, IEEE ToC
1984).
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

BF16_EXACT: Final = 256
"""bfloat16 has 8 bits of mantissa: integers up to here are exact, and so is every partial sum below it."""
FP32_EXACT: Final = 1 << 24
WEIGHTS: Final = 7
"""v counts 1 … 7, 1 … 7, …: never 0, so that one wrong element of a row always shows; unequal, so that swapped neighbours do."""


def matrices(rows: int, inner: int, columns: int, limit: int, seed: int) -> tuple[Integers, Integers]:
    """A (rows × inner) and B (inner × columns) with entries from −limit to limit. |A·B| ≤ limit² × inner, in any order of summing."""
    dice = np.random.default_rng(seed)
    a = dice.integers(-limit, limit, size=(rows, inner), endpoint=True)
    b = dice.integers(-limit, limit, size=(inner, columns), endpoint=True)
    return a, b


def wrong_rows(a: Integers, b: Integers, c: NDArray[np.floating] | Integers) -> list[int]:
    """Rows of `c` that are not those of A·B. A row with one wrong element is always found, with several almost always."""
    v = np.arange(b.shape[1], dtype=np.int64) % WEIGHTS + 1
    expected = a @ (b @ v)
    whole = np.isfinite(c).all(axis=1) & (c == np.rint(c)).all(axis=1)
    found = np.where(whole[:, None], c, 0).astype(np.int64) @ v
    return [int(row) for row in np.flatnonzero(~whole | (found != expected))]


def in_words(kind: str, rows: list[int], of: int) -> str:
    """What `wrong_rows` found, or "" for nothing."""
    return (
        f"corrupt: {len(rows)} of {of} rows of an integer {kind} GEMM are wrong, the first is {rows[0]}" if rows else ""
    )
