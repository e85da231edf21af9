"""`paceline up`, `down` and `server`: Paceline's own processes on this machine."""

import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from paceline.model.errors import HostSetup, PacelineError, TimedOut, Unreachable
from paceline.model.hardware import DeviceState
from paceline.sdk.client import Client

if TYPE_CHECKING:
    from paceline.runtime.processes import Started
    from paceline.runtime.settings import Settings

chatter = Console(stderr=True)

STOP_GRACE_S: Final = 20.0
"""The server stops its two children one after the other, and waits 10 s for each."""
REMOVE_DEADLINE_S: Final = 90.0

AddressOption = Annotated[str, typer.Option(help="GCS address of a running Ray cluster, host:port")]


def up(
    address: AddressOption = "",
    wait: Annotated[bool, typer.Option(help="wait until every device has been measured")] = True,
    timeout_s: Annotated[float, typer.Option(help="longest wait, seconds")] = 240.0,
) -> None:
    """Join a running Ray cluster: server, placement service and a health actor on each node. Starts only what is missing."""
    settings = _settings()
    settings.check()
    ray_address = address or _known_address(settings)
    _check_ray(ray_address)
    os.environ.update(_cluster_env(settings))
    with chatter.status("starting the server") as status:
        started = _running_server(settings) or _start_server(settings, ray_address)
        deadline = time.monotonic() + timeout_s
        client = _wait_for_server(settings, started, deadline)
        while wait and not _measured(client, status):
            _still_alive(settings, started, deadline)
            time.sleep(0.3)
    print(f"Paceline is up: {client.address}")
    print(f"  page and API   {client.address}/   (token: {settings.home / 'token'})")
    print(f"  Ray cluster    {ray_address}")
    print(f"  logs           {settings.logs}")
    print("Next: paceline get gpus · ray job submit -- python your_train.py · paceline get jobs")


def down() -> None:
    """Stop what `paceline up` started, and take Paceline's actors and holds off the Ray cluster."""
    from paceline.runtime import processes

    settings = _settings()
    server = _running_server(settings)
    ray_address = _server_file(settings).get("ray_address", "")
    if server is not None:
        processes.stop([server], "", STOP_GRACE_S)
    if ray_address and _answers(ray_address):
        os.environ.update(_cluster_env(settings))
        remove = [sys.executable, "-m", "paceline.runtime.reconciler", "--remove", "--ray-address", ray_address]
        with (settings.logs / "down.log").open("ab") as log:
            subprocess.run(remove, stdout=log, stderr=log, timeout=REMOVE_DEADLINE_S, check=False)
    print("Paceline is down" if server is not None else "Paceline was not running")


def server(address: AddressOption = "") -> None:
    """Run the server in the foreground (for a service unit); `paceline up` runs it in the background."""
    from paceline.runtime.server import Server

    settings = _settings()
    settings.check()
    ray_address = address or _known_address(settings)
    _check_ray(ray_address)
    os.environ.update(_cluster_env(settings))
    Server(settings, ray_address).run()


def _settings() -> "Settings":
    try:
        from paceline.runtime.settings import Settings
    except ImportError as error:
        raise HostSetup(
            "PL-HOST-002", f"this machine has only Paceline's client: {error}", "pip install 'paceline[cluster]'"
        ) from error
    return Settings()


def _known_address(settings: "Settings") -> str:
    simulated: str = _json(settings.home / "sim" / "cluster.json").get("address", "")
    return simulated or os.environ.get("RAY_ADDRESS", "") or "127.0.0.1:6379"


def _cluster_env(settings: "Settings") -> dict[str, str]:
    """What a process needs to reach a simulated cluster of this home; nothing for any other cluster."""
    from paceline.sim.cluster import client_env

    return client_env(settings.home) if (settings.home / "sim" / "cluster.json").exists() else {}


def _check_ray(address: str) -> None:
    if not _answers(address):
        raise Unreachable(
            "PL-NET-002",
            f"no Ray cluster answers at {address}",
            "start one (`ray start --head`, or `paceline sim up` for simulated hosts) or name it: paceline up --address HOST:PORT",
        )


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=3):
            return True
    except (OSError, ValueError):
        return False


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def _server_file(settings: "Settings") -> dict[str, Any]:
    return _json(settings.server_file)


def _running_server(settings: "Settings") -> "Started | None":
    from paceline.runtime import processes

    row = _server_file(settings)
    if not row:
        return None
    known = processes.Started(int(row["pid"]), str(row["birth"]))
    return known if processes.is_running(known) else None


def _start_server(settings: "Settings", ray_address: str) -> "Started":
    from paceline.runtime import processes

    command = [sys.executable, "-m", "paceline.runtime.server", "--ray-address", ray_address]
    return processes.spawn(command, os.environ, settings.logs / "server.log")


def _wait_for_server(settings: "Settings", started: "Started", deadline: float) -> Client:
    while True:
        row = _server_file(settings)
        if row.get("pid") == started.pid and (settings.home / "token").exists():
            client = Client(row["url"], (settings.home / "token").read_text().strip(), deadline_s=10)
            client.health()
            return client
        _still_alive(settings, started, deadline)
        time.sleep(0.1)


def _measured(client: Client, status: Any) -> bool:
    """Whether devices are there and each has been measured or excluded."""
    try:
        states = Counter(device.state for device in client.devices())
    except PacelineError as error:
        status.update(f"the server does not answer: {error.message}")
        return False
    text = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    status.update(f"measuring devices: {text or 'none seen yet'}")
    return bool(states) and not any(s in states for s in (DeviceState.NEW, DeviceState.PROBING, DeviceState.UNKNOWN))


def _still_alive(settings: "Settings", started: "Started", deadline: float) -> None:
    from paceline.runtime import processes

    if not processes.is_running(started):
        raise HostSetup("PL-HOST-003", "the server ended while it started", _tail(settings.logs / "api.log"))
    if time.monotonic() > deadline:
        hint = f"see {settings.logs}; last words of the reconciler:\n{_tail(settings.logs / 'reconciler.log')}"
        raise TimedOut("PL-TIME-001", "devices have not all been measured in time; the server goes on trying", hint)


def _tail(path: Path, lines: int = 5) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return f"{path} cannot be read"


def add_to(app: typer.Typer) -> None:
    app.command()(up)
    app.command()(down)
    app.command()(server)
