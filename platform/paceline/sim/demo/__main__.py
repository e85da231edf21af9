"""Runs the demo, or stops what demos have left running.

It uses what a user would use: the command line, `ray job submit`, the OpenAI client, the SDK. Each run has a home of its own under
build/demo, so that several demos, and any other Ray cluster, run beside each other.
"""

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import httpx
from openai import OpenAIError
from rich.table import Table

from paceline.model.errors import PacelineError
from paceline.sim.demo import chat, fleet, training
from paceline.sim.demo.scene import ClaimFailedError, Demo, console, tool

ROOT: Final = Path("build/demo")


def play(demo: Demo) -> None:
    with demo.phase(f"1/6  A Ray cluster of {fleet.HOSTS} simulated hosts with {fleet.GPUS} GPUs each"):
        fleet.start(demo)
        fleet.measured(demo)
    with demo.phase("2/6  An ordinary training run, undisturbed"):
        calm = training.train(demo, "calm")
    with demo.phase("3/6  The same run, and a GPU falls off the bus in the middle"):
        ridden = training.train(demo, "ridden", training.break_a_device)
        training.compare(demo, calm, ridden)
    with demo.phase("4/6  Why: the story of that GPU"):
        training.check_story(demo, ridden)
    with demo.phase("5/6  A chat service"):
        chat.deploy(demo)
    with demo.phase("6/6  A conversation, and its replica is killed"):
        chat.converse(demo)


def screen(demo: Demo, keep: bool) -> None:
    cluster = json.loads((demo.home / "sim" / "cluster.json").read_text())
    table = Table(title="What happened, each line checked", width=100, show_header=False)
    table.add_column(ratio=1)
    table.add_column(ratio=1, style="cyan")
    for what, figures in demo.claims:
        table.add_row(f"✔ {what}", figures)
    console.print(table)
    seconds = ", ".join(f"{title.split('/')[0]}: {took:.0f}" for title, took in demo.phases.items())
    console.print(f"seconds         {seconds}; together {sum(demo.phases.values()):.0f}")
    console.print(f"logs            {demo.home / 'logs'}", soft_wrap=True)
    if not keep:
        console.print("page, Ray dashboard and chat end with the demo; `make demo KEEP=1` leaves them running")
        return
    console.print(f"page            {demo.server}/   token: {demo.home / 'token'}", soft_wrap=True)
    console.print(f"Ray dashboard   {cluster['dashboard_url']}   token: {cluster['ray_token_path']}", soft_wrap=True)
    console.print(f"chat            http://127.0.0.1:{demo.serve_port}/v1   model {chat.MODEL}")
    console.print(f"shell           export PACELINE_HOME={demo.home}", soft_wrap=True)
    console.print(f'                eval "$({tool("paceline")} sim env)"', soft_wrap=True)
    console.print("stop            make down")


def stop(home: Path) -> bool:
    """Stop what was started under a home. Whether it all went."""
    env = os.environ | {"PACELINE_HOME": str(home)}
    failed = 0
    for command in ([tool("paceline"), "down"], [tool("paceline"), "sim", "down"]):
        done = subprocess.run(command, env=env, timeout=300, check=False, stdout=subprocess.DEVNULL)
        failed += done.returncode != 0
    return failed == 0


def stop_all() -> int:
    homes = sorted(path.parent.parent.resolve() for path in ROOT.glob("*/sim/cluster.json"))
    console.print(f"{len(homes)} demo(s) to stop")
    stopped = [stop(home) for home in homes]
    return 0 if all(stopped) else 1


def write_figures(demo: Demo) -> None:
    """The seconds of each phase, for `make bench ONLY=demo`."""
    rows = [{"name": f"demo.phase_{title[0]}_s", "value": took, "unit": "s"} for title, took in demo.phases.items()]
    (ROOT / "last.json").write_text(json.dumps({"figures": rows}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything running")
    parser.add_argument("--down", action="store_true", help="stop what demos have left running")
    args = parser.parse_args()
    if args.down:
        return stop_all()
    home = (ROOT / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}").resolve()
    (home / "logs").mkdir(parents=True)
    demo = Demo(home, os.environ | {"PACELINE_HOME": str(home), "NO_COLOR": "1"})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    keep = False
    try:
        play(demo)
        screen(demo, args.keep)
        write_figures(demo)
        keep = args.keep
    except (ClaimFailedError, PacelineError, OpenAIError, httpx.HTTPError, subprocess.TimeoutExpired) as failure:
        console.print(f"✘ {failure}\nlogs: {home / 'logs'}", markup=False, soft_wrap=True)
        return 1
    finally:
        if not keep:
            stop(home)
            shutil.rmtree(home / "runs", ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
