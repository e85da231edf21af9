"""Runs of real GPUs (data/gpu_runs.csv): how much healthy devices differ, and how much one device differs from run to run."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import median

from paceline.health.xid_tables import rows_of
from paceline.placement.spread import MAD_TO_SIGMA, mad


@dataclass(frozen=True, slots=True)
class RealGpu:
    """`times` of single runs, oldest first, relative to the median of all runs of the series."""

    series: str
    gpu: str
    times: tuple[float, ...]

    @property
    def natural(self) -> float:
        """What this device is: its median."""
        return median(self.times)

    @property
    def noise(self) -> tuple[float, ...]:
        """What one run adds: each run relative to the median of the device's own."""
        return tuple(value / self.natural for value in self.times)


@cache
def gpus(series: str) -> tuple[RealGpu, ...]:
    """The GPUs of a series such as longhorn/sgemm, by name."""
    lines = (files("paceline.benchmark") / "data" / "gpu_runs.csv").read_text(encoding="utf-8").splitlines()
    return tuple(
        RealGpu(row["series"], row["gpu"], tuple(map(float, row["relative_times"].split())))
        for row in rows_of(lines)
        if row["series"] == series
    )


def run_noise(series: str) -> float:
    """Median over the devices of the sigma of their own runs, relative."""
    return median(MAD_TO_SIGMA * mad(gpu.noise) for gpu in gpus(series))


def natural_spread(series: str) -> float:
    """Sigma of the devices' medians, relative."""
    return MAD_TO_SIGMA * mad([gpu.natural for gpu in gpus(series)])
