"""Ranks of a full probe, and what they say together. With real processes: tests/contract/test_full_probe.py."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.benchmark import exchange
from paceline.benchmark.probe import Reading
from paceline.placement.score import CORRUPT


def reading(benchmark: str, seconds: tuple[float, ...], error: str = "") -> Reading:
    return Reading(benchmark, 1, "", seconds, {"bytes": 8.0}, error)


def test_an_exchange_has_taken_as_long_as_its_last_rank() -> None:
    ranks = [[reading("p2p", (1.0, 5.0, 2.0))], [reading("p2p", (3.0, 1.0, 1.0), "corrupt: b")]]
    (together,) = exchange.together(ranks)
    assert together.seconds == (2.0, 3.0, 5.0)
    assert (together.error, together.conditions) == ("corrupt: b", {"bytes": 8.0})


def test_of_many_repetitions_those_that_were_held_up_least_count() -> None:
    (together,) = exchange.together([[reading("p2p", tuple(range(1, 22)))]])
    assert together.seconds == (1, 2, 3, 4, 5, 6, 7)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Any]:
    """One rank that has only itself."""
    dist = pytest.importorskip("torch.distributed")
    import torch

    from paceline.benchmark import full_probe

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield full_probe.Machine(torch.device("cpu"), full_probe.SIMULATED, exchange_s=0.0)
    dist.destroy_process_group()


def test_a_sum_that_is_wrong_is_found(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, sound = machine.readings()
    assert (sound.benchmark, sound.error) == ("all_reduce", "")

    def one_bit(tensor: Any) -> None:
        tensor[17] += 1

    monkeypatch.setattr("torch.distributed.all_reduce", one_bit)
    _, sick = machine.readings()
    assert sick.error.startswith(CORRUPT)
