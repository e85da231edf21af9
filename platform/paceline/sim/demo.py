"""`make demo`: the main job on simulated hosts, end to end, each claim checked.

It uses what a user would use: the command line, `ray job submit`, the OpenAI client, the SDK. Everything it starts lives under one
home in build/demo, so that several demos, and any other Ray cluster, can run beside each other on a machine.
"""

import argparse
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
from openai import OpenAI
from rich.console import Console
from rich.table import Table

from paceline.model.errors import PacelineError
from paceline.model.events import Event, EventKind
from paceline.model.hardware import DeviceState
from paceline.model.workload import FINAL_STATES, RunState
from paceline.sdk.client import Client
from paceline.sdk.rows import DeviceRow, JobDetail

ROOT: Final = Path("build/demo")
HOSTS, GPUS, GANG = 3, 8, 4
STEPS, CHECKPOINT_EVERY = 160, 20
MAX_SPREAD: Final = 0.03
FAULT_AFTER_STEP: Final = 59
RUN_DEADLINE_S: Final = 240.0
CHAIN: Final = (
    EventKind.TELEMETRY,
    EventKind.FINDING,
    EventKind.VERDICT,
    EventKind.QUARANTINED,
    EventKind.LEASE_MOVING,
    EventKind.ATTEMPT_ENDED,
    EventKind.ATTEMPT_STARTED,
    EventKind.ATTEMPT_RESUMED,
)
SEED: Final = 7
FIRST_TURN: Final = "My name is Ada and I race bicycles. Tell me in three sentences how riding in a group saves energy."
NEXT_TURN: Final = "What is my name?"

console = Console()


class ClaimFailed(Exception):
    """What the demo says would not be true."""


@dataclass
class Demo:
    """One run: its home, what it has measured, and what it has found to be true."""

    home: Path
    claims: list[tuple[str, str]] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    serve_port: int = 0

    def claim(self, what: str, truth: bool, figures: str) -> None:
        if not truth:
            raise ClaimFailed(f"{what}: {figures}")
        self.claims.append((what, figures))
        console.print(f"  [green]✔[/] {what} [dim]{figures}[/]")

    @contextmanager
    def phase(self, title: str) -> Iterator[None]:
        console.print(f"[bold]{title}[/]")
        started = time.monotonic()
        yield
        self.phases[title] = time.monotonic() - started

    @property
    def client(self) -> Client:
        row = json.loads((self.home / "server.json").read_text())
        return Client(row["url"], (self.home / "token").read_text().strip())

    def run(self, *command: str, deadline_s: float = 300) -> str:
        """Run a command as a user would, and show its words only if it fails."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=deadline_s)
        if done.returncode != 0:
            words = (done.stdout + done.stderr)[-3000:]
            raise ClaimFailed(f"`{' '.join(command)}` ended with status {done.returncode}:\n{words}")
        return done.stdout


def tool(name: str) -> str:
    """A program of this virtual environment."""
    return str(Path(sys.executable).parent / name)


def until(what: str, deadline_s: float, look: Callable[[], object]) -> object:
    """Wait for a condition. The result of `look` once it is true."""
    ends = time.monotonic() + deadline_s
    while True:
        try:
            found = look()
        except (PacelineError, httpx.HTTPError):
            found = None
        if found:
            return found
        if time.monotonic() > ends:
            raise ClaimFailed(f"not within {deadline_s:.0f} s: {what}")
        time.sleep(0.1)


# ── the phases ───────────────────────────────────────────────────────────────────────────────────────────────────────


def start_cluster(demo: Demo) -> None:
    demo.run(tool("paceline"), "sim", "up", "--hosts", str(HOSTS), "--gpus", str(GPUS))
    from paceline.sim.cluster import client_env

    demo.env |= client_env(demo.home)
    demo.run(tool("paceline"), "up")
    seen = demo.run(
        tool("ray"), "status", "--address", json.loads((demo.home / "sim/cluster.json").read_text())["address"]
    )
    total = re.search(r"/([0-9.]+) GPU", seen)
    demo.claim(
        "Ray itself detects the GPUs of every host",
        bool(total) and float(total[1]) == HOSTS * GPUS,
        f"{total[1] if total else 0} on {HOSTS} raylets",
    )


def look_at_devices(demo: Demo) -> None:
    devices = demo.client.devices()
    scores = sorted(d.score for d in devices if d.score is not None)
    demo.claim(
        "every device is measured and scored",
        len(scores) == len(devices) == HOSTS * GPUS,
        f"{len(scores)} devices, {scores[0]:.3f} to {scores[-1]:.3f} of the median time",
    )
    slow = until(
        "the slow device is quarantined",
        60,
        lambda: [d for d in demo.client.devices() if d.state == DeviceState.QUARANTINED],
    )
    assert isinstance(slow, list)
    demo.claim(
        "the one slow device is found and excluded, alone",
        [d.uuid for d in slow] == [max(devices, key=lambda d: d.score or 0).uuid],
        f"{place(slow[0])} takes {slow[0].score:.2f} x the median time",
    )


def train(
    demo: Demo, name: str, fault: Callable[[Demo, str], DeviceRow] | None = None
) -> tuple[JobDetail, float, DeviceRow | None]:
    """Submit the training job as any Ray user would; meanwhile do the harm, if any. Returns the job, its final loss and the device hurt."""
    submission = f"{name}-{secrets.token_hex(3)}"
    command = [
        tool("ray"),
        "job",
        "submit",
        "--submission-id",
        submission,
        "--",
        sys.executable,
        str(Path("jobs/train_lm.py").resolve()),
        "--name",
        name,
        "--workers",
        str(GANG),
        "--steps",
        str(STEPS),
        "--checkpoint-every",
        str(CHECKPOINT_EVERY),
        "--storage",
        str((demo.home / "runs").resolve()),
    ]
    log = demo.home / "logs" / f"job-{name}.log"
    with log.open("w") as out, subprocess.Popen(command, env=demo.env, stdout=out, stderr=subprocess.STDOUT) as job:
        try:
            hurt = fault(demo, submission) if fault else None
            status = job.wait(RUN_DEADLINE_S)
        except BaseException:
            job.kill()
            raise
    found = re.findall(r"finished at step (\d+): loss (\S+)", log.read_text())
    if status != 0 or not found or int(found[-1][0]) != STEPS - 1:
        raise ClaimFailed(f"the run {name} did not finish (status {status}); its log: {log}\n{log.read_text()[-2000:]}")
    detail = until("the inventory knows the end of the run", 30, lambda: finished(demo.client.job(submission)))
    assert isinstance(detail, JobDetail)
    return detail, float(found[-1][1]), hurt


def finished(job: JobDetail) -> JobDetail | None:
    return job if RunState(job.state) in FINAL_STATES else None


def break_a_device(demo: Demo, submission: str) -> DeviceRow:
    """Xid 79 on a device of the gang, once the run has passed a checkpoint: the GPU falls off the bus."""

    def far_enough() -> object:
        steps = [c.step for c in demo.client.job(submission).checkpoints]
        return bool(steps) and max(steps) >= FAULT_AFTER_STEP

    until(f"the run has committed step {FAULT_AFTER_STEP}", RUN_DEADLINE_S, far_enough)
    gang = next(lease for lease in demo.client.leases() if lease.attempt_id.startswith(submission))
    victim = next(d for d in demo.client.devices() if d.uuid == gang.devices[1])
    fired = time.monotonic()
    demo.run(tool("paceline"), "sim", "xid", victim.host, str(victim.index), "79")
    demo.run(tool("paceline"), "sim", "lose", victim.host, str(victim.index))
    until(
        "the device leaves service",
        30,
        lambda: demo.client.device(victim.uuid).state in (DeviceState.DRAINING, DeviceState.QUARANTINED),
    )
    demo.claim(
        "Xid 79 in mid-run takes that one device out of service",
        True,
        f"{place(victim)}, seen after {time.monotonic() - fired:.1f} s",
    )
    until(
        "the device is quarantined on Ray",
        120,
        lambda: demo.client.device(victim.uuid).state == DeviceState.QUARANTINED,
    )
    demo.claim(
        "Ray can no longer give it out, and its host stays in use",
        True,
        f"checked after {time.monotonic() - fired:.1f} s",
    )
    return victim


def compare_runs(
    demo: Demo, calm: tuple[JobDetail, float, DeviceRow | None], ridden: tuple[JobDetail, float, DeviceRow | None]
) -> None:
    quiet, quiet_loss, _ = calm
    moved, moved_loss, victim = ridden
    assert victim is not None
    spread = quiet.attempts[0].spread
    demo.claim(
        "an unmodified Ray Train script gets a gang of equals",
        spread is not None and spread <= MAX_SPREAD,
        f"{GANG} of {HOSTS * GPUS} devices, chosen one by one, spread {spread:.2%}"
        if spread is not None
        else "no spread",
    )
    demo.claim(
        "the attempt is moved to a fresh gang without that device",
        len(moved.attempts) == 2 and victim.uuid not in moved.attempts[1].devices,
        f"attempt {len(moved.attempts)}, {GANG} devices",
    )
    resumed = moved.attempts[1].resumed_step
    demo.claim(
        "training goes on from the latest checkpoint",
        resumed is not None and resumed >= FAULT_AFTER_STEP,
        f"resumed at step {resumed}",
    )
    quiet_curve = {c.step: c.metrics["loss"] for c in quiet.checkpoints}
    curve = {c.step: c.metrics["loss"] for c in moved.checkpoints}
    demo.claim(
        "the loss equals that of an undisturbed run at every checkpoint",
        curve == quiet_curve and moved_loss == quiet_loss,
        f"{quiet_curve[min(quiet_curve)]:.3f} → {moved_loss:.6f} = {quiet_loss:.6f}",
    )


def check_story(demo: Demo, victim: DeviceRow, resumed_step: int) -> None:
    chain = caused_chain(demo.client.story(victim.uuid).events)
    kinds = [event.kind for event in chain]
    demo.claim(
        "one story explains it, from sample to resumed step",
        in_order(CHAIN, kinds) and str(resumed_step) in chain[-1].summary,
        " → ".join(dict.fromkeys(kind.value for kind in CHAIN)),
    )
    words = demo.run(tool("paceline"), "story", "device", victim.uuid)
    page = page_text(demo, f"/devices/{victim.uuid}")
    ends = [event.summary for event in (chain[0], chain[-1])]
    demo.claim(
        "command line, web page and SDK tell the same story",
        "Xid 79" in words and f"step {resumed_step}" in words and "Xid 79" in page and f"step {resumed_step}" in page,
        f"“{ends[0]}” … “{ends[1]}”",
    )


def caused_chain(events: list[Event]) -> list[Event]:
    """The causes of the resumed attempt, oldest first."""
    by_id = {event.id: event for event in events}
    last = next((e for e in reversed(events) if e.kind is EventKind.ATTEMPT_RESUMED), None)
    chain: list[Event] = []
    while last is not None:
        chain.insert(0, last)
        last = by_id.get(last.cause_id)
    beside = [e for e in events if e.kind is EventKind.QUARANTINED and any(e.cause_id == c.id for c in chain)]
    return sorted([*chain, *beside], key=lambda event: event.id)


def in_order(wanted: tuple[EventKind, ...], found: list[EventKind]) -> bool:
    """Whether each wanted kind is there; the quarantine is confirmed beside the chain, at its own time."""
    chain = [kind for kind in wanted if kind is not EventKind.QUARANTINED]
    rest = iter(found)
    return EventKind.QUARANTINED in found and all(kind in rest for kind in chain)


def page_text(demo: Demo, path: str) -> str:
    row = json.loads((demo.home / "server.json").read_text())
    with httpx.Client(base_url=row["url"], follow_redirects=True) as browser:
        browser.post("/login", data={"token": (demo.home / "token").read_text().strip()}).raise_for_status()
        answer = browser.get(path)
        answer.raise_for_status()
        return answer.text


# ── the conversation ─────────────────────────────────────────────────────────────────────────────────────────────────


def start_chat(demo: Demo) -> None:
    from paceline.runtime.processes import free_port

    demo.serve_port = free_port()
    demo.run(
        tool("ray"),
        "job",
        "submit",
        "--",
        sys.executable,
        str(Path("serve_apps/chat.py").resolve()),
        "--model",
        "smollm2",
        "--replicas",
        "2",
        "--port",
        str(demo.serve_port),
    )


def talk(demo: Demo, session: str, words: str, during: Callable[[str], None] = lambda _: None) -> str:
    """One streamed turn of the official OpenAI client. `during` is told the text so far after each piece."""
    client = OpenAI(base_url=f"http://127.0.0.1:{demo.serve_port}/v1", api_key="none", max_retries=0, timeout=120)
    stream = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": words}],
        stream=True,
        max_tokens=48,
        temperature=0.7,
        seed=SEED,
        extra_headers={"x-session-id": session},
    )
    text = ""
    for piece in stream:
        text += (piece.choices[0].delta.content or "") if piece.choices else ""
        during(text)
    return text


def session_row(demo: Demo, session: str) -> dict[str, object]:
    row: dict[str, object] = (
        httpx.get(f"http://127.0.0.1:{demo.serve_port}/v1/sessions/{session}", timeout=30).raise_for_status().json()
    )
    return row


def converse(demo: Demo) -> None:
    calm = talk(demo, "calm", FIRST_TURN)
    calm_next = talk(demo, "calm", NEXT_TURN)
    killed: list[int] = []

    def kill(text: str) -> None:
        if not killed and len(text) > len(calm) // 3:
            pid = int(str(session_row(demo, "ridden")["pid"]))
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    ridden = talk(demo, "ridden", FIRST_TURN, kill)
    resumes = session_row(demo, "ridden")["resumes"]
    demo.claim(
        "a replica is killed in mid-stream and its client notices nothing",
        bool(killed) and resumes == 1 and ridden == calm,
        f"pid {killed}, {resumes} resume, {len(ridden)} characters equal to an undisturbed answer",
    )
    again = talk(demo, "ridden", NEXT_TURN)
    demo.claim(
        "the next turn knows the earlier ones",
        again == calm_next and "Ada" in again,
        f"“{NEXT_TURN}” “{' '.join(again.split())[:60]}”",
    )
    tracked = until(
        "the inventory knows the session",
        30,
        lambda: [s for s in demo.client.sessions() if s.session_id == "ridden" and s.resumes],
    )
    assert isinstance(tracked, list)
    demo.claim(
        "sessions are in the inventory", tracked[0].turns == 2, f"{tracked[0].turns} turns, {tracked[0].resumes} resume"
    )


# ── the run ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def place(device: DeviceRow) -> str:
    return f"{device.host} GPU {device.index}"


def run(demo: Demo) -> None:
    with demo.phase(f"1/6 A Ray cluster of {HOSTS} simulated hosts with {GPUS} GPUs each; Paceline joins it"):
        start_cluster(demo)
        look_at_devices(demo)
    with demo.phase("2/6 An undisturbed training run, by ray job submit"):
        calm = train(demo, "calm")
    with demo.phase("3/6 The same run, and a GPU falls off the bus in the middle"):
        ridden = train(demo, "ridden", break_a_device)
        compare_runs(demo, calm, ridden)
    with demo.phase("4/6 Why: the story of that device"):
        assert ridden[2] is not None
        check_story(demo, ridden[2], ridden[0].attempts[1].resumed_step or -1)
    with demo.phase("5/6 Two chat replicas behind the gateway"):
        start_chat(demo)
    with demo.phase("6/6 A conversation, and its replica is killed in mid-sentence"):
        converse(demo)


def screen(demo: Demo, keep: bool) -> None:
    cluster = json.loads((demo.home / "sim/cluster.json").read_text())
    table = Table(title="What happened, each line checked", width=100, show_header=False)
    table.add_column(ratio=3)
    table.add_column(ratio=2, style="cyan")
    for what, figures in demo.claims:
        table.add_row(f"✔ {what}", figures)
    console.print(table)
    console.print(
        "seconds: "
        + ", ".join(f"{title.split(' ')[0]} {seconds:.0f}" for title, seconds in demo.phases.items())
        + f"; together {sum(demo.phases.values()):.0f}"
    )
    console.print(f"logs            {demo.home / 'logs'}")
    if keep:
        console.print(f"page            {demo.client.address}/   token: {demo.home / 'token'}")
        console.print(f"Ray dashboard   {cluster['dashboard_url']}   token: {cluster['ray_token_path']}")
        console.print(f"chat            http://127.0.0.1:{demo.serve_port}/v1")
        console.print(f'shell           export PACELINE_HOME={demo.home}; eval "$({tool("paceline")} sim env)"')
        console.print("stop            make down")
    else:
        console.print("page, dashboard and chat were stopped with the demo; `make demo KEEP=1` leaves them running")


def stop(home: Path) -> None:
    env = os.environ | {"PACELINE_HOME": str(home)}
    for command in (("down",), ("sim", "down")):
        subprocess.run([tool("paceline"), *command], env=env, timeout=180, check=False, capture_output=True)


def stop_all() -> int:
    homes = sorted(path.parent.parent for path in ROOT.glob("*/sim/cluster.json"))
    for home in homes:
        stop(home.resolve())
        console.print(f"stopped {home}")
    if not homes:
        console.print("nothing of a demo is running")
    return 0


def write_figures(demo: Demo) -> None:
    """The seconds of each phase, for `make bench ONLY=demo`."""
    rows = [
        {"name": f"demo.phase_{title.split('/')[0]}_s", "value": seconds, "unit": "s"}
        for title, seconds in demo.phases.items()
    ]
    (ROOT / "last.json").write_text(json.dumps({"figures": rows}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything running")
    parser.add_argument("--down", action="store_true", help="stop what demos have left running")
    args = parser.parse_args()
    if args.down:
        return stop_all()
    home = (ROOT / f"{time.strftime('%H%M%S')}-{secrets.token_hex(2)}").resolve()
    (home / "logs").mkdir(parents=True)
    demo = Demo(home, env=os.environ | {"PACELINE_HOME": str(home), "NO_COLOR": "1"})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    keep = False
    try:
        run(demo)
        keep = args.keep
        screen(demo, keep)
        write_figures(demo)
    except (ClaimFailed, PacelineError, subprocess.TimeoutExpired, httpx.HTTPError) as failure:
        console.print(f"[red]✘[/] {failure}\nlogs: {home / 'logs'}", markup=True, highlight=False)
        return 1
    finally:
        if not keep:
            stop(home)
            shutil.rmtree(home / "runs", ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
