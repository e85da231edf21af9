"""Acts two to four: an ordinary Ray Train run, the same run with a GPU lost in the middle, and the story of that GPU."""

import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from paceline.model.events import Event, EventKind
from paceline.model.hardware import DeviceState
from paceline.model.workload import FINAL_STATES
from paceline.sdk.rows import AttemptRow, DeviceRow, JobDetail
from paceline.sim.cluster import host_state
from paceline.sim.demo.fleet import GPUS, HOSTS
from paceline.sim.demo.scene import ClaimFailedError, Demo, place, tool, until

GANG: Final = 3
STEPS: Final = 140
CHECKPOINT_EVERY: Final = 20
FAULT_AFTER_STEP: Final = 39
"""Early: on a machine under load the rest of the run must still be long when the fault comes."""
MAX_SPREAD: Final = 0.03
"""The default of the callback: the script and its submission say nothing."""
RUN_DEADLINE_S: Final = 300.0
CHAIN: Final = (
    EventKind.TELEMETRY,
    EventKind.FINDING,
    EventKind.VERDICT,
    EventKind.LEASE_MOVING,
    EventKind.ATTEMPT_ENDED,
    EventKind.ATTEMPT_STARTED,
    EventKind.ATTEMPT_RESUMED,
)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run, and the device that was broken in it, if any."""

    job: JobDetail
    loss: float
    victim: DeviceRow | None

    @property
    def attempts(self) -> list[AttemptRow]:
        return sorted(self.job.attempts, key=lambda attempt: attempt.number)

    @property
    def curve(self) -> dict[int, float | None]:
        return {c.step: c.metrics["loss"] for c in self.job.checkpoints}


def train(demo: Demo, name: str, harm: Callable[[Demo, str], DeviceRow] | None = None) -> Run:
    """Submit the training script as any Ray user would; meanwhile do the harm."""
    submission = f"{name}-{secrets.token_hex(3)}"
    log = demo.home / "logs" / f"job-{name}.log"
    with log.open("w") as out, demo.doing(f"`ray job submit -- python jobs/train_lm.py`, {STEPS} steps"):
        job = subprocess.Popen(_command(demo, name, submission), env=demo.env, stdout=out, stderr=subprocess.STDOUT)
        try:
            victim = harm(demo, submission) if harm else None
            status = job.wait(RUN_DEADLINE_S)
        finally:
            job.kill()
            job.wait()
    words = log.read_text()
    ends = re.findall(r"finished at step (\d+): loss (\S+)", words)
    if status != 0 or not ends or int(ends[-1][0]) != STEPS - 1:
        raise ClaimFailedError(f"the run {name} did not finish (status {status}): {log}\n{words[-2000:]}")

    def over() -> JobDetail | None:
        detail = demo.client.job(submission)
        return detail if detail.state in FINAL_STATES else None

    detail = until("the inventory knows the end of the run", 30, over)
    assert detail is not None, "until returns true results only"
    return Run(detail, float(ends[-1][1]), victim)


def _command(demo: Demo, name: str, submission: str) -> list[str]:
    script = [sys.executable, str(Path("jobs/train_lm.py").resolve()), "--name", name, "--workers", str(GANG)]
    size = ["--steps", str(STEPS), "--checkpoint-every", str(CHECKPOINT_EVERY), "--storage", str(demo.home / "runs")]
    return [tool("ray"), "job", "submit", "--submission-id", submission, "--", *script, *size]


def break_a_device(demo: Demo, submission: str) -> DeviceRow:
    """Xid 79 on a device of the gang once the run has committed a checkpoint: the GPU falls off the bus."""

    def far_enough() -> bool:
        return any(c.step >= FAULT_AFTER_STEP for c in demo.client.job(submission).checkpoints)

    until(f"the run has committed step {FAULT_AFTER_STEP}", RUN_DEADLINE_S, far_enough)
    lease = next(lease for lease in demo.client.leases() if lease.job_id == submission and not lease.ended_ns)
    victim = demo.client.device(lease.devices[1])
    fired = time.monotonic()
    # Not by the command line, whose start takes seconds under load: `paceline sim xid HOST GPU 79` does the same.
    host_state(demo.home, victim.host).inject_xid(victim.index, 79)
    out = (DeviceState.DRAINING, DeviceState.QUARANTINED)
    until("the device leaves service", 60, lambda: demo.client.device(victim.uuid).state in out)
    seen_s = time.monotonic() - fired
    until("the device is held", 180, lambda: demo.client.device(victim.uuid).state is DeviceState.QUARANTINED)
    held_s = time.monotonic() - fired
    demo.claim("Xid 79 in mid-run takes that one device out", True, f"{place(victim)}, after {seen_s:.1f} s")
    others = [d for d in demo.client.devices() if d.host == victim.host and d.state is DeviceState.HEALTHY]
    demo.claim(
        "Ray can no longer give it out; its host works on",
        demo.client.device(victim.uuid).held and bool(others),
        f"held after {held_s:.1f} s, {len(others)} devices of {victim.host} in use",
    )
    return victim


def compare(demo: Demo, calm: Run, ridden: Run) -> None:
    assert ridden.victim is not None, "the second run is the one with the fault"
    spread, gang = calm.attempts[0].spread, {rank.uuid for rank in calm.attempts[0].ranks}
    demo.claim(
        "an unmodified Ray Train script gets a gang of equals",
        spread is not None and spread <= MAX_SPREAD and len(gang) == GANG,
        f"{GANG} of {HOSTS * GPUS} devices, chosen one by one, spread {spread or 0:.2%}",
    )
    moved = ridden.attempts
    fresh = {rank.uuid for rank in moved[-1].ranks}
    demo.claim(
        "the attempt is moved to a fresh gang without that device",
        len(moved) == 2 and len(fresh) == GANG and ridden.victim.uuid not in fresh,
        f"attempt {len(moved)}, spread {moved[-1].spread or 0:.2%}",
    )
    away_s = (moved[1].resumed_ns - moved[0].ended_ns) / 1e9
    demo.claim(
        "training goes on from the latest checkpoint",
        (moved[1].resumed_step or 0) >= FAULT_AFTER_STEP,
        f"at step {moved[1].resumed_step}, {away_s:.1f} s after the attempt before had ended",
    )
    demo.claim(
        "the loss is exactly that of the undisturbed run",
        ridden.curve == calm.curve and ridden.loss == calm.loss and len(calm.curve) == STEPS // CHECKPOINT_EVERY,
        f"{ridden.loss:.6f} = {calm.loss:.6f}, and at all {len(calm.curve)} checkpoints",
    )


def check_story(demo: Demo, ridden: Run) -> None:
    """The chain of causes, as SDK, command line and page tell it."""
    assert ridden.victim is not None, "the second run is the one with the fault"
    uuid, step = ridden.victim.uuid, f"step {ridden.attempts[1].resumed_step}"
    events = demo.client.story(uuid).events
    chain = chain_to(events, EventKind.ATTEMPT_RESUMED)
    verdict = next((e for e in chain if e.kind is EventKind.VERDICT), None)
    held = [e for e in events if e.kind is EventKind.QUARANTINED and verdict and e.cause_id == verdict.id]
    demo.claim(
        "one story explains it, sample to resumed step",
        [e.kind for e in chain][-len(CHAIN) :] == list(CHAIN) and bool(held) and step in chain[-1].summary,
        " → ".join(kind.value for kind in CHAIN),
    )
    words = demo.run(tool("paceline"), "story", "device", uuid)
    page = page_text(demo, f"/devices/{uuid}")
    told = all("Xid 79" in text and step in text for text in (" ".join(words.split()), page))
    demo.claim("command line, page and SDK tell the same story", told, f"paceline story device {uuid[:12]}…")


def chain_to(events: tuple[Event, ...], kind: EventKind) -> list[Event]:
    """The last event of a kind and its causes, oldest first."""
    by_id = {event.id: event for event in events}
    event = next((e for e in reversed(events) if e.kind is kind), None)
    chain: list[Event] = []
    while event is not None:
        chain.insert(0, event)
        event = by_id.get(event.cause_id)
    return chain


def page_text(demo: Demo, path: str) -> str:
    """A page as a browser gets it: log in with the token, keep the cookie."""
    with httpx.Client(base_url=demo.server, follow_redirects=True, timeout=30) as browser:
        browser.post("/login", data={"token": demo.token}).raise_for_status()
        return browser.get(path).raise_for_status().text
