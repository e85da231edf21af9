"""Rows as tables and blocks of at most 100 columns; `-o wide` drops the limit, `-o json` is for programs."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.model.errors import PacelineError
from paceline.model.events import Event
from paceline.sdk import rows
from paceline.sdk.storyline import lay_out
from paceline.sdk.words import age, clock, percent, place, score, short_names

T = TypeVar("T")

WIDTH: Final = 100
WIDE: Final = 4000
DEEPEST: Final = 12
"""Steps of indentation that a line can spare; deeper events stand at this depth."""

STYLES: Final = {
    "HEALTHY": "green", "READY": "green", "SUCCEEDED": "green", "held": "green", "running": "green", "idle": "green",
    "RUNNING": "cyan", "open": "cyan", "PROBING": "cyan", "PROBATION": "cyan", "JOINING": "cyan", "starting": "cyan",
    "SUSPECT": "yellow", "DRAINING": "yellow", "RECOVERING": "yellow", "PLACING": "yellow", "QUEUED": "yellow", "moving": "yellow",
    "QUARANTINED": "red", "FAILED": "red", "failed": "red", "LOST": "red", "UNKNOWN": "magenta", "RETIRED": "dim", "ended": "dim",
}  # fmt: skip


def console(wide: bool = False, error: bool = False) -> Console:
    """For stdout or stderr: colour on a terminal only and never with NO_COLOR; never wider than a terminal or WIDTH."""
    stream = sys.stderr if error else sys.stdout
    terminal = stream.isatty()
    columns = (os.get_terminal_size(stream.fileno()).columns if terminal else 0) or WIDTH  # some terminals say 0
    width = WIDE if wide else min(columns, WIDTH)
    return Console(
        file=stream, width=width, highlight=False, no_color=not terminal or "NO_COLOR" in os.environ, soft_wrap=wide
    )


def state(value: str) -> Text:
    return Text(value, STYLES.get(value, ""))


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """`wide` columns are shown with -o wide only. The last column takes what room is left."""

    head: str
    cell: Callable[[T], str | Text]
    wide: bool = False
    right: bool = False


def table(columns: Sequence[Column[T]], items: Iterable[T], wide: bool) -> Table:
    shown = [c for c in columns if wide or not c.wide]
    # Only in an expanded table does the last column give way; in any other they all would.
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0), expand=not wide)
    for column in shown:
        last = column is shown[-1]
        drawn.add_column(
            column.head,
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if last and not wide else None,
        )
    for item in items:
        drawn.add_row(*(column.cell(item) for column in shown))
    return drawn


def hosts(items: Sequence[rows.HostRow], now_ns: int) -> list[Column[rows.HostRow]]:
    return [
        Column("HOST", lambda h: h.host),
        Column("STATE", lambda h: state(h.state)),
        Column("HEALTHY", lambda h: f"{h.healthy}/{h.devices}", right=True),
        Column("LEASED", lambda h: str(h.leased), right=True),
        Column("REPORT", lambda h: age(h.reported_ns, now_ns), right=True),
        Column("SINCE", lambda h: age(h.since_ns, now_ns), right=True),
        Column("ADDRESS", lambda h: h.address, wide=True),
        Column("NODE", lambda h: h.node_id, wide=True),
        Column("KIND", lambda h: "simulated" if h.simulated else "real"),
        Column("REASON", lambda h: h.reason),
    ]


def devices(items: Sequence[rows.DeviceRow], now_ns: int) -> list[Column[rows.DeviceRow]]:
    names = short_names(d.uuid for d in items)
    return [
        Column("GPU", place),
        Column("UUID", lambda d: names[d.uuid]),
        Column("UUID (WHOLE)", lambda d: d.uuid, wide=True),
        Column("STATE", lambda d: state(d.state)),
        Column("SCORE", lambda d: score(d.score), right=True),
        Column("NOISE", lambda d: percent(d.noise), wide=True, right=True),
        Column("ON RAY", lambda d: "held" if d.held else "free" if d.state == "HEALTHY" else "-"),
        Column("SKU", lambda d: d.sku, wide=True),
        Column("SINCE", lambda d: age(d.since_ns, now_ns), right=True),
        Column("ATTEMPT", lambda d: d.attempt_id or "-"),
        Column("REASON", lambda d: d.reason),
    ]


def leases(items: Sequence[rows.LeaseRow], now_ns: int) -> list[Column[rows.LeaseRow]]:
    return [
        Column("LEASE", lambda x: x.lease_id),
        Column("ATTEMPT", lambda x: x.attempt_id),
        Column("STATE", lambda x: state(x.state)),
        Column("GPUS", lambda x: str(len(x.devices)), right=True),
        Column("SPREAD", lambda x: percent(x.spread), right=True),
        Column("SINCE", lambda x: age(x.since_ns, now_ns), right=True),
        Column("DEVICES", lambda x: " ".join(x.devices), wide=True),
        Column(
            "REASON",
            lambda x: (
                x.end_reason or (f"moving because of event {x.moving_cause}" if x.moving_cause else x.plan_reason)
            ),
        ),
    ]


def jobs(items: Sequence[rows.JobRow], now_ns: int) -> list[Column[rows.JobRow]]:
    return [
        Column("JOB", lambda j: j.job_id),
        Column("RUN", lambda j: j.run_name),
        Column("STATE", lambda j: state(j.state)),
        Column("GPUS", lambda j: str(j.devices), right=True),
        Column("STARTS", lambda j: str(j.starts), right=True),
        Column("STEP", lambda j: str(j.step), right=True),
        Column("AGE", lambda j: age(j.created_ns, now_ns), right=True),
        Column("STORAGE", lambda j: j.storage_path, wide=True),
        Column("REASON", lambda j: j.reason),
    ]


def sessions(items: Sequence[rows.SessionRow], now_ns: int) -> list[Column[rows.SessionRow]]:
    names = short_names(s.device for s in items if s.device)
    return [
        Column("SESSION", lambda s: s.session_id),
        Column("STATE", lambda s: state(s.state)),
        Column("TURNS", lambda s: str(s.turns), right=True),
        Column("TOKENS", lambda s: str(s.tokens), right=True),
        Column("RESUMES", lambda s: str(s.resumes), right=True),
        Column("DEVICE", lambda s: names.get(s.device, "-")),
        Column("REPLICA", lambda s: s.replica, wide=True),
        Column("LAST", lambda s: age(s.at_ns, now_ns), right=True),
        Column("REASON", lambda s: s.reason),
    ]


def events(items: Sequence[Event], now_ns: int) -> list[Column[Event]]:
    return [
        Column("ID", lambda e: str(e.id), right=True),
        Column("CAUSE", lambda e: str(e.cause_id or "-"), right=True),
        Column("TIME", lambda e: clock(e.at_ns, now_ns)),
        Column("KIND", lambda e: e.kind.value),
        Column("ENTITY", lambda e: _short(e.entity, 24)),
        Column("ENTITY (WHOLE)", lambda e: e.entity, wide=True),
        Column("SUMMARY", lambda e: e.summary),
    ]


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def attempts(items: Sequence[rows.AttemptRow], now_ns: int) -> list[Column[rows.AttemptRow]]:
    return [
        Column("ATTEMPT", lambda a: str(a.number), right=True),
        Column("STATE", lambda a: state(a.state)),
        Column("GPUS", lambda a: str(len(a.ranks) or len(a.devices)), right=True),
        Column("SPREAD", lambda a: percent(a.spread), right=True),
        Column("FROM STEP", lambda a: "-" if a.resumed_step is None else str(a.resumed_step), right=True),
        Column("STARTED", lambda a: age(a.started_ns, now_ns), right=True),
        Column("HOSTS", lambda a: " ".join(sorted({r.host or r.node_id[:8] for r in a.ranks})) or "-"),
        Column("REASON", lambda a: a.reason),
    ]


def checkpoints(items: Sequence[rows.CheckpointRow], now_ns: int) -> list[Column[rows.CheckpointRow]]:
    return [
        Column("STEP", lambda c: str(c.step), right=True),
        Column("AGE", lambda c: age(c.at_ns, now_ns), right=True),
        Column(
            "METRICS", lambda c: " ".join(f"{k}={'nan' if v is None else f'{v:.6g}'}" for k, v in c.metrics.items())
        ),
        Column("PATH", lambda c: c.path, wide=True),
    ]


def block(pairs: Iterable[tuple[str, str | Text]]) -> Table:
    """Names and values, one a line."""
    drawn = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in pairs:
        drawn.add_row(name, value)
    return drawn


def story(items: Sequence[Event], now_ns: int) -> Table:
    """Each event under its cause."""
    drawn = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for _ in range(3):
        drawn.add_column(style="dim", no_wrap=True)
    drawn.add_column(overflow="fold", ratio=1)
    for line in lay_out(items):
        steps = min(line.depth, DEEPEST)
        branch = "  " * (steps - 1) + "└ " if steps else ""
        event = line.event
        drawn.add_row(
            clock(event.at_ns, now_ns), f"#{event.id}", event.kind.value, Text(branch, "dim") + Text(event.summary)
        )
    return drawn


def as_json(value: Any) -> str:
    """What the server answered, unchanged."""
    return TypeAdapter(Any).dump_json(value, indent=2).decode()


def error(problem: PacelineError) -> None:
    """What and why, what to do, the code to look up: on stderr."""
    out = console(error=True)
    out.print(Text.assemble(("error: ", "bold red"), problem.message), soft_wrap=True)
    if problem.hint:
        out.print(Text.assemble(("  try: ", "bold"), problem.hint), soft_wrap=True)
    out.print(Text(f"  code: {problem.code}", "dim"))
