"""Asks Ray's dashboard which nodes it sees. Standard library only: this runs before any client is set up."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Final

_ANSWER_DEADLINE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class RayNode:
    """One node as Ray's state API lists it."""

    node_id: str
    alive: bool
    gpus: int
    labels: dict[str, str]


def ray_nodes(url: str, token: str) -> tuple[RayNode, ...]:
    """The nodes that Ray knows, dead ones included; none while the dashboard, which starts last, does not answer."""
    try:
        answer = get_json(f"{url}/api/v0/nodes?detail=1", token)
    except (OSError, ValueError):  # refused, a 5xx, or half an answer
        return ()
    return tuple(map(_node, answer["data"]["result"]["result"]))


def get_json(url: str, token: str) -> Any:
    """One authenticated GET. Raises OSError (urllib's HTTPError too) or ValueError."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=_ANSWER_DEADLINE_S) as response:
        return json.load(response)


def _node(row: dict[str, Any]) -> RayNode:
    gpus = int((row.get("resources_total") or {}).get("GPU", 0))
    return RayNode(row["node_id"], row["state"] == "ALIVE", gpus, row.get("labels") or {})
