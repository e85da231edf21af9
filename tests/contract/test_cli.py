"""The command line against a server that really listens: what it prints, where, and how it ends."""

import json
import os
import pty
import subprocess
import sys
import threading
import time

import pytest

from command_line import Cli
from inventory_maker import uuid
from paceline.model.hardware import DeviceState
from paceline.sdk import words
from waiting import until


def test_lists_fit_a_hundred_columns_and_say_what_matters(cli: Cli) -> None:
    assert cli.text("get", "hosts").splitlines()[1].split()[:3] == ["ada", "READY", "7/8"]
    gpus = cli.text("get", "gpus")
    sick = next(line for line in gpus.splitlines() if line.startswith("ada/1 "))
    assert "QUARANTINED" in sick
    assert "held" in sick
    assert "job-1/run/2" in gpus
    assert cli.text("get", "devices") == gpus
    assert "RUNNING" in cli.text("get", "jobs")
    assert "1.00%" in cli.text("get", "leases")
    assert "attempt 2 resumed at step 200" in cli.text("get", "events", "--limit", "5")
    assert cli.run("get", "sessions") == (0, "", "no sessions\n")


def test_wide_and_json_hold_everything(cli: Cli) -> None:
    status, out, _ = cli.run("get", "gpus", "-o", "wide")
    assert status == 0
    assert uuid("ada", 1) in out
    assert "Xid 79: GPU has fallen off the bus" in out
    rows = json.loads(cli.run("get", "gpus", "-o", "json")[1])
    assert len(rows) == 16
    assert {"uuid", "state", "score", "lease_id"} <= set(rows[0])
    assert [e["kind"] for e in json.loads(cli.run("story", "device", "ada/1", "-o", "json")[1])["events"]][-2:] == [
        "attempt resumed",
        "job",
    ]


def test_the_story_reads_from_the_sample_to_the_resumed_step(cli: Cli) -> None:
    told = cli.text("story", "gpu", "ada/1")
    wanted = [
        "Xid 79 (from nvml)",
        "└ Xid 79: GPU has fallen off the bus",
        "└ HEALTHY → DRAINING",
        "└ job-1/run/1 must move",
        "└ attempt 1 ended: moved off a sick device",
        "└ attempt 2 started on ada",
        "└ attempt 2 resumed at step 200",
    ]
    places = [told.index(text) for text in wanted]
    assert places == sorted(places)
    assert cli.text("story", "device", uuid("ada", 1)) == told
    assert cli.text("explain", "gpu", "ada/1") == told


def test_a_device_is_named_by_place_by_uuid_or_by_its_beginning(cli: Cli) -> None:
    assert uuid("bea", 3) in cli.text("describe", "device", "GPU-bea-3")
    status, _, err = cli.run("describe", "device", "GPU-bea")
    assert status == 2
    assert "8 devices begin with GPU-bea" in err
    assert cli.run("describe", "device", "GPU-nix")[0] == 3
    assert "serial" in cli.text("describe", "gpu", "bea/3")


def test_a_job_is_described_and_explained(cli: Cli) -> None:
    told = cli.text("describe", "job", "job-1")
    assert "attempts" in told
    assert "loss=" in told
    why = cli.text("explain", "job", "job-1")
    assert "job-1/run is RUNNING" in why
    assert "attempt 1: 4 devices, spread 1.00%, went on from step 0; ended: moved off a sick device" in why
    cli.fleet.fall("ada", 2)
    assert "its gang must move: job-1/run/2 must move: Xid 79" in cli.text("explain", "job", "job-1")
    assert cli.run("explain", "job", "none")[0] == 3


def test_an_operators_hand_needs_a_reason(cli: Cli) -> None:
    assert cli.run("quarantine", "bea/0")[0] == 2
    status, _, err = cli.run("quarantine", "bea/0", "--reason", " ")
    assert (status, "PL-REQ-010" in err) == (2, True)
    assert "bea/0 is DRAINING: operator: loud fan" in cli.text("quarantine", "bea/0", "--reason", "loud fan")
    assert cli.fleet.state("bea", 0) is DeviceState.DRAINING
    assert "PROBATION" in cli.text("release", "ada/1", "--reason", "reseated")
    status, _, err = cli.run("release", "bea/1", "--reason", "x")
    assert status == 2
    assert err.splitlines()[0].endswith("the device is HEALTHY, not quarantined")


def test_status_and_version(cli: Cli) -> None:
    told = cli.text("status")
    assert "15 HEALTHY, 1 QUARANTINED" in told
    assert "1 held" in told
    assert json.loads(cli.run("status", "-o", "json")[1])["runs"] == {"RUNNING": 1}
    assert f"at {cli.url}" in cli.text("version")


def test_errors_say_what_why_and_what_to_do_on_stderr(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.run("get", "frogs")[0] == 2
    monkeypatch.setenv("PACELINE_TOKEN", "wrong")
    status, out, err = cli.run("get", "hosts")
    assert (status, out) == (4, "")
    assert [line.split(":")[0].strip() for line in err.splitlines()] == ["error", "try", "code"]
    monkeypatch.setattr("paceline.sdk.client.Client.__init__.__kwdefaults__", {"deadline_s": 0.2, "transport": None})
    status, out, err = cli.run("get", "hosts", "--address", "127.0.0.1:1")
    assert (status, out) == (8, "")
    assert "PL-NET-001" in err


def test_colour_is_for_terminals_that_want_it(cli: Cli) -> None:
    command = [sys.executable, "-c", "from paceline.cli.main import main; main()", "get", "hosts"]
    plain = dict(os.environ) | {"TERM": "xterm-256color"}
    plain.pop("NO_COLOR", None)
    assert "\x1b[" in on_terminal(command, plain)
    assert "\x1b[3" not in on_terminal(command, plain | {"NO_COLOR": "1"})
    piped = subprocess.run(command, env=plain, capture_output=True, text=True, check=True)
    assert "\x1b[" not in piped.stdout


def on_terminal(command: list[str], env: dict[str, str]) -> str:
    """What a program writes to a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        read = bytearray()
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            read += piece
        process.wait(30)
    os.close(ours)
    return read.decode()


def test_following_events_shows_each_new_one_once(cli: Cli) -> None:
    command = [
        sys.executable,
        "-u",
        "-c",
        "from paceline.cli.main import main; main()",
        "get",
        "events",
        "-w",
        "--limit",
        "1",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines: list[str] = []
        assert process.stdout is not None
        reader = threading.Thread(target=lambda: lines.extend(process.stdout or ()), daemon=True)
        reader.start()
        until(lambda: len(lines) >= 2, 30, "the newest event is shown")
        cli.fleet.store.quarantine(uuid("bea", 4), "loud", "ada", time.time_ns())
        until(lambda: any("operator: loud" in line for line in lines), 30, "the new events are shown")
        process.terminate()
        process.wait(10)
        reader.join(10)
    ids = [line.split()[0] for line in lines[1:]]
    assert len(ids) == len(set(ids)) == 3
    assert lines[0].split()[0] == "ID"


def test_ages_and_names_are_short() -> None:
    second = 10**9
    ages = [words.age(1, 1 + n * second) for n in (5, 119, 600, 8000, 200_000)]
    assert ages == ["5s", "119s", "10m", "2h13m", "2d07h"]
    assert words.age(0, 5) == "-"
    assert words.short_names(["GPU-aaaaaaaa-1", "GPU-aaaaaaaa-2"]) == {
        "GPU-aaaaaaaa-1": "GPU-aaaaaaaa-1",
        "GPU-aaaaaaaa-2": "GPU-aaaaaaaa-2",
    }
