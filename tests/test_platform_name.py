"""The import root is a folder called platform/. Python's own module of that name must stay reachable from everywhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ASK = "import platform; print(platform.__file__); platform.system()"


def python(*args: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, *args], cwd=cwd, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.strip()


def is_pythons_own(path: str) -> bool:
    return path == os.path.join(os.path.dirname(os.__file__), "platform.py")


def test_no_init_file_in_the_import_root() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()


@pytest.mark.parametrize("cwd", [ROOT, ROOT / "platform", ROOT / "tests"], ids=lambda p: p.name)
def test_from_a_shell_in_the_repository(cwd: Path) -> None:
    assert is_pythons_own(python("-c", ASK, cwd=cwd))


def test_under_pytest() -> None:
    import platform

    assert is_pythons_own(str(platform.__file__))


def test_with_the_package_installed(tmp_path: Path) -> None:
    assert is_pythons_own(python("-c", "import paceline; " + ASK, cwd=tmp_path))


@pytest.mark.ray
def test_in_a_ray_worker(tmp_path: Path) -> None:
    script = f"""
import ray
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False,
         runtime_env={{"working_dir": {str(ROOT / "jobs")!r}, "py_modules": [{str(ROOT / "platform" / "paceline")!r}]}})
@ray.remote
def where():
    import platform, paceline.model
    return platform.__file__
print(ray.get(where.remote()))
"""
    env = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": "/tmp"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert is_pythons_own(done.stdout.strip().splitlines()[-1])
