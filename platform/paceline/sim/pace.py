"""How fast a simulated device is: what paced code asks on every step. Light enough to import anywhere."""

import ctypes
import mmap
import os
import time
from dataclasses import dataclass
from typing import Final

from paceline.model.errors import HostSetup, NotFound
from paceline.sim import layout

STATE_VARIABLE: Final = "PACELINE_SIM_STATE"
SLOTS_VARIABLE: Final = "PACELINE_SIM_SLOTS"
"""Slot of each device that was on the bus when the raylet started, in NVML's order."""


@dataclass(frozen=True, slots=True)
class Pace:
    """`factor` is time per step relative to the median device, `nominal_step_s` the step time of that median device.

    `lost`: the device has fallen off the bus, and a step on it never ends.
    """

    factor: float
    nominal_step_s: float
    lost: bool = False

    @property
    def step_s(self) -> float:
        return self.factor * self.nominal_step_s

    def finish(self, started: float) -> None:
        """Wait until a step that began at `started` (time.perf_counter) has taken as long as it does on this device."""
        time.sleep(max(0.0, started + self.step_s - time.perf_counter()))


_mapped: dict[str, tuple[int, layout.State]] = {}
"""Last mapping by path, with the inode it belongs to: a file that was replaced is mapped again."""


def map_state(path: str | os.PathLike[str]) -> layout.State:
    """Maps the state file, shared and writable. Raises HostSetup (PL-HOST-002) if there is none of this version."""
    try:
        with open(path, "r+b") as file:
            view = mmap.mmap(file.fileno(), 0)
    except (OSError, ValueError) as error:
        raise HostSetup(
            "PL-HOST-002", f"No simulated host at {path}: {error}", "Start one with: paceline sim up"
        ) from error
    ours = view[:8] == layout.MAGIC.to_bytes(8, "little")
    version = int.from_bytes(view[8:12], "little") if ours else -1
    if version != layout.VERSION or len(view) != ctypes.sizeof(layout.State):
        message = f"{path} is no simulated host of this version (found {version}, want {layout.VERSION})"
        raise HostSetup(
            "PL-HOST-002", message, "Start the simulated cluster again: paceline sim down, then paceline sim up"
        )
    return layout.State.from_buffer(view)


def pace_of(index: int) -> Pace | None:
    """Pace of the device with this Ray index on this host; None on a real host (PACELINE_SIM_STATE is not set).

    Costs one stat and two loads (a few µs), so a changed pace acts from the next step. Ray counts the devices when its
    raylet starts (PACELINE_SIM_SLOTS); one that falls off the bus later does not shift the indices that Ray hands out.
    Raises NotFound (PL-FIND-010) for an index that Ray cannot have handed out.
    """
    path = os.environ.get(STATE_VARIABLE)
    if not path:
        return None
    inode = os.stat(path).st_ino if os.path.exists(path) else -1
    known = _mapped.get(path)
    if known is None or known[0] != inode:
        known = inode, map_state(path)
        _mapped[path] = known
    state = known[1]
    device = state.devices[slot_of(index, state)]
    return Pace(device.pace, state.nominal_step_s, lost=not device.present)


def exchange_s(index: int) -> float | None:
    """Seconds that an exchange between the devices of this simulated host takes; None on a real one. Raises as `pace_of` does."""
    pace = pace_of(index)
    if pace is None:
        return None
    link_pace: float = _mapped[os.environ[STATE_VARIABLE]][1].link_pace
    return link_pace * pace.nominal_step_s


def slot_of(index: int, state: layout.State) -> int:
    """The place in the state file of the device that Ray calls `index`. Raises NotFound (PL-FIND-010)."""
    listed = os.environ.get(SLOTS_VARIABLE)
    slots = tuple(map(int, listed.split(","))) if listed else tuple(range(state.device_count))
    if not 0 <= index < len(slots):
        raise NotFound("PL-FIND-010", f"The simulated host {state.host.decode()} has no device {index}")
    return slots[index]
