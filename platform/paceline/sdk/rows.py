"""What the server answers with: rows of the inventory, as a reader wants them. Times are unix nanoseconds; 0 means not yet."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from paceline.model.domains import known as known_domains
from paceline.model.events import Event
from paceline.model.hardware import DeviceState, NodeState, Sample
from paceline.model.ids import AttemptId, DeviceUuid, EventId, HostName, JobId, LeaseId, NodeId, SessionId
from paceline.model.workload import RunState


class Row(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True)


class HostRow(Row):
    """A machine with the present life of its raylet. `healthy` and `leased` count its devices."""

    host: HostName
    address: str
    boot_id: str
    simulated: bool
    node_id: NodeId
    state: NodeState
    reason: str
    since_ns: int
    reported_ns: int
    devices: int
    healthy: int
    leased: int
    nvswitch: bool
    cordoned_ns: int
    """Since when nothing new is placed on it; 0: it is not cordoned."""
    cordon_reason: str
    cordon_by: str
    drain_deadline_ns: int
    drained_ns: int


class DeviceRow(Row):
    """`attempt_id` and `lease_id` are empty while no lease has the device. `held`: Ray cannot give it out, checked."""

    uuid: DeviceUuid
    host: HostName
    node_id: NodeId
    index: int
    serial: str
    pci_bus_id: str
    product: str
    memory_bytes: int
    power_cap_w: float
    driver_version: str
    mig_profile: str
    sku: str
    state: DeviceState
    since_ns: int
    reason: str
    clean_probes: int
    bad_findings: int
    cause_id: EventId
    held: bool
    score: float | None
    noise: float | None
    seen_ns: int
    cordoned_ns: int
    """Since when an operator keeps it from new work, whatever its health; 0: he does not."""
    cordon_reason: str
    cordon_by: str
    lease_id: LeaseId
    attempt_id: AttemptId
    spread: float | None
    """1 − its speed / that of the fastest device of its cohort that is not retired. None until measured."""


class LeaseRow(Row):
    """`state` is held, moving or ended."""

    lease_id: LeaseId
    attempt_id: AttemptId
    job_id: JobId
    run_name: str
    state: str
    devices: tuple[DeviceUuid, ...]
    max_spread: float
    spread: float
    step_time: float
    plan_reason: str
    moving_cause: EventId
    since_ns: int
    ended_ns: int
    end_reason: str


class JobRow(Row):
    """One run of a job. `starts` counts its attempts, `devices` is what it holds now, `step` that of its newest checkpoint."""

    job_id: JobId
    run_name: str
    state: RunState
    since_ns: int
    created_ns: int
    reason: str
    hint: str
    storage_path: str
    starts: int
    devices: int
    step: int
    lease_id: LeaseId


class RankRow(Row):
    rank: int
    node_id: NodeId
    index: int
    pid: int
    uuid: DeviceUuid
    host: HostName


class AttemptRow(Row):
    """`state` is starting, running or ended. `devices` is its gang by rank, `spread` the gang's when it was planned, if it was."""

    attempt_id: AttemptId
    number: int
    lease_id: LeaseId
    state: str
    started_ns: int
    resumed_ns: int
    ended_ns: int
    resumed_step: int | None
    checkpoint: str
    reason: str
    devices: tuple[DeviceUuid, ...]
    spread: float | None
    ranks: tuple[RankRow, ...]


class CheckpointRow(Row):
    """A metric is None where the script reported NaN or infinity."""

    attempt_id: AttemptId
    path: str
    step: int
    at_ns: int
    metrics: dict[str, float | None]


class JobDetail(JobRow):
    """`runs` names every run of the same job, the newest first."""

    runs: tuple[str, ...]
    attempts: tuple[AttemptRow, ...]
    checkpoints: tuple[CheckpointRow, ...]


class SessionRow(Row):
    session_id: SessionId
    first_ns: int
    at_ns: int
    turns: int
    tokens: int
    resumes: int
    replica: str
    device: str
    state: str
    reason: str


class Minute(Row):
    """The samples of one device in one minute, rolled up."""

    minute_ns: int
    count: int
    clock_min_mhz: float | None
    clock_avg_mhz: float | None
    clock_max_mhz: float | None
    temperature_min_c: float | None
    temperature_avg_c: float | None
    temperature_max_c: float | None
    power_min_w: float | None
    power_avg_w: float | None
    power_max_w: float | None
    utilisation_min_pct: float | None
    utilisation_avg_pct: float | None
    utilisation_max_pct: float | None


class DeviceSamples(Row):
    """`raw` holds the last minutes, `minutes` what came before; both in order of time."""

    raw: tuple[Sample, ...]
    minutes: tuple[Minute, ...]


class Story(Row):
    """A device, what happened to it, what caused that and what it caused, in order."""

    device: DeviceRow
    events: tuple[Event, ...]


class AliveNode(Row):
    """A raylet that Ray calls alive. `host_hint` is its host name, or empty; `domains` are the names of its failure domains by kind."""

    node_id: NodeId
    host_hint: str = ""
    address: str = ""
    domains: Annotated[dict[str, str], AfterValidator(known_domains)] = Field(default_factory=dict)
