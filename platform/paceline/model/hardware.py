"""What a machine says about itself: facts, samples, Xid events, and the states Paceline gives to it."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

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


CONDEMNED: Final = frozenset({DeviceState.DRAINING, DeviceState.QUARANTINED, DeviceState.REPAIR, DeviceState.PROBATION})
"""No work may be on a device in one of these. A suspicion is none of them: it may end by itself."""


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
    recovery_action: int | None = None
    """What the driver itself asks for (NVML field 230, drivers from 570): see `RecoveryAction`."""
    sram_threshold: bool | None = None
    """The SRAM has had more uncorrectable errors than NVIDIA tolerates: the device is to be replaced."""
    pcie_gen: int | None = None
    """Now; an idle device lowers it to save power."""
    pcie_width: int | None = None
    pcie_gen_max: int | None = None
    """What the device and its slot can do together."""
    pcie_width_max: int | None = None
    throttle_ns: int | None = None
    """Time in hardware slowdown (heat and power brake), counted by the driver since it was loaded."""


class RecoveryAction(IntEnum):
    """nvml.h, nvmlDeviceGpuRecoveryAction_t."""

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX_DOMAIN = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An Xid that the driver raised. `source` is nvml or kmsg."""

    uuid: DeviceUuid
    code: int
    at_ns: int
    source: str
    detail: str = ""
    """The text of the kernel's line behind the code, at most 300 characters; empty from NVML."""


@dataclass(frozen=True, slots=True)
class LinkSample:
    """One physical port of the machine, from /sys. None where the port does not say, or where its counter is full."""

    name: str
    """mlx5_0/1 (InfiniBand: device and port), eth0."""
    kind: str
    """ib or ethernet."""
    at_ns: int
    up: bool
    rate_gbps: float | None
    link_downed: int | None
    """How often the port went down, counted since its driver was loaded."""
    errors: int | None
    """Symbol and receive errors, counted since the driver was loaded."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One machine. `simulated` is true where the fake NVML answers."""

    host: HostName
    address: str
    boot_id: str
    simulated: bool
    nvswitch: bool = False
    """The machine has NVSwitches: the reset of one GPU takes the whole partition."""
