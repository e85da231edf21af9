"""What would let a refused gang start. Pure: words with numbers, nearest remedy first."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Final

from paceline.model.hardware import DeviceState, NodeState
from paceline.model.ids import LeaseId, NodeId
from paceline.model.plan import DeviceView, FleetSnapshot
from paceline.model.workload import GangRequest
from paceline.placement.gang import Scored, spread_of

_COMING: Final[dict[DeviceState, str]] = {
    DeviceState.NEW: "being measured",
    DeviceState.PROBING: "being measured",
    DeviceState.SUSPECT: "SUSPECT until clean probes clear them",
    DeviceState.PROBATION: "in PROBATION until clean probes clear them",
    DeviceState.UNKNOWN: "UNKNOWN until their host reports again",
}
NAMES_SHOWN: Final = 4
_OUT: Final = frozenset({DeviceState.DRAINING, DeviceState.QUARANTINED, DeviceState.REPAIR})


def nearest(
    snapshot: FleetSnapshot,
    request: GangRequest,
    by_sku: Mapping[str, Sequence[Scored]],
    blocked: Sequence[DeviceView],
) -> str:
    """The first remedy that is enough, in the order of what it costs the user: a wider spread, waiting, an operator."""
    wider = [_wider(rows, request.devices) for rows in by_sku.values()]
    feasible = sorted(found for found in wider if found is not None)
    if feasible:
        spread, hosts = feasible[0]
        return f"--max-spread {spread:.3f} would start now on {hosts}"
    free = {sku: len(rows) for sku, rows in by_sku.items()}
    ready = frozenset(node.node_id for node in snapshot.nodes if node.state is NodeState.READY)
    return (
        _wait(snapshot, request.devices, free, [device for device in blocked if device.node_id in ready])
        or _repair(blocked, ready)
        or _too_large(request.devices, snapshot.devices)
    )


def _wider(rows: Sequence[Scored], size: int) -> tuple[float, str] | None:
    """Least spread at which `size` of the sorted `rows` are equal, rounded up to a thousandth, and their hosts."""
    windows = [rows[first : first + size] for first in range(len(rows) - size + 1)]
    if not windows:
        return None
    tightest = min(windows, key=lambda window: spread_of(window[0].score, window[-1].score))
    spread = ceil(spread_of(tightest[0].score, tightest[-1].score) * 1000 - 1e-9) / 1000
    return spread, named(sorted({row.host for row in tightest}))


def _wait(snapshot: FleetSnapshot, size: int, free: Mapping[str, int], blocked: Sequence[DeviceView]) -> str | None:
    """What to wait for, if waiting alone can bring enough devices of one SKU: probes first, then the ends of leases."""
    coming = _per_sku(device for device in blocked if device.state in _COMING)
    leased = _per_sku(d for d in blocked if d.state is DeviceState.HEALTHY and d.lease_id is not None)
    jobs = {lease.lease_id: lease.attempt_id.rpartition("/")[0].rpartition("/")[0] for lease in snapshot.leases}
    for sku in sorted(coming.keys() | leased.keys(), key=lambda name: (-free.get(name, 0), name)):
        missing = size - free.get(sku, 0)
        soon = coming.get(sku, [])
        if len(soon) >= missing:
            return "wait: " + _states(soon)
        if len(soon) + len(leased.get(sku, [])) >= missing:
            names = _leases_that_give(leased[sku], missing - len(soon), jobs)
            return f"wait for the end of {names}" + (f", and: {_states(soon)}" if soon else "")
    return None


def _leases_that_give(devices: Sequence[DeviceView], missing: int, jobs: Mapping[LeaseId, str]) -> str:
    """The fewest leases whose ends give back `missing` devices: the largest first, ties by id."""
    sizes = Counter(device.lease_id for device in devices if device.lease_id is not None)
    names: list[str] = []
    for lease_id, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        if missing <= 0:
            break
        names.append(f"job {jobs.get(lease_id, '?')} ({size} devices)")
        missing -= size
    return " and ".join(names)


def _repair(blocked: Sequence[DeviceView], ready: frozenset[NodeId]) -> str | None:
    """Devices that only an operator can bring back, if there are any."""
    out = [device for device in blocked if device.node_id in ready and device.state in _OUT]
    away = sorted({device.host for device in blocked if device.node_id not in ready})
    parts = []
    if out:
        parts.append(f"{_states(out)}: an operator may release them once they are repaired")
    if away:
        parts.append(f"bring back {named(away)}")
    return "; ".join(parts) or None


def _too_large(size: int, devices: Sequence[DeviceView]) -> str:
    most = max(Counter(device.sku for device in devices).values(), default=0)
    if most == 0:
        return "no device has reported yet: look at the hosts' health actors"
    if most < size:
        return f"ask for {most} devices or fewer, or add hosts: no SKU has more than {most}"
    return "try again: something outside Paceline uses the devices now"


def _per_sku(devices: Iterable[DeviceView]) -> dict[str, list[DeviceView]]:
    by_sku: dict[str, list[DeviceView]] = defaultdict(list)
    for device in devices:
        by_sku[device.sku].append(device)
    return by_sku


def named(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _states(devices: Sequence[DeviceView]) -> str:
    counts = Counter(_COMING.get(device.state, device.state.value) for device in devices)
    return ", ".join(f"{count} {'is' if count == 1 else 'are'} {words}" for words, count in sorted(counts.items()))
