"""A small Paceline on simulated hosts for tests: real raylets, a real server, everything under a home of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from paceline.model.hardware import DeviceState
from paceline.sdk.client import Client
from paceline.sdk.rows import DeviceRow
from paceline.sim import cluster
from waiting import until

TOOLS = Path(sys.executable).parent
DEADLINE_S = 180.0


class Site:
    """One home with its cluster and server."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = os.environ | {"PACELINE_HOME": str(home), "NO_COLOR": "1"}

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(TOOLS / command[0]), *command[1:]],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def python(self, script: str) -> str:
        """Run a Ray driver on the cluster; returns its last line."""
        return self.run("python", "-c", script).stdout.strip().splitlines()[-1]

    @property
    def client(self) -> Client:
        row = json.loads((self.home / "server.json").read_text())
        return Client(row["url"], (self.home / "token").read_text().strip(), deadline_s=60)

    @property
    def server(self) -> psutil.Process:
        return psutil.Process(json.loads((self.home / "server.json").read_text())["pid"])

    def child(self, module: str) -> psutil.Process:
        """The server's process that runs this module, once it is there."""

        def look() -> psutil.Process | None:
            for process in self.server.children():
                with suppress(psutil.Error):  # it ends just now, or has ended and waits for its parent
                    if module in process.cmdline():
                        return process
            return None

        found = until(look, DEADLINE_S, f"{module} runs")
        assert found is not None
        return found

    def actor(self, name: str) -> psutil.Process:
        """The process in which an actor of Paceline lives now. Asks Ray and not the actor, which may be stopped."""
        pid = self.python(
            "import ray; ray.init(namespace='paceline', log_to_driver=False, configure_logging=False)\n"
            f"actor_id = ray.get_actor({name!r})._actor_id.hex()\n"
            "print(ray._private.state.state.actor_table(actor_id)['Pid'])"
        )
        return psutil.Process(int(pid))

    def devices(self, *states: DeviceState) -> list[DeviceRow]:
        return [d for d in self.client.devices() if d.state in states]

    def wait_measured(self) -> None:
        unready = (DeviceState.NEW, DeviceState.PROBING, DeviceState.UNKNOWN, DeviceState.DRAINING)
        until(lambda: self.client.devices() and not self.devices(*unready), DEADLINE_S, "all devices are measured")


@contextmanager
def site(home: Path, hosts: int, gpus: int, **settings: str) -> Iterator[Site]:
    made = Site(home)
    made.env |= settings
    try:
        made.run("paceline", "sim", "up", "--hosts", str(hosts), "--gpus", str(gpus))
        made.env |= cluster.client_env(home)
        made.run("paceline", "up")
        made.wait_measured()
        yield made
    finally:
        made.run("paceline", "down", check=False)
        made.run("paceline", "sim", "down", check=False)
