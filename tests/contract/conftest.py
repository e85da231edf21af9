"""A command line whose server really listens, and has a fleet that rode through a fault."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import Cli
from inventory_maker import Fleet, ahead_ns
from paceline.control import auth
from paceline.control.app import create_app
from paceline.inventory.store import Store
from running_server import serve


@pytest.fixture
def cli(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Cli]:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(auth.issue_token(sqlite_store, "ada"))
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    monkeypatch.delenv("PACELINE_TOKEN", raising=False)
    monkeypatch.delenv("PACELINE_ADDRESS", raising=False)
    with serve(create_app(sqlite_store)) as url:
        (tmp_path / "server.json").write_text(json.dumps({"url": url}))
        fleet = Fleet(sqlite_store, now_ns=ahead_ns())
        fleet.ride_through_a_fault()
        yield Cli(fleet, capsys, url)
