"""The NVML calls. Imported by the reader's process only (nvml_child.py): any of them can hang on a sick GPU.

Only what a rule, the score or the page asks for is read: about a dozen calls a device, all of them cheap. Left out on
purpose: PCIe throughput (40 ms a device), profiling fields (they raise the idle power).
"""

import time
from collections.abc import Callable, Container, Set
from dataclasses import fields
from typing import Any, Final, TypeVar

import pynvml

from paceline.model.errors import HostSetup
from paceline.model.hardware import DeviceFacts, Sample
from paceline.model.ids import DeviceUuid

T = TypeVar("T")

LOST: Final = frozenset(
    {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_GPU_NOT_FOUND}
)
"""The device cannot be used, whatever else it says: it is left out, as if NVML did not show it."""


class LostError(HostSetup):
    """The device in hand fell off the bus. Caught here: the others are read on."""


class Board:
    """All GPUs of this machine. Not thread-safe; NVML must be initialised."""

    def __init__(self) -> None:
        self._facts: dict[DeviceUuid, DeviceFacts] = {}
        self._driver = _text(pynvml.nvmlSystemGetDriverVersion())

    def read(self) -> tuple[list[DeviceFacts], list[Sample], dict[DeviceUuid, Any]]:
        """Facts, samples and handles of the devices that answer, by index. A lost device does not hinder the others."""
        facts, samples, handles = [], [], {}
        failed: dict[int, pynvml.NVMLError] = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = _call(pynvml.nvmlDeviceGetHandleByIndex, index)
                uuid = DeviceUuid(_text(_call(pynvml.nvmlDeviceGetUUID, handle)))
                sample = read_sample(handle, uuid)
                device = self._read_facts(handle, uuid, index)
            except LostError:
                continue
            except pynvml.NVMLError as error:
                failed[index] = error
                continue
            facts.append(device)
            samples.append(sample)
            handles[uuid] = handle
        if failed and not facts:
            raise next(iter(failed.values()))  # no device answers: that is not about devices
        for device in self._known_at(failed.keys() - {device.index for device in facts}, handles):
            facts.append(device)
            samples.append(no_sample(device.uuid))
        return facts, samples, handles

    def _known_at(self, indices: Set[int], answered: Container[DeviceUuid]) -> list[DeviceFacts]:
        """Devices that were seen before at places that give an error now: still there, with nothing read of them."""
        known = sorted(self._facts.values(), key=lambda device: device.index)
        return [device for device in known if device.index in indices and device.uuid not in answered]

    def _read_facts(self, handle: Any, uuid: DeviceUuid, index: int) -> DeviceFacts:
        """Serial, address, product and memory are read once; index and power cap can change under us."""
        known = self._facts.get(uuid)
        cap_w = (_optional(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle) or 0) / 1000
        self._facts[uuid] = DeviceFacts(
            uuid=uuid,
            index=index,
            serial=known.serial if known else _text(_optional(pynvml.nvmlDeviceGetSerial, handle) or ""),
            pci_bus_id=known.pci_bus_id if known else _text(_call(pynvml.nvmlDeviceGetPciInfo, handle).busId),
            product=known.product if known else _text(_call(pynvml.nvmlDeviceGetName, handle)),
            memory_bytes=known.memory_bytes if known else int(_call(pynvml.nvmlDeviceGetMemoryInfo, handle).total),
            power_cap_w=cap_w,
            driver_version=self._driver,
        )
        return self._facts[uuid]


def read_sample(handle: Any, uuid: DeviceUuid) -> Sample:
    """One reading; None in a field that the device does not support. Raises LostError."""
    power_mw = _optional(pynvml.nvmlDeviceGetPowerUsage, handle)
    memory = _optional(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    utilisation = _optional(pynvml.nvmlDeviceGetUtilizationRates, handle)
    remapped = _optional(pynvml.nvmlDeviceGetRemappedRows, handle)
    processes = _optional(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return Sample(
        uuid=uuid,
        at_ns=time.time_ns(),
        sm_clock_mhz=_optional(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        temperature_c=_optional(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        power_w=None if power_mw is None else power_mw / 1000,
        memory_used_bytes=None if memory is None else int(memory.used),
        utilisation_pct=None if utilisation is None else int(utilisation.gpu),
        ecc_corrected=_ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ecc_uncorrected=_ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        remap_pending=None if remapped is None else bool(remapped[2]),
        remap_failed=None if remapped is None else bool(remapped[3]),
        throttle_reasons=_optional(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle),
        process_count=None if processes is None else len(processes),
    )


def no_sample(uuid: DeviceUuid) -> Sample:
    """A sample in which no reading is known."""
    unknown = {field.name: None for field in fields(Sample) if field.name not in ("uuid", "at_ns")}
    return Sample(uuid=uuid, at_ns=time.time_ns(), **unknown)


def _ecc(handle: Any, kind: int) -> int | None:
    """Errors since the driver was loaded."""
    return _optional(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC)


def _call(call: Callable[..., T], *args: Any) -> T:
    """A call without which a device cannot be named."""
    try:
        return call(*args)
    except pynvml.NVMLError as error:
        if error.value in LOST:
            raise LostError("PL-HOST-010", str(error)) from error
        raise


def _optional(call: Callable[..., T], *args: Any) -> T | None:
    """A call that some devices, drivers or rights do not support."""
    try:
        return call(*args)
    except pynvml.NVMLError as error:
        if error.value in LOST:
            raise LostError("PL-HOST-010", str(error)) from error
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
