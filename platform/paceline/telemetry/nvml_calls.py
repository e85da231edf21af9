"""The NVML calls. Imported by the reader's process only (nvml_child.py): any of them can hang on a sick GPU.

fields.py says what is read, and how often. A reading that is not due keeps its last value; `Look.slow_age_s` says how
old that is. Before a device is touched, `mark` is told its PCI address: who kills this process knows why.
"""

import ctypes
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar

import pynvml

from paceline.model.errors import HostSetup
from paceline.model.hardware import DeviceFacts, Sample
from paceline.model.ids import DeviceUuid
from paceline.telemetry.fields import BATCH, FIELDS, SLOW_PERIOD_S, Due, named
from paceline.telemetry.nvml_wire import CallTime

T = TypeVar("T")

LOST: Final = frozenset(
    {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_GPU_NOT_FOUND}
)
"""The device cannot be used, whatever else it says: it is left out, as if NVML did not show it."""
TIMES_KEPT: Final = 600
"""Of each call: more than a minute of eight devices at one reading a second."""
SLOWEST_TOLD: Final = 5


class LostError(HostSetup):
    """The device in hand fell off the bus. Caught here: the others are read on."""


class Calls:
    """Makes calls, and keeps how long each took."""

    def __init__(self) -> None:
        self._took_us: dict[str, deque[int]] = {}
        self.error: pynvml.NVMLError | None = None
        """The last error that was taken for "not supported"."""

    def must(self, call: Callable[..., T], *args: Any) -> T:
        """A call without which a device cannot be named. Raises LostError and NVMLError."""
        started = time.perf_counter_ns()
        try:
            return call(*args)
        except pynvml.NVMLError as error:
            if error.value in LOST:
                raise LostError("PL-HOST-010", str(error)) from error
            raise
        finally:
            took = self._took_us.setdefault(call.__name__, deque(maxlen=TIMES_KEPT))
            took.append((time.perf_counter_ns() - started) // 1000)

    def may(self, call: Callable[..., T], *args: Any) -> T | None:
        """A call that some devices, drivers or rights do not support: None then. Raises LostError."""
        try:
            return self.must(call, *args)
        except pynvml.NVMLError as error:
            self.error = error
            return None

    def slowest(self) -> tuple[CallTime, ...]:
        """The calls with the highest p99, highest first."""
        times = []
        for name, took in self._took_us.items():
            ordered = sorted(took)
            times.append(CallTime(name, len(ordered), ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]))
        return tuple(sorted(times, key=lambda one: (-one.p99_us, one.name))[:SLOWEST_TOLD])


@dataclass(slots=True)
class _Slot:
    """A device that answers, with its handle and the values that are not read each time."""

    handle: Any
    facts: DeviceFacts
    fixed: dict[str, Any]
    slow: dict[str, Any] = field(default_factory=dict)
    slow_at: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Look:
    """What one reading of all devices shows, by index. `slow_age_s` is the age of the oldest value in it."""

    devices: tuple[DeviceFacts, ...]
    samples: tuple[Sample, ...]
    slow_age_s: float


class Board:
    """All GPUs of this machine but the ones in `skip`. Not thread-safe; NVML must be initialised.

    `known` and `skip` are PCI addresses as NVML writes them. Known devices are asked for by address, so that a device
    that hangs is not touched on the way to another one. With `only`, nothing but the known ones is looked for.
    `seen` is told each device when it was identified, before anything is read of it.
    """

    def __init__(
        self,
        mark: Callable[[str], None],
        seen: Callable[[DeviceFacts], None],
        known: Collection[str] = (),
        skip: Collection[str] = (),
        only: bool = False,
    ) -> None:
        self.calls = Calls()
        self._mark, self._seen = mark, seen
        self._known, self._skip, self._only = [one for one in known if one not in skip], set(skip), only
        self._slots: dict[DeviceUuid, _Slot] = {}
        self._facts: dict[DeviceUuid, DeviceFacts] = {}
        self._count = -1
        self._answers = False
        self._driver = _text(pynvml.nvmlSystemGetDriverVersion())

    @property
    def handles(self) -> dict[DeviceUuid, Any]:
        return {uuid: slot.handle for uuid, slot in self._slots.items()}

    def add(self, address: str) -> None:
        """The device at this PCI address answers again: it is read from now on."""
        self._skip.discard(address)
        self._known.append(address)
        self._count = -1

    @contextmanager
    def at(self, uuid: DeviceUuid) -> Iterator[None]:
        """Everything that is called inside is about this device."""
        with self._marked(self._facts[uuid].pci_bus_id):
            yield

    @contextmanager
    def _marked(self, address: str) -> Iterator[None]:
        self._mark(address)
        try:
            yield
        finally:
            self._mark("")

    def read(self, everything: bool = False) -> Look:
        """A reading of the devices that answer. A lost device does not hinder the others. Raises NVMLError if none does."""
        present = len(self._slots)
        look = self._read(everything)
        return self._read(everything) if len(self._slots) < present else look  # who was lost may have moved the others

    def _read(self, everything: bool) -> Look:
        failed = self._enumerate(self.calls.must(pynvml.nvmlDeviceGetCount))
        now = time.monotonic()
        facts, samples = [], []
        self._answers, self.calls.error = False, None
        for uuid, slot in list(self._slots.items()):
            try:
                with self._marked(slot.facts.pci_bus_id):
                    samples.append(self._sample(slot, now, everything))
                facts.append(slot.facts)
            except LostError:
                del self._slots[uuid]
        for device in failed:
            facts.append(device)
            samples.append(no_sample(device.uuid))
        if facts and self.calls.error and not self._answers:
            raise self.calls.error  # no device answers: that is not about devices
        order = sorted(range(len(facts)), key=lambda place: facts[place].index)
        ages = [now - slot.slow_at for slot in self._slots.values()]
        return Look(tuple(facts[i] for i in order), tuple(samples[i] for i in order), max(ages, default=0.0))

    def _enumerate(self, count: int) -> list[DeviceFacts]:
        """Look for devices, if there may be others than before. Returns those that give an error where they were known."""
        if count == self._count and (self._only or len(self._slots) + len(self._skip) >= count):
            return []
        self._count = count
        slots: dict[DeviceUuid, _Slot] = {}
        errors: dict[str | int, pynvml.NVMLError] = {}
        for address in self._known:
            self._open(slots, errors, address)
        if not self._only and not self._skip and len(slots) < count:  # an index may lead to the device that hangs
            for index in range(count):
                self._open(slots, errors, index)
        if errors and not slots:
            raise next(iter(errors.values()))
        self._slots = slots
        self._known += [slot.facts.pci_bus_id for slot in slots.values() if slot.facts.pci_bus_id not in self._known]
        known = [one for one in self._facts.values() if one.uuid not in slots]
        return [one for one in known if one.pci_bus_id in errors or one.index in errors]

    def _open(
        self, slots: dict[DeviceUuid, _Slot], errors: dict[str | int, pynvml.NVMLError], place: str | int
    ) -> None:
        """The device at a PCI address or an index into `slots`; or the error, if it is another one than "lost"."""
        try:
            with self._marked(str(place)):
                if isinstance(place, int):
                    handle = self.calls.must(pynvml.nvmlDeviceGetHandleByIndex, place)
                else:
                    handle = self.calls.must(pynvml.nvmlDeviceGetHandleByPciBusId, place.encode())
                uuid = DeviceUuid(_text(self.calls.must(pynvml.nvmlDeviceGetUUID, handle)))
                address = _text(self.calls.must(pynvml.nvmlDeviceGetPciInfo, handle).busId)
                if address in self._skip:
                    return
                self._mark(address)
                slots[uuid] = self._identify(handle, uuid, address)
        except LostError:
            return  # left out, as if NVML did not show it
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_NOT_FOUND:  # nothing is plugged in at that address any more
                errors[place] = error

    def _identify(self, handle: Any, uuid: DeviceUuid, address: str) -> _Slot:
        """Serial, product and memory are read once in the life of this process; the index can change under us."""
        index = int(self.calls.must(pynvml.nvmlDeviceGetIndex, handle))
        old = self._slots.get(uuid)
        known = self._facts.get(uuid)
        facts = (
            replace(known, index=index, pci_bus_id=address) if known else self._facts_of(handle, uuid, index, address)
        )
        if facts != known:
            self._facts[uuid] = facts
            self._seen(facts)
        if old is not None:
            return _Slot(handle, facts, old.fixed, old.slow, old.slow_at)
        return _Slot(handle, facts, {one.name: self._ask(one.name, handle) for one in named(Due.START)})

    def _facts_of(self, handle: Any, uuid: DeviceUuid, index: int, address: str) -> DeviceFacts:
        return DeviceFacts(
            uuid=uuid,
            index=index,
            serial=_text(self.calls.may(pynvml.nvmlDeviceGetSerial, handle) or ""),
            pci_bus_id=address,
            product=_text(self.calls.must(pynvml.nvmlDeviceGetName, handle)),
            memory_bytes=int(self.calls.must(pynvml.nvmlDeviceGetMemoryInfo, handle).total),
            power_cap_w=self._ask("power_cap_w", handle) or 0.0,
            driver_version=self._driver,
        )

    def _sample(self, slot: _Slot, now: float, everything: bool) -> Sample:
        """One reading; None in a field that the device does not support. Raises LostError."""
        values = {one.name: self._ask(one.name, slot.handle) for one in named(Due.EACH)}
        self._answers |= any(value is not None for value in values.values())
        if everything or now - slot.slow_at >= SLOW_PERIOD_S:
            slot.slow = {one.name: self._ask(one.name, slot.handle) for one in named(Due.SLOW)} | self._batch(
                slot.handle
            )
            slot.slow_at = now
            cap_w = slot.slow.pop("power_cap_w")
            if cap_w is not None:
                slot.facts = self._facts[slot.facts.uuid] = replace(slot.facts, power_cap_w=cap_w)
        return Sample(uuid=slot.facts.uuid, at_ns=time.time_ns(), **values, **slot.slow, **slot.fixed)

    def _ask(self, name: str, handle: Any) -> Any:
        return _READERS[name](self.calls, handle)

    def _batch(self, handle: Any) -> dict[str, Any]:
        """The readings that are NVML fields, in one call."""
        answers = self.calls.may(pynvml.nvmlDeviceGetFieldValues, handle, BATCH)
        values = {answer.fieldId: _value(answer) for answer in answers} if answers is not None else {}
        found: dict[str, Any] = {}
        for one in FIELDS:
            if one.ids:
                parts = [value for number in one.ids if (value := values.get(number)) is not None]
                found[one.name] = sum(parts) if parts else None
        for flag in ("remap_pending", "remap_failed"):
            found[flag] = None if found[flag] is None else bool(found[flag])
        return found


def no_sample(uuid: DeviceUuid) -> Sample:
    """A sample in which no reading is known."""
    unknown = {one.name: None for one in fields(Sample) if one.name not in ("uuid", "at_ns")}
    return Sample(uuid=uuid, at_ns=time.time_ns(), **unknown)


def _power_w(calls: Calls, handle: Any) -> float | None:
    power_mw = calls.may(pynvml.nvmlDeviceGetPowerUsage, handle)
    return None if power_mw is None else power_mw / 1000


def _power_cap_w(calls: Calls, handle: Any) -> float | None:
    cap_mw = calls.may(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return None if cap_mw is None else cap_mw / 1000


def _memory_used(calls: Calls, handle: Any) -> int | None:
    memory = calls.may(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return None if memory is None else int(memory.used)


def _utilisation(calls: Calls, handle: Any) -> int | None:
    rates = calls.may(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return None if rates is None else int(rates.gpu)


def _processes(calls: Calls, handle: Any) -> int | None:
    running = calls.may(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return None if running is None else len(running)


def _sram_threshold(calls: Calls, handle: Any) -> bool | None:
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    told = calls.may(pynvml.nvmlDeviceGetSramEccErrorStatus, handle, ctypes.byref(status))
    return None if told is None else bool(status.bThresholdExceeded)


_READERS: Final[Mapping[str, Callable[[Calls, Any], Any]]] = {
    "sm_clock_mhz": lambda calls, handle: calls.may(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
    "temperature_c": lambda calls, handle: calls.may(
        pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU
    ),
    "power_w": _power_w,
    "memory_used_bytes": _memory_used,
    "utilisation_pct": _utilisation,
    "throttle_reasons": lambda calls, handle: calls.may(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle),
    "process_count": _processes,
    "sram_threshold": _sram_threshold,
    "pcie_gen": lambda calls, handle: calls.may(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
    "pcie_width": lambda calls, handle: calls.may(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
    "pcie_gen_max": lambda calls, handle: calls.may(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
    "pcie_width_max": lambda calls, handle: calls.may(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
    "power_cap_w": _power_cap_w,
}
"""How each reading of fields.py that is a call of its own is made."""
assert {one.name for one in FIELDS if one.call} == _READERS.keys()

_UNIONS: Final[Mapping[int, str]] = {
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
}


def _value(answer: Any) -> int | None:
    """A field's value; None where it is not supported. Raises LostError."""
    if answer.nvmlReturn in LOST:
        raise LostError("PL-HOST-010", f"NVML field {answer.fieldId}: error {answer.nvmlReturn}")
    if answer.nvmlReturn != pynvml.NVML_SUCCESS or answer.valueType not in _UNIONS:
        return None
    return int(getattr(answer.value, _UNIONS[answer.valueType]))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
