"""Programs that measure, each in a process of its own: started by a worker of Ray, and gone with it."""

import ctypes
import json
import signal
import subprocess
import sys
from typing import Any, Final

from paceline.model.errors import RunFailed

PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """To be called by the child first. Ray kills a worker whose hold is given back; what it has started must not go on on the device."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def answer(module: str, *arguments: str, deadline_s: float, env: dict[str, str] | None = None) -> Any:
    """The last line that the program prints, as JSON. Raises RunFailed (PL-RUN-010) with its last word, or subprocess.TimeoutExpired."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=False, env=env)
    if done.returncode != 0:
        raise RunFailed("PL-RUN-010", f"the probe failed: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    return json.loads(done.stdout.splitlines()[-1])
