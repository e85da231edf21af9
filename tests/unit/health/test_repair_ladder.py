"""The repair ladder, rung by rung."""

from importlib.resources import files

import pytest

from paceline.health.repair import (
    BY_ADVICE,
    BY_DRIVER,
    REPAIRS_OF_A_WEEK,
    WINDOW_NS,
    RepairPlan,
    RepairRecord,
    next_action,
    wanted,
)
from paceline.health.rules import load as rules
from paceline.health.xid_tables import rows_of
from paceline.model.hardware import RecoveryAction
from paceline.model.health import Advice, Finding, RepairAction
from paceline.model.ids import DeviceUuid

A = RepairAction
NOW = 10 * WINDOW_NS
HOUR_NS = 3_600 * 10**9
PEERS = (DeviceUuid("GPU-3"), DeviceUuid("GPU-2"))


def done(action: RepairAction, code: str = "xid:119", ok: bool = True, hours_ago: float = 5) -> RepairRecord:
    return RepairRecord(action, code, NOW - int(hours_ago * HOUR_NS), ok)


def planned(want: RepairAction, *history: RepairRecord, code: str = "xid:119") -> RepairPlan:
    return next_action(want, code, history, NOW, False, ())


@pytest.mark.parametrize("want", list(A))
def test_without_a_history_it_is_what_is_wanted(want: RepairAction) -> None:
    assert planned(want) == RepairPlan(want, f"{want.value} is what xid:119 asks for")


@pytest.mark.parametrize(
    ("tried", "then"), [(A.RESTART_APP, A.RESET_GPU), (A.RESET_GPU, A.REBOOT_NODE), (A.REBOOT_NODE, A.REPLACE)]
)
def test_a_rung_that_failed_leads_to_the_next(tried: RepairAction, then: RepairAction) -> None:
    plan = planned(tried, done(tried, ok=False))
    assert (plan.action, plan.reason) == (then, f"{tried.value} has failed for xid:119")


def test_the_same_code_after_two_reboots_is_a_replacement() -> None:
    assert planned(A.REBOOT_NODE, done(A.REBOOT_NODE)).action is A.REBOOT_NODE
    plan = planned(A.REBOOT_NODE, done(A.REBOOT_NODE, hours_ago=50), done(A.REBOOT_NODE))
    assert (plan.action, plan.reason) == (A.REPLACE, "xid:119 came again after 2 × REBOOT_NODE")


def test_another_code_begins_anew() -> None:
    before = [done(A.REBOOT_NODE, "xid:79"), done(A.REBOOT_NODE, "xid:79"), done(A.RESET_GPU, "xid:79", ok=False)]
    assert planned(A.RESET_GPU, *before).action is A.RESET_GPU


def test_a_failed_reset_and_a_failed_reboot_lead_two_rungs_up() -> None:
    assert planned(A.RESET_GPU, done(A.RESET_GPU, ok=False), done(A.REBOOT_NODE, ok=False)).action is A.REPLACE


def test_five_repairs_in_a_week_are_enough_whatever_for() -> None:
    codes = [done(A.RESET_GPU, f"xid:{n}", hours_ago=n) for n in range(1, REPAIRS_OF_A_WEEK + 1)]
    assert planned(A.RESET_GPU, *codes[1:]).action is A.RESET_GPU
    plan = planned(A.RESET_GPU, *codes)
    assert (plan.action, plan.reason) == (A.REPLACE, "5 resets and reboots in 7 days did not heal it")


def test_restarted_applications_are_no_repairs_of_the_hardware() -> None:
    restarts = [done(A.RESTART_APP, f"xid:{n}") for n in range(20)]
    assert planned(A.RESET_GPU, *restarts).action is A.RESET_GPU


def test_what_is_a_week_old_does_not_count() -> None:
    old = [done(A.REBOOT_NODE, hours_ago=7 * 24, ok=False)] * 9
    assert planned(A.REBOOT_NODE, *old).action is A.REBOOT_NODE


def test_a_reset_waits_for_busy_peers_on_an_nvswitch_host_only() -> None:
    assert next_action(A.RESET_GPU, "xid:119", (), NOW, False, PEERS).wait_for == ()
    assert next_action(A.RESET_GPU, "xid:119", (), NOW, True, ()).wait_for == ()
    plan = next_action(A.RESET_GPU, "xid:119", (), NOW, True, PEERS)
    assert (plan.action, plan.wait_for) == (A.RESET_GPU, ("GPU-2", "GPU-3"))
    assert "takes all GPUs of the NVSwitch partition: wait for 2 busy ones, or reboot once they are" in plan.reason


@pytest.mark.parametrize("action", [A.REBOOT_NODE, A.REPLACE])
def test_what_takes_the_host_waits_for_its_work(action: RepairAction) -> None:
    plan = next_action(action, "xid:79", (), NOW, False, PEERS)
    assert plan.wait_for == ("GPU-2", "GPU-3")
    assert "wait until 2 busy devices of it are drained" in plan.reason


def test_a_restarted_application_waits_for_nobody() -> None:
    assert next_action(A.RESTART_APP, "xid:31", (), NOW, True, PEERS).wait_for == ()


def table(name: str) -> list[dict[str, str]]:
    return list(rows_of(files("paceline.health").joinpath(name).read_text("utf-8").splitlines()))


def test_each_action_of_the_tables_has_a_rung_or_none() -> None:
    actions = {row["action"] for row in table("xids.csv")}
    resolutions = {row["resolution"].lower() for row in table("xid_nvlink5_rules.csv")}
    assert actions | resolutions == BY_ADVICE.keys()


def test_the_drivers_words_are_those_of_the_catalog() -> None:
    rows = {int(row["value"]): BY_ADVICE[row["action"]] for row in table("recovery_actions.csv")}
    assert rows.pop(RecoveryAction.NONE) is None
    assert rows == BY_DRIVER


def found(rule: str, action: str | None = None) -> Finding:
    return Finding(rule, 1, DeviceUuid("a"), Advice.QUARANTINE, 1, "s", {"action": action} if action else {})


@pytest.mark.parametrize(
    ("action", "rung"),
    [
        ("reset_gpu", A.RESET_GPU),
        ("RESET_GPU", A.RESET_GPU),
        ("reboot_node", A.REBOOT_NODE),
        ("restart_app", A.RESTART_APP),
        ("reset_fabric", A.RESET_GPU),
        ("contact_support", None),
        ("none", None),
    ],
)
def test_the_action_of_a_finding_names_the_rung(action: str, rung: RepairAction | None) -> None:
    assert wanted(found("xid", action), rules()["xid"], None) is rung


@pytest.mark.parametrize(
    ("driver", "rung"),
    [
        (RecoveryAction.GPU_RESET, A.RESET_GPU),
        (RecoveryAction.NODE_REBOOT, A.REBOOT_NODE),
        (RecoveryAction.DRAIN_P2P, A.RESTART_APP),
        (RecoveryAction.DRAIN_AND_RESET, A.RESET_GPU),
    ],
)
def test_the_driver_has_the_first_word(driver: RecoveryAction, rung: RepairAction) -> None:
    assert wanted(found("xid", "contact_support"), rules()["xid"], driver) is rung


@pytest.mark.parametrize("nothing", [RecoveryAction.NONE, None, 99])
def test_a_driver_that_asks_for_nothing_leaves_it_to_the_tables(nothing: int | None) -> None:
    assert wanted(found("xid", "reboot_node"), rules()["xid"], nothing) is A.REBOOT_NODE
    assert wanted(found("remap.failed"), rules()["remap.failed"], nothing) is A.REPLACE


def test_a_rule_that_nobody_knows_wants_a_human() -> None:
    assert wanted(found("new.rule"), None, None) is None
