"""What the ranks of a run say of their steps: real DDP on gloo, in processes of its own. The run itself is not touched."""

import contextlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from paceline.model.ids import DeviceUuid
from paceline.placement.inband import STEPS_MIN, StepTimes, paces
from paceline.training import steps
from paceline.training.steps import BATCH_STEPS, BATCHES_KEPT, Row, Teller, measure
from waiting import until

RANKS = 3
WIDTH = 16
LATE_S = 0.1
"""Far above what other programs on this machine delay a step by."""
STEPS = STEPS_MIN + 4


@dataclass(frozen=True)
class Case:
    """A way to use DDP, and the rank that is late in it."""

    late: int
    make: Callable[[], nn.Module] = lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    options: dict[str, Any] = field(default_factory=dict)
    hook: bool = False
    accumulates: bool = False


class PartlyUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.used(x))


def normed() -> nn.Module:
    """Has buffers: rank 0 broadcasts them in each forward pass, and the others wait for it."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 1))


CASES = {
    "plain": Case(late=2),
    "buffers of a late rank 0": Case(late=0, make=normed),
    "buffers": Case(late=2, make=normed),
    "unused parameters": Case(late=1, make=PartlyUsed, options={"find_unused_parameters": True}),
    "static graph": Case(late=2, options={"static_graph": True}),
    "a bucket a layer": Case(late=1, options={"bucket_cap_mb": 0.0001}),
    "a hook of the user": Case(late=0, hook=True),
    "accumulation": Case(late=1, accumulates=True),
}


def trained(case: Case, rank: int, count: int, late_s: float = 0.0, **group: Any) -> list[torch.Tensor]:
    """Parameters after so many steps. A late rank computes longer, wherever in the step that is."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(case.make(), **case.options, **group)
    if case.hook:
        ddp.register_comm_hook(None, allreduce_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    dice = torch.Generator().manual_seed(rank)
    for _ in range(count):
        optimizer.zero_grad()
        if rank == case.late and late_s:
            threading.Event().wait(late_s)
        for synced in (False, True) if case.accumulates else (True,):
            with contextlib.nullcontext() if synced else ddp.no_sync():
                ddp(torch.randn(8, WIDTH, generator=dice)).pow(2).mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in ddp.parameters()]


def work(rank: int, folder: str) -> None:
    """One rank: each case as it is, measured, measured with a late rank, and after an error of ours."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/met", rank=rank, world_size=RANKS)
    bare = {name: trained(case, rank, 6) for name, case in CASES.items()}
    rows: list[Row] = []
    measure(rows.append)
    out: dict[str, Any] = {"equal": {}, "rows": {}}
    for name, case in CASES.items():
        out["equal"][name] = all(map(torch.equal, bare[name], trained(case, rank, 6)))
        rows.clear()
        trained(case, rank, STEPS, LATE_S)
        out["rows"][name] = list(rows)

    rows.clear()
    pair = dist.new_group([0, 1])
    if rank < 2:
        trained(CASES["plain"], rank, 6, process_group=pair)
    out["rows of a part"] = list(rows)

    tries = 0

    def broken(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise RuntimeError("a bug of ours")

    steps.Meter.forward = broken
    out["equal"]["a bug"] = all(map(torch.equal, bare["plain"], trained(CASES["plain"], rank, 6)))
    out["bugs"] = tries
    (Path(folder) / f"{rank}.json").write_text(json.dumps(out))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found."""
    folder = tmp_path_factory.mktemp("gang")
    multiprocessing.spawn(work, (str(folder),), RANKS, daemon=True)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("name", CASES)
def test_the_late_rank_is_named(told: list[dict[str, Any]], name: str) -> None:
    by_rank = [{step: StepTimes(*times) for step, *times in rank["rows"][name]} for rank in told]
    assert by_rank[0].keys() == by_rank[1].keys() == by_rank[2].keys()
    assert len(by_rank[0]) == STEPS - 2, "the first has no beginning, the last is told of in the next step"
    found = paces([{DeviceUuid(str(r)): by_rank[r][step] for r in range(RANKS)} for step in by_rank[0]])
    assert [int(row.uuid) for row in found if row.lags] == [CASES[name].late]
    late = by_rank[CASES[name].late].values()
    assert min(times.compute_s for times in late) >= 0.99 * LATE_S, "its own time is none of the waiting"
    assert median(times.wait_s for times in late) < LATE_S


@pytest.mark.parametrize("name", [*CASES, "a bug"])
def test_a_run_computes_bit_by_bit_what_it_would(told: list[dict[str, Any]], name: str) -> None:
    assert [rank["equal"][name] for rank in told] == [True] * RANKS


def test_an_error_of_ours_ends_the_measuring_and_not_the_run(told: list[dict[str, Any]]) -> None:
    assert [rank["bugs"] for rank in told] == [1] * RANKS


def test_a_part_of_the_ranks_says_nothing_of_the_gang(told: list[dict[str, Any]]) -> None:
    assert [rank["rows of a part"] for rank in told] == [[]] * RANKS


def row(step: int) -> Row:
    return step, 0.1, 0.01


def test_steps_are_sent_in_batches() -> None:
    sent: list[list[Row]] = []
    teller = Teller(sent.append)
    for step in range(2 * BATCH_STEPS + 1):
        teller.put(row(step))
    until(lambda: len(sent) == 2, 30)
    assert [r[0] for rows in sent for r in rows] == list(range(2 * BATCH_STEPS))


def test_long_steps_do_not_wait_for_a_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "BATCH_S", 0.0)
    sent: list[list[Row]] = []
    Teller(sent.append).put(row(1))
    until(lambda: sent == [[row(1)]], 30)


def test_steps_are_dropped_while_the_service_is_away_and_told_again_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "BATCH_S", 0.0)
    sent: list[Row] = []
    tries, goes_on = 0, threading.Event()

    def send(rows: list[Row]) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            goes_on.wait(60)
            raise ConnectionError("the actor is gone")
        sent.extend(rows)

    teller = Teller(send)
    teller.put(row(0))
    until(lambda: tries == 1, 30, "the first is being sent")
    for step in range(1, BATCHES_KEPT + 10):
        teller.put(row(step))
    goes_on.set()
    until(lambda: len(sent) == BATCHES_KEPT, 30)
    teller.put(row(99))
    until(lambda: row(99) in sent, 30)
    assert [r[0] for r in sent] == [*range(1, BATCHES_KEPT + 1), 99]
