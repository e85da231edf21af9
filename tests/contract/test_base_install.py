"""A plain `pip install paceline` is the SDK and the command line: both work where none of the cluster's packages is there."""

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT_THE_EXTRAS = """
import sys
ABSENT = {"alembic", "fastapi", "jinja2", "numpy", "prometheus_client", "psutil", "psycopg", "pynvml", "ray", "sqlalchemy",
          "starlette", "torch", "uvicorn"}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import paceline
from paceline.cli import main
paceline.Client, paceline.AsyncClient
sys.exit(main.run(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        pytest.param(["--help"], 0, "quarantine", id="help"),
        pytest.param(
            ["get", "gpus", "--address", "http://127.0.0.1:1"], 8, "does not answer", id="a server that is away"
        ),
        pytest.param(["sim", "up"], 6, "pip install 'paceline[cluster]'", id="what needs the cluster's packages"),
    ],
)
def test_the_client_alone(command: list[str], status: int, words: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_EXTRAS, *command],
        env={"PACELINE_HOME": str(tmp_path), "PATH": "", "PACELINE_TOKEN": "none"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert words in done.stdout + done.stderr
