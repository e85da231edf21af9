"""Environment and command lines of a simulated cluster's Ray processes."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from paceline.model.domains import LABEL_PREFIX, DomainKind

LOOPBACK: Final = "127.0.0.1"
"""Ray's own ports are on the address that it finds for this machine: it replaces 127.0.0.1 as a node's address."""
HOST_LABEL: Final = "paceline.io/host"
START_LABEL: Final = "paceline.io/start"
NODE_PORTS: Final = (
    "node-manager-port",
    "object-manager-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
    "metrics-export-port",
)
HEAD_PORTS: Final = ("port", "dashboard-port", "ray-client-server-port")
_OBJECT_STORE_BYTES: Final = 150_000_000
_HEAD_CPUS: Final = 2
_HOST_CPUS: Final = 4
_INHERITED_NO_MORE: Final = ("RAY_", "PACELINE_SIM_", "CUDA_VISIBLE_DEVICES")

# Both the cluster and its clients need these.
_SHARED: Final = {
    "RAY_AUTH_MODE": "token",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_CALLBACKS": "paceline.training.callback.PacelineCallback",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.25",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",
}
# A raylet counts as dead after 5 checks of 5 s each: a laptop under load must not lose nodes that live.
_CLUSTER: Final = {
    "RAY_gcs_storage": "rocksdb",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_prestart_worker_first_driver": "0",
    "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "3",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


def client_env(home: Path, ports: Mapping[str, int], temp_dir: Path, token: Path) -> dict[str, str]:
    """What `ray job submit`, `ray.init()` and the state commands need to reach the cluster."""
    return {
        **_SHARED,
        "PACELINE_HOME": str(home),
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_TMPDIR": str(temp_dir),
        "RAY_ADDRESS": f"{LOOPBACK}:{ports['port']}",
        "RAY_API_SERVER_ADDRESS": f"http://{LOOPBACK}:{ports['dashboard-port']}",  # wins over RAY_ADDRESS for jobs
    }


def cluster_env(home: Path, temp_dir: Path, token: Path, storage: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Environment of head and hosts: `extra` over ours over this process's, less its own Ray and CUDA settings."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(_INHERITED_NO_MORE)}
    ours = {
        **_SHARED,
        **_CLUSTER,
        "PACELINE_HOME": str(home),
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_TMPDIR": str(temp_dir),
        "RAY_gcs_storage_path": str(storage),
    }
    return {**own, **ours, **extra}


def host_env(env: Mapping[str, str], library: Path, state: Path, slots: tuple[int, ...]) -> dict[str, str]:
    """A host's environment: the simulated driver is found first, and Ray's index i means the device in slots[i]."""
    search = [str(library.parent)] + ([env["LD_LIBRARY_PATH"]] if env.get("LD_LIBRARY_PATH") else [])
    return {
        **env,
        "LD_LIBRARY_PATH": os.pathsep.join(search),
        "PACELINE_SIM_STATE": str(state),
        "PACELINE_SIM_SLOTS": ",".join(map(str, slots)),
    }


def head_command(ports: Mapping[str, int], temp_dir: Path) -> list[str]:
    """`ray start` of the head: no GPUs, dashboard on the loopback address."""
    head = [
        "--head",
        "--num-gpus=0",
        f"--num-cpus={_HEAD_CPUS}",
        "--include-dashboard=true",
        f"--dashboard-host={LOOPBACK}",
    ]
    return [*_start("head", ports), *head, f"--temp-dir={temp_dir / 'ray'}", "--labels=paceline.io/role=head"]


def host_command(name: str, ports: Mapping[str, int], address: str, start: str, rack: str) -> list[str]:
    """`ray start` of a host. Ray counts the GPUs itself, through the simulated driver."""
    labels = f"--labels={HOST_LABEL}={name},{START_LABEL}={start},{LABEL_PREFIX}{DomainKind.RACK.value}={rack}"
    # All nodes share one session folder here: the head's log monitor reads it for all.
    return [*_start(name, ports), f"--address={address}", f"--num-cpus={_HOST_CPUS}", "--include-log-monitor=0", labels]


def _start(name: str, ports: Mapping[str, int]) -> list[str]:
    fixed = [f"--{option}={port}" for option, port in ports.items()]
    common = ["--block", "--disable-usage-stats", "--log-style=record", "--log-color=false", f"--node-name={name}"]
    size = [f"--object-store-memory={_OBJECT_STORE_BYTES}", "--min-worker-port=0", "--max-worker-port=0"]
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--node-ip-address={LOOPBACK}"]
    return [*ray, *common, *size, *fixed]
