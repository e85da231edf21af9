"""The command line as a test runs it: what it prints, where, and how it ends."""

from dataclasses import dataclass

import pytest

from inventory_maker import Fleet
from paceline.cli import main


@dataclass
class Cli:
    fleet: Fleet
    capture: pytest.CaptureFixture[str]
    url: str

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """(exit code, stdout, stderr)"""
        self.capture.readouterr()
        status = main.run(list(arguments))
        out, err = self.capture.readouterr()
        return status, out, err

    def text(self, *arguments: str) -> str:
        status, out, err = self.run(*arguments)
        assert (status, err) == (0, ""), err
        assert max(map(len, out.splitlines()), default=0) <= 100
        return out
