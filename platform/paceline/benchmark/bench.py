"""`make bench`: every area, or one with --only. Each starts what it needs, and stops it."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from paceline.benchmark import binding, health, health_cluster, serving, storm
from paceline.benchmark.figures import Figure, publish

FOLDER: Final = Path("build/bench")


def demo() -> Sequence[Figure]:
    """Seconds of each phase of the demo, by running it."""
    subprocess.run([sys.executable, "-m", "paceline.sim.demo"], check=True)
    rows = json.loads(Path("build/demo/last.json").read_text())["figures"]
    figures = [Figure(row["name"], row["value"], row["unit"]) for row in rows]
    return [*figures, Figure("demo.total_s", sum(f.value for f in figures), "s", bar="≤ 360 s on 2 cores")]


def all_health() -> Sequence[Figure]:
    """What is found and what is not, an event storm, and how soon it is acted on."""
    return [*health.figures(), *storm.figures(), *health_cluster.figures()]


AREAS: Final[dict[str, Callable[[], Sequence[Figure]]]] = {
    "health": all_health,
    "placement": binding.figures,
    "serving": serving.figures,
    "demo": demo,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(AREAS))
    args = parser.parse_args()
    for area in [args.only] if args.only else AREAS:
        publish(area, AREAS[area](), FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
