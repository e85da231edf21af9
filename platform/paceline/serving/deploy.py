"""Puts a chat service on a running Ray cluster: two Serve apps, so that a change of one never restarts the other.

`gateway`   HTTP, sessions, journal; on the head, where the journal's file is
`engine`    replicas of the model, a GPU each
"""

import os
import time
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray import serve
from ray.serve.config import HTTPOptions, ProxyLocation, RequestRouterConfig
from ray.serve.schema import ApplicationStatus

from paceline.model.errors import HostSetup, RunFailed, TimedOut, Unreachable
from paceline.sdk import config
from paceline.serving.contract import EngineOptions
from paceline.serving.engine import EngineReplica
from paceline.serving.gateway import ENGINE_APP, ENGINE_DEPLOYMENT, Gateway, GatewayConfig
from paceline.serving.models import check_installed
from paceline.serving.watchdog import FLOOR_S

GATEWAY_APP: Final = "gateway"
NAMESPACE: Final = "paceline"
ROUTER: Final = "paceline.serving.router.SessionRouter"
HEAD: Final = {"node:__internal_head__": 0.001}
ENGINE_STREAMS: Final = 64
"""Answers at once on one replica; more wait, or go to the next replica on the ring."""
GATEWAY_STREAMS: Final = 1_000
HEALTH_PERIOD_S: Final = 2.0
HEALTH_TIMEOUT_S: Final = 5.0
"""A frozen replica is replaced after three of these; turns left it long before."""
DRAIN_S: Final = 120.0
READY_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class ChatService:
    """A service that runs. `url` takes OpenAI's API under `/v1`."""

    url: str
    model: str
    replicas: int
    journal: str


@dataclass(frozen=True, slots=True)
class AppStatus:
    app: str
    status: str
    running: int
    message: str


def chat_app(
    model: str = "smollm2",
    replicas: int = 2,
    port: int = 8100,
    host: str = "127.0.0.1",
    gpus_per_replica: float | None = None,
    token_period_s: float = 0.0,
    journal: str = "",
    silence_floor_s: float = FLOOR_S,
    ready_s: float = READY_S,
) -> ChatService:
    """Deploy and wait until it answers; the apps stay when the caller ends.

    Joins the cluster of RAY_ADDRESS (or the one on this host). `gpus_per_replica` None takes a GPU for each replica
    where the cluster has GPUs. `journal` is a file on the head; empty: `PACELINE_HOME/journal.db`. Raises NotFound for
    an unknown model, HostSetup if its files are missing, Unreachable without a cluster, TimedOut if the apps are not
    up in `ready_s`.
    """
    check_installed(model)  # fails here, not in a replica's log
    join()
    gpus = _gpus_per_replica(gpus_per_replica)
    gateway = _gateway_config(model, journal, silence_floor_s)
    serve.start(proxy_location=ProxyLocation.HeadOnly, http_options=HTTPOptions(host=host, port=port))
    deadline_s = time.monotonic() + ready_s
    serve.run(_engine(model, replicas, gpus, {"token_period_s": token_period_s}), name=ENGINE_APP, route_prefix=None)
    _wait_running(ENGINE_APP, deadline_s)
    serve.run(_gateway(gateway), name=GATEWAY_APP, route_prefix="/")
    _wait_running(GATEWAY_APP, deadline_s)
    return ChatService(f"http://{host}:{port}", model, replicas, gateway.journal)


def undeploy() -> None:
    """Take both apps down; the gateway first, so that no answer is lost to its own engines. The journal stays."""
    join()
    for app in (GATEWAY_APP, ENGINE_APP):
        serve.delete(app)


def status() -> tuple[AppStatus, ...]:
    join()
    found = serve.status().applications
    rows = []
    for app in (GATEWAY_APP, ENGINE_APP):
        if app in found:
            states = [deployment.replica_states for deployment in found[app].deployments.values()]
            running = sum(count for state in states for name, count in state.items() if name == "RUNNING")
            rows.append(AppStatus(app, found[app].status.value, running, found[app].message))
    return tuple(rows)


def join() -> None:
    """Connect to the cluster, unless this process is connected. Raises Unreachable."""
    if ray.is_initialized():
        return
    try:
        ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), namespace=NAMESPACE, log_to_driver=False)
    except ConnectionError as error:
        raise Unreachable("PL-NET-110", "no Ray cluster answers", "start one, or set RAY_ADDRESS") from error


def _engine(model: str, replicas: int, gpus: float, options: EngineOptions) -> Any:
    deployment = serve.deployment(
        name=ENGINE_DEPLOYMENT,
        num_replicas=replicas,
        ray_actor_options={"num_cpus": 0, "num_gpus": gpus},
        max_ongoing_requests=ENGINE_STREAMS,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),  # type: ignore[arg-type]  # Serve takes an import path too, its stub does not
    )
    return deployment(EngineReplica).bind(model, dict(options))


def _gateway(settings: GatewayConfig) -> Any:
    deployment = serve.deployment(
        name="Gateway",
        num_replicas=1,
        ray_actor_options={"num_cpus": 0, "resources": HEAD},
        max_ongoing_requests=GATEWAY_STREAMS,
        health_check_period_s=HEALTH_PERIOD_S,
        graceful_shutdown_timeout_s=DRAIN_S,
    )
    return deployment(Gateway).bind(settings)


def _gateway_config(model: str, journal: str, silence_floor_s: float) -> GatewayConfig:
    home = config.home()
    token_file = next((str(path) for path in (home / "agent_token", home / "token") if path.exists()), "")
    return GatewayConfig(
        model=model,
        journal=journal or str(home / "journal.db"),
        address=_server_address(),
        token_file=token_file,
        silence_floor_s=silence_floor_s,
    )


def _server_address() -> str:
    """The control server, or "": a chat service also runs without one."""
    try:
        return config.find_address(None)
    except HostSetup:
        return ""


def _gpus_per_replica(asked: float | None) -> float:
    has_gpus = ray.cluster_resources().get("GPU", 0.0) > 0
    if asked and not has_gpus:
        raise HostSetup("PL-HOST-104", "the cluster has no GPU", "pass --gpus-per-replica 0")
    if asked is None:
        return 1.0 if has_gpus else 0.0
    return asked


def _wait_running(app: str, deadline_s: float) -> None:
    while True:
        found = serve.status().applications.get(app)
        if found is not None and found.status == ApplicationStatus.RUNNING:
            return
        if found is not None and found.status == ApplicationStatus.DEPLOY_FAILED:
            raise RunFailed(
                "PL-RUN-103", f"app {app} did not start: {found.message}", "see the replica's log in Ray's dashboard"
            )
        if time.monotonic() > deadline_s:
            raise TimedOut("PL-TIME-101", f"app {app} is not up: {found.message if found else 'unknown'}")
        time.sleep(0.1)
