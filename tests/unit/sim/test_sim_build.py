"""Compiling the simulated driver: once, safely, and with a clear word when there is no compiler."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.model.errors import HostSetup
from paceline.sim import build

needs_compiler = pytest.mark.skipif(not (shutil.which("gcc") or shutil.which("cc")), reason="no C compiler")


@pytest.mark.parametrize(
    "env", [{"PATH": ""}, {"PATH": "/nowhere"}, {"PATH": "/usr/bin", "CC": "no-such-compiler -m64"}]
)
def test_no_compiler_says_what_to_install(tmp_path: Path, env: dict[str, str]) -> None:
    with pytest.raises(HostSetup, match="No C compiler") as caught:
        build.library(tmp_path, env)
    assert (caught.value.code, caught.value.hint) == ("PL-HOST-001", "apt install gcc")
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_fails_shows_its_words(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'stdio.h: not found' >&2\nexit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(HostSetup, match=r"stdio\.h: not found"):
        build.library(tmp_path / "home", {"PATH": "/usr/bin:/bin", "CC": str(compiler)})


@needs_compiler
def test_it_is_compiled_once_without_warnings(tmp_path: Path) -> None:
    first = build.library(tmp_path)
    stamp = first.stat().st_mtime_ns
    assert build.library(tmp_path) == first
    assert first.stat().st_mtime_ns == stamp
    assert [path.name for path in first.parent.iterdir()] == [build.SONAME]
    inputs = [str(path) for path in build.sources() if path.suffix == ".c"]
    strict = subprocess.run(
        [
            *build.compiler({"PATH": "/usr/bin:/bin:/usr/local/bin"}),
            *build.FLAGS,
            "-Werror",
            "-o",
            str(tmp_path / "x"),
            *inputs,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert strict.stderr == ""


@needs_compiler
def test_two_at_once_both_get_the_library(tmp_path: Path) -> None:
    code = "import sys, pathlib; from paceline.sim.build import library; print(library(pathlib.Path(sys.argv[1])))"
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    paths = {process.communicate(timeout=120)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(paths) == 1
    assert Path(paths.pop()).exists()
