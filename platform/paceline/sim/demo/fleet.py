"""Act one: a Ray cluster of simulated hosts, and Paceline measures every device of it."""

import json
import re
from typing import Final

from paceline.model.hardware import DeviceState
from paceline.sdk.rows import DeviceRow
from paceline.sim.cluster import client_env
from paceline.sim.demo.scene import Demo, place, tool, until

HOSTS: Final = 3
GPUS: Final = 8
MEASURE_DEADLINE_S: Final = 120.0


def start(demo: Demo) -> None:
    with demo.doing("starting a Ray head and three raylets"):
        demo.run(tool("paceline"), "sim", "up", "--hosts", str(HOSTS), "--gpus", str(GPUS))
    demo.env |= client_env(demo.home)
    with demo.doing("starting Paceline: every device is held, measured, and given out if it is sound"):
        demo.run(tool("paceline"), "up")
    address = json.loads((demo.home / "sim" / "cluster.json").read_text())["address"]
    total = re.search(r"/([0-9.]+) GPU", demo.run(tool("ray"), "status", "--address", address))
    count = float(total[1]) if total else 0
    demo.claim("Ray itself detects the GPUs of every host", count == HOSTS * GPUS, f"{count:g} on {HOSTS} raylets")


def measured(demo: Demo) -> None:
    def settled() -> list[DeviceRow]:
        devices = demo.client.devices()
        done = all(d.state in (DeviceState.HEALTHY, DeviceState.QUARANTINED) for d in devices)
        return devices if done and len(devices) == HOSTS * GPUS else []

    devices = until("every device is measured", MEASURE_DEADLINE_S, settled)
    scores = sorted(d.score for d in devices if d.score is not None)
    demo.claim(
        "every device is measured and scored",
        len(scores) == HOSTS * GPUS,
        f"{len(scores)} devices, {scores[0]:.3f} to {scores[-1]:.3f} of the median time",
    )
    out = [d for d in devices if d.state is DeviceState.QUARANTINED]
    slowest = max(devices, key=lambda d: d.score or 0)
    demo.claim(
        "the one slow device is found by measuring, and held alone",
        [d.uuid for d in out] == [slowest.uuid],
        f"{place(slowest)}: {slowest.score:.2f} × the median time",
    )
