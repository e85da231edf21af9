"""The health actor: one on each node of the Ray cluster, detached. The reconciler creates it and its options.

    ray.remote(HealthActor).options(lifetime="detached", max_restarts=-1, num_cpus=0, …).remote(url, token, node_id)

All work is in threads and in the NVML reader's process; the methods return at once, so Ray's threads are never blocked.
It has no state to save: what is so now is read again after a restart, and the last minute's Xids are in the kernel log.
"""

import os
import resource
from typing import Final

import ray
import structlog

from paceline.health.watch import NodeWatch
from paceline.model.ids import NodeId
from paceline.sdk.client import Client
from paceline.telemetry.host import host_facts

log = structlog.get_logger()

CALL_DEADLINE_S: Final = 3.0
"""The client's own retries end after this; the sender tries again in its own time, with what is new."""
DIED_STATUS: Final = 70
"""Exit status after an unforeseen error (EX_SOFTWARE); Ray starts the actor again."""


class HealthActor:
    """Watches its machine from the moment it exists. Its silence makes the devices UNKNOWN, never healthy."""

    def __init__(self, server_url: str, token: str, node_id: str) -> None:
        self._node_id = node_id
        self._server = (server_url, token)
        host = host_facts(str(ray.util.get_node_ip_address()))
        self._watch = NodeWatch(NodeId(node_id), host, _client(server_url, token), _die)
        self._watch.start()

    def ping(self) -> str:
        """The node's id."""
        return self._node_id

    def stats(self) -> dict[str, int | float | str]:
        """What the actor and its NVML reader cost, and how they do. `rss_bytes` is the most that this process had."""
        return {
            **self._watch.stats(),
            "pid": os.getpid(),
            "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }

    def reconnect(self, server_url: str, token: str) -> None:
        """Report to this server from now on. Said again and again by the reconciler; cheap when nothing has changed."""
        if (server_url, token) != self._server:
            self._server = (server_url, token)
            self._watch.reconnect(_client(server_url, token))


def _client(server_url: str, token: str) -> Client:
    return Client(server_url, token, deadline_s=CALL_DEADLINE_S)


def _die(error: BaseException) -> None:
    log.error("the health actor ends; Ray starts it again", error=repr(error), exc_info=error)
    os._exit(DIED_STATUS)
