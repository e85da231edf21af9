"""`paceline sim`: what each verb that injects a fault leaves on the host."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli import sim
from paceline.model.errors import BadRequest
from paceline.model.hardware import RecoveryAction
from paceline.model.ids import HostName
from paceline.sim import fleet
from paceline.sim.state import HostState, kmsg_path


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostState:
    name = HostName("host-0")
    state = HostState.create(tmp_path / "host-0.state", name, fleet.devices([name], 2)[name])
    monkeypatch.setattr(sim, "_state", lambda host: state)
    return state


def run(*words: str) -> None:
    result = CliRunner().invoke(sim.app, list(words))
    if result.exception:
        raise result.exception
    assert result.exit_code == 0, result.output


def test_counters_can_be_set(host: HostState) -> None:
    run("set", "host-0", "1", "ecc_uncorrected=3", "remap_pending=1", "pcie_width=0x8")
    device = host.device(1)
    assert (device.ecc_uncorrected, device.remap_pending, device.pcie_width) == (3, 1, 8)
    assert host.events_posted == 0


def test_a_driver_asks_for_an_action(host: HostState) -> None:
    run("recovery", "host-0", "1", "drain-and-reset")
    assert (host.device(1).recovery_action, host.events_posted) == (RecoveryAction.DRAIN_AND_RESET, 1)


def test_a_device_is_throttled_and_not_any_more(host: HostState) -> None:
    run("throttle", "host-0", "0", "thermal")
    assert host.device(0).throttle_reasons == 0x40
    assert host.device(0).throttle_since_ns > 0
    run("throttle", "host-0", "0", "none")
    assert host.device(0).throttle_since_ns == 0


def test_a_line_is_written_into_the_kernel_log(host: HostState) -> None:
    run("kmsg", "host-0", "NVRM: Xid (PCI:0000:1b:00): 62, pid=1")
    run("kmsg", "host-0", "usb 1-1: new device")
    first, second = kmsg_path(host.path).read_text().splitlines()
    assert first.startswith("3,0,")
    assert first.endswith(",-;NVRM: Xid (PCI:0000:1b:00): 62, pid=1")
    assert second.startswith("3,1,")


def test_restore_makes_a_device_good_again(host: HostState) -> None:
    host.throttle(0, "power-brake")
    host.set_recovery_action(0, RecoveryAction.NODE_REBOOT)
    host.set(0, pcie_width=4, remap_failed=1, sram_threshold_exceeded=1)
    run("restore", "host-0", "0")
    device = host.device(0)
    assert (device.pcie_width, device.remap_failed, device.sram_threshold_exceeded) == (16, 0, 0)
    assert (device.recovery_action, device.throttle_since_ns) == (0, 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "host-0", "0", "ecc_uncorrected=many"), "whole number"),
        (("set", "host-0", "0", "speed=1"), "No such reading"),
        (("recovery", "host-0", "0", "pray"), "No such recovery action"),
        (("throttle", "host-0", "0", "boredom"), "No such reason"),
    ],
)
def test_what_cannot_be_is_refused(host: HostState, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        run(*words)
