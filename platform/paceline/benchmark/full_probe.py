"""The full probe of a machine: its devices send to each other and add up together. Run as a program, one process a device.

Every pair is used once in each direction (P2P: in round k each rank sends to the rank k places on), then all of them at once
(all-reduce). Numbers are whole and must come out exact. What is found is said of the machine: of two ends and what lies between them,
nobody can tell from one exchange which is at fault.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist

from paceline.benchmark.child import die_with_parent
from paceline.benchmark.exchange import ALL_REDUCE, P2P, REPETITIONS, SIM_TRIES
from paceline.benchmark.probe import Reading

MEET_S: Final = 120
"""From the first rank's start to the last one's, and for one exchange: importing torch takes long on a busy host."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is sent. Part of the benchmarks' versions: times with other sizes cannot be compared."""

    p2p_bytes: int = 64 << 20
    all_reduce_elements: int = 1 << 28
    """float32: 1 GiB; a smaller device gets a 32nd of its memory."""
    warm_up: int = 3


SIMULATED: Final = Sizes(p2p_bytes=1 << 12, all_reduce_elements=1 << 10, warm_up=1)


class Machine:
    """One rank among its peers. `exchange_s`: what an exchange takes on a simulated machine."""

    def __init__(self, device: torch.device, sizes: Sizes, exchange_s: float | None) -> None:
        self._device, self._sizes, self._exchange_s = device, sizes, exchange_s
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def readings(self) -> tuple[Reading, Reading]:
        return self._p2p(), self._all_reduce()

    def _p2p(self) -> Reading:
        sent = [self._bytes_of(rank) for rank in range(self.world)]
        got = torch.empty_like(sent[0])
        wrong = [0] * self.world

        def all_pairs(check: bool) -> None:
            for places in range(1, self.world):
                to, source = (self.rank + places) % self.world, (self.rank - places) % self.world
                both = [dist.P2POp(dist.isend, sent[self.rank], to), dist.P2POp(dist.irecv, got, source)]
                for work in dist.batch_isend_irecv(both):
                    work.wait()
                if check:
                    wrong[source] += int(not torch.equal(got, sent[source]))

        all_pairs(check=True)
        seconds = self._timed(lambda: all_pairs(check=False))
        froms = ", ".join(str(rank) for rank, count in enumerate(wrong) if count)
        error = f"corrupt: rank {self.rank} got other bytes than rank {froms} sent" if froms else ""
        total = sent[0].numel() * (self.world - 1)
        return _reading(P2P, seconds, total, error)

    def _bytes_of(self, rank: int) -> torch.Tensor:
        dice = torch.Generator().manual_seed(rank)
        return torch.randint(256, (self._sizes.p2p_bytes,), dtype=torch.uint8, generator=dice).to(self._device)

    def _all_reduce(self) -> Reading:
        """Sums of small integers, exact in float32 whatever their order."""
        base = torch.arange(self._elements(), device=self._device, dtype=torch.int32).remainder_(1024).float()
        out = torch.empty_like(base)

        def start() -> None:
            torch.add(base, float(self.rank), out=out)

        start()
        dist.all_reduce(out)
        right = base * self.world + self.world * (self.world - 1) // 2
        error = "" if torch.equal(out, right) else f"corrupt: an all-reduce of integers is wrong on rank {self.rank}"
        seconds = self._timed(lambda: dist.all_reduce(out), start)
        total = 2 * (self.world - 1) * out.numel() * out.element_size() // self.world  # nccl-tests' bus bandwidth
        return _reading(ALL_REDUCE, seconds, total, error)

    def _elements(self) -> int:
        if self._device.type != "cuda":
            return self._sizes.all_reduce_elements
        return min(
            self._sizes.all_reduce_elements, torch.cuda.get_device_properties(self._device).total_memory // 32 // 4
        )

    def _timed(self, exchange: Callable[[], object], start: Callable[[], None] = lambda: None) -> tuple[float, ...]:
        """Seconds of each repetition. As many on each rank: nobody may leave the others waiting."""
        repetitions = REPETITIONS if self._exchange_s is None else REPETITIONS * SIM_TRIES
        seconds = []
        for turn in range(self._sizes.warm_up + repetitions):
            start()
            self._wait()
            dist.barrier()
            began = time.perf_counter()
            exchange()
            self._wait()
            if self._exchange_s is not None:
                time.sleep(max(0.0, began + self._exchange_s - time.perf_counter()))
            if turn >= self._sizes.warm_up:
                seconds.append(time.perf_counter() - began)
        return tuple(seconds)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _reading(which: tuple[str, int], seconds: tuple[float, ...], sent_bytes: int, error: str) -> Reading:
    return Reading(*which, workload="", seconds=seconds, conditions={"bytes": float(sent_bytes)}, error=error)


def main() -> None:
    die_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--meet", required=True, help="a file on this machine that is not there yet")
    parser.add_argument("--exchange-s", type=float, help="on a simulated machine")
    args = parser.parse_args()
    real = args.exchange_s is None
    dist.init_process_group(
        "nccl" if real else "gloo",
        init_method=f"file://{args.meet}",
        rank=args.rank,
        world_size=args.world,
        timeout=timedelta(seconds=MEET_S),
    )
    device = torch.device("cuda", 0) if real else torch.device("cpu")
    readings = Machine(device, Sizes() if real else SIMULATED, args.exchange_s).readings()
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps([asdict(reading) for reading in readings]))


if __name__ == "__main__":
    main()
