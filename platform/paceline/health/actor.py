"""The health actor: one on each node of the Ray cluster, detached. The reconciler creates it and its options.

    ray.remote(HealthActor).options(lifetime="detached", max_restarts=-1, num_cpus=0, …).remote(url, token, node_id)

All work is in threads and in the NVML reader's process; the methods return at once, so Ray's threads are never blocked.
It has no state to save: what is so now is read again after a restart, and the Xids since the boot are in the kernel log.
Each keeps its time there, so that the server knows the ones that it was told before.
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
from paceline.telemetry.kmsg import kernel_log
from paceline.telemetry.sysfs import SYS

log = structlog.get_logger()

CALL_DEADLINE_S: Final = 3.0
"""The client's own retries end after this; the sender tries again in its own time, with what is new."""
DIED_STATUS: Final = 70
"""Exit status after an unforeseen error (EX_SOFTWARE); Ray starts the actor again."""


class HealthActor:
    """Watches its machine from the moment it exists. Its silence makes the devices UNKNOWN, never healthy."""

    def __init__(self, server_url: str, token: str, node_id: str, site_policy: str = "") -> None:
        self._node_id = node_id
        self._server = (server_url, token, site_policy)
        host = host_facts(str(ray.util.get_node_ip_address()))
        self._watch = NodeWatch(
            NodeId(node_id),
            host,
            _client(server_url, token),
            _die,
            site_policy=site_policy,
            kernel_log=kernel_log(),
            sys_root=None if host.simulated else SYS,
        )
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

    def reconnect(self, server_url: str, token: str, site_policy: str = "") -> None:
        """Report to this server from now on, by this policy. Said again and again; cheap when nothing has changed."""
        if (server_url, token, site_policy) != self._server:
            self._watch.reconnect(_client(server_url, token), site_policy)
            self._server = (server_url, token, site_policy)


def _client(server_url: str, token: str) -> Client:
    return Client(server_url, token, deadline_s=CALL_DEADLINE_S)


def _die(error: BaseException) -> None:
    log.error("the health actor ends; Ray starts it again", error=repr(error), exc_info=error)
    os._exit(DIED_STATUS)
