"""A Ray cluster of simulated GPU hosts on this machine: real raylets, a simulated driver under each.

`up` is a reconciler: it starts what is missing and leaves alone what runs. What it started is written down with pid and
birth, and `down` stops that and nothing else.
"""

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paceline.model.errors import Conflict, HostSetup, NotFound, TimedOut
from paceline.model.ids import HostName
from paceline.runtime import ports, processes
from paceline.runtime.processes import Started
from paceline.sim import fleet, ray_env, record
from paceline.sim.build import library
from paceline.sim.dashboard import RayNode, ray_nodes
from paceline.sim.record import Cluster, Node
from paceline.sim.state import HostState, kmsg_path

START_DEADLINE_S: Final = 180.0
"""An idle laptop needs 20 s for three hosts; a loaded one needs Ray's second try."""
STOP_GRACE_S: Final = 5.0
_POLL_S: Final = 0.25
_ATTEMPTS: Final = 3
_HOSTS_OF_A_RACK: Final = 2
_LOG_TAIL_BYTES: Final = 3_000

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class HostInfo:
    """One simulated host now. `alive`: its raylet's process runs. `present`: devices on the bus."""

    name: HostName
    state_path: Path
    alive: bool
    gpus: int
    present: int


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """How to reach a simulated cluster. `env` is what a client process needs."""

    address: str
    dashboard_url: str
    ray_token_path: Path
    env: dict[str, str]
    hosts: tuple[HostInfo, ...]
    head_alive: bool
    logs: Path

    @property
    def alive(self) -> bool:
        return self.head_alive and all(host.alive for host in self.hosts)


def _quiet(_: str) -> None:
    """Tells nobody."""


def up(
    home: Path | str,
    hosts: int,
    gpus: int,
    *,
    seed: int = 0,
    nominal_step_s: float = 0.05,
    env: Mapping[str, str] | None = None,
    progress: Progress = _quiet,
    deadline_s: float = START_DEADLINE_S,
) -> ClusterInfo:
    """Brings the cluster up, or back up; returns once Ray calls every host alive with its GPUs.

    A head that died is started on its old ports and storage, and the hosts that live reconnect to it; a host that died
    is started again. `env` is added to every Ray process (remembered for restarts). Raises Conflict (PL-REV-020) if a
    cluster of another size is there, HostSetup (PL-HOST-…) if something cannot start, TimedOut (PL-TIME-020) after
    `deadline_s`.
    """
    home = Path(home).expanduser().resolve()
    deadline = time.monotonic() + deadline_s
    with record.locked(home):
        cluster = record.load(home) or _plan(home, hosts, gpus, seed, nominal_step_s)
        if (len(cluster.hosts), cluster.gpus) != (hosts, gpus):
            message = f"A cluster of {len(cluster.hosts)} hosts with {cluster.gpus} GPUs each is there already"
            raise Conflict("PL-REV-020", message, "Stop it first: paceline sim down")
        if env:
            cluster.extra_env.update(env)
        driver = library(home / "sim")
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                _start(home, cluster, driver, progress, deadline)
                _wait_seen(home, cluster, progress, deadline)
                break
            except HostSetup:  # Ray gives up on a node that is slow to start, as on a machine under load: once more
                if attempt == _ATTEMPTS:
                    raise
        return _info(home, cluster)


def down(home: Path | str) -> bool:
    """Stops what `up` started, and removes temporary folder, storage and state files; the logs stay.

    False if there was nothing to stop.
    """
    home = Path(home).expanduser().resolve()
    if not record.path(home).exists():
        return False
    with record.locked(home):
        cluster = record.load(home)
        if cluster is None:
            return False
        processes.stop(_started(cluster.head, *cluster.hosts), cluster.mark, STOP_GRACE_S)
        shutil.rmtree(cluster.temp_dir, ignore_errors=True)
        shutil.rmtree(record.storage(home), ignore_errors=True)
        for node in cluster.hosts:
            Path(node.state_path).unlink(missing_ok=True)
            kmsg_path(node.state_path).unlink(missing_ok=True)
        record.token(home).unlink(missing_ok=True)
        record.path(home).unlink()
    return True


def info(home: Path | str) -> ClusterInfo:
    """The cluster of this home. Raises NotFound (PL-FIND-020) if none was started."""
    home = Path(home).expanduser().resolve()
    return _info(home, _need(home))


def client_env(home: Path | str) -> dict[str, str]:
    """Environment for `ray job submit`, `ray.init()` and `ray list`. Raises NotFound (PL-FIND-020)."""
    return info(home).env


def host_state(home: Path | str, name: str) -> HostState:
    """The state of one host, to read it and to inject faults. Raises NotFound (PL-FIND-020, -021)."""
    home = Path(home).expanduser().resolve()
    return HostState.open(_host(_need(home), name).state_path)


def kill_head(home: Path | str) -> int:
    """Kills the head and all its processes at once. `up` brings it back. Returns how many processes were killed."""
    home = Path(home).expanduser().resolve()
    cluster = _need(home)
    return processes.kill(_started(cluster.head), _mark(cluster, cluster.head))


def kill_host(home: Path | str, name: str) -> int:
    """Kills one host's raylet and all its processes at once, as if it had lost power. Returns how many were killed."""
    home = Path(home).expanduser().resolve()
    cluster = _need(home)
    node = _host(cluster, name)
    return processes.kill(_started(node), _mark(cluster, node))


# ---- starting ----


def _plan(home: Path, hosts: int, gpus: int, seed: int, nominal_step_s: float) -> Cluster:
    """A new cluster: ports, temporary folder, token and state files; nothing runs yet."""
    names = fleet.host_names(hosts)
    specs = fleet.devices(names, gpus, seed)
    taken: set[int] = set()
    head = Node("head", ports.free_ports((*ray_env.HEAD_PORTS, *ray_env.NODE_PORTS), taken))
    nodes = []
    for name in names:
        path = home / "sim" / "hosts" / f"{name}.state"
        HostState.create(path, name, specs[name], nominal_step_s)
        nodes.append(Node(name, ports.free_ports(ray_env.NODE_PORTS, taken), state_path=str(path)))
    shutil.rmtree(record.storage(home), ignore_errors=True)  # of a cluster whose record is gone
    # Short: Ray puts Unix sockets in it, and their paths end at 107 characters.
    temp_dir = tempfile.mkdtemp(prefix="pl-", dir="/tmp")
    token = os.open(record.token(home), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(token, "w") as file:
        file.write(secrets.token_urlsafe(32))
    cluster = Cluster(seed, gpus, secrets.token_hex(8), temp_dir, head, nodes)
    record.save(home, cluster)
    return cluster


def _start(home: Path, cluster: Cluster, driver: Path, progress: Progress, deadline: float) -> None:
    """Starts what does not run: the head first, then the hosts, one after the other.

    Ray names a raylet's socket by the first file that is not there yet: of two that start at once, both take the same name
    and one aborts ("bind: Address already in use").
    """
    _start_head(home, cluster, progress, deadline)
    for node in cluster.hosts:
        _start_host(home, cluster, node, driver, progress)
        _wait_listening(home, node, deadline)


def _start_head(home: Path, cluster: Cluster, progress: Progress, deadline: float) -> None:
    if _runs(cluster.head):
        return
    progress("starting the head")
    processes.kill(
        _started(cluster.head), _mark(cluster, cluster.head)
    )  # what a dead leader left behind holds its ports
    Path(cluster.temp_dir).mkdir(mode=0o700, exist_ok=True)
    # Ray refuses to start a head on the address in this file while raylets live that use it; ours wait for just that
    # head.
    (Path(cluster.temp_dir) / "ray" / "ray_current_cluster").unlink(missing_ok=True)
    env = _env(home, cluster, cluster.head)
    command = ray_env.head_command(cluster.head.ports, Path(cluster.temp_dir))
    cluster.head.process = processes.spawn(command, env, record.log(home, cluster.head))
    record.save(home, cluster)
    _wait_listening(home, cluster.head, deadline)


def _start_host(home: Path, cluster: Cluster, node: Node, driver: Path, progress: Progress) -> None:
    if _runs(node):
        return
    progress(f"starting {node.name}")
    processes.kill(_started(node), _mark(cluster, node))
    state = HostState.open(node.state_path)
    env = ray_env.host_env(_env(home, cluster, node), driver, state.path, state.present())
    node.start = secrets.token_hex(4)
    rack = f"sim-{cluster.hosts.index(node) // _HOSTS_OF_A_RACK}"
    command = ray_env.host_command(node.name, node.ports, record.address(cluster), node.start, rack)
    node.process = processes.spawn(command, env, record.log(home, node))
    record.save(home, cluster)


def _env(home: Path, cluster: Cluster, node: Node) -> dict[str, str]:
    env = ray_env.cluster_env(home, Path(cluster.temp_dir), record.token(home), record.storage(home), cluster.extra_env)
    # Ray's own actors look for "the" cluster of a machine and would ask another one, were this not set.
    return {**env, processes.MARK: _mark(cluster, node), "RAY_ADDRESS": record.address(cluster)}


def _wait_listening(home: Path, node: Node, deadline: float) -> None:
    """Waits for the node's raylet. A head whose GCS answers but whose raylet is not there yet would turn hosts away."""
    port = node.ports["node-manager-port"]
    _wait(lambda: not ports.is_free(port), home, node, deadline, f"the raylet of {node.name} does not listen")


def _wait_seen(home: Path, cluster: Cluster, progress: Progress, deadline: float) -> None:
    """Waits until Ray calls every host alive with its GPUs. Raises HostSetup as soon as a node, or the head, has ended."""
    token = record.token(home).read_text()
    for node in cluster.hosts:
        progress(f"waiting for Ray to see {node.name} and its GPUs")
        want = len(HostState.open(node.state_path).present())

        def seen(start: str = node.start, want: int = want) -> bool:
            _check_runs(home, cluster.head)
            return any(_is(found, start, want) for found in ray_nodes(record.dashboard(cluster), token))

        _wait(seen, home, node, deadline, f"Ray does not see {node.name} with {want} GPUs")


def _is(found: RayNode, start: str, gpus: int) -> bool:
    return found.alive and found.labels.get(ray_env.START_LABEL) == start and found.gpus == gpus


def _wait(done: Callable[[], bool], home: Path, node: Node, deadline: float, otherwise: str) -> None:
    while not done():
        _check_runs(home, node)
        if time.monotonic() > deadline:
            message = f"Gave up waiting: {otherwise}. The end of its log:\n{_tail(record.log(home, node))}"
            raise TimedOut("PL-TIME-020", message, "Try again: paceline sim up goes on from here")
        time.sleep(_POLL_S)


def _check_runs(home: Path, node: Node) -> None:
    if not _runs(node):
        log = record.log(home, node)
        message = f"Ray on {node.name} ended while it started. The end of its log:\n{_tail(log)}"
        raise HostSetup("PL-HOST-004", message, f"Whole log: {log}")


def _tail(log: Path) -> str:
    return log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip() if log.exists() else "(empty)"


# ---- the record ----


def _info(home: Path, cluster: Cluster) -> ClusterInfo:
    hosts = []
    for node in cluster.hosts:
        state = HostState.open(node.state_path)
        alive = _runs(node)
        hosts.append(HostInfo(HostName(node.name), state.path, alive, state.device_count, len(state.present())))
    return ClusterInfo(
        address=record.address(cluster),
        dashboard_url=record.dashboard(cluster),
        ray_token_path=record.token(home),
        env=record.client_env(home, cluster),
        hosts=tuple(hosts),
        head_alive=_runs(cluster.head),
        logs=home / "logs",
    )


def _need(home: Path) -> Cluster:
    cluster = record.load(home)
    if cluster is None:
        raise NotFound("PL-FIND-020", f"No simulated cluster in {home}", "Start one: paceline sim up")
    return cluster


def _host(cluster: Cluster, name: str) -> Node:
    for node in cluster.hosts:
        if node.name == name:
            return node
    names = ", ".join(node.name for node in cluster.hosts)
    raise NotFound("PL-FIND-021", f"No simulated host {name}", f"There are: {names}")


def _runs(node: Node) -> bool:
    return node.process is not None and processes.is_running(node.process)


def _started(*nodes: Node) -> list[Started]:
    return [node.process for node in nodes if node.process is not None]


def _mark(cluster: Cluster, node: Node) -> str:
    return f"{cluster.mark}/{node.name}"
