"""Time to bind 24 chosen devices on three hosts (mask, create, verify, unmask), beside a plain placement group of 24 GPUs."""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from paceline.benchmark.figures import Figure
from paceline.sim import cluster

HOSTS, GPUS = 3, 8
RUNS: Final = 7


def figures() -> Sequence[Figure]:
    """Starts a simulated cluster of its own and measures in a driver on it."""
    with tempfile.TemporaryDirectory() as home:
        cluster.up(Path(home), HOSTS, GPUS)
        try:
            env = os.environ | cluster.client_env(Path(home))
            out = subprocess.run([sys.executable, "-m", __name__], env=env, capture_output=True, text=True, check=True)
        finally:
            cluster.down(Path(home))
    measured = json.loads(out.stdout.strip().splitlines()[-1])
    return [
        Figure("placement.bind_24_s", measured["ours"], "s", measured["plain"], "plain placement group", "≤ 3 s"),
        Figure("placement.mask_24_s", measured["mask"], "s"),
    ]


async def _measure() -> dict[str, float]:
    import ray

    from paceline.model.ids import NodeId
    from paceline.placement import binding

    nodes = [NodeId(n["NodeID"]) for n in ray.nodes() if n["Alive"] and n["Resources"].get("GPU")]

    async def mask() -> None:
        for holds in await asyncio.gather(*map(binding.take_free, nodes)):
            for hold in holds.values():
                hold.release()

    async def ours() -> None:
        taken = await asyncio.gather(*map(binding.take_free, nodes))
        for holds in taken:
            assert sorted(holds) == list(range(GPUS)), "a device was not masked"
            for hold in holds.values():
                hold.release()
        await plain({"ray.io/node-id": f"in({','.join(nodes)})"})

    async def plain(selector: dict[str, str] | None = None) -> None:
        bundles = [{"GPU": 1}] * (HOSTS * GPUS)
        selectors = [selector] * len(bundles) if selector else None
        group = ray.util.placement_group(bundles, bundle_label_selector=selectors)
        assert await asyncio.to_thread(group.wait, 60), "the gang was not placed"
        ray.util.remove_placement_group(group)

    return {name: await _median(what, nodes) for name, what in (("mask", mask), ("ours", ours), ("plain", plain))}


async def _median(what: Callable[[], Awaitable[None]], nodes: Sequence[str]) -> float:
    from paceline.model.ids import NodeId
    from paceline.placement import binding

    seconds = []
    for _ in range(RUNS + 1):
        while any(binding.free_gpus(NodeId(node)) < GPUS for node in nodes):
            await asyncio.sleep(0.01)
        started = time.perf_counter()
        await what()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])  # the first starts the workers that read the indices


if __name__ == "__main__":
    import ray

    ray.init(namespace="paceline", log_to_driver=False)
    print(json.dumps(asyncio.run(_measure())))
