"""How soon a fault is acted on, and what the health actor costs: Paceline on real raylets, faults injected under NVML."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from paceline.benchmark.figures import Figure
from paceline.health import catalog
from paceline.model.events import EventKind
from paceline.model.hardware import CONDEMNED, DeviceState
from paceline.model.health import Advice
from paceline.model.ids import HostName
from paceline.sdk.client import Client
from paceline.sdk.rows import DeviceRow
from paceline.sim import cluster
from paceline.sim.state import THROTTLES, HostState

HOSTS, GPUS = 2, 8
XID_ROUNDS: Final = 3
"""Each injects one Xid into each idle device: with 16 devices, 48 samples."""
AGENT_S: Final = 60.0
POLL_S: Final = 0.02
DEADLINE_S: Final = 240.0


def figures() -> Sequence[Figure]:
    """Starts a simulated cluster with Paceline of its own and measures in a driver on it."""
    with _site() as (home, env):
        command = [sys.executable, "-m", __name__, str(home)]
        out = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    got = json.loads(out.stdout.strip().splitlines()[-1])
    return [
        Figure("xid_to_excluded_p99_s", got["xid_p99"], "s", 15.0, "NVSentinel's poll", "≤ 2 s"),
        Figure("xid_to_excluded_p50_s", got["xid_p50"], "s"),
        Figure("counter_fault_s", got["counter"], "s", 60.0, "gpud's poll", "≤ 15 s"),
        Figure("nvml_hang_declared_s", got["hang"], "s", 45.0, "NVSentinel's watchdog", "≤ 10 s"),
        Figure("nvml_hang_ping_s", got["ping"], "s", bar="the actor answers"),
        Figure("stranger_reported_s", got["stranger"], "s", bar="≤ 2 s"),
        Figure("agent_core_pct", got["core_pct"], "%", bar="< 2 % with 8 devices at 1 Hz"),
        Figure("agent_rss_mb", got["rss_mb"], "MB", bar="< 150 MB with its child"),
    ]


@contextmanager
def _site() -> Iterator[tuple[Path, dict[str, str]]]:
    tool = [str(Path(sys.executable).parent / "paceline")]
    with tempfile.TemporaryDirectory(prefix="pl-bench-", dir="/tmp") as folder:
        home = Path(folder)
        cluster.up(home, HOSTS, GPUS)
        env = os.environ | cluster.client_env(home) | {"PACELINE_HOME": folder}
        try:
            subprocess.run([*tool, "up"], env=env, stdout=subprocess.DEVNULL, check=True)
            yield home, env
        finally:
            subprocess.run([*tool, "down"], env=env, stdout=subprocess.DEVNULL, check=False)
            cluster.down(home)


@dataclass(frozen=True, slots=True)
class _Site:
    client: Client
    states: dict[HostName, HostState]

    def idle(self) -> list[DeviceRow]:
        return [d for d in self.client.devices() if d.state is DeviceState.HEALTHY and not d.lease_id]

    def seconds_until(self, what: str, look: Callable[[], Any]) -> float:
        started = time.monotonic()
        while not look():
            if time.monotonic() - started > DEADLINE_S:
                raise TimeoutError(f"not within {DEADLINE_S:.0f} s: {what}")
            time.sleep(POLL_S)
        return time.monotonic() - started

    def until_held(self, device: DeviceRow) -> float:
        return self.seconds_until("held", lambda: self.client.device(device.uuid).held)

    def wait_measured(self) -> None:
        unready = (DeviceState.NEW, DeviceState.PROBING, DeviceState.UNKNOWN, DeviceState.DRAINING)

        def measured() -> bool:
            devices = self.client.devices()
            return len(devices) == HOSTS * GPUS and not any(d.state in unready for d in devices)

        self.seconds_until("all devices are measured", measured)

    def settle(self, count: int) -> None:
        self.seconds_until(f"{count} devices are healthy", lambda: len(self.idle()) >= count)


def _measure(home: Path) -> dict[str, float]:
    row = json.loads((home / "server.json").read_text())
    client = Client(row["url"], (home / "token").read_text().strip(), deadline_s=60)
    states = {host.name: HostState.open(host.state_path) for host in cluster.info(home).hosts}
    site = _Site(client, states)
    site.wait_measured()
    xids = sorted(_xids(site))
    agent = _agent(site)
    stranger = _stranger(site)
    hang, ping = _hang(site)
    return {
        "xid_p50": statistics.median(xids),
        "xid_p99": xids[-(-99 * len(xids) // 100) - 1],
        "counter": max(_counters(site)),
        "hang": hang,
        "ping": ping,
        "stranger": stranger,
    } | agent


def _xids(site: _Site) -> Iterator[float]:
    """From the injection, by NVML or in the kernel log, to the word that Ray cannot give the device out.

    A suspicion holds a device as a quarantine does, and ends by itself after clean probes.
    """
    table = catalog.load()
    code = next(code for code, row in sorted(table.meanings.items()) if table.advise(row)[0] is Advice.SUSPECT)
    count = len(site.idle())
    for _ in range(XID_ROUNDS):
        site.settle(count)
        for number, device in enumerate(site.idle()):
            state = site.states[device.host]
            if number % 2:
                state.inject_xid(device.index, code, consequences=False)
            else:
                state.write_kmsg(f"NVRM: Xid (PCI:{device.pci_bus_id[4:14].lower()}): {code}, pid=1, name=python")
            yield site.until_held(device)
    site.settle(count)


def _counters(site: _Site) -> Iterator[float]:
    """One idle device for each kind of counter."""
    faults: tuple[dict[str, int], ...] = (
        {"ecc_uncorrected": 1, "ecc_uncorrected_total": 1},
        {"remap_pending": 1},
        {"throttle_reasons": THROTTLES["thermal"]},
    )
    for device, fault in zip(site.idle(), faults, strict=False):
        site.states[device.host].set(device.index, **fault)
        yield site.until_held(device)


def _stranger(site: _Site) -> float:
    """From the verdict on a device to the word that somebody's actor, which no lease knows of, sits on it."""
    import ray

    guest: Any = ray.remote(num_gpus=1)(_Guest).remote()
    node_id, index = ray.get(guest.place.remote(), timeout=60)
    device = next(d for d in site.idle() if (d.node_id, d.index) == (node_id, index))
    site.states[device.host].inject_xid(index, 95, consequences=False)

    def told() -> bool:
        return any(event.kind is EventKind.STRANGER for event in site.client.story(device.uuid).events)

    site.seconds_until("it is condemned", lambda: site.client.device(device.uuid).state in CONDEMNED)
    seconds = site.seconds_until("the stranger is told of", told)
    ray.kill(guest)
    return seconds


class _Guest:
    """An actor of somebody who knows nothing of Paceline."""

    def place(self) -> tuple[str, int]:
        import ray

        context = ray.get_runtime_context()
        return context.get_node_id(), int(context.get_accelerator_ids()["GPU"][0])


def _hang(site: _Site) -> tuple[float, float]:
    """NVML hangs on a whole host: until its devices are UNKNOWN, and the slowest answer of its actor meanwhile."""
    import ray

    device = site.idle()[-1]
    actor = ray.get_actor(f"paceline-health-{device.node_id}")
    pings: list[float] = []

    def unknown() -> bool:
        started = time.monotonic()
        ray.get(actor.ping.remote(), timeout=30)
        pings.append(time.monotonic() - started)
        return site.client.device(device.uuid).state is DeviceState.UNKNOWN

    site.states[device.host].set_hang(None)
    try:
        return site.seconds_until("its devices are UNKNOWN", unknown), max(pings)
    finally:
        site.states[device.host].clear_faults(None)


def _agent(site: _Site) -> dict[str, float]:
    """CPU and memory of the actor and its NVML reader over a minute without faults, the worse of the hosts."""
    import ray

    actors = [ray.get_actor(f"paceline-health-{node}") for node in sorted({d.node_id for d in site.client.devices()})]
    before: list[dict[str, Any]] = ray.get([actor.stats.remote() for actor in actors], timeout=60)
    started = time.monotonic()
    time.sleep(AGENT_S)
    after: list[dict[str, Any]] = ray.get([actor.stats.remote() for actor in actors], timeout=60)
    wall_s = time.monotonic() - started
    return {
        "core_pct": max((new["cpu_s"] - old["cpu_s"]) / wall_s * 100 for old, new in zip(before, after, strict=True)),
        "rss_mb": max((new["rss_bytes"] + new["reader_rss_bytes"]) / 1e6 for new in after),
    }


if __name__ == "__main__":
    import ray

    ray.init(namespace="paceline", log_to_driver=False)
    print(json.dumps(_measure(Path(sys.argv[1]))))
