"""The tables. Times are unix nanoseconds; states are strings; history never has a foreign key to a row that may be deleted.

Kept for good: events, measurements, scores, xids, leases, jobs, attempts, checkpoints, stimuli, verdicts, repairs. Kept short: samples
(raw) and their roll-up by the minute, alerts; `samples.py` and `alerts.py` say how long. The tables of health are in `tables_health.py`.
"""

from typing import Any

from sqlalchemy import ForeignKey, Index, Integer, String, Text, UniqueConstraint, false, text
from sqlalchemy.orm import Mapped, mapped_column

from paceline.inventory.base import Base, BigKey, Json, State
from paceline.inventory.tables_health import (
    AlertRow,
    AlertTargetRow,
    LinkRow,
    NodeMeasurementRow,
    RepairRow,
    SightingRow,
    StimulusRow,
    VerdictRow,
)

__all__ = [
    "AlertRow",
    "AlertTargetRow",
    "Base",
    "LinkRow",
    "NodeMeasurementRow",
    "RepairRow",
    "SightingRow",
    "StimulusRow",
    "VerdictRow",
]


class MetaRow(Base):
    """One row. A writer locks it first: so commits, event ids and revisions are in one order, on both engines."""

    __tablename__ = "meta"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    revision: Mapped[int] = mapped_column(default=0)
    rolled_until_ns: Mapped[int] = mapped_column(default=0)


class HostRow(Base):
    """A machine. `node_id` is the present life of its raylet."""

    __tablename__ = "hosts"
    host: Mapped[str] = mapped_column(primary_key=True)
    address: Mapped[str]
    boot_id: Mapped[str]
    simulated: Mapped[bool]
    node_id: Mapped[str]
    first_seen_ns: Mapped[int]
    seen_ns: Mapped[int]
    nvswitch: Mapped[bool] = mapped_column(default=False, server_default=false())

    cordoned_ns: Mapped[int] = mapped_column(default=0, server_default="0")
    """Since when nothing new is placed on the host; 0: it is not cordoned. It outlives the raylet."""
    cordon_reason: Mapped[str] = mapped_column(Text, default="", server_default="")
    cordon_by: Mapped[str] = mapped_column(default="", server_default="")
    """Who cordoned it: the name of a token, or `rule <id>`."""
    cordon_event: Mapped[int] = mapped_column(default=0, server_default="0")
    drain_deadline_ns: Mapped[int] = mapped_column(default=0, server_default="0")
    """The work on it must move by then; 0: it may stay. Kept until the host is given back."""
    drained_ns: Mapped[int] = mapped_column(default=0, server_default="0")

    probe_asked_ns: Mapped[int] = mapped_column(default=0, server_default="0")
    """When somebody last asked for a full probe of the host."""
    probed_ns: Mapped[int] = mapped_column(default=0, server_default="0")
    """When the last full probe of it ended, well or not."""

    agent: Mapped[dict[str, Any] | None] = mapped_column(Json)
    """`model.health.AgentStats`, as last told."""
    agent_ns: Mapped[int] = mapped_column(default=0, server_default="0")


class NodeRow(Base):
    """One life of a raylet. `alive` is what Ray said last; `reported_ns` is 0 until its health actor has spoken."""

    __tablename__ = "nodes"
    node_id: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str] = mapped_column(index=True)
    address: Mapped[str]
    state: Mapped[str] = mapped_column(State)
    reason: Mapped[str] = mapped_column(Text, default="")
    since_ns: Mapped[int]
    joined_ns: Mapped[int]
    alive: Mapped[bool] = mapped_column(default=True)
    alive_ns: Mapped[int] = mapped_column(default=0)
    reported_ns: Mapped[int] = mapped_column(default=0)
    event_id: Mapped[int] = mapped_column(default=0)
    domains: Mapped[dict[str, str]] = mapped_column(Json, default=dict, server_default="{}")
    """Where it stands: kind of failure domain → name, by the labels that it was started with."""


class DeviceRow(Base):
    """Facts of a device, its state as `health.machine` left it, and its score."""

    __tablename__ = "devices"
    uuid: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str] = mapped_column(index=True)
    node_id: Mapped[str] = mapped_column(index=True)
    index: Mapped[int] = mapped_column("device_index", Integer)
    serial: Mapped[str]
    pci_bus_id: Mapped[str]
    product: Mapped[str]
    memory_bytes: Mapped[int]
    power_cap_w: Mapped[float]
    driver_version: Mapped[str]
    mig_profile: Mapped[str]
    sku: Mapped[str] = mapped_column(index=True)
    first_seen_ns: Mapped[int]
    seen_ns: Mapped[int]

    state: Mapped[str] = mapped_column(State)
    since_ns: Mapped[int]
    reason: Mapped[str] = mapped_column(Text, default="")
    clean_probes: Mapped[int] = mapped_column(Integer, default=0)
    bad_findings: Mapped[int] = mapped_column(Integer, default=0)
    before_unknown: Mapped[str | None] = mapped_column(State)
    bad_ns: Mapped[int] = mapped_column(default=0, server_default="0")
    pardoned_ns: Mapped[int] = mapped_column(default=0, server_default="0")
    cause_id: Mapped[int] = mapped_column(default=0)
    held: Mapped[bool] = mapped_column(default=False)
    """Placement has checked that Ray cannot give the device out."""
    cordoned_ns: Mapped[int] = mapped_column(default=0, server_default="0")
    """Since when an operator keeps the device from new work, whatever its health; 0: he does not."""
    cordon_reason: Mapped[str] = mapped_column(Text, default="", server_default="")
    cordon_by: Mapped[str] = mapped_column(default="", server_default="")

    score: Mapped[float | None]
    noise: Mapped[float | None]
    scored_ns: Mapped[int] = mapped_column(default=0)


class SampleRow(Base):
    __tablename__ = "samples"
    uuid: Mapped[str] = mapped_column(primary_key=True)
    at_ns: Mapped[int] = mapped_column(primary_key=True)
    sm_clock_mhz: Mapped[int | None]
    temperature_c: Mapped[int | None]
    power_w: Mapped[float | None]
    memory_used_bytes: Mapped[int | None]
    utilisation_pct: Mapped[int | None]
    ecc_corrected: Mapped[int | None]
    ecc_uncorrected: Mapped[int | None]
    remap_pending: Mapped[bool | None]
    remap_failed: Mapped[bool | None]
    throttle_reasons: Mapped[int | None]
    process_count: Mapped[int | None]
    recovery_action: Mapped[int | None]
    sram_threshold: Mapped[bool | None]
    pcie_gen: Mapped[int | None]
    pcie_width: Mapped[int | None]
    pcie_gen_max: Mapped[int | None]
    pcie_width_max: Mapped[int | None]
    throttle_ns: Mapped[int | None]
    __table_args__ = (Index(None, "at_ns"),)


class RolledRow(Base):
    """The samples of one device in one minute."""

    __tablename__ = "samples_rolled"
    uuid: Mapped[str] = mapped_column(primary_key=True)
    minute_ns: Mapped[int] = mapped_column(primary_key=True)
    count: Mapped[int] = mapped_column(Integer)
    clock_min_mhz: Mapped[float | None]
    clock_avg_mhz: Mapped[float | None]
    clock_max_mhz: Mapped[float | None]
    temperature_min_c: Mapped[float | None]
    temperature_avg_c: Mapped[float | None]
    temperature_max_c: Mapped[float | None]
    power_min_w: Mapped[float | None]
    power_avg_w: Mapped[float | None]
    power_max_w: Mapped[float | None]
    utilisation_min_pct: Mapped[float | None]
    utilisation_avg_pct: Mapped[float | None]
    utilisation_max_pct: Mapped[float | None]
    __table_args__ = (Index(None, "minute_ns"),)


class XidRow(Base):
    __tablename__ = "xids"
    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    uuid: Mapped[str]
    code: Mapped[int] = mapped_column(Integer)
    at_ns: Mapped[int]
    source: Mapped[str] = mapped_column(State)
    boot: Mapped[str] = mapped_column(default="", server_default="")
    """The life of the health actor that told of it first."""
    detail: Mapped[str] = mapped_column(Text, default="", server_default="")
    event_id: Mapped[int]
    __table_args__ = (UniqueConstraint("uuid", "code", "at_ns", "source"),)


class FindingRow(Base):
    """The last time that a rule fired on a device: a finding that holds is one event, not one a second.

    `uuid` is `node:<host>` for a rule that fired on the machine.
    """

    __tablename__ = "findings"
    uuid: Mapped[str] = mapped_column(primary_key=True)
    rule_id: Mapped[str] = mapped_column(primary_key=True)
    rule_version: Mapped[int] = mapped_column(Integer)
    advice: Mapped[str] = mapped_column(State)
    first_ns: Mapped[int]
    last_ns: Mapped[int]
    repeats: Mapped[int] = mapped_column(Integer)
    basis_id: Mapped[int]
    """The telemetry or measurement event that it rests on."""
    event_id: Mapped[int]


class MeasurementRow(Base):
    __tablename__ = "measurements"
    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    uuid: Mapped[str]
    benchmark: Mapped[str]
    version: Mapped[int] = mapped_column(Integer)
    at_ns: Mapped[int]
    sku: Mapped[str]
    workload: Mapped[str] = mapped_column(State, default="compute", server_default="compute")
    repetitions_s: Mapped[list[float]]
    conditions: Mapped[dict[str, Any]] = mapped_column(Json, default=dict, server_default="{}")
    ok: Mapped[bool]
    error: Mapped[str] = mapped_column(Text)
    event_id: Mapped[int]
    __table_args__ = (
        UniqueConstraint("uuid", "benchmark", "version", "at_ns"),
        Index(None, "sku", "benchmark", "version", "at_ns"),
        Index(None, "uuid", "at_ns"),
    )


class ScoreRow(Base):
    """A score when it was given, so that an old placement can be explained again."""

    __tablename__ = "scores"
    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    uuid: Mapped[str]
    at_ns: Mapped[int]
    benchmark: Mapped[str]
    workload: Mapped[str] = mapped_column(State, default="compute", server_default="compute")
    score: Mapped[float]
    noise: Mapped[float]
    samples: Mapped[int] = mapped_column(Integer)
    cohort: Mapped[str]
    cohort_size: Mapped[int] = mapped_column(Integer)
    drift: Mapped[float | None]
    __table_args__ = (Index(None, "uuid", "at_ns"),)


class DeviceScoreRow(Base):
    """The present score of a device in one class of work. `scored_ns` is when the device was measured last: the score's age."""

    __tablename__ = "device_scores"
    uuid: Mapped[str] = mapped_column(primary_key=True)
    workload: Mapped[str] = mapped_column(State, primary_key=True)
    benchmark: Mapped[str]
    version: Mapped[int] = mapped_column(Integer)
    score: Mapped[float]
    noise: Mapped[float]
    """Within the last probe: relative median absolute deviation of its repetitions."""
    mad: Mapped[float | None]
    """From probe to probe: relative median absolute deviation of the device's last scores. NULL before there are three."""
    n: Mapped[int] = mapped_column(Integer)
    """Scores that `mad` and `repeatability` rest on."""
    repeatability: Mapped[float | None]
    """Two probes of an unchanged device differ by less than this in 95 of 100 cases (ISO 5725: 2.8 sigma), as a fraction."""
    drift: Mapped[float | None]
    scored_ns: Mapped[int]

    baseline_s: Mapped[float | None]
    """Median time of the device's first probes by this version of the benchmark, seconds: what drift is measured against."""
    baseline_sigma: Mapped[float | None]
    baseline_n: Mapped[int] = mapped_column(Integer, default=0)


class LeaseRow(Base):
    __tablename__ = "leases"
    lease_id: Mapped[str] = mapped_column(primary_key=True)
    attempt_id: Mapped[str] = mapped_column(index=True)
    job_id: Mapped[str]
    run_name: Mapped[str]
    attempt: Mapped[int] = mapped_column(Integer)
    max_spread: Mapped[float]
    spread: Mapped[float]
    step_time: Mapped[float]
    plan_revision: Mapped[int]
    plan_reason: Mapped[str] = mapped_column(Text)
    held: Mapped[bool] = mapped_column(index=True)
    since_ns: Mapped[int]
    ended_ns: Mapped[int] = mapped_column(default=0)
    end_reason: Mapped[str] = mapped_column(Text, default="")
    moving_cause: Mapped[int] = mapped_column(default=0)
    event_id: Mapped[int]
    __table_args__ = (Index(None, "job_id", "run_name"),)


class LeaseDeviceRow(Base):
    """A device in a lease, by rank. The partial unique index makes two holders of one device impossible."""

    __tablename__ = "lease_devices"
    lease_id: Mapped[str] = mapped_column(ForeignKey("leases.lease_id", ondelete="CASCADE"), primary_key=True)
    uuid: Mapped[str] = mapped_column(primary_key=True)
    rank: Mapped[int] = mapped_column(Integer)
    held: Mapped[bool]
    __table_args__ = (
        Index("uq_lease_devices_held", "uuid", unique=True, sqlite_where=text("held"), postgresql_where=text("held")),
    )


class JobRow(Base):
    """One run of a job."""

    __tablename__ = "jobs"
    job_id: Mapped[str] = mapped_column(primary_key=True)
    run_name: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(State)
    since_ns: Mapped[int]
    created_ns: Mapped[int]
    updated_ns: Mapped[int]
    reason: Mapped[str] = mapped_column(Text, default="")
    hint: Mapped[str] = mapped_column(Text, default="")
    storage_path: Mapped[str] = mapped_column(Text, default="")
    event_id: Mapped[int] = mapped_column(default=0)


class AttemptRow(Base):
    __tablename__ = "attempts"
    attempt_id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str]
    run_name: Mapped[str]
    number: Mapped[int] = mapped_column(Integer)
    lease_id: Mapped[str]
    started_ns: Mapped[int] = mapped_column(default=0)
    resumed_ns: Mapped[int] = mapped_column(default=0)
    ended_ns: Mapped[int] = mapped_column(default=0)
    step: Mapped[int] = mapped_column(default=0)
    checkpoint: Mapped[str] = mapped_column(Text, default="")
    reason: Mapped[str] = mapped_column(Text, default="")
    started_event: Mapped[int] = mapped_column(default=0)
    resumed_event: Mapped[int] = mapped_column(default=0)
    ended_event: Mapped[int] = mapped_column(default=0)
    __table_args__ = (Index(None, "job_id", "run_name", "number"),)


class RankRow(Base):
    """Where a rank ran. `uuid` and `host` are copied: the node may be forgotten, the history not."""

    __tablename__ = "attempt_ranks"
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempts.attempt_id", ondelete="CASCADE"), primary_key=True)
    rank: Mapped[int] = mapped_column(Integer, primary_key=True)
    node_id: Mapped[str]
    index: Mapped[int] = mapped_column("device_index", Integer)
    pid: Mapped[int]
    uuid: Mapped[str]
    host: Mapped[str]


class CheckpointRow(Base):
    __tablename__ = "checkpoints"
    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    attempt_id: Mapped[str]
    path: Mapped[str] = mapped_column(Text)
    step: Mapped[int]
    at_ns: Mapped[int]
    metrics: Mapped[dict[str, Any]]
    __table_args__ = (UniqueConstraint("attempt_id", "path"),)


class SessionRow(Base):
    __tablename__ = "sessions"
    session_id: Mapped[str] = mapped_column(primary_key=True)
    first_ns: Mapped[int]
    at_ns: Mapped[int] = mapped_column(index=True)
    turns: Mapped[int]
    tokens: Mapped[int]
    resumes: Mapped[int]
    replica: Mapped[str]
    device: Mapped[str]
    state: Mapped[str] = mapped_column(State)
    reason: Mapped[str] = mapped_column(Text)
    event_id: Mapped[int] = mapped_column(default=0)


class EventRow(Base):
    __tablename__ = "events"
    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    at_ns: Mapped[int] = mapped_column(index=True)
    kind: Mapped[str] = mapped_column(State)
    entity: Mapped[str]
    summary: Mapped[str] = mapped_column(Text)
    cause_id: Mapped[int] = mapped_column(index=True)
    body: Mapped[dict[str, Any]]
    __table_args__ = (Index(None, "entity", "id"), {"sqlite_autoincrement": True})


class ReportSeenRow(Base):
    """The last report of one life of a health actor: an older one that is sent again changes nothing."""

    __tablename__ = "reports_seen"
    node_id: Mapped[str] = mapped_column(primary_key=True)
    boot: Mapped[str] = mapped_column(primary_key=True)
    seq: Mapped[int]
    at_ns: Mapped[int] = mapped_column(index=True)


class TokenRow(Base):
    """Only the hash of a token is kept. Tokens are 256 random bits, so a plain SHA-256 cannot be guessed back."""

    __tablename__ = "tokens"
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str]
    created_ns: Mapped[int]
    revoked_ns: Mapped[int] = mapped_column(default=0)
