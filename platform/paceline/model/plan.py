"""The fleet at one revision, and what the planner made of it."""

from dataclasses import dataclass

from paceline.model.hardware import DeviceState, NodeState
from paceline.model.ids import DeviceUuid, EventId, HostName, LeaseId, NodeId


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One device as placement sees it.

    `score` is time relative to the median of its cohort: 1.02 is 2 % slower than its equals. None until measured.
    `cause_id` is the event that led to the present state. `scored_ns`: when the device was last measured, unix; 0 if never.
    """

    uuid: DeviceUuid
    host: HostName
    node_id: NodeId
    index: int
    sku: str
    state: DeviceState
    score: float | None
    lease_id: LeaseId | None
    cause_id: EventId
    scored_ns: int = 0


@dataclass(frozen=True, slots=True)
class NodeView:
    node_id: NodeId
    host: HostName
    state: NodeState
    reason: str = ""
    simulated: bool = False
    probe_asked_ns: int = 0
    """When somebody last asked for a full probe; 0: never."""
    probed_ns: int = 0


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A lease that is held. `moving_cause` is not 0 once it must be given up: the event that says why."""

    lease_id: LeaseId
    attempt_id: str
    devices: tuple[DeviceUuid, ...]
    moving_cause: EventId


@dataclass(frozen=True, slots=True)
class Occupant:
    """A process of Ray that has a device, or a share of it. `actor_id` is empty for a task."""

    uuid: DeviceUuid
    pid: int
    job_id: str
    actor_id: str = ""


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """All that placement knows, at one revision. Rows are in no order that means anything."""

    revision: int
    nodes: tuple[NodeView, ...]
    devices: tuple[DeviceView, ...]
    leases: tuple[LeaseView, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole gang. `devices` are in the order of ranks: by host, then index."""

    revision: int
    devices: tuple[DeviceUuid, ...]
    spread: float
    """1 − slowest/fastest over the gang's speeds (speed = 1/score)."""
    step_time: float
    """Predicted step time relative to a gang of median devices: the slowest score, times the cost of crossing hosts."""
    reason: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """No gang now. `counts` says how many devices each filter took away, in the order of the filters."""

    reason: str
    remedy: str
    counts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Grant:
    """A gang that is leased and unmasked: Ray can place it on these nodes only onto these devices."""

    lease_id: LeaseId
    node_ids: tuple[NodeId, ...]
    devices: tuple[DeviceUuid, ...]
    plan: Plan
