"""Compiles the simulated driver at first use. The result is kept by the hash of its sources."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final

from paceline.model.errors import HostSetup

SONAME: Final = "libnvidia-ml.so.1"
FLAGS: Final = (
    "-std=gnu11",
    "-O2",
    "-Wall",
    "-Wextra",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    f"-Wl,-soname,{SONAME}",
    "-pthread",
)
COMPILE_DEADLINE_S: Final = 120.0


def sources() -> tuple[Path, ...]:
    """The C files and headers, by name."""
    folder = Path(str(files("paceline.sim") / "native"))
    return tuple(sorted(path for path in folder.iterdir() if path.suffix in {".c", ".h"}))


def compiler(env: Mapping[str, str]) -> list[str]:
    """The compiler's command: $CC if set, else gcc or cc from PATH. Raises HostSetup (PL-HOST-001) if there is none."""
    wanted = shlex.split(env.get("CC", ""))
    for command in [wanted] if wanted else [["gcc"], ["cc"]]:
        if shutil.which(command[0], path=env.get("PATH", "")):
            return command
    message = (
        f"No C compiler: {wanted[0]} ($CC) is not there" if wanted else "No C compiler: neither gcc nor cc is on PATH"
    )
    raise HostSetup("PL-HOST-001", message, "apt install gcc")


def library(home: Path, env: Mapping[str, str] | None = None) -> Path:
    """Path of the compiled libnvidia-ml.so.1 below `home`; compiles it (about a second) if it is not there.

    Two callers at once both compile; the rename lets one win, and both results are the same.
    """
    env = os.environ if env is None else env
    digest = hashlib.sha256(platform.machine().encode())
    for path in (inputs := sources()):
        digest.update(path.name.encode() + path.read_bytes())
    target = home / f"lib-{digest.hexdigest()[:16]}" / SONAME
    if target.exists():
        return target
    command = compiler(env)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        output = Path(scratch) / SONAME
        _compile([*command, *FLAGS, "-o", str(output), *(str(path) for path in inputs if path.suffix == ".c")], env)
        output.replace(target)
    return target


def _compile(command: list[str], env: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            command, env=dict(env), capture_output=True, text=True, timeout=COMPILE_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostSetup(
            "PL-HOST-001", f"The C compiler {command[0]} does not work: {error}", "apt install gcc"
        ) from error
    if done.returncode != 0:
        message = f"Compiling the simulated driver failed:\n{done.stderr[-2000:]}"
        raise HostSetup("PL-HOST-001", message, "apt install gcc libc6-dev")
