"""A step takes as long as it does on the worker's simulated device, and never ends on a device that is gone."""

import threading
import time
from pathlib import Path

import pytest

from paceline.model.ids import HostName
from paceline.sim import fleet, pace
from paceline.sim.state import HostState, occupy
from paceline.training import pacing
from waiting import until


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostState:
    name, specs = next(iter(fleet.devices(["host-0"], 2).items()))
    made = HostState.create(tmp_path / "host", HostName(name), specs, nominal_step_s=0.02)
    monkeypatch.setenv(pace.STATE_VARIABLE, str(tmp_path / "host"))
    return made


def seconds_of_a_step(index: int) -> float:
    started = time.perf_counter()
    pacing._finish_step(index, started)
    return time.perf_counter() - started


def test_a_step_takes_at_least_its_devices_time(host: HostState) -> None:
    host.set_pace(0, 1.0)
    host.set_pace(1, 5.0)
    assert seconds_of_a_step(0) >= 0.02
    assert seconds_of_a_step(1) >= 0.1


def test_a_step_on_a_lost_device_ends_when_it_is_back(host: HostState) -> None:
    host.lose(0)
    step = threading.Thread(target=seconds_of_a_step, args=(0,))
    step.start()
    step.join(0.3)
    assert step.is_alive(), "the kernel never completes"
    host.restore(0)
    until(lambda: not step.is_alive(), 10)


def test_a_real_host_is_not_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(pace.STATE_VARIABLE, raising=False)
    assert pace.pace_of(0) is None
    assert seconds_of_a_step(0) < 1


def test_a_worker_is_seen_on_its_device(host: HostState) -> None:
    occupy(1, 4711, 1 << 30)
    assert host.device(1).process_count == 1
    assert host.device(0).process_count == 0
