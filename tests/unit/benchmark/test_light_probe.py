"""The light probe: on a simulated device as it is, and the kernels for a GPU with torch on the CPU, small."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.benchmark import integer_gemm, launcher, probe
from paceline.benchmark.probe import LIGHT, REPETITIONS, Reading
from paceline.model.errors import RunFailed
from paceline.model.ids import DeviceUuid, HostName
from paceline.placement.score import CORRUPT
from paceline.sim.fleet import identify
from paceline.sim.pace import STATE_VARIABLE, Pace
from paceline.sim.state import HostState

STEP_S = 0.02


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostState:
    path = tmp_path / "host.state"
    name = HostName("ada")
    made = HostState.create(path, name, [identify("test", name, 0), identify("test", name, 1, pace=3.0)], STEP_S)
    monkeypatch.setenv(STATE_VARIABLE, str(path))
    return made


@pytest.mark.usefixtures("host")
def test_a_simulated_device_is_slow_in_what_it_computes_only() -> None:
    sound, slow = (dict(zip((w for _, _, w in LIGHT), probe.run(index), strict=True)) for index in (0, 1))
    assert {reading.error for reading in (*sound.values(), *slow.values())} == {""}
    assert len(sound["compute"].seconds) == REPETITIONS
    for work, least in (("compute", 3 * STEP_S), ("compute_fp32", 3 * STEP_S * 0.4)):
        assert min(slow[work].seconds) >= least
    for work in ("memory", "transfer"):
        assert min(slow[work].seconds) < 3 * STEP_S * 0.4
    assert {reading.conditions["probe_s"] > 0 for reading in sound.values()} == {True}


def test_integers_that_are_right_pass_and_one_wrong_element_is_found() -> None:
    a, b = integer_gemm.matrices(64, 32, 48, 3, seed=1)
    c = (a @ b).astype(np.float32)
    assert integer_gemm.wrong_rows(a, b, c) == []
    for value in (c[17, 5] + 1, c[17, 5] + 0.25, np.nan, np.inf):
        bad = c.copy()
        bad[17, 5] = value
        assert integer_gemm.wrong_rows(a, b, bad) == [17]
    swapped = c.copy()
    swapped[3, [0, 1]] = c[3, [0, 1]] + [1, -1]
    assert integer_gemm.wrong_rows(a, b, swapped) == [3]
    assert integer_gemm.in_words("bf16", [17], 64).startswith(CORRUPT)
    assert integer_gemm.in_words("bf16", [], 64) == ""


def test_the_kernels_for_a_gpu_give_a_reading_a_workload_bandwidth_first() -> None:
    torch = pytest.importorskip("torch")
    from paceline.benchmark import probe_gpu

    small = probe_gpu.Sizes(
        gemm=64, warm_up_s=0.0, triad_elements=1024, transfer_bytes=1024, integer_rows=64, integer_rounds=2
    )
    readings = probe_gpu.light(torch.device("cpu"), small)
    assert [r.benchmark for r in readings] == ["transfer", "triad", "gemm_fp32", "gemm"]
    assert {(r.benchmark, r.version, r.workload) for r in readings} == set(LIGHT)
    assert {len(r.seconds) for r in readings} == {REPETITIONS}
    assert {r.error for r in readings} == {""}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_kernel_that_computes_something_wrong_is_found(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from paceline.benchmark import probe_gpu

    fired = []

    def flip(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> list[int]:
        c = c.copy()
        c[5, 6] += 1
        fired.append(1)
        return real(a, b, c)

    real = integer_gemm.wrong_rows
    monkeypatch.setattr(integer_gemm, "wrong_rows", flip)
    inner, limit = {name: (i, m) for name, i, m in probe_gpu._EXACT}[getattr(torch, dtype)]
    small = probe_gpu.Sizes(integer_rows=64, integer_rounds=1)
    word = probe_gpu._integers(torch.device("cpu"), getattr(torch, dtype), inner, limit, small)
    assert fired
    assert word == f"corrupt: 1 of 64 rows of an integer {dtype} GEMM are wrong, the first is 5"


def test_a_child_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STATE_VARIABLE, raising=False)
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nRuntimeError: CUDA error 719\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RunFailed, match="CUDA error 719"):
        probe.run(0)


def test_what_the_child_prints_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STATE_VARIABLE, raising=False)
    row = {"benchmark": "gemm", "version": 1, "workload": "compute", "seconds": [0.1, 0.2]}
    rows = json.dumps([row | {"conditions": {"power_w": 690.0}, "error": ""}])
    done = subprocess.CompletedProcess([], 0, f"a warning of a library\n{rows}\n", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    (reading,) = probe.run(0)
    assert (reading.seconds, reading.conditions["power_w"]) == ((0.1, 0.2), 690.0)


def test_the_measurements_of_a_probe_are_of_one_time() -> None:
    readings = [Reading(*which, seconds=(0.1,)) for which in LIGHT]
    readings[1] = Reading(*LIGHT[1], seconds=(0.1,), error="corrupt: row 5")
    found = launcher.measurements(DeviceUuid("a"), readings, 7)
    assert {m.at_ns for m in found} == {7}
    assert [(m.workload, m.ok) for m in found] == [
        ("compute", True),
        ("compute_fp32", False),
        ("memory", True),
        ("transfer", True),
    ]


def test_a_probe_that_says_nothing_is_no_pass() -> None:
    (only,) = launcher.measurements(DeviceUuid("a"), (), 7)
    assert (only.ok, only.error, only.workload) == (False, "the probe said nothing", "compute")


@pytest.mark.parametrize(("late", "made"), [(0, 3), (2, 5), (99, 18)])
def test_a_repetition_that_the_host_held_up_is_made_again(
    late: int, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of its own: nothing passes but what the pace waits, and what a host adds to the work."""
    passed, calls = [0.0], []
    clock = SimpleNamespace(perf_counter=lambda: sum(passed), sleep=passed.append)
    monkeypatch.setattr("paceline.benchmark.probe.time", clock)
    monkeypatch.setattr("paceline.sim.pace.time", clock)

    def work() -> None:
        calls.append(1)
        passed.append(0.05 if len(calls) <= late else 0.001)

    seconds = probe._timed(work, Pace(1.0, 0.01), 3)
    assert len(calls) == made
    assert seconds == pytest.approx([0.05 if late > 90 else 0.01] * 3)
