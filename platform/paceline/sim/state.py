"""Builds and changes the state of one simulated host, while the processes that use it run.

Every change takes an exclusive lock on the file and moves the record's sequence number, so that writers never overlap
and a reader (the C library) never sees half a change. Slots are counted as the host was built (Ray's index), not as
NVML counts now.
"""

import ctypes
import fcntl
import math
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self, TypeAlias

from paceline.model.errors import BadRequest, NotFound
from paceline.model.hardware import RecoveryAction
from paceline.model.ids import HostName
from paceline.sim import layout
from paceline.sim.fleet import DeviceSpec
from paceline.sim.pace import STATE_VARIABLE, map_state, slot_of

ANY_CALL: Final = "*"
GPU_IS_LOST: Final = 15
"""NVML_ERROR_GPU_IS_LOST."""
FOREVER: Final = math.inf
EVENT_SBE: Final = 0x1
EVENT_DBE: Final = 0x2
EVENT_XID: Final = 0x8
EVENT_RECOVERY_ACTION: Final = 0x8000
FELL_OFF_THE_BUS: Final = 79
DRIVER_VERSION: Final = "580.65.06"
NVML_VERSION: Final = "13.580.65.06"
CUDA_VERSION: Final = 13000

# What the driver's counters show after an Xid, from the NVIDIA Xid catalog: 48 double-bit error, 63 row remapping
# recorded, 64 row remapping failed, 94 contained and 95 uncontained uncorrectable error. Recovery actions: 1 reset, 2
# reboot, 4 drain and reset.
_CONSEQUENCES: Final[dict[int, dict[str, int]]] = {
    48: {"ecc_uncorrected": 1, "ecc_uncorrected_total": 1, "recovery_action": 1},
    63: {"remap_pending": 1, "remap_uncorrected": 1},
    64: {"remap_failed": 1, "recovery_action": 1},
    74: {"recovery_action": 1},
    94: {"ecc_uncorrected": 1, "ecc_uncorrected_total": 1, "remap_pending": 1},
    95: {"ecc_uncorrected": 1, "ecc_uncorrected_total": 1, "remap_pending": 1, "recovery_action": 1},
    119: {"recovery_action": 1},
    140: {"ecc_uncorrected": 1, "ecc_uncorrected_total": 1, "recovery_action": 1},
}
THROTTLES: Final = {"thermal": 0x40, "power-brake": 0x80, "power-cap": 0x4}
"""Clock event reasons of nvml.h: hardware thermal slowdown, hardware power brake, and the software's power cap, which is no fault."""
_ADDED: Final = frozenset({"ecc_uncorrected", "ecc_uncorrected_total", "remap_uncorrected"})
_REPAIRED: Final = (
    "ecc_corrected",
    "ecc_uncorrected",
    "remap_pending",
    "remap_failed",
    "recovery_action",
    "sram_threshold_exceeded",
    "throttle_since_ns",
    "throttle_hw_thermal_ns",
    "throttle_power_brake_ns",
    "process_count",
)
_READ_ONLY: Final = frozenset(
    {"sequence", "present", "uuid", "serial", "pci_bus_id", "processes", "process_count", "faults", "calls"}
)

_Record: TypeAlias = layout.Device | layout.State


class HostState:
    """The state file of one host, mapped. Safe to use from several processes; `close` is the garbage collector's."""

    def __init__(self, path: Path, state: layout.State) -> None:
        self.path = path
        self._state = state

    @classmethod
    def create(
        cls, path: Path | str, host: HostName | str, devices: Sequence[DeviceSpec], nominal_step_s: float = 0.05
    ) -> Self:
        """Builds the host's file and opens it. A file that was there is replaced at once; processes that had it keep
        the old one.

        Raises BadRequest (PL-REQ-021) for more than 16 devices, a text that is too long, or a step time that is not
        above 0.
        """
        if len(devices) > layout.DEVICES or not nominal_step_s > 0:
            raise BadRequest("PL-REQ-021", f"A host has at most {layout.DEVICES} devices and a step time above 0")
        state = layout.State(
            magic=layout.MAGIC,
            version=layout.VERSION,
            device_count=len(devices),
            file_bytes=ctypes.sizeof(layout.State),
            created_ns=time.time_ns(),
            nominal_step_s=nominal_step_s,
            link_pace=1.0,
            host=_text(host, 64),
            driver_version=_text(DRIVER_VERSION, 32),
            nvml_version=_text(NVML_VERSION, 32),
            cuda_version=CUDA_VERSION,
        )
        for slot, spec in enumerate(devices):
            state.devices[slot] = _device(spec, slot)
        _replace(Path(path), bytes(state))
        kmsg_path(path).unlink(missing_ok=True)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Opens a host's file. Raises HostSetup (PL-HOST-002) if there is none or it is of another version."""
        return cls(Path(path), map_state(path))

    @property
    def host(self) -> HostName:
        return HostName(self._state.host.decode())

    @property
    def device_count(self) -> int:
        """Devices that were built in, lost ones included."""
        return int(self._state.device_count)

    @property
    def host_calls(self) -> int:
        """NVML calls so far that concern no one device."""
        return int(self._state.calls)

    @property
    def events_posted(self) -> int:
        return int(self._state.events)

    def device(self, index: int) -> layout.Device:
        """A consistent copy of the record of one device."""
        with self._locked():
            return layout.Device.from_buffer_copy(self._record(index))

    def present(self) -> tuple[int, ...]:
        """Slots of the devices that are on the bus: slot present()[i] is what NVML calls device i now."""
        return tuple(slot for slot in range(self.device_count) if self._state.devices[slot].present)

    # ---- faults ----

    def inject_xid(self, index: int, code: int, consequences: bool = True) -> None:
        """Raises an Xid, as the driver would: the event, and what the counters show after it.

        Xid 79 takes the device off the bus. With `consequences` false only the event is posted.
        """
        self.post_event(index, EVENT_XID, code)
        if not consequences:
            return
        changes = _CONSEQUENCES.get(code, {})
        if changes:
            with self._writing(index) as device:
                for name, value in changes.items():
                    setattr(device, name, getattr(device, name) + value if name in _ADDED else value)
        if code == FELL_OFF_THE_BUS:
            self.lose(index)

    def post_event(self, index: int, kind: int, data: int = 0) -> None:
        """Puts one event on the ring; every event set that has registered the device for `kind` sees it once."""
        self._record(index)
        with self._locked():
            number = int(self._state.events) + 1
            slot = self._state.ring[(number - 1) % layout.EVENTS]
            slot.number = 0  # a reader of the old event sees that it is gone
            slot.type, slot.data, slot.at_ns, slot.slot = kind, data, time.time_ns(), index
            slot.number = number
            self._state.events = number

    def set_error(self, index: int | None, call: str = ANY_CALL, nvml_error: int = GPU_IS_LOST) -> None:
        """Makes `call` (pynvml's name, or "*" for all) on one device return `nvml_error`; 0 ends it. Index None: the
        host.

        A host fault also acts on nvmlInit, nvmlDeviceGetCount, nvmlEventSetWait and the like, which concern no one
        device.
        """
        with self._fault(index, call) as fault:
            fault.error = nvml_error

    def set_hang(self, index: int | None, seconds: float = FOREVER, call: str = ANY_CALL) -> None:
        """Makes `call` hang for `seconds` from now (inf: until cleared); 0 lets what hangs go on within 10 ms."""
        until = layout.AUTO64 if math.isinf(seconds) else time.time_ns() + int(seconds * 1e9)
        with self._fault(index, call) as fault:
            fault.hang_until_ns = until if seconds > 0 else 0

    def clear_faults(self, index: int | None) -> None:
        """Ends every injected error and hang of one device, or of the host (None)."""
        with self._writing(index) as record:
            for fault in record.faults:
                fault.hang_until_ns = 0
                ctypes.memset(ctypes.byref(fault), 0, ctypes.sizeof(fault))

    def fired(self, index: int | None, call: str = ANY_CALL) -> int:
        """How often the fault on `call` has taken effect since it was first set."""
        name = _call_name(call)
        return sum(int(fault.fired) for fault in self._record(index).faults if fault.call.decode() == name)

    def lose(self, index: int) -> None:
        """The device falls off the bus: NVML's count falls, and calls on old handles say GPU_IS_LOST."""
        with self._writing(index) as device:
            device.present = 0

    def restore(self, index: int) -> None:
        """The device is back, as after a repair: no faults, volatile counters at 0, remaps done, full speed."""
        self.clear_faults(index)
        with self._writing(index) as device:
            device.present = 1
            for name in _REPAIRED:
                setattr(device, name, 0)
            device.throttle_reasons, device.pcie_gen, device.pcie_width = (
                layout.AUTO64,
                layout.AUTO32,
                device.pcie_width_max,
            )

    def throttle(self, index: int, reason: str | None) -> None:
        """Holds the clocks down for `reason` (one of THROTTLES) from now on, and counts the time; None ends it.

        Raises BadRequest (PL-REQ-021) for another reason.
        """
        if reason is not None and reason not in THROTTLES:
            raise BadRequest("PL-REQ-021", f"No such reason: {reason}", f"One of: {', '.join(sorted(THROTTLES))}")
        bits = THROTTLES[reason] if reason else layout.AUTO64
        self.set(index, throttle_reasons=bits, throttle_since_ns=time.time_ns() if reason else 0)

    def set_recovery_action(self, index: int, action: RecoveryAction) -> None:
        """What the driver asks for from now on, and the event that says so."""
        self.set(index, recovery_action=action)
        self.post_event(index, EVENT_RECOVERY_ACTION)

    def write_kmsg(self, line: str) -> None:
        """Appends a line to the host's kernel log, as the kernel would: with a number, and the time since boot."""
        with self._locked(), kmsg_path(self.path).open("a+b") as log:
            log.seek(0)
            number = log.read().count(b"\n")
            uptime_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            log.write(f"3,{number},{uptime_us},-;{line}\n".encode())

    # ---- readings ----

    def set_pace(self, index: int, factor: float) -> None:
        """Sets time per step relative to the median device, from the next step on. Raises BadRequest unless > 0."""
        if not factor > 0:
            raise BadRequest("PL-REQ-021", f"A pace is a time relative to the median device, above 0, not {factor}")
        self.set(index, pace=factor)

    def set_link_pace(self, factor: float) -> None:
        """Sets the time of exchanges between the devices, relative to a sound machine's. Raises BadRequest unless > 0."""
        if not factor > 0:
            raise BadRequest("PL-REQ-021", f"A pace is a time relative to a sound machine, above 0, not {factor}")
        self._state.link_pace = factor

    def set(self, index: int, **readings: int | float) -> None:
        """Sets fields of a device's record by name (layout.Device), all in one change; layout.AUTO32 gives one back to
        the load.

        Raises BadRequest (PL-REQ-021) for a field that is not a reading.
        """
        known = {name for name, *_ in layout.Device._fields_} - _READ_ONLY
        if unknown := readings.keys() - known:
            raise BadRequest(
                "PL-REQ-021", f"No such reading: {', '.join(sorted(unknown))}", f"One of: {', '.join(sorted(known))}"
            )
        with self._writing(index) as device:
            for name, value in readings.items():
                setattr(device, name, value)

    def set_processes(self, index: int, processes: Sequence[tuple[int, int]]) -> None:
        """The (pid, memory in bytes) that run on a device. NVML shows those that are alive, and counts the device as
        busy then."""
        if len(processes) > layout.PROCESSES:
            raise BadRequest("PL-REQ-021", f"At most {layout.PROCESSES} processes on a device")
        with self._writing(index) as device:
            for slot, (pid, memory_bytes) in enumerate(processes):
                device.processes[slot] = layout.Process(pid, 0, memory_bytes)
            device.process_count = len(processes)

    # ---- the lock and the sequence ----

    def _record(self, index: int | None) -> _Record:
        if index is None:
            return self._state
        if not 0 <= index < self.device_count:
            raise NotFound("PL-FIND-010", f"The simulated host {self.host} has no device {index}")
        record: layout.Device = self._state.devices[index]
        return record

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self.path.open("r+b") as file:  # its own descriptor: flock then also keeps threads apart
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _writing(self, index: int | None) -> Iterator[_Record]:
        record = self._record(index)
        with self._locked():
            record.sequence = (record.sequence | 1) & layout.AUTO32  # a writer that died left it odd: go on from there
            try:
                yield record
            finally:
                record.sequence = (record.sequence + 1) & layout.AUTO32

    @contextmanager
    def _fault(self, index: int | None, call: str) -> Iterator[layout.Fault]:
        name = _call_name(call).encode()
        with self._writing(index) as record:
            slots: list[layout.Fault] = list(record.faults)
            free = [fault for fault in slots if not fault.call]
            known = [fault for fault in slots if fault.call == name]
            if not known and not free:
                raise BadRequest(
                    "PL-REQ-021", f"At most {layout.FAULTS} faults at once", "Clear some: paceline sim error --clear"
                )
            fault = (known or free)[0]
            fault.call = name
            yield fault


def kmsg_path(state: Path | str) -> Path:
    """The kernel log of the simulated host with this state file; it is there once something was written."""
    return Path(state).with_suffix(".kmsg")


def _call_name(call: str) -> str:
    """pynvml's name without a version suffix. Raises BadRequest (PL-REQ-021) if it is no NVML call."""
    if call == ANY_CALL:
        return call
    if not re.fullmatch(r"nvml[A-Za-z0-9]{1,48}(_v\d)?", call):
        raise BadRequest(
            "PL-REQ-021", f"{call!r} is no NVML call", "Name it as pynvml does, e.g. nvmlDeviceGetTemperature"
        )
    return re.sub(r"_v\d$", "", call)


def _text(value: str, size: int) -> bytes:
    data = value.encode()
    if len(data) >= size:
        raise BadRequest("PL-REQ-021", f"{value!r} is longer than {size - 1} bytes")
    return data


def _device(spec: DeviceSpec, slot: int) -> layout.Device:
    cap_mw = int(spec.power_cap_w * 1000)
    return layout.Device(
        present=1,
        uuid=_text(spec.uuid, 48),
        serial=_text(spec.serial, 32),
        pci_bus_id=_text(spec.pci_bus_id, 32),
        product=_text(spec.product, 96),
        memory_bytes=spec.memory_bytes,
        memory_used_bytes=layout.AUTO64,
        pace=spec.pace,
        power_cap_mw=cap_mw,
        power_max_mw=cap_mw,
        power_min_mw=200_000,
        power_idle_mw=70_000,
        sm_clock_max_mhz=1980,
        sm_clock_idle_mhz=345,
        memory_clock_mhz=2619,
        ambient_c=24 + slot % 4,  # rear slots get air that the front ones have warmed
        sm_clock_mhz=layout.AUTO32,
        temperature_c=layout.AUTO32,
        power_mw=layout.AUTO32,
        utilisation_pct=layout.AUTO32,
        throttle_reasons=layout.AUTO64,
        pcie_gen=layout.AUTO32,
        pcie_gen_max=5,
        pcie_width=16,
        pcie_width_max=16,
        energy_at_ns=time.time_ns(),
    )


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, scratch = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    Path(scratch).replace(path)


def occupy(index: int, pid: int, memory_bytes: int) -> None:
    """Show this process's host that `pid` works on the device that Ray calls `index`, until the process ends."""
    host = HostState.open(os.environ[STATE_VARIABLE])
    host.set_processes(slot_of(index, map_state(os.environ[STATE_VARIABLE])), [(pid, memory_bytes)])
