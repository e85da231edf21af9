"""Health values that cross between parts: findings and node reports."""

from dataclasses import dataclass, field
from enum import StrEnum

from paceline.model.hardware import DeviceFacts, HostFacts, Sample, XidEvent
from paceline.model.ids import DeviceUuid, NodeId


class Advice(StrEnum):
    """What a rule asks for. OBSERVE is recorded and never acted on."""

    OBSERVE = "OBSERVE"
    SUSPECT = "SUSPECT"
    QUARANTINE = "QUARANTINE"


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
