"""The figures of slow devices rest on real runs; the whole of them is `make bench ONLY=health`."""

import random

import pytest

from paceline.benchmark import health
from paceline.benchmark.gpu_runs import gpus, natural_spread, run_noise
from paceline.benchmark.health import KERNELS, NORMAL, TRAINING


@pytest.mark.parametrize("series", [name for name in (*KERNELS, *TRAINING) if name != NORMAL])
def test_every_series_is_there(series: str) -> None:
    rows = gpus(series)
    assert len(rows) > 100
    assert all(gpu.times and min(gpu.times) > 0 for gpu in rows)
    assert 0 < run_noise(series) < 0.01


def test_the_spread_of_devices_is_wider_than_the_noise_of_one() -> None:
    """Why a device is compared with itself, and not only with its peers."""
    assert natural_spread("longhorn/sgemm") > 10 * run_noise("longhorn/sgemm")


def test_real_runs_with_a_slowness_are_found_and_without_are_not() -> None:
    windows = random.Random(1).sample(health._windows("longhorn/sgemm"), 150)
    assert all(health._found(window, health.SLOW) for window in windows)
    assert not any(health._found(window, 0.0) for window in windows if window.gpu != "lo0447")


def test_a_sound_fleet_loses_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "DAYS", 5)
    run = health._Simulation(7).run()
    assert (run.device_days, run.quarantines) == (health.FLEET * 5, 0)


def test_a_fleet_with_an_outlier_loses_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation would see a quarantine if there were one."""
    monkeypatch.setattr(health, "DAYS", 2)
    simulation = health._Simulation(7)
    [outlier] = [gpu for gpu in gpus("longhorn/sgemm") if gpu.natural > 1.15]
    sick = min(simulation._gpus)
    simulation._gpus[sick]["compute"] = outlier
    assert simulation.run().quarantines == 1
    assert simulation._left == {sick}
