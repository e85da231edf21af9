"""The health actor on a real raylet, with the simulated driver below it and a server that the test can take away."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import ray

from paceline.health.actor import HealthActor
from paceline.model.ids import HostName
from paceline.sim import build
from paceline.sim.fleet import identify
from paceline.sim.state import HostState
from waiting import until

pytestmark = pytest.mark.ray
DEADLINE_S = 60.0


class Inventory:
    """Answers POST /v1/reports, on one port across restarts."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.port = 0
        self.start()

    def start(self) -> None:
        inventory = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                assert self.headers["authorization"] == "Bearer secret"
                inventory.reports.append(body)
                answer = b'{"accepted": true}'
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """The test's output is not the place."""

        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def until(self, wanted: Callable[[dict[str, Any]], object], after: int = 0) -> int:
        """Number of the first report from `after` on that is `wanted`."""

        def found() -> list[int]:
            return [number for number, report in enumerate(self.reports[after:], start=after) if wanted(report)]

        return until(found, DEADLINE_S, "such a report")[0]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostState]:
    home = tmp_path_factory.mktemp("host")
    state = HostState.create(home / "state", "gpu-a", [identify("test", HostName("gpu-a"), i) for i in range(2)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_SIM_STATE", str(home / "state"))
        patch.setenv("LD_LIBRARY_PATH", str(build.library(home).parent))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        ray.init(address="local", num_cpus=1, num_gpus=2, include_dashboard=False, log_to_driver=False)
        yield state
        ray.shutdown()


@pytest.fixture
def inventory() -> Iterator[Inventory]:
    inventory = Inventory()
    yield inventory
    inventory.stop()


@pytest.fixture
def actor(host: HostState, inventory: Inventory) -> Iterator[Any]:
    options = {"num_cpus": 0, "max_restarts": -1, "max_concurrency": 8}
    url = f"http://127.0.0.1:{inventory.port}"
    actor = ray.remote(HealthActor).options(**options).remote(url, "secret", "node-1")
    yield actor
    ray.kill(actor)


def xids(report: dict[str, Any]) -> list[int]:
    return [xid["code"] for xid in report["xids"]]


def test_it_reports_its_host_and_an_xid_at_once(host: HostState, inventory: Inventory, actor: Any) -> None:
    first = inventory.until(lambda report: len(report["samples"]) == 2)
    assert inventory.reports[first]["host"]["host"] == "gpu-a"
    assert inventory.reports[first]["host"]["simulated"] is True
    assert ray.get(actor.ping.remote(), timeout=DEADLINE_S) == "node-1"
    host.inject_xid(1, 13)
    told = inventory.until(lambda report: xids(report) == [13])
    assert not inventory.reports[told]["samples"], "told at once, not with the next reading"
    assert inventory.reports[told]["findings"][0]["advice"] == "OBSERVE"
    assert len(inventory.reports[told]["devices"]) == 2
    stats = ray.get(actor.stats.remote(), timeout=DEADLINE_S)
    assert stats["nvml_error"] == ""
    assert 0 < stats["nvml_p50_us"] < 1_000_000


def test_it_survives_a_restart_of_the_server_and_loses_no_xid(
    host: HostState, inventory: Inventory, actor: Any
) -> None:
    inventory.until(lambda report: report["samples"])
    inventory.stop()
    host.inject_xid(0, 31)

    def pending() -> int:
        return int(ray.get(actor.stats.remote(), timeout=DEADLINE_S)["reports_pending"])

    end = time.monotonic() + DEADLINE_S
    while pending() < 2:
        assert time.monotonic() < end
    before = len(inventory.reports)
    inventory.start()
    told = inventory.until(lambda report: xids(report) == [31], after=before)
    inventory.until(lambda report: report["seq"] > inventory.reports[told]["seq"], after=told)
    seqs = [report["seq"] for report in inventory.reports[before:]]
    assert seqs == sorted(seqs)


def test_a_killed_actor_comes_back_as_another_life_and_leaves_no_reader(
    host: HostState, inventory: Inventory, actor: Any
) -> None:
    boot = inventory.reports[inventory.until(lambda report: report["samples"])]["boot"]
    readers = nvml_readers()
    assert len(readers) == 1
    ray.kill(actor, no_restart=False)
    inventory.until(lambda report: report["boot"] != boot and report["samples"])
    until(lambda: not readers & nvml_readers(), DEADLINE_S, "the old reader is gone")


def nvml_readers() -> set[int]:
    """Process ids of the NVML readers that read this test's host."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"paceline.telemetry.nvml_child" in (entry / "cmdline").read_bytes():
                environ = (entry / "environ").read_bytes()
                if f"PACELINE_SIM_STATE={os.environ['PACELINE_SIM_STATE']}".encode() in environ.split(b"\0"):
                    found.add(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found
