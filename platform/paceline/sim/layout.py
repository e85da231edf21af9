"""The state file of one simulated host as ctypes structures: field by field what native/nvml_state.h declares."""

from ctypes import LittleEndianStructure, c_char, c_double, c_uint32, c_uint64
from typing import Final

MAGIC: Final = 0x544154534D495350
VERSION: Final = 3
DEVICES: Final = 16
PROCESSES: Final = 32
FAULTS: Final = 16
EVENTS: Final = 512
AUTO32: Final = 0xFFFF_FFFF
AUTO64: Final = 0xFFFF_FFFF_FFFF_FFFF
"""A reading with this value is computed by the library from the load of the device."""


class Fault(LittleEndianStructure):
    _fields_ = (
        ("call", c_char * 56),
        ("error", c_uint32),
        ("reserved", c_uint32),
        ("hang_until_ns", c_uint64),
        ("fired", c_uint64),
    )


class Process(LittleEndianStructure):
    _fields_ = (("pid", c_uint32), ("reserved", c_uint32), ("memory_bytes", c_uint64))


class Device(LittleEndianStructure):
    _fields_ = (
        ("sequence", c_uint32),
        ("present", c_uint32),
        ("uuid", c_char * 48),
        ("serial", c_char * 32),
        ("pci_bus_id", c_char * 32),
        ("product", c_char * 96),
        ("memory_bytes", c_uint64),
        ("memory_used_bytes", c_uint64),
        ("pace", c_double),
        ("power_cap_mw", c_uint32),
        ("power_max_mw", c_uint32),
        ("power_min_mw", c_uint32),
        ("power_idle_mw", c_uint32),
        ("sm_clock_max_mhz", c_uint32),
        ("sm_clock_idle_mhz", c_uint32),
        ("memory_clock_mhz", c_uint32),
        ("ambient_c", c_uint32),
        ("sm_clock_mhz", c_uint32),
        ("temperature_c", c_uint32),
        ("power_mw", c_uint32),
        ("utilisation_pct", c_uint32),
        ("throttle_reasons", c_uint64),
        ("ecc_corrected", c_uint64),
        ("ecc_uncorrected", c_uint64),
        ("ecc_corrected_total", c_uint64),
        ("ecc_uncorrected_total", c_uint64),
        ("throttle_sw_thermal_ns", c_uint64),
        ("throttle_hw_thermal_ns", c_uint64),
        ("throttle_power_brake_ns", c_uint64),
        ("throttle_since_ns", c_uint64),
        ("pcie_replays", c_uint64),
        ("remap_corrected", c_uint32),
        ("remap_uncorrected", c_uint32),
        ("remap_pending", c_uint32),
        ("remap_failed", c_uint32),
        ("recovery_action", c_uint32),
        ("sram_threshold_exceeded", c_uint32),
        ("process_count", c_uint32),
        ("mig_mode", c_uint32),
        ("pcie_gen", c_uint32),
        ("pcie_gen_max", c_uint32),
        ("pcie_width", c_uint32),
        ("pcie_width_max", c_uint32),
        ("processes", Process * PROCESSES),
        ("faults", Fault * FAULTS),
        ("calls", c_uint64),
        ("energy_mj", c_uint64),
        ("energy_at_ns", c_uint64),
    )


class Event(LittleEndianStructure):
    _fields_ = (
        ("number", c_uint64),
        ("type", c_uint64),
        ("data", c_uint64),
        ("at_ns", c_uint64),
        ("slot", c_uint32),
        ("reserved", c_uint32),
    )


class State(LittleEndianStructure):
    _fields_ = (
        ("magic", c_uint64),
        ("version", c_uint32),
        ("device_count", c_uint32),
        ("file_bytes", c_uint64),
        ("created_ns", c_uint64),
        ("nominal_step_s", c_double),
        ("link_pace", c_double),
        ("host", c_char * 64),
        ("driver_version", c_char * 32),
        ("nvml_version", c_char * 32),
        ("cuda_version", c_uint32),
        ("sequence", c_uint32),
        ("faults", Fault * FAULTS),
        ("calls", c_uint64),
        ("events", c_uint64),
        ("ring", Event * EVENTS),
        ("devices", Device * DEVICES),
    )


ALL: Final = {"pls_fault": Fault, "pls_process": Process, "pls_device": Device, "pls_event": Event, "pls_state": State}
"""C struct by C name, for the test that compares the two layouts."""
