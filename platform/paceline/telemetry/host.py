"""What a machine says about itself."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from paceline.model.hardware import HostFacts
from paceline.model.ids import HostName
from paceline.sim.pace import STATE_VARIABLE
from paceline.sim.state import HostState

HOST_NAME_VARIABLE: Final = "PACELINE_HOST_NAME"
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
NVSWITCHES: Final = Path("/proc/driver/nvidia-nvswitch/devices")
"""One folder for each NVSwitch of this machine. Those of a rack (NVL72) are elsewhere, and not of this machine."""


def host_facts(address: str, env: Mapping[str, str] | None = None) -> HostFacts:
    """Facts of this machine, or of the simulated host that `env` (the process's by default) names.

    `address` is the machine's address as Ray knows it.
    """
    env = os.environ if env is None else env
    state = env.get(STATE_VARIABLE)
    name = env.get(HOST_NAME_VARIABLE) or (HostState.open(state).host if state else socket.gethostname())
    nvswitch = not state and NVSWITCHES.is_dir() and any(NVSWITCHES.iterdir())
    return HostFacts(HostName(name), address, BOOT_ID.read_text().strip(), simulated=bool(state), nvswitch=nvswitch)
