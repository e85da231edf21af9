"""The tables of health: what was decided about devices and why, what was repaired, whom it was told."""

from typing import Any

from sqlalchemy import Index, Integer, Text
from sqlalchemy.orm import Mapped, mapped_column

from paceline.inventory.base import Base, BigKey, State


class StimulusRow(Base):
    """A stimulus that changed what `health.machine` knows of a device. The device's state is the fold over its rows."""

    __tablename__ = "stimuli"
    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    uuid: Mapped[str]
    at_ns: Mapped[int]
    kind: Mapped[str]
    body: Mapped[dict[str, Any]]
    event_id: Mapped[int]
    """The event that moved the device; 0 where the stimulus was counted and moved nothing."""
    __table_args__ = (Index(None, "uuid", "id"),)


class VerdictRow(Base):
    """A decision about a device, or about a node: then `uuid` is empty.

    `mode` is enforce (`to_state` is what it became), shadow, held or excused (`to_state` is what it would have become).
    """

    __tablename__ = "verdicts"
    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    uuid: Mapped[str]
    host: Mapped[str]
    cohort: Mapped[str]
    rule_id: Mapped[str]
    rule_version: Mapped[int] = mapped_column(Integer)
    advice: Mapped[str] = mapped_column(State)
    mode: Mapped[str] = mapped_column(State)
    automatic: Mapped[bool]
    """False for what an operator ordered."""
    from_state: Mapped[str] = mapped_column(State)
    to_state: Mapped[str] = mapped_column(State)
    reason: Mapped[str] = mapped_column(Text)
    evidence: Mapped[list[int]]
    """Events that it rests on."""
    at_ns: Mapped[int]
    event_id: Mapped[int]
    label: Mapped[bool | None]
    """Whether it was right, once somebody has looked."""
    label_by: Mapped[str] = mapped_column(default="")
    label_ns: Mapped[int] = mapped_column(default=0)
    __table_args__ = (
        Index(None, "uuid", "rule_id", "id"),
        Index(None, "at_ns"),
        Index(None, "rule_id", "mode"),
    )


class SightingRow(Base):
    """A rule that fired on a device, and the job that had the device then: what `health.correlate` looks at. Kept for two days.

    `uuid` is empty where a machine has it, not a device.
    """

    __tablename__ = "sightings"
    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    uuid: Mapped[str]
    host: Mapped[str]
    code_or_rule: Mapped[str]
    job_id: Mapped[str]
    at_ns: Mapped[int] = mapped_column(index=True)
    __table_args__ = (Index(None, "uuid", "at_ns"), Index(None, "job_id", "at_ns"))


class RepairRow(Base):
    """A step of the repair ladder. `ok` is NULL while it goes on; `code` is what it is for (`correlate.code_of`)."""

    __tablename__ = "repairs"
    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    serial: Mapped[str]
    uuid: Mapped[str]
    action: Mapped[str] = mapped_column(State)
    code: Mapped[str]
    at_ns: Mapped[int]
    ended_ns: Mapped[int] = mapped_column(default=0)
    ok: Mapped[bool | None]
    reason: Mapped[str] = mapped_column(Text)
    who: Mapped[str]
    event_id: Mapped[int]
    __table_args__ = (Index(None, "serial", "id"), Index(None, "uuid", "id"))


class NodeMeasurementRow(Base):
    """One benchmark of a full probe of a host. `relative`: its time over the median of hosts that are alike; NULL where it failed."""

    __tablename__ = "node_measurements"
    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    host: Mapped[str]
    sku: Mapped[str]
    devices: Mapped[int] = mapped_column(Integer)
    benchmark: Mapped[str]
    version: Mapped[int] = mapped_column(Integer)
    at_ns: Mapped[int]
    repetitions_s: Mapped[list[float]]
    ok: Mapped[bool]
    error: Mapped[str] = mapped_column(Text)
    bytes: Mapped[float]
    relative: Mapped[float | None]
    event_id: Mapped[int]
    __table_args__ = (
        Index(None, "host", "benchmark", "at_ns", unique=True),
        Index(None, "sku", "benchmark", "version", "devices"),
    )


class LinkRow(Base):
    """The last reading of a port of a host. `since_ns` is when it came up or went down, as far as it was seen."""

    __tablename__ = "links"
    host: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(State)
    at_ns: Mapped[int]
    up: Mapped[bool]
    since_ns: Mapped[int]
    rate_gbps: Mapped[float | None]
    link_downed: Mapped[int | None]
    errors: Mapped[int | None]


class AlertRow(Base):
    """The outbox: written with the event that it tells of, delivered later. `key` names what must not be told again and again."""

    __tablename__ = "alerts"
    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    at_ns: Mapped[int] = mapped_column(index=True)
    kind: Mapped[str] = mapped_column(State)
    entity: Mapped[str]
    summary: Mapped[str] = mapped_column(Text)
    event_id: Mapped[int]
    key: Mapped[str]
    body: Mapped[dict[str, Any]]
    __table_args__ = (Index(None, "key", "at_ns"), {"sqlite_autoincrement": True})


class AlertTargetRow(Base):
    """One who gets alerts, in order: all up to `acknowledged_id` have reached it."""

    __tablename__ = "alert_targets"
    target: Mapped[str] = mapped_column(primary_key=True)
    acknowledged_id: Mapped[int]
    failures: Mapped[int] = mapped_column(Integer, default=0)
    next_ns: Mapped[int] = mapped_column(default=0)
    error: Mapped[str] = mapped_column(Text, default="")
    seen_ns: Mapped[int]
