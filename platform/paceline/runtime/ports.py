"""TCP ports that are free now and will not be drawn by an outgoing connection of some process meanwhile."""

import random
import socket
from pathlib import Path
from typing import Final

from paceline.model.errors import HostSetup

_LOWEST_PORT: Final = 10_240


def free_ports(names: tuple[str, ...], taken: set[int]) -> dict[str, int]:
    """A free port for each name, added to `taken`: below the range that outgoing connections draw from.

    From that range, any connection could take a port of a head that is being restarted. Raises HostSetup (PL-HOST-003)
    if nothing is free.
    """
    limits = Path("/proc/sys/net/ipv4/ip_local_port_range")
    end = int(limits.read_text().split()[0]) if limits.exists() else 32_768
    candidates = list(range(_LOWEST_PORT, end) if end > _LOWEST_PORT + 1000 else range(_LOWEST_PORT, 65_535))
    random.SystemRandom().shuffle(candidates)
    ports: dict[str, int] = {}
    for port in candidates:
        if len(ports) == len(names):
            break
        if port not in taken and is_free(port):
            taken.add(port)
            ports[names[len(ports)]] = port
    if len(ports) < len(names):
        raise HostSetup("PL-HOST-003", "Not enough free TCP ports on 127.0.0.1", "See who listens: ss -ltn")
    return ports


def is_free(port: int) -> bool:
    """Whether the port can be bound on every address now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def free_port(preferred: int = 0) -> int:
    """`preferred` if it is free, else another one: what was found at a port is found there again after a restart."""
    return preferred if preferred and is_free(preferred) else free_ports(("port",), set())["port"]
