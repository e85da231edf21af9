"""A benchmark's result: one row a figure, beside its rival in the same run."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` and `rival` are medians in `unit`; `bar` says in words what is to be reached. ratio = value / rival."""

    name: str
    value: float
    unit: str
    rival: float | None = None
    rival_name: str = ""
    bar: str = ""

    @property
    def ratio(self) -> float | None:
        return self.value / self.rival if self.rival else None


def publish(area: str, figures: Sequence[Figure], folder: Path) -> None:
    """Print the table and write folder/AREA.json as {"figures": [...]}."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(figure), "ratio": figure.ratio} for figure in figures]
    (folder / f"{area}.json").write_text(json.dumps({"figures": rows}, indent=1))
    table = Table("figure", "value", "unit", "rival", "ratio", "bar", width=100)
    for figure in figures:
        rival = f"{figure.rival:.4g} ({figure.rival_name})" if figure.rival is not None else "–"
        ratio = f"{figure.ratio:.2f}" if figure.ratio is not None else "–"
        table.add_row(figure.name, f"{figure.value:.4g}", figure.unit, rival, ratio, figure.bar or "–")
    Console(width=100).print(table)
