"""When a device is probed. Pure.

At once: where the machine wants proof (new, suspect, on probation) and the device is held. By schedule: a sweep a day over idle
sound devices. Before a job: where the score is old. What the schedule does must not be felt: a few devices at a time, and never
while somebody waits for a gang.
"""

import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from paceline.model.hardware import DeviceState, NodeState
from paceline.model.ids import DeviceUuid, NodeId
from paceline.model.measurement import DeviceScore
from paceline.model.plan import DeviceView, FleetSnapshot, NodeView
from paceline.placement.drift import DRIFT_FRACTION, WINDOW

MINUTE_NS: Final = 60 * 1_000_000_000
HOUR_NS: Final = 60 * MINUTE_NS
SWEEP_PERIOD_NS: Final = 24 * HOUR_NS
"""A light probe takes 20 s of a device: 0.02 % of its day. IBM's autopilot probes hourly, most systems at the start of a job only."""
RESTED_NS: Final = 12 * HOUR_NS
"""A device that was probed for another reason is not swept soon after."""
MAX_AGE_NS: Final = 3 * SWEEP_PERIOD_NS
"""A busy device misses sweeps. Before the next gang gets it, an older score than this is renewed."""
RECHECK_NS: Final = 10 * MINUTE_NS
"""From a probe that shows drift to the next: long enough for another moment, short enough for an answer within the hour."""
RETRY_NS: Final = 10 * MINUTE_NS
"""From a probe that came to nothing (the device was in use) to the next try: each try masks the free devices of the node for a moment."""
FULL_PERIOD_NS: Final = 7 * SWEEP_PERIOD_NS
"""A full probe wants all sound devices of a node at once, for minutes: seldom enough to find them idle, and not to be felt. The first
one is due when a machine joins. A simulated machine has no links that wear: it is probed when somebody asks."""
FULL_MIN: Final = 2
AT_ONCE_ON_A_NODE: Final = 1
"""A probe heats its neighbours and takes the host's memory bandwidth; it is compared with ones that had the host for themselves."""
AT_ONCE_IN_THE_FLEET: Final = 0.05
QUIET_NS: Final = MINUTE_NS
"""After a request for a gang was refused, its run waits and will ask again: nothing is swept meanwhile."""
PROOFS_AT_ONCE: Final = 3
"""As many clean probes as clear a device (`machine.CLEAN_PROBES_WANTED`) are made one after the other…"""
PROOF_PAUSE_NS: Final = 15 * 1_000_000_000
"""…and then one now and again: the machine waits for a quiet time, and probes meanwhile prove nothing new."""
assert RECHECK_NS * WINDOW < RESTED_NS < SWEEP_PERIOD_NS < MAX_AGE_NS

PROBED: Final = frozenset({DeviceState.PROBING, DeviceState.PROBATION, DeviceState.SUSPECT})
"""States that a device leaves by a probe."""


@dataclass(frozen=True, slots=True)
class Past:
    """Of one device: its last probe, whether it showed drift, how many that did came before it in a row, and the last try."""

    at_ns: int
    drifting: bool = False
    rechecks: int = 0
    tried_ns: int = 0


@dataclass(frozen=True, slots=True)
class Proofs:
    """Probes of a device since its machine waits for them, and when the last one ended."""

    count: int = 0
    at_ns: int = 0


def may_prove(proofs: Proofs, now_ns: int) -> bool:
    """Whether a device that waits for a probe gets one now."""
    return proofs.count < PROOFS_AT_ONCE or now_ns - proofs.at_ns >= PROOF_PAUSE_NS


def probed(before: Past, scores: Iterable[DeviceScore], now_ns: int) -> Past:
    """After a probe with these scores of the device."""
    drifting = any(row.drift is not None and row.drift >= DRIFT_FRACTION for row in scores)
    rechecks = before.rechecks + 1 if drifting and before.drifting else 0
    return Past(now_ns, drifting, rechecks)


def tried(before: Past, now_ns: int) -> Past:
    """After a probe that did not come about."""
    return replace(before, tried_ns=now_ns)


def is_old(past: Past, now_ns: int) -> bool:
    """Whether a score should be renewed before a gang is planned on it."""
    return now_ns - past.at_ns > MAX_AGE_NS and now_ns - past.tried_ns >= RETRY_NS


def at_once(snapshot: FleetSnapshot, held: Collection[tuple[NodeId, int]]) -> list[DeviceView]:
    """Devices whose machine waits for a probe, and that nobody else can use now."""
    return [
        device
        for device in snapshot.devices
        if device.state in PROBED and device.lease_id is None and (device.node_id, device.index) in held
    ]


def sweep(
    snapshot: FleetSnapshot, past: Mapping[DeviceUuid, Past], probing: Collection[DeviceUuid], now_ns: int
) -> list[DeviceView]:
    """Idle sound devices to probe now, beside those that are `probing`; those measured longest ago first, then by uuid."""
    ready = {node.node_id for node in snapshot.nodes if node.state is NodeState.READY}
    left = max(1, int(AT_ONCE_IN_THE_FLEET * len(snapshot.devices))) - len(probing)
    on_node = Counter(device.node_id for device in snapshot.devices if device.uuid in probing)
    due = [
        device
        for device in snapshot.devices
        if _is_idle(device, ready) and device.uuid in past and _is_due(device, past[device.uuid], now_ns)
    ]
    chosen: list[DeviceView] = []
    for device in _in_turn(due, past):
        if len(chosen) < left and device.uuid not in probing and on_node[device.node_id] < AT_ONCE_ON_A_NODE:
            on_node[device.node_id] += 1
            chosen.append(device)
    return chosen


def full_due(snapshot: FleetSnapshot, tried_ns: Mapping[NodeId, int], now_ns: int) -> dict[NodeId, list[DeviceView]]:
    """Nodes whose full probe is due and whose sound devices are idle, all of them, with those devices in order."""
    sound: dict[NodeId, list[DeviceView]] = {}
    for device in sorted(snapshot.devices, key=lambda d: d.index):
        if device.state is DeviceState.HEALTHY:
            sound.setdefault(device.node_id, []).append(device)
    return {
        node.node_id: sound[node.node_id]
        for node in snapshot.nodes
        if node.state is NodeState.READY
        and _wants_full(node, now_ns)
        and now_ns - tried_ns.get(node.node_id, 0) >= RETRY_NS
        and len(sound.get(node.node_id, ())) >= FULL_MIN
        and all(device.lease_id is None for device in sound[node.node_id])
    }


def _wants_full(node: NodeView, now_ns: int) -> bool:
    if node.probe_asked_ns > node.probed_ns:
        return True
    return not node.simulated and now_ns - node.probed_ns >= FULL_PERIOD_NS


def _in_turn(due: Iterable[DeviceView], past: Mapping[DeviceUuid, Past]) -> Sequence[DeviceView]:
    return sorted(due, key=lambda device: (not past[device.uuid].drifting, past[device.uuid].at_ns, device.uuid))


def _is_idle(device: DeviceView, ready: Collection[NodeId]) -> bool:
    return device.state is DeviceState.HEALTHY and device.lease_id is None and device.node_id in ready


def _is_due(device: DeviceView, past: Past, now_ns: int) -> bool:
    if now_ns - past.tried_ns < RETRY_NS:
        return False
    age_ns = now_ns - past.at_ns
    if past.drifting and past.rechecks < WINDOW - 1:
        return age_ns >= RECHECK_NS
    return age_ns >= RESTED_NS and past.at_ns < _sweep_began_ns(device.sku, now_ns)


def _sweep_began_ns(sku: str, now_ns: int) -> int:
    """The devices of a SKU are swept together: drift is told beside peers that were probed at about the same time. Not all SKUs at once."""
    offset_ns = zlib.crc32(sku.encode()) % (SWEEP_PERIOD_NS // MINUTE_NS) * MINUTE_NS
    return now_ns - (now_ns - offset_ns) % SWEEP_PERIOD_NS
