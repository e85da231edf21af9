"""A deterministic fleet: identities from names, speeds from real GPUs."""

import csv
import hashlib
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from paceline.model.errors import BadRequest
from paceline.model.ids import DeviceUuid, HostName
from paceline.sim.layout import DEVICES

OUTLIER_FROM: Final = 1.2
"""An outlier, from here: one of 392 GPUs on Longhorn (1.20) and six of 219 on Lonestar6 (2.1 to 2.2)."""
TYPICAL_BELOW: Final = 1.1
assert TYPICAL_BELOW < OUTLIER_FROM, "a typical device must never pass for an outlier"

PRODUCT: Final = "NVIDIA H100 80GB HBM3"
MEMORY_BYTES: Final = 80 << 30
POWER_CAP_W: Final = 700.0
_BUSES: Final = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF, 0x2A, 0x34, 0x6F, 0x78, 0xA8, 0xB2, 0xE1, 0xED)
"""PCI buses of the eight GPUs of an HGX H100 board; the second eight are ours."""
assert len(_BUSES) == DEVICES


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device as it is built into a simulated host. `pace` is time per step relative to the median device."""

    uuid: DeviceUuid
    serial: str
    pci_bus_id: str
    pace: float = 1.0
    product: str = PRODUCT
    memory_bytes: int = MEMORY_BYTES
    power_cap_w: float = POWER_CAP_W


@dataclass(frozen=True, slots=True)
class GpuSpeed:
    """One row of gpu_speeds.csv."""

    cluster: str
    workload: str
    gpu: str
    relative_time: float


@cache
def speeds() -> tuple[GpuSpeed, ...]:
    """Every GPU of gpu_speeds.csv, in the order of the file."""
    lines = (files("paceline.sim") / "gpu_speeds.csv").read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return tuple(GpuSpeed(r["cluster"], r["workload"], r["gpu"], float(r["relative_time"])) for r in rows)


def identify(cluster: str, host: HostName, index: int, pace: float = 1.0) -> DeviceSpec:
    """The device in slot `index` of `host`: the same names give the same UUID, serial and PCI address, always."""
    name = f"{cluster}/{host}/{index}"
    digest = hashlib.sha256(name.encode()).digest()
    return DeviceSpec(
        uuid=DeviceUuid(f"GPU-{uuid.uuid5(uuid.NAMESPACE_URL, 'paceline:' + name)}"),
        serial=f"165{int.from_bytes(digest[:8], 'big') % 10**10:010d}",
        pci_bus_id=f"00000000:{_BUSES[index]:02X}:00.0",
        pace=pace,
    )


def host_names(hosts: int) -> tuple[HostName, ...]:
    """Names of the hosts of a fleet: host-0, host-1, …"""
    return tuple(HostName(f"host-{number}") for number in range(hosts))


def devices(
    hosts: Sequence[HostName], gpus: int, seed: int = 0, cluster: str = "paceline"
) -> dict[HostName, tuple[DeviceSpec, ...]]:
    """`gpus` devices for each host, with speeds drawn from real GPUs.

    Exactly one device of the fleet is an outlier (at least OUTLIER_FROM), never the first of the first host; a fleet of
    one device has none. Raises BadRequest (PL-REQ-020) unless 1 ≤ gpus ≤ 16 and the hosts are named, once each.
    """
    if not 1 <= gpus <= DEVICES or not hosts or len(set(hosts)) != len(hosts):
        raise BadRequest(
            "PL-REQ-020", f"A fleet needs hosts with distinct names and 1 to {DEVICES} GPUs each, not {gpus}"
        )
    dice = random.Random(seed)
    paces = _paces(len(hosts) * gpus, dice)
    return {
        host: tuple(identify(cluster, host, slot, paces[number * gpus + slot]) for slot in range(gpus))
        for number, host in enumerate(hosts)
    }


def _paces(count: int, dice: random.Random) -> list[float]:
    typical = [row.relative_time for row in speeds() if row.cluster == "longhorn" and row.relative_time < TYPICAL_BELOW]
    outliers = [row.relative_time for row in speeds() if row.relative_time >= OUTLIER_FROM]
    drawn = dice.sample(typical, count) if count <= len(typical) else dice.choices(typical, k=count)
    if count > 1:
        drawn[dice.randrange(1, count)] = dice.choice(outliers)
    return drawn
