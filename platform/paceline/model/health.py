"""Health values that cross between parts: findings and node reports."""

from dataclasses import dataclass, field
from enum import StrEnum

from paceline.model.hardware import DeviceFacts, HostFacts, LinkSample, Sample, XidEvent
from paceline.model.ids import DeviceUuid, NodeId


class Advice(StrEnum):
    """What a rule asks for. OBSERVE is recorded and never acted on."""

    OBSERVE = "OBSERVE"
    SUSPECT = "SUSPECT"
    QUARANTINE = "QUARANTINE"


class NodeAdvice(StrEnum):
    """What a rule asks for, for a machine. CORDON: nothing new is placed on it."""

    OBSERVE = "OBSERVE"
    CORDON = "CORDON"


class RepairAction(StrEnum):
    """The ladder of repairs, gentlest first."""

    RESTART_APP = "RESTART_APP"
    RESET_GPU = "RESET_GPU"
    REBOOT_NODE = "REBOOT_NODE"
    REPLACE = "REPLACE"


class RuleMode(StrEnum):
    """Whether a rule's findings are acted on, or only written down (SHADOW)."""

    ENFORCE = "enforce"
    SHADOW = "shadow"


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule that fired on one device, with its evidence in words and numbers."""

    rule_id: str
    rule_version: int
    uuid: DeviceUuid
    advice: Advice
    at_ns: int
    summary: str
    evidence: dict[str, str | int | float | bool | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """One rule that fired on a machine rather than on one of its devices: a port, an NVSwitch."""

    rule_id: str
    rule_version: int
    advice: NodeAdvice
    at_ns: int
    summary: str
    evidence: dict[str, str | int | float | bool | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentStats:
    """What watching this machine costs, and how it goes. The reader is the process that talks to NVML."""

    cpu_s: float
    """CPU time of the health actor and of its readers, seconds since the actor started."""
    rss_bytes: int
    reader_rss_bytes: int
    nvml_p50_us: int
    """Time of one whole reading of all devices in NVML, over the last minutes."""
    nvml_p99_us: int
    reader_starts: int
    kernel_log: str
    """The word read, or why the kernel log is not."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a health actor sends each period. Sent again with the same `seq` until it is acknowledged.

    `boot` is drawn when the actor starts, so (node_id, boot, seq) names a report once and for all.
    `devices` lists every device that NVML shows now; a device of this host that the inventory knows and that is missing
    here fell off the bus. `nvml_error` is set when the NVML child did not answer: the devices are then UNKNOWN.
    """

    node_id: NodeId
    boot: str
    seq: int
    sent_ns: int
    host: HostFacts
    devices: tuple[DeviceFacts, ...]
    samples: tuple[Sample, ...]
    xids: tuple[XidEvent, ...]
    findings: tuple[Finding, ...]
    nvml_error: str = ""
    links: tuple[LinkSample, ...] = ()
    node_findings: tuple[NodeFinding, ...] = ()
    unreadable: tuple[DeviceUuid, ...] = ()
    """Devices on which NVML hangs: they are there, UNKNOWN one by one, and left out of `samples` while the others go on."""
    agent: AgentStats | None = None
    """About once in ten seconds."""
