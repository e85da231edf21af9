"""Which replica a session belongs to. Pure.

The ring is keyed by *slot* (Serve's replica rank, which a replacement inherits), never by a replica's random id: so the
loss of a replica moves its own sessions only, and its replacement gets exactly these back. (Serve 2.60's own
ConsistentHashRouter hashes the random id: one replacement moved 24 % of the sessions of healthy replicas.)
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Final

VNODES: Final = 100
"""Points of a slot on the ring: at 3 slots the largest share is about 15 % over the mean, for 300 points in all."""

QUARANTINE_S: Final = 30.0
"""How long a blamed replica is tried last. Serve replaces a replica that fails its health checks in less; if the blame
was unjust (a loaded host), its sessions come home after this."""


def point(text: str) -> int:
    """Place on the ring. Not Python's `hash`, which differs from process to process."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")


@dataclass(frozen=True, slots=True)
class Ring:
    points: tuple[int, ...]
    owners: tuple[int, ...]

    def order(self, key: str) -> tuple[int, ...]:
        """All slots: the owner of `key` first, then where it goes if that one is lost, and so on."""
        start = bisect_right(self.points, point(key))
        seen = dict.fromkeys(self.owners[start:] + self.owners[:start])
        return tuple(seen)


@lru_cache(maxsize=64)
def ring_of(slots: frozenset[int], vnodes: int = VNODES) -> Ring:
    placed = sorted((point(f"{slot}/{vnode}"), slot) for slot in slots for vnode in range(vnodes))
    return Ring(tuple(at for at, _ in placed), tuple(slot for _, slot in placed))


def route(key: str, slots: Sequence[tuple[str, int]], avoid: Sequence[str] = ()) -> tuple[str, ...]:
    """Replica ids in the order to try them. `slots` are (replica id, slot); `avoid` comes last, in its own order.

    Two replicas share a slot while one replaces the other; ties are broken by id.
    """
    by_slot: dict[int, list[str]] = {}
    for replica_id, slot in sorted(slots):
        by_slot.setdefault(slot, []).append(replica_id)
    ring = ring_of(frozenset(by_slot))
    present = {replica_id for replica_id, _ in slots}
    blamed = [replica_id for replica_id in dict.fromkeys(avoid) if replica_id in present]
    preferred = [replica_id for slot in ring.order(key) for replica_id in by_slot[slot] if replica_id not in blamed]
    return (*preferred, *blamed)


@dataclass(slots=True)
class Blames:
    """When each replica last lost or froze an answer.

    An order by time, not a set: once every replica is blamed, the one blamed longest ago is tried first, so there is
    always somewhere to go.
    """

    quarantine_s: float = QUARANTINE_S
    at_s: dict[str, float] = field(default_factory=dict)

    def blame(self, replica_id: str, now_s: float) -> None:
        self.at_s[replica_id] = now_s

    def acquit(self, replica_id: str) -> None:
        """It answered: whatever was held against it is over."""
        self.at_s.pop(replica_id, None)

    def avoid(self, now_s: float) -> tuple[str, ...]:
        """The blamed, the longest ago first. Forgets what is over."""
        self.at_s = {name: at for name, at in self.at_s.items() if now_s - at < self.quarantine_s}
        return tuple(sorted(self.at_s, key=lambda name: (self.at_s[name], name)))
