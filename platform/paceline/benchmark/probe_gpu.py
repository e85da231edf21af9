"""The light probe on an NVIDIA GPU, with torch. Run as a program: prints the readings as one line of JSON.

Bandwidth first, then what heats: after a burn a sound device fails bandwidth bars (DCGM #272). What the device says of its clock, power and
temperature is read while each kernel runs, by torch, which asks NVML for the device that it uses itself.
"""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

import torch

from paceline.benchmark import integer_gemm
from paceline.benchmark.child import die_with_parent
from paceline.benchmark.probe import GEMM, GEMM_FP32, REPETITIONS, TRANSFER, TRIAD, Reading


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work a repetition is. Part of the benchmarks' versions: times with other sizes cannot be compared."""

    gemm: int = 8192
    bf16_inner: int = 20
    """Products a repetition: 22 TFLOP, 30 ms on an H100."""
    fp32_inner: int = 4
    warm_up_s: float = 3.0
    """Before each GEMM: clocks and temperature settle (Azure and DCGM burn for as long)."""
    triad_elements: int = 1 << 28
    """Three arrays of 1 GiB; a smaller device gets a sixteenth of its memory for each."""
    triad_inner: int = 10
    transfer_bytes: int = 256 << 20
    transfer_inner: int = 4
    integer_rows: int = 4096
    integer_rounds: int = 50


def light(device: torch.device, sizes: Sizes) -> tuple[Reading, ...]:
    """Readings in the order in which they were taken."""
    with torch.inference_mode():
        readings = [_transfer(device, sizes), _triad(device, sizes)]
        wrong = {dtype: _integers(device, dtype, inner, limit, sizes) for dtype, inner, limit in _EXACT}
        fp32 = _gemm(GEMM_FP32, device, torch.float32, sizes.fp32_inner, sizes, wrong[torch.float32])
        bf16 = _gemm(GEMM, device, torch.bfloat16, sizes.bf16_inner, sizes, wrong[torch.bfloat16])
    return (*readings, fp32, bf16)


_EXACT: Final = ((torch.bfloat16, integer_gemm.BF16_EXACT, 1), (torch.float32, 4096, 3))
"""(type, inner dimension, largest entry): every partial sum is an integer that the type holds exactly."""
assert all(
    inner * limit**2 <= (integer_gemm.BF16_EXACT if dtype is torch.bfloat16 else integer_gemm.FP32_EXACT)
    for dtype, inner, limit in _EXACT
)


def _transfer(device: torch.device, sizes: Sizes) -> Reading:
    pinned = device.type == "cuda"
    host = torch.empty(sizes.transfer_bytes, dtype=torch.uint8, pin_memory=pinned)
    there = torch.empty(sizes.transfer_bytes, dtype=torch.uint8, device=device)

    def there_and_back() -> None:
        for _ in range(sizes.transfer_inner):
            there.copy_(host, non_blocking=True)
            host.copy_(there, non_blocking=True)

    return _reading(TRANSFER, there_and_back, device, 0.0)


def _triad(device: torch.device, sizes: Sizes) -> Reading:
    """STREAM's: a = b + 3 c."""
    elements = sizes.triad_elements
    if device.type == "cuda":
        elements = min(elements, torch.cuda.get_device_properties(device).total_memory // 16 // 4)
    a, b, c = (torch.ones(elements, device=device) for _ in range(3))

    def triad() -> None:
        for _ in range(sizes.triad_inner):
            torch.add(b, c, alpha=3.0, out=a)

    return _reading(TRIAD, triad, device, 0.0)


def _gemm(
    which: tuple[str, int, str], device: torch.device, dtype: torch.dtype, inner: int, sizes: Sizes, wrong: str
) -> Reading:
    torch.backends.cuda.matmul.allow_tf32 = False
    a = torch.randn(sizes.gemm, sizes.gemm, device=device).to(dtype)
    out = torch.empty_like(a)

    def multiply() -> None:
        for _ in range(inner):
            torch.matmul(a, a, out=out)

    return _reading(which, multiply, device, sizes.warm_up_s, wrong)


def _integers(device: torch.device, dtype: torch.dtype, inner: int, limit: int, sizes: Sizes) -> str:
    """What is wrong with an integer GEMM on this device, in words; "" for nothing. The same product again and again, all compared."""
    a, b = integer_gemm.matrices(sizes.integer_rows, inner, sizes.integer_rows, limit, seed=0)
    left, right = (torch.from_numpy(x).to(device=device, dtype=dtype) for x in (a, b))
    first = left @ right
    kind = str(dtype).removeprefix("torch.")
    wrong = integer_gemm.in_words(kind, integer_gemm.wrong_rows(a, b, first.double().cpu().numpy()), sizes.integer_rows)
    if wrong:
        return wrong
    unequal = sum(int(not torch.equal(left @ right, first)) for _ in range(sizes.integer_rounds))
    if unequal:
        return f"corrupt: {unequal} of {sizes.integer_rounds} integer {kind} GEMMs differ from the right one"
    return ""


def _reading(
    which: tuple[str, int, str], work: Callable[[], None], device: torch.device, warm_up_s: float, wrong: str = ""
) -> Reading:
    """Warm up (once at least), then time REPETITIONS; what the device says is asked while it works."""
    warm = time.perf_counter()
    while True:
        work()
        _wait(device)
        if time.perf_counter() - warm >= warm_up_s:
            break
    seconds = []
    said: dict[str, list[float]] = defaultdict(list)
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        work()
        _wait(device)
        seconds.append(time.perf_counter() - started)
        work()  # not timed: asking NVML takes milliseconds
        for name, value in _ask(device).items():
            said[name].append(value)
        _wait(device)
    conditions = {name: median(values) for name, values in said.items()}
    return Reading(*which, seconds=tuple(seconds), conditions=conditions, error=wrong)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _ask(device: torch.device) -> dict[str, float]:
    """Clock, power and temperature now; without those that this device or driver does not tell."""
    asked: dict[str, Callable[[], Any]] = {
        "sm_clock_mhz": torch.cuda.clock_rate,
        "power_w": lambda: torch.cuda.power_draw() / 1000,
        "temperature_c": torch.cuda.temperature,
    }
    said = {}
    for name, ask in asked.items() if device.type == "cuda" else ():
        try:
            said[name] = float(ask())
        except Exception as error:  # NVML's own, whatever it is: the times are worth it all the same
            print(f"{name} is not told: {error}", file=sys.stderr)
    return said


if __name__ == "__main__":
    die_with_parent()
    print(json.dumps([asdict(reading) for reading in light(torch.device("cuda", 0), Sizes())]))
