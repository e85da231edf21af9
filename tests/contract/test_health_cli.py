"""The commands of an operator and the lists of health, against a server that really listens."""

import json

import pytest

from command_line import Cli
from inventory_maker import found, port_down, uuid
from paceline.model.errors import BadRequest
from paceline.model.hardware import DeviceState, LinkSample
from paceline.model.health import Advice, AgentStats
from paceline.sdk import words


def test_gpus_show_score_spread_age_and_reason(cli: Cli) -> None:
    cli.fleet.measure("bea", 0.0101)
    lines = cli.text("get", "gpus").splitlines()
    assert lines[0].split() == ["GPU", "STATE", "SCORE", "SPREAD", "ON", "RAY", "AGE", "ATTEMPT", "REASON"]
    slow = next(line for line in lines if line.startswith("bea/0 "))
    assert slow.split()[1:4] == ["HEALTHY", "1.010", "0.99%"]
    sick = next(line for line in lines if line.startswith("ada/1 "))
    assert "Xid 79" in sick
    row = json.loads(cli.run("get", "gpus", "-o", "json")[1])[8]
    assert row["spread"] == pytest.approx(0.0099, abs=1e-4)


def test_a_gpu_is_described_with_what_led_there_and_what_comes_next(cli: Cli) -> None:
    hot = found("ada", 5, "remap.pending", Advice.QUARANTINE, cli.fleet.now_ns)
    cli.fleet.say("ada", findings=(hot,))
    told = cli.text("describe", "gpu", "ada/5")
    wanted = ["repair", "reset_gpu: RESET_GPU is what remap.pending asks for", "scores by class of work", "compute"]
    wanted += ["open findings", "remap.pending v1", "QUARANTINE", "verdicts", "enforce", "story"]
    places = [told.index(text) for text in wanted]
    assert places == sorted(places)
    assert {"health", "story"} == set(json.loads(cli.run("describe", "gpu", "ada/5", "-o", "json")[1]))


def test_a_host_is_described_with_its_ports_and_the_cost_of_its_watch(cli: Cli) -> None:
    port = LinkSample("mlx5_0/1", "ib", cli.fleet.now_ns, False, None, 3, None)
    stats = AgentStats(12.4, 90 << 20, 40 << 20, 900, 2500, 2, "read")
    cli.fleet.say("ada", links=(port,), agent=stats, node_findings=(port_down(cli.fleet.now_ns),))
    told = cli.text("describe", "host", "ada")
    assert "CORDONED" in told
    assert "12 s of CPU since its start, 90 + 40 MiB, NVML 0.9 ms (p99 2.5), reader" in " ".join(told.split())
    assert [line.split()[3] for line in told.splitlines() if "mlx5_0/1" in line and "ib" in line] == ["down"]
    assert "down" in cli.text("get", "links")
    assert cli.text("describe", "node", "ada").splitlines()[0] == told.splitlines()[0]
    assert cli.run("describe", "host", "nix")[0] == 3
    assert cli.run("explain", "host", "ada")[0] == 2
    assert cli.run("story", "node", "ada")[0] == 2


def test_a_node_is_cordoned_drained_and_given_back(cli: Cli) -> None:
    assert cli.run("cordon", "ada")[0] == 2
    assert cli.text("cordon", "bea", "--reason", "new cable") == "bea is CORDONED: ada: new cable\n"
    status, _, err = cli.run("cordon", "bea", "--reason", "again")
    assert (status, "PL-REQ-015" in err) == (2, True)
    assert cli.text("uncordon", "bea", "--reason", "done") == "bea is READY: reports\n"
    told = cli.text("drain", "ada", "--deadline", "5m", "--reason", "loud fan")
    assert told.splitlines()[:2] == [
        "ada is DRAINING: ada: loud fan",
        "4 devices of it are leased; their work must move within 5m",
    ]
    assert "its gang must move" in cli.text("explain", "job", "job-1")
    assert "s left" in cli.text("describe", "host", "ada")
    assert cli.run("drain", "ada", "--deadline", "soon", "--reason", "x")[0] == 2
    assert cli.run("drain", "nix", "--reason", "x")[0] == 3
    assert "READY" in cli.text("uncordon", "ada", "--reason", "quiet again")


def test_a_device_is_cordoned_by_place_or_uuid(cli: Cli) -> None:
    assert cli.text("cordon", "bea/2", "--reason", "a test") == "bea/2 is HEALTHY, and cordoned: a test\n"
    assert "cordoned by ada: a test" in cli.text("get", "gpus")
    assert "by ada: a test" in cli.text("describe", "gpu", "bea/2")
    assert cli.text("uncordon", uuid("bea", 2), "--reason", "done").startswith("bea/2 is HEALTHY")
    assert cli.run("uncordon", "bea/2", "--reason", "x")[0] == 2
    assert cli.run("cordon", "nix", "--reason", "x")[0] == 3


def test_a_device_is_repaired_step_by_step(cli: Cli) -> None:
    status, _, err = cli.run("repair", "bea/0", "--reason", "x")
    assert status == 2
    assert "the device is HEALTHY, not quarantined" in err
    assert "ada/1 is REPAIR" in cli.text("repair", "ada/1", "--action", "reboot_node", "--reason", "try it")
    assert cli.run("repair-done", "ada/1", "--reason", "x")[0] == 2
    assert "ada/1 is QUARANTINED" in cli.text("repair-done", "ada/1", "--failed", "--reason", "still there")
    cli.text("repair", "ada/1", "--action", "reset_gpu", "--reason", "again")
    assert "ada/1 is PROBATION" in cli.text("repair-done", "ada/1", "--ok", "--reason", "reset")
    assert "failed" in cli.text("describe", "gpu", "ada/1")
    assert "bea/7 is RETIRED" in cli.text("retire", "bea/7", "--reason", "sold")
    assert cli.fleet.state("bea", 7) is DeviceState.RETIRED
    assert cli.run("repair", "ada/1", "--action", "hammer", "--reason", "x")[0] == 2


def test_verdicts_are_listed_and_labelled_and_rules_count_them(cli: Cli) -> None:
    listed = cli.text("get", "verdicts")
    assert "xid v1" in listed
    verdict = next(v for v in json.loads(cli.run("get", "verdicts", "-o", "json")[1]) if v["rule_id"] == "xid")
    told = cli.text("label", str(verdict["id"]), "false")
    assert told == f"verdict {verdict['id']} of xid was wrong\n1 of 1 labelled verdicts of xid were wrong\n"
    row = next(line for line in cli.text("get", "rules").splitlines() if line.startswith("xid v"))
    assert row.split()[2:6] == ["enforce", "1", "1", "100.00%"]
    assert cli.run("label", "999", "true")[0] == 3
    assert cli.run("label", str(verdict["id"]), "perhaps")[0] == 2


def test_alerts_are_listed(cli: Cli) -> None:
    [row] = [line for line in cli.text("get", "alerts").splitlines() if "quarantine" in line]
    assert "ada/1 is DRAINING: Xid 79" in row


def test_lengths_of_time_need_a_unit() -> None:
    assert [words.seconds(text) for text in ("90s", "10m", "2h", "1d")] == [90, 600, 7200, 86400]
    for wrong in ("", "10", "m", "-5m", "1.5h", "²m", "9" * 12 + "d"):
        with pytest.raises(BadRequest):
            words.seconds(wrong)
