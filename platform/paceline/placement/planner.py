"""Which devices a gang gets. Pure: a plan or a refusal from one snapshot.

In synchronous training the slowest device sets the step time, and a step that crosses hosts costs more. So the planner
minimises `slowest score × locality(hosts)` over whole gangs of one SKU whose spread is within the request.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from paceline.model.errors import BadRequest
from paceline.model.hardware import DeviceState, NodeState
from paceline.model.ids import DeviceUuid, LeaseId, NodeId
from paceline.model.plan import DeviceView, FleetSnapshot, NodeView, Plan, Refusal
from paceline.model.workload import GangRequest
from paceline.placement import remedy
from paceline.placement.gang import Gang, Scored, fastest_gang, spread_of

NOISE: Final = 0.003
"""Costs this near to each other are equal: the repeat noise of a GEMM probe. Then fewer hosts win."""

NOT_READY: Final = "on a node that is not ready"
NOT_HEALTHY: Final = "not healthy"
LEASED: Final = "leased"
NOT_MEASURED: Final = "not measured"
UNAVAILABLE: Final = "taken outside Paceline"
OTHER_SKU: Final = "of another SKU"
OUTSIDE_SPREAD: Final = "outside the spread"
FILTERS: Final = (NOT_READY, NOT_HEALTHY, LEASED, NOT_MEASURED, UNAVAILABLE, OTHER_SKU, OUTSIDE_SPREAD)
"""In the order in which they are applied; a device is counted by the first that takes it away."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What decides whether a device may be used. `own_leases` are of earlier attempts of the same run: they end."""

    nodes: Mapping[NodeId, NodeView]
    own_leases: frozenset[LeaseId] = frozenset()
    unavailable: frozenset[DeviceUuid] = frozenset()

    @classmethod
    def of(
        cls,
        snapshot: FleetSnapshot,
        request: GangRequest | None = None,
        unavailable: frozenset[DeviceUuid] = frozenset(),
    ) -> "Terms":
        run = f"{request.job_id}/{request.run_name}" if request else None
        own = frozenset(lease.lease_id for lease in snapshot.leases if lease.attempt_id.rpartition("/")[0] == run)
        return cls({node.node_id: node for node in snapshot.nodes}, own, unavailable)


def why_not(device: DeviceView, terms: Terms) -> str | None:
    """Why `device` cannot be in a gang now, in words, or None if it can."""
    barred = _barred(device, terms)
    return barred[1] if barred else None


def plan(
    snapshot: FleetSnapshot, request: GangRequest, unavailable: frozenset[DeviceUuid] = frozenset()
) -> Plan | Refusal:
    """The gang with the least predicted step time, whole, or why there is none and what would help.

    Exact: no other allowed gang is cheaper by more than NOISE. Among equals: fewer hosts, then the lower slowest score,
    then the hosts with the least devices to spare, then ids. O(n log n) for n usable devices of a SKU, mostly.
    """
    if request.devices < 1:
        raise BadRequest(
            "PL-REQ-110", f"a gang of {request.devices} devices was asked for", "Ask for at least one device."
        )
    if not 0 <= request.max_spread < 1:
        raise BadRequest(
            "PL-REQ-111", f"max_spread is {request.max_spread}", "Give a fraction, 0 ≤ max_spread < 1; 0.03 is 3 %."
        )
    terms = Terms.of(snapshot, request, unavailable)
    usable = [device for device in snapshot.devices if _barred(device, terms) is None]
    by_sku = _by_sku(usable)
    gangs = [
        (gang.step_time, sku, gang)
        for sku, devices in by_sku.items()
        if (gang := fastest_gang(devices, request.devices, request.max_spread, NOISE)) is not None
    ]
    if gangs:
        _, sku, gang = min(gangs, key=lambda found: found[:2])
        return _plan(snapshot.revision, gang, len(by_sku[sku]))
    return _refusal(snapshot, request, terms, by_sku)


def _barred(device: DeviceView, terms: Terms) -> tuple[str, str] | None:
    """The first filter that takes `device` away, with the reason in words."""
    node = terms.nodes.get(device.node_id)
    if node is None:
        return NOT_READY, f"its node {device.host} is not in the cluster"
    if node.state is not NodeState.READY:
        return NOT_READY, f"its node {node.host} is {node.state.value}" + (f": {node.reason}" if node.reason else "")
    if device.state is not DeviceState.HEALTHY:
        return NOT_HEALTHY, f"it is {device.state.value}"
    if device.lease_id is not None and device.lease_id not in terms.own_leases:
        return LEASED, f"it is leased ({device.lease_id})"
    if device.score is None:
        return NOT_MEASURED, "its speed has not been measured yet"
    if device.uuid in terms.unavailable:
        return UNAVAILABLE, "something outside Paceline uses it"
    return None


def _by_sku(usable: Sequence[DeviceView]) -> dict[str, list[Scored]]:
    by_sku: dict[str, list[Scored]] = defaultdict(list)
    for device in usable:
        if device.score is not None:
            by_sku[device.sku].append(Scored(device.score, device.host, device.index, device.uuid))
    return {sku: sorted(by_sku[sku]) for sku in sorted(by_sku)}


def _plan(revision: int, gang: Gang, free: int) -> Plan:
    by_host = groupby(gang.devices, key=lambda row: row.host)
    hosts = remedy.named([f"{host} × {len(list(rows))}" for host, rows in by_host])
    reason = (
        f"{len(gang.devices)} of {free} usable devices: {hosts}; "
        f"slowest {gang.slowest:.3f}, spread {gang.spread:.1%}, predicted step time {gang.step_time:.3f}"
    )
    return Plan(revision, tuple(row.uuid for row in gang.devices), gang.spread, gang.step_time, reason)


def _refusal(
    snapshot: FleetSnapshot, request: GangRequest, terms: Terms, by_sku: Mapping[str, Sequence[Scored]]
) -> Refusal:
    """Counts add up to the devices that are not in the largest near-gang: the most equal devices of one SKU."""
    barred = [(found[0], device) for device in snapshot.devices if (found := _barred(device, terms)) is not None]
    sku, near = _nearest(by_sku, request.max_spread)
    usable = len(by_sku.get(sku, ()))
    counts = Counter(name for name, _ in barred)
    counts[OTHER_SKU] = sum(map(len, by_sku.values())) - usable
    counts[OUTSIDE_SPREAD] = usable - near
    if usable >= request.devices:
        reason = f"{request.devices} devices wanted, {near} are equal within {request.max_spread:.1%}"
    else:
        reason = f"{request.devices} devices wanted, {usable or 'none'} can be used now"
    return Refusal(
        reason=reason + (f" (of {sku})" if sku else ""),
        remedy=remedy.nearest(snapshot, request, by_sku, [device for _, device in barred]),
        counts=tuple((name, counts[name]) for name in FILTERS),
    )


def _nearest(by_sku: Mapping[str, Sequence[Scored]], max_spread: float) -> tuple[str, int]:
    """The SKU that is nearest to a gang, and how many of its usable devices are equal enough."""
    best = ("", 0, 0)
    for sku, rows in sorted(by_sku.items()):
        near = _most_equal([row.score for row in rows], max_spread)
        if (near, len(rows)) > best[1:]:
            best = (sku, near, len(rows))
    return best[0], best[1]


def _most_equal(scores: Sequence[float], max_spread: float) -> int:
    """Size of the largest window of sorted `scores` whose spread is allowed."""
    most = first = 0
    for end, slowest in enumerate(scores):
        while spread_of(scores[first], slowest) > max_spread:
            first += 1
        most = max(most, end - first + 1)
    return most
