"""The repair ladder of one device, by its serial: restart the application, reset the GPU, reboot the node, replace. Pure.

A rung that failed, or that was climbed in vain, leads to the next one; a device that was repaired again and again in a week
is to be replaced. What is planned here is carried out by somebody else and comes back as a RepairRecord: one that never
comes back must be recorded as failed after a deadline. The device that stays away after a REPLACE is retired by an operator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from paceline.health.rules import Rule
from paceline.model.health import Finding, RepairAction
from paceline.model.ids import DeviceUuid

SECOND_NS: Final = 1_000_000_000
WINDOW_NS: Final = 7 * 86_400 * SECOND_NS
"""Repairs older than a week do not count."""
IN_VAIN: Final = 2
"""Repairs of one rung after which the same code must not come again. gpud: the same Xid after 2 reboots wants an inspection."""
REPAIRS_OF_A_WEEK: Final = 5
"""Resets and reboots in a week, for any code, after which a device is not worth a sixth. NVSentinel: MultipleRemediations."""
assert IN_VAIN * 2 < REPAIRS_OF_A_WEEK, "one code must climb rung by rung before the count of a week ends it"

LADDER: Final = tuple(RepairAction)
_ON_HARDWARE: Final = frozenset({RepairAction.RESET_GPU, RepairAction.REBOOT_NODE})

BY_DRIVER: Final[Mapping[int, RepairAction | None]] = {
    1: RepairAction.RESET_GPU,
    2: RepairAction.REBOOT_NODE,
    3: RepairAction.RESTART_APP,
    4: RepairAction.RESET_GPU,
    5: None,
    6: RepairAction.RESET_GPU,
    7: RepairAction.REBOOT_NODE,
}
"""The driver's own word, by its value in recovery_actions.csv. 0 (NONE) is left out: it says that nothing is pending, not that
the device is well, and the tables speak. 3 (DRAIN_P2P) wants the work that reaches other devices ended, and no more."""

BY_ADVICE: Final[Mapping[str, RepairAction | None]] = {
    "restart_app": RepairAction.RESTART_APP,
    "reset_gpu": RepairAction.RESET_GPU,
    "reset_gpu_if_needed": RepairAction.RESET_GPU,
    "reset_fabric": RepairAction.RESET_GPU,
    "reset_fabric_if_jobs_fail": RepairAction.RESET_GPU,
    "reboot_node": RepairAction.REBOOT_NODE,
    "restart_vm": RepairAction.REBOOT_NODE,
    "none": None,
    "ignore": None,
    "contact_support": None,
    "check_cabling": None,
    "check_cooling": None,
    "check_fabric_manager": None,
    "check_link_quality": None,
    "check_mechanicals": None,
    "check_uvm": None,
    "update_software": None,
    "decode_nvlink5": None,
    "follow_48": None,
    "parse_recovery_action": None,
    "xid_154_eval": None,
}
"""Each value of xids.csv's `action` and of xid_nvlink5_rules.csv's `resolution` (in lower case). None: nothing that a machine
can do by itself; a human looks, or another Xid says it. A fabric is reset by the reset of all GPUs of its partition."""


@dataclass(frozen=True, slots=True)
class RepairRecord:
    """A repair of one serial that has ended at `at_ns`. `code` is what it was for (`correlate.code_of`); `ok`: it did what it should."""

    action: RepairAction
    code: str
    at_ns: int
    ok: bool


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What to do next, and why. It must not begin before the devices `wait_for` are free: it would take them along."""

    action: RepairAction
    reason: str
    wait_for: tuple[DeviceUuid, ...] = ()


def wanted(finding: Finding, rule: Rule | None, recovery_action: int | None) -> RepairAction | None:
    """The first rung for what `finding` tells; None where a human must look.

    Authority: the driver's recovery action (NVML field 230; None where unsupported), the finding's own `action`, its rule.
    """
    if recovery_action is not None and recovery_action in BY_DRIVER:
        return BY_DRIVER[recovery_action]
    advised = finding.evidence.get("action")
    if isinstance(advised, str) and advised.lower() in BY_ADVICE:
        return BY_ADVICE[advised.lower()]
    return rule.repair if rule else None


def next_action(
    wanted: RepairAction,
    code: str,
    history: Sequence[RepairRecord],
    now_ns: int,
    nvswitch: bool,
    busy_peers: Sequence[DeviceUuid],
) -> RepairPlan:
    """The rung to climb now for `code` on one device, never below `wanted`.

    `history` holds the repairs of this device's serial, in any order. `busy_peers` are the other devices of its host that have
    work: a reboot and a replacement end it, and on an NVSwitch host (`nvswitch`) a reset takes the whole partition as well.
    """
    recent = [record for record in history if record.at_ns > now_ns - WINDOW_NS]
    action, reason = _climb(wanted, code, recent)
    if not _takes_the_host(action, nvswitch) or not busy_peers:
        return RepairPlan(action, reason)
    peers = tuple(sorted(busy_peers))
    if action is RepairAction.RESET_GPU:
        reason += f"; the reset takes all GPUs of the NVSwitch partition: wait for {len(peers)} busy ones, or reboot once they are drained"
    else:
        reason += f"; it takes the whole host: wait until {len(peers)} busy devices of it are drained"
    return RepairPlan(action, reason, peers)


def _climb(wanted: RepairAction, code: str, recent: Sequence[RepairRecord]) -> tuple[RepairAction, str]:
    repairs = sum(record.action in _ON_HARDWARE for record in recent)
    if repairs >= REPAIRS_OF_A_WEEK:
        return RepairAction.REPLACE, f"{repairs} resets and reboots in 7 days did not heal it"
    why = f"{wanted.value} is what {code} asks for"
    for rung in LADDER[LADDER.index(wanted) :]:
        tries = [record for record in recent if record.action is rung and record.code == code]
        failed = sum(not record.ok for record in tries)
        if rung is RepairAction.REPLACE or (not failed and len(tries) < IN_VAIN):
            return rung, why
        why = (
            f"{rung.value} has failed for {code}" if failed else f"{code} came again after {len(tries)} × {rung.value}"
        )
    raise AssertionError("the ladder ends with REPLACE")


def _takes_the_host(action: RepairAction, nvswitch: bool) -> bool:
    return action in (RepairAction.REBOOT_NODE, RepairAction.REPLACE) or (action is RepairAction.RESET_GPU and nvswitch)
