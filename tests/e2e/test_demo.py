"""The demo is the end-to-end test: it checks each of its claims, and this checks the demo."""

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
CLAIMS = 15
DEADLINE_S = 1500.0


@pytest.mark.e2e
@pytest.mark.timeout(DEADLINE_S + 120)
def test_every_claim_is_checked_and_nothing_is_left() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "paceline.sim.demo"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    screen = done.stdout[done.stdout.index("What happened, each line checked") :]
    assert screen.count("✔") == CLAIMS
    home = Path(re.search(r"logs\s+(\S+)/logs", screen)[1])
    assert (home / "logs" / "job-ridden.log").exists()
    assert [p.pid for p in psutil.process_iter() if _belongs(p, home)] == []


def test_a_claim_that_is_not_true_fails_the_demo() -> None:
    """The check behind the screen: no claim is printed that did not hold."""
    from paceline.sim.demo.scene import ClaimFailedError, Demo

    demo = Demo(ROOT, {})
    demo.claim("two is two", True, "2")
    with pytest.raises(ClaimFailedError, match="two is three"):
        demo.claim("two is three", False, "2")
    assert demo.claims == [("two is two", "2")]


def _belongs(process: psutil.Process, home: Path) -> bool:
    try:
        return process.environ().get("PACELINE_HOME") == str(home)
    except psutil.Error:
        return False
