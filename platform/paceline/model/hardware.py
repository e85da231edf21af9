"""What a machine says about itself: facts, samples, Xid events, and the states Paceline gives to it."""

from dataclasses import dataclass
from enum import StrEnum

from paceline.model.ids import DeviceUuid, HostName


class DeviceState(StrEnum):
    NEW = "NEW"
    PROBING = "PROBING"
    HEALTHY = "HEALTHY"
    SUSPECT = "SUSPECT"
    DRAINING = "DRAINING"
    QUARANTINED = "QUARANTINED"
    PROBATION = "PROBATION"
    REPAIR = "REPAIR"
    RETIRED = "RETIRED"
    UNKNOWN = "UNKNOWN"


class NodeState(StrEnum):
    JOINING = "JOINING"
    READY = "READY"
    CORDONED = "CORDONED"
    DRAINING = "DRAINING"
    LOST = "LOST"


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What does not change while a device stays in its slot."""

    uuid: DeviceUuid
    index: int
    """NVML's and Ray's index on its host now. Never an identity: it changes after a reset or an Xid 79."""
    serial: str
    pci_bus_id: str
    product: str
    memory_bytes: int
    power_cap_w: float
    driver_version: str
    mig_profile: str = ""

    @property
    def sku(self) -> str:
        """Devices are compared with devices of one SKU only."""
        parts = [self.product, f"{self.memory_bytes >> 30}GiB", f"{self.power_cap_w:.0f}W"]
        return "/".join(parts + ([self.mig_profile] if self.mig_profile else []))


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of one device. None where the device does not support the reading."""

    uuid: DeviceUuid
    at_ns: int
    sm_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    memory_used_bytes: int | None
    utilisation_pct: int | None
    ecc_corrected: int | None
    ecc_uncorrected: int | None
    remap_pending: bool | None
    remap_failed: bool | None
    throttle_reasons: int | None
    process_count: int | None


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An Xid that the driver raised. `source` is nvml or kmsg."""

    uuid: DeviceUuid
    code: int
    at_ns: int
    source: str


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One machine. `simulated` is true where the fake NVML answers."""

    host: HostName
    address: str
    boot_id: str
    simulated: bool
