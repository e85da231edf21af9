"""What a simulated cluster remembers: `sim/cluster.json` below its home, and the places of its other files."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from paceline.runtime.processes import Started
from paceline.sim import ray_env


@dataclass(slots=True)
class Node:
    """The head or one host as it was last started."""

    name: str
    ports: dict[str, int]
    process: Started | None = None
    start: str = ""
    """Label of its last start: Ray may call a host's earlier life alive for a while."""
    state_path: str = ""
    """The host's state file; empty for the head."""


@dataclass(slots=True)
class Cluster:
    """What `cluster.json` holds."""

    seed: int
    gpus: int
    mark: str
    temp_dir: str
    head: Node
    hosts: list[Node]
    extra_env: dict[str, str] = field(default_factory=dict)


def load(home: Path) -> Cluster | None:
    file = path(home)
    return TypeAdapter(Cluster).validate_json(file.read_bytes()) if file.exists() else None


def save(home: Path, cluster: Cluster) -> None:
    scratch = path(home).with_suffix(".new")
    reach = {
        "address": address(cluster),
        "dashboard_url": dashboard(cluster),
        "ray_token_path": str(token(home)),
        "env": client_env(home, cluster),
    }  # for readers
    scratch.write_text(json.dumps({**asdict(cluster), **reach}, indent=1), encoding="utf-8")
    scratch.replace(path(home))


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """One `up` or `down` at a time."""
    (home / "sim").mkdir(parents=True, exist_ok=True)
    with (home / "sim" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def address(cluster: Cluster) -> str:
    return f"{ray_env.LOOPBACK}:{cluster.head.ports['port']}"


def client_env(home: Path, cluster: Cluster) -> dict[str, str]:
    return ray_env.client_env(home, cluster.head.ports, Path(cluster.temp_dir), token(home))


def dashboard(cluster: Cluster) -> str:
    return f"http://{ray_env.LOOPBACK}:{cluster.head.ports['dashboard-port']}"


def path(home: Path) -> Path:
    return home / "sim" / "cluster.json"


def token(home: Path) -> Path:
    return home / "sim" / "ray_token"


def storage(home: Path) -> Path:
    return home / "sim" / "gcs"


def log(home: Path, node: Node) -> Path:
    return home / "logs" / f"ray-{node.name}.log"
