"""Keeps Paceline's actors on the cluster: one placement service on the head, one health actor on each node.

A driver process beside the server, because a driver may not outlive a lost GCS and the server must. It acts on what it sees, every period,
so it can be killed at any time. Run by `paceline server`; exits when Ray is unreachable and is started again.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any, Final

import ray
import structlog
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from paceline.health.actor import HealthActor
from paceline.model.domains import of_labels
from paceline.model.errors import PacelineError
from paceline.placement.service import PlacementService
from paceline.runtime import processes
from paceline.runtime.settings import HEALTH_ACTOR_PREFIX, PLACEMENT_ACTOR, RAY_NAMESPACE, Settings
from paceline.sdk.client import Client
from paceline.sdk.rows import AliveNode

log = structlog.get_logger()

PERIOD_S: Final = 2.0
CALL_DEADLINE_S: Final = 30.0


class Reconciler:
    """`turn` makes the cluster as it should be, once.

    Each actor is told each time where the server is, and not waited for: one that Ray has started again knows only where it was at first.
    """

    def __init__(self, server_url: str, token: str, xid_policy: str, evict: bool) -> None:
        self._url, self._token = server_url, token
        self._xid_policy, self._evict = xid_policy, evict
        self._client = Client(server_url, token)
        self._told: dict[str, Any] = {}

    def turn(self) -> None:
        nodes = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("GPU")]
        self._client.nodes_alive([_alive(node) for node in nodes], time.time_ns())
        self._ensure_placement()
        for node in nodes:
            self._ensure_health(node["NodeID"])

    def _ensure_placement(self) -> None:
        actor: Any = (
            _actor_class(PlacementService)
            .options(
                name=PLACEMENT_ACTOR,
                namespace=RAY_NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                max_restarts=-1,
                max_task_retries=0,
                max_concurrency=1000,
                num_cpus=0,
                resources={"node:__internal_head__": 0.001},
            )
            .remote(self._url, self._token, self._evict)
        )
        self._tell(PLACEMENT_ACTOR, actor, self._evict)
        try:
            ray.get(actor.start.remote(), timeout=CALL_DEADLINE_S)
        except ray.exceptions.ActorUnavailableError:
            _remove_stray(actor)
            raise

    def _ensure_health(self, node_id: str) -> None:
        name = HEALTH_ACTOR_PREFIX + node_id
        actor: Any = (
            _actor_class(HealthActor)
            .options(
                name=name,
                namespace=RAY_NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                max_restarts=-1,
                max_concurrency=8,
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node_id, soft=False),
            )
            .remote(self._url, self._token, node_id, self._xid_policy)
        )
        self._tell(name, actor, self._xid_policy)

    def _tell(self, name: str, actor: Any, *more: str | bool) -> None:
        """Where the server is, and the site's word. One word at a time: an actor that hangs must not gather them."""
        before = self._told.get(name)
        if before is None or ray.wait([before], timeout=0)[0]:
            self._told[name] = actor.reconnect.remote(self._url, self._token, *more)


def _alive(node: dict[str, Any]) -> AliveNode:
    """A row of `ray.nodes()`. A raylet keeps the labels that it was started with."""
    return AliveNode(
        node_id=node["NodeID"],
        host_hint=node["NodeManagerHostname"],
        address=node["NodeManagerAddress"],
        domains=of_labels(node.get("Labels") or {}),
    )


def _actor_class(cls: type) -> Any:
    return ray.remote(cls)


def _remove_stray(actor: Any) -> None:
    """Take an actor off the cluster that Ray calls alive on a node that it calls dead. The next turn makes another.

    Tried on Ray 2.60: a GCS that has written the death of a node and was killed before it came to the node's actors never comes to them.
    """
    row: dict[str, Any] = ray._private.state.state.actor_table(actor._actor_id.hex())
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    if row.get("State") == "ALIVE" and row["Address"]["NodeID"] not in alive:
        log.warning("an actor is left on a node that is gone; it is made anew", name=row.get("Name"))
        ray.kill(actor, no_restart=True)


def remove_everything() -> None:
    """Take Paceline's actors and holds off the cluster: `paceline down`."""
    from paceline.placement.binding import remove_all

    for entry in ray.util.list_named_actors(all_namespaces=True):
        if entry["namespace"] == RAY_NAMESPACE and entry["name"].startswith("paceline-"):
            ray.kill(ray.get_actor(entry["name"], namespace=RAY_NAMESPACE), no_restart=True)
    remove_all()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ray-address", required=True)
    parser.add_argument("--server-url", default="")
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--remove", action="store_true")
    args = parser.parse_args()
    if not args.remove:
        processes.end_with_parent()
    try:
        ray.init(args.ray_address, namespace=RAY_NAMESPACE, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ray.exceptions.RaySystemError, ValueError, RuntimeError) as error:
        sys.exit(f"Ray at {args.ray_address} does not answer: {error}")
    if args.remove:
        remove_everything()
        return
    site = Settings()
    evict = site.strangers == "evict"
    reconciler = Reconciler(args.server_url, args.token_file.read_text().strip(), site.xid_policy, evict)
    while True:
        try:
            reconciler.turn()
        except PacelineError as error:
            log.warning("the next turn will try again", error=str(error))
        except (
            ray.exceptions.RayError,
            ValueError,
        ) as error:  # ValueError: a name that another reconciler has just taken
            log.warning("the next turn will try again", error=repr(error))
        time.sleep(PERIOD_S)


if __name__ == "__main__":
    main()
