"""`paceline`: what is there, what happened, why, and the few things an operator does by hand.

Exit codes: 0 done, 2 wrong use, 3 not found, 4 refused, 5 infeasible, 6 failed, 7 timed out, 8 the server does not answer, 130 interrupted.
"""

import sys
import time
from collections import Counter
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from paceline import __version__
from paceline.cli import describe as describing
from paceline.cli import local, operate, render
from paceline.cli.options import DEADLINE_S, AddressOption, DeviceName, OutputOption
from paceline.cli.show import Kind, Output, follow_events, print_table, watch
from paceline.model.errors import BadRequest, PacelineError
from paceline.model.workload import FINAL_STATES, RunState
from paceline.sdk import words
from paceline.sdk.client import Client
from paceline.sdk.rows import JobDetail

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Paceline: a Ray cluster of GPUs that keeps its pace.",
)


class Thing(StrEnum):
    """What can be described and told of. `gpu` and `node` are other words for `device` and `host`."""

    DEVICE = "device"
    GPU = "gpu"
    HOST = "host"
    NODE = "node"
    JOB = "job"


HOSTS: Final = frozenset({Thing.HOST, Thing.NODE})


@app.command()
def get(
    kind: Annotated[Kind, typer.Argument(help="what to list")],
    output: OutputOption = Output.TABLE,
    watched: Annotated[bool, typer.Option("--watch", "-w", help="go on showing changes")] = False,
    limit: Annotated[int, typer.Option(min=1, max=5000, help="longest list, where it grows with time")] = 50,
    address: AddressOption = None,
) -> None:
    """List hosts, devices (gpus), leases, jobs, sessions, events, verdicts, rules, links, alerts or reliability."""
    with Client(address, deadline_s=DEADLINE_S) as client:
        if watched and kind is Kind.EVENTS:
            follow_events(client, output, limit)
        elif watched:
            watch(client, kind, output, limit)
        else:
            print_table(client, kind, output, limit)


@app.command()
def describe(kind: Thing, name: str, output: OutputOption = Output.TABLE, address: AddressOption = None) -> None:
    """Everything about one device, host or job."""
    with Client(address, deadline_s=DEADLINE_S) as client:
        if kind is Thing.JOB:
            describing.job(client.job(name), output)
        elif kind in HOSTS:
            describing.host(client.host(words.find_host(client.hosts(), name).host), output)
        else:
            describing.device(client, words.find_device(client.devices(), name), output)


@app.command()
def explain(kind: Thing, name: str, address: AddressOption = None) -> None:
    """Why a job or device is as it is, and what would help."""
    if kind in HOSTS:
        raise BadRequest("PL-REQ-031", "a job or a device is explained", f"for a host: paceline describe host {name}")
    with Client(address, deadline_s=DEADLINE_S) as client:
        if kind is not Thing.JOB:
            _story(client, name, Output.TABLE)
            return
        job = client.job(name)
        out = render.console()
        out.print(
            f"{job.job_id}/{job.run_name} is {job.state} for {words.age(job.since_ns, time.time_ns())}: {job.reason or _usual(job)}"
        )
        if job.hint:
            out.print(f"try: {job.hint}")
        for attempt in job.attempts:
            ended = f"ended: {attempt.reason}" if attempt.state == "ended" else attempt.state
            start = "" if attempt.resumed_step is None else f", went on from step {attempt.resumed_step}"
            spread = "" if attempt.spread is None else f", spread {attempt.spread:.2%}"
            out.print(f"  attempt {attempt.number}: {len(attempt.devices)} devices{spread}{start}; {ended}")
        moving = next((x for x in client.leases() if x.lease_id == job.lease_id and x.moving_cause), None)
        if moving is not None:
            [cause] = client.events(after=moving.moving_cause - 1, limit=1)
            out.print(f"its gang must move: {cause.summary} (event {cause.id})")


def _usual(job: JobDetail) -> str:
    if job.state in FINAL_STATES:
        return f"done after {job.starts} start{'s' if job.starts != 1 else ''}"
    if job.state is RunState.RUNNING:
        return f"{job.devices} devices at work, step {job.step} is safe"
    return "no reason was given"


@app.command()
def story(kind: Thing, name: DeviceName, output: OutputOption = Output.TABLE, address: AddressOption = None) -> None:
    """What happened to a device, what caused that, and what it caused."""
    if kind is Thing.JOB:
        raise BadRequest("PL-REQ-031", "a story is told of a device", f"for a job: paceline explain job {name}")
    if kind in HOSTS:
        raise BadRequest("PL-REQ-031", "a story is told of a device", f"for a host: paceline describe host {name}")
    with Client(address, deadline_s=DEADLINE_S) as client:
        _story(client, name, output)


def _story(client: Client, name: str, output: Output) -> None:
    told = client.story(words.find_device(client.devices(), name).uuid)
    if output is Output.JSON:
        print(render.as_json(told))
        return
    device = told.device
    out = render.console(output is Output.WIDE)
    out.print(f"{device.uuid}  {words.place(device)}  {device.sku}  ", render.state(device.state), end="")
    out.print(f": {device.reason}" if device.reason else "")
    out.print(render.story(told.events, time.time_ns()))


@app.command()
def status(output: OutputOption = Output.TABLE, address: AddressOption = None) -> None:
    """The fleet in five lines."""
    with Client(address, deadline_s=DEADLINE_S) as client:
        health, hosts, devices, jobs = client.health(), client.hosts(), client.devices(), client.jobs()
        snapshot = client.fleet()
    facts: dict[str, Any] = {
        "server": {"address": client.address, **health},
        "hosts": Counter(h.state.value for h in hosts),
        "devices": Counter(d.state.value for d in devices),
        "leases": {"held": len(snapshot.leases), "moving": sum(1 for x in snapshot.leases if x.moving_cause)},
        "runs": Counter(j.state.value for j in jobs),
    }
    if output is Output.JSON:
        print(render.as_json(facts))
        return
    lines = [
        (name, ", ".join(f"{n} {s}" for s, n in sorted(facts[name].items())) or "none")
        for name in facts
        if name != "server"
    ]
    render.console().print(
        render.block([("server", f"{client.address}, version {health.get('version', '?')}"), *lines])
    )


@app.command()
def version(address: AddressOption = None) -> None:
    """Version of this client, and of the server if one answers."""
    print(f"client {__version__}")
    try:
        with Client(address, "", deadline_s=2) as client:
            print(f"server {client.health().get('version', '?')} at {client.address}")
    except PacelineError as error:
        print(f"server unknown: {error.message}", file=sys.stderr)


def _mount() -> None:
    operate.add_to(app)
    local.add_to(app)
    try:
        from paceline.cli import sim
    except ImportError:  # a client-only installation has no simulator
        return
    app.add_typer(sim.app, name="sim")


_mount()


def run(arguments: list[str]) -> int:
    """Exit code of the command line `arguments`; errors are written to stderr."""
    try:
        app(arguments, prog_name="paceline")
    except PacelineError as problem:
        render.error(problem)
        return problem.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def main() -> None:
    sys.exit(run(sys.argv[1:]))
