"""How well slow devices are told from sound ones, on the runs of real GPUs: no Ray, no GPU, seeds fixed.

Every figure goes through the product's own code: Measurement → score and drift → Finding → machine.step.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from paceline.benchmark.figures import Figure
from paceline.benchmark.gpu_runs import RealGpu, gpus, natural_spread, run_noise
from paceline.health import machine
from paceline.model.hardware import DeviceState
from paceline.model.health import Advice
from paceline.model.ids import DeviceUuid
from paceline.model.measurement import Measurement, Workload
from paceline.placement import drift
from paceline.placement.drift import Run, Track
from paceline.placement.score import SLOW_FRACTION, score, slow_findings

DOCS: Final = Path("docs/health")
NORMAL: Final = "normal noise"
NORMAL_CV: Final = 0.0065
"""Eight A100 in bfloat16 GEMM (SuperBench's fixture tests/analyzer/test_results.jsonl): the noise of today's probes, drawn as normal."""
NORMAL_GPUS, NORMAL_RUNS = 100, 50
KERNELS: Final = ("longhorn/sgemm", "longhorn/pagerank", "frontera/pagerank", NORMAL)
"""Like a probe's: compute-bound (SGEMM) and memory-bound (PageRank). The bars are for these."""
TRAINING: Final = ("frontera/bert", "frontera/resnet50")
"""Whole training runs, noisier, and shown."""
CURVE: Final = (0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.10, 0.15)
SLOW: Final = 0.05
PEERS: Final = 11
"""A cohort of twelve: the device and these."""
SEEDS: Final = (1, 2, 3)
WINDOWS: Final = 3000
"""Drawn for each series and seed where a GPU has too few runs; else each window of each GPU is taken once."""
DAY_NS: Final = 86_400 * 1_000_000_000
PROBE_GAP_NS: Final = 60 * 1_000_000_000
FLEET, DAYS, FLEET_SEEDS = 40, 50, (1, 2, 3, 4, 5)
assert FLEET * DAYS * len(FLEET_SEEDS) == 10_000, "the bar is for 10⁴ device-days"
SWING: Final = 0.02
"""The room's temperature moves a whole fleet by 1 to 2 % (Llama 3, arXiv 2407.21783): the upper end, each day anew."""
TRANSFER_CV: Final = 0.0109
"""Host to device, eight A100 (SuperBench's fixture tests/analyzer/test_results.jsonl): there are no runs per GPU for it."""


def figures(docs: Path = DOCS) -> Sequence[Figure]:
    """Prints nothing; writes docs/slow-devices.md."""
    curves = {series: curve(series) for series in (*KERNELS, *TRAINING)}
    fleet = healthy_days()
    docs.mkdir(parents=True, exist_ok=True)
    (docs / "slow-devices.md").write_text(_page(curves, fleet), encoding="utf-8")
    return [
        Figure("slow5_recall", min(curves[s].found[SLOW] for s in KERNELS), "of injected", bar="≥ 0.99"),
        Figure("slow5_false", max(curves[s].false for s in KERNELS), "of windows", bar="< 0.001"),
        Figure("false_quarantines", fleet.quarantines, f"in {fleet.device_days} device-days", bar="0"),
        Figure("false_suspects", fleet.suspects, f"in {fleet.device_days} device-days"),
    ]


# ── slow devices ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Curve:
    """Shares of windows in which the device was found within three probes: with a slowness, and with none."""

    windows: int
    found: Mapping[float, float]
    false: float
    who: tuple[str, ...]
    """GPUs that were found with none."""


@dataclass(frozen=True)
class Window:
    """A device's first probes and the WINDOW that follow, and the same of its peers."""

    gpu: str
    past: tuple[float, ...]
    present: tuple[float, ...]
    drawn: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]

    @cached_property
    def peers(self) -> tuple[Track, ...]:
        return tuple(_track(*pair) for pair in self.drawn)


def curve(series: str) -> Curve:
    """Recall and false findings of a series, over all seeds."""
    windows = _windows(series)
    false = [window.gpu for window in windows if _found(window, 0.0)]
    least = [next((slow for slow in CURVE if _found(window, slow)), float("inf")) for window in windows]
    found = {slow: sum(value <= slow for value in least) / len(windows) for slow in CURVE}
    return Curve(len(windows), found, len(false) / len(windows), tuple(sorted(set(false))))


def _gpus(series: str) -> Sequence[RealGpu]:
    if series != NORMAL:
        return gpus(series)
    dice = random.Random(0)
    natural = [1 + natural_spread("longhorn/sgemm") * dice.gauss(0, 1) for _ in range(NORMAL_GPUS)]
    noise = [[dice.gauss(1, NORMAL_CV) for _ in range(NORMAL_RUNS)] for _ in natural]
    return [RealGpu(series, f"normal-{n}", tuple(natural[n] * value for value in noise[n])) for n in range(NORMAL_GPUS)]


def _windows(series: str) -> list[Window]:
    """Where GPUs have enough runs, these are taken as they came; where they have few, past and present are drawn from them."""
    everyone = _gpus(series)
    long = [gpu for gpu in everyone if len(gpu.times) >= drift.BASELINE_MIN + drift.WINDOW]
    windows = []
    for seed in SEEDS:
        dice = random.Random(seed)
        if 2 * len(long) > len(everyone):
            taken = [(gpu, *cut) for gpu in long for cut in _as_they_came(gpu)]
        else:
            taken = [(gpu := dice.choice(everyone), *_drawn(gpu, dice)) for _ in range(WINDOWS)]
        for gpu, past, present in taken:
            drawn = tuple(_drawn(peer, dice) for peer in dice.sample(everyone, PEERS))
            windows.append(Window(gpu.gpu, past, present, drawn))
    return windows


def _as_they_came(gpu: RealGpu) -> Iterator[tuple[tuple[float, ...], tuple[float, ...]]]:
    settled = min(drift.BASELINE_RUNS, len(gpu.times) - drift.WINDOW)
    for start in range(settled, len(gpu.times) - drift.WINDOW + 1):
        yield gpu.times[:settled], gpu.times[start : start + drift.WINDOW]


def _drawn(gpu: RealGpu, dice: random.Random) -> tuple[tuple[float, ...], tuple[float, ...]]:
    times = tuple(dice.choices(gpu.times, k=drift.BASELINE_RUNS + drift.WINDOW))
    return times[: drift.BASELINE_RUNS], times[drift.BASELINE_RUNS :]


def _track(past: Sequence[float], present: Sequence[float], slow: float = 0.0) -> Track:
    """One probe a day."""
    runs = tuple(Run(day * DAY_NS, value * (1 + slow)) for day, value in enumerate(present))
    return Track(drift.baseline(past), runs)


def _found(window: Window, slow: float) -> bool:
    """Whether the device is found by the second or third probe after it has become slow."""
    me = DeviceUuid(window.gpu)
    peers = {DeviceUuid(f"peer-{n}"): track for n, track in enumerate(window.peers)}
    for probes in range(drift.WANTED, drift.WINDOW + 1):
        mine = _track(window.past, window.present[:probes], slow)
        if drift.judge(me, {me: mine, **peers}).lasting:
            return True
    return False


# ── healthy fleets ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Fleet:
    """What became of sound devices. `observed`: days on which a device was reported and left at work."""

    device_days: int
    quarantines: int
    suspects: int
    observed: int


def healthy_days() -> Fleet:
    """Fleets of FLEET sound devices, DAYS long, a probe of three workloads a day and more where the machine asks for them."""
    runs = [_Simulation(seed).run() for seed in FLEET_SEEDS]
    return Fleet(
        sum(run.device_days for run in runs),
        sum(run.quarantines for run in runs),
        sum(run.suspects for run in runs),
        sum(run.observed for run in runs),
    )


class _Simulation:
    """One fleet. A sound device is a real GPU that is no outlier: its own spread and its own noise in each workload."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        sound = {
            Workload.COMPUTE: [gpu for gpu in gpus("longhorn/sgemm") if gpu.natural < 1 + SLOW_FRACTION],
            Workload.MEMORY: [gpu for gpu in gpus("longhorn/pagerank") if gpu.natural < 1 + SLOW_FRACTION],
        }
        self._gpus = {
            DeviceUuid(f"GPU-{n:02}"): {work: self._dice.choice(rows) for work, rows in sound.items()}
            for n in range(FLEET)
        }
        self._past: dict[tuple[DeviceUuid, Workload], list[Run]] = {}
        self._devices = {
            uuid: machine.step(machine.Device(uuid, DeviceState.NEW, 0), machine.Appeared(), 0)[0]
            for uuid in self._gpus
        }
        self._left: set[DeviceUuid] = set()
        self._suspects = self._observed = 0

    def run(self) -> Fleet:
        for day in range(DAYS):
            warm = 1 + self._dice.uniform(-SWING, SWING)
            self._probe([uuid for uuid in self._devices if uuid not in self._left], day * DAY_NS, warm)
            for again in range(1, 10):  # a probe at once for whom the machine wants one
                waiting = [uuid for uuid, device in self._devices.items() if machine.probes_wanted(device)]
                if waiting:
                    self._probe(waiting, day * DAY_NS + again * PROBE_GAP_NS, warm)
        return Fleet(FLEET * DAYS, len(self._left), self._suspects, self._observed)

    def _probe(self, uuids: Sequence[DeviceUuid], now_ns: int, warm: float) -> None:
        for uuid in uuids:
            for work in (Workload.COMPUTE, Workload.MEMORY, Workload.TRANSFER):
                self._past.setdefault((uuid, work), []).append(Run(now_ns, self._one_run(uuid, work) * warm))
        scores = score(self._newest(), dict.fromkeys(self._gpus, "SKU"))
        barred = set()
        for finding in slow_findings(scores, now_ns):
            if finding.uuid in uuids:
                barred.add(finding.uuid)
                self._step(finding.uuid, machine.Found(finding), now_ns)
        for uuid in uuids:
            drifting = drift.finding(uuid, self._drifts(uuid), now_ns)
            if drifting is not None:
                self._observed += drifting.advice is Advice.OBSERVE
                barred |= {uuid} if drifting.advice is not Advice.OBSERVE else set()
                self._step(uuid, machine.Found(drifting), now_ns)
        own = {row.uuid: row.score for row in scores if row.workload == Workload.COMPUTE}
        for uuid in sorted(set(uuids) - barred):
            self._step(uuid, machine.ProbePassed(own[uuid]), now_ns)

    def _one_run(self, uuid: DeviceUuid, work: Workload) -> float:
        if work is Workload.TRANSFER:
            return self._dice.gauss(1.0, TRANSFER_CV)
        return self._dice.choice(self._gpus[uuid][work].times)

    def _newest(self) -> list[Measurement]:
        return [
            Measurement(uuid, work, 1, runs[-1].at_ns, (runs[-1].seconds,), True, workload=work)
            for (uuid, work), runs in self._past.items()
        ]

    def _drifts(self, uuid: DeviceUuid) -> dict[str, tuple[drift.Drift, drift.Baseline]]:
        drifts = {}
        for work in (Workload.COMPUTE, Workload.MEMORY, Workload.TRANSFER):
            tracks = {other: self._one_track(other, work) for other in self._gpus}
            own = tracks[uuid].baseline
            if own is not None:
                drifts[str(work)] = (drift.judge(uuid, tracks), own)
        return drifts

    def _one_track(self, uuid: DeviceUuid, work: Workload) -> Track:
        runs = self._past[uuid, work]
        first = [run.seconds for run in runs[: drift.BASELINE_RUNS]]
        return Track(drift.baseline(first), tuple(runs[-drift.WINDOW :]))

    def _step(self, uuid: DeviceUuid, stimulus: machine.Stimulus, now_ns: int) -> None:
        before = self._devices[uuid]
        after, _ = machine.step(before, stimulus, now_ns)
        self._devices[uuid] = after
        self._suspects += after.state is DeviceState.SUSPECT and before.state is not DeviceState.SUSPECT
        if after.state in (DeviceState.DRAINING, DeviceState.QUARANTINED):
            self._left.add(uuid)


# ── the page ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _page(curves: Mapping[str, Curve], fleet: Fleet) -> str:
    return _TEXT.format(
        head=" | ".join(f"{slow:.0%}" for slow in CURVE),
        line="|".join(["---:"] * (len(CURVE) + 4)),
        rows="\n".join(_row(series, found) for series, found in curves.items()),
        changed="; ".join(f"{name}: {', '.join(curves[name].who)}" for name in KERNELS if curves[name].who) or "none",
        peers=PEERS,
        seeds=len(FLEET_SEEDS),
        fleet=FLEET,
        days=DAYS,
        swing=f"{SWING:.0%}",
        device_days=fleet.device_days,
        quarantines=fleet.quarantines,
        suspects=fleet.suspects,
        observed=fleet.observed,
        fraction=f"{drift.DRIFT_FRACTION:.0%}",
        baseline=drift.BASELINE_RUNS,
        severe=f"{drift.SEVERE:.0%}",
        slow=f"{SLOW_FRACTION:.0%}",
    )


def _row(series: str, found: Curve) -> str:
    cells = " | ".join(f"{found.found[slow]:.2%}" for slow in CURVE)
    noise = NORMAL_CV if series == NORMAL else run_noise(series)
    spread = natural_spread("longhorn/sgemm" if series == NORMAL else series)
    return f"| {series} | {noise:.2%} | {spread:.2%} | {found.windows} | {cells} | {found.false:.3%} |"


_TEXT: Final = """# Slow devices: what is found, and what is not

Made by `make bench ONLY=health` (seeds fixed); the text below is written by it.

Two questions are kept apart. A device that always was a few per cent slower than its peers is natural spread: its score says so, it is
grouped with its equals, and nobody is told. A device that has *become* slower than its own first {baseline} probes, with what its peers
have in common taken away, is found from {fraction} on, or from where its own noise ends if that is more. It is reported (`probe.drift`)
and goes on working among its new equals. From {severe} over its own past, or {slow} over its cohort (`probe.slow`), it becomes SUSPECT, is
probed again, and is quarantined if three probes agree.

## Found within three probes, by slowness injected into the runs of real GPUs

| series | noise from run to run | spread of devices | windows | {head} | found with 0 % |
|---|{line}|
{rows}

A window is a device beside {peers} others of its series: its past, and three probes after it. SGEMM: every window of every GPU, three times
with other peers, the runs in the order in which they came, weeks apart. Normal noise: today's GEMM probe on A100, with the spread of
SGEMM. The other series have five or six runs a GPU, and past and present are drawn from them. The bar (at least 99 % found at 5 %, fewer
than 0.1 % found with nothing injected) is for SGEMM, PageRank and normal noise, which are kernels as a probe's; BERT and ResNet-50 are
whole training runs, to show where it ends.

Kernels that were found with nothing injected: {changed}. Such a GPU may really have changed, as lo0447 of longhorn/sgemm has (it has two
speeds, 5 % apart, and keeps each for days); it is counted as false here all the same.

## Sound devices

{seeds} fleets of {fleet} devices for {days} days, each device a real GPU with its own spread and its own runs (SGEMM and PageRank of
Longhorn; the one GPU of 392 that is 20 % slow for good is left out: it is no sound device), host-to-device copies with the spread of eight
A100, and a room that slows or speeds all of them by up to {swing} each day. In {device_days} device-days: {quarantines} quarantines,
{suspects} times SUSPECT, {observed} reports of drift with the device left at work.
"""
