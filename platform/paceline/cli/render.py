"""Rows as tables and blocks of at most 100 columns; `-o wide` drops the limit, `-o json` is for programs."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from paceline.model.errors import PacelineError
from paceline.model.events import Event
from paceline.sdk import rows
from paceline.sdk import rows_health as health
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
    "REPAIR": "red", "CORDONED": "yellow", "enforce": "green", "shadow": "cyan", "excused": "dim",
    "up": "green", "down": "red", "ok": "green", "goes on": "cyan",
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
        Column("UUID", lambda d: names[d.uuid], wide=True),
        Column("UUID (WHOLE)", lambda d: d.uuid, wide=True),
        Column("STATE", lambda d: state(d.state)),
        Column("SCORE", lambda d: score(d.score), right=True),
        Column("SPREAD", lambda d: percent(d.spread), right=True),
        Column("NOISE", lambda d: percent(d.noise), wide=True, right=True),
        Column("ON RAY", lambda d: "held" if d.held else "free" if d.state == "HEALTHY" else "-"),
        Column("SKU", lambda d: d.sku, wide=True),
        Column("AGE", lambda d: age(d.since_ns, now_ns), right=True),
        Column("ATTEMPT", lambda d: _short(d.attempt_id, 24) or "-"),
        Column("REASON", lambda d: f"cordoned by {d.cordon_by}: {d.cordon_reason}" if d.cordoned_ns else d.reason),
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


def verdicts(items: Sequence[health.VerdictRow], now_ns: int) -> list[Column[health.VerdictRow]]:
    names = short_names(v.uuid for v in items if v.uuid)
    return [
        Column("ID", lambda v: str(v.id), right=True),
        Column("AGE", lambda v: age(v.at_ns, now_ns), right=True),
        Column("ABOUT", lambda v: names.get(v.uuid, v.host)),
        Column("UUID (WHOLE)", lambda v: v.uuid, wide=True),
        Column("RULE", lambda v: f"{v.rule_id} v{v.rule_version}"),
        Column("ADVICE", lambda v: v.advice, wide=True),
        Column("MODE", lambda v: state(v.mode.value)),
        Column("TO", lambda v: state(v.to_state)),
        Column("FROM", lambda v: v.from_state, wide=True),
        Column("RIGHT", lambda v: "-" if v.label is None else "yes" if v.label else "no"),
        Column("EVIDENCE", lambda v: " ".join(f"#{event}" for event in v.evidence), wide=True),
        Column("REASON", lambda v: v.reason),
    ]


def rules(items: Sequence[health.RuleRow], now_ns: int) -> list[Column[health.RuleRow]]:
    return [
        Column("RULE", lambda r: f"{r.rule_id} v{r.version}"),
        Column("MODE", lambda r: state(r.mode.value)),
        Column("VERDICTS", lambda r: str(r.verdicts), right=True),
        Column("SHADOW", lambda r: str(r.shadow), wide=True, right=True),
        Column("HELD", lambda r: str(r.held), wide=True, right=True),
        Column("EXCUSED", lambda r: str(r.excused), wide=True, right=True),
        Column("LABELLED", lambda r: str(r.labelled), right=True),
        Column("WRONG", lambda r: percent(r.false_rate), right=True),
        Column("SENTENCE", lambda r: r.sentence),
    ]


def mtbf(items: Sequence[health.MtbfRow], now_ns: int) -> list[Column[health.MtbfRow]]:
    return [
        Column("SCOPE", lambda m: m.scope.value),
        Column("NAME", lambda m: _short(m.name, 40)),
        Column("NAME (WHOLE)", lambda m: m.name, wide=True),
        Column("DEVICE-HOURS", lambda m: f"{m.device_hours:.1f}", right=True),
        Column("FAILURES", lambda m: str(m.failures), right=True),
        Column("MTBF H", lambda m: hours(m.mtbf_h), right=True),
        Column("95 % BOUNDS", lambda m: "-" if m.low_h is None else f"{hours(m.low_h)} to {hours(m.high_h, '∞')}"),
    ]


def hours(value: float | None, none: str = "-") -> str:
    """To a tenth of an hour below a thousand."""
    return none if value is None else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def lemons(answer: health.Reliability) -> RenderableType:
    """Each lemon with its signals, or why none is told of."""
    judged = f"signals: {', '.join(answer.signals)}"
    if not answer.lemons:
        none = "too few hosts to tell lemons" if answer.lemons is None else "no lemons"
        return Text(f"\n{none} ({judged})", "dim")
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for head, side in (("LEMON", "left"), ("SIGNAL", "left"), ("IN 28 DAYS", "right"), ("EXPECTED", "right")):
        drawn.add_column(head, justify="right" if side == "right" else "left", no_wrap=True)
    for lemon in answer.lemons:
        for number, one in enumerate(lemon.over):
            drawn.add_row("" if number else lemon.host, one.signal, str(one.count), f"{one.expected:.1f}")
    return Group("", drawn, Text(judged, "dim"))


def exchanges(items: Sequence[health.NodeMeasurementRow], now_ns: int) -> list[Column[health.NodeMeasurementRow]]:
    return [
        Column("EXCHANGE", lambda m: m.benchmark),
        Column("DEVICES", lambda m: str(m.devices), right=True),
        Column("TIME", lambda m: "-" if m.seconds is None else f"{m.seconds * 1e3:.1f} ms", right=True),
        Column("GB/S", lambda m: "-" if m.bus_gbps is None else f"{m.bus_gbps:.1f}", right=True),
        Column("TO PEERS", lambda m: score(m.relative), right=True),
        Column("AGE", lambda m: age(m.at_ns, now_ns)),
        Column("RESULT", lambda m: "ok" if m.ok else m.error),
    ]


def links(items: Sequence[health.LinkRow], now_ns: int) -> list[Column[health.LinkRow]]:
    return [
        Column("HOST", lambda x: x.host),
        Column("PORT", lambda x: x.name),
        Column("KIND", lambda x: x.kind),
        Column("STATE", lambda x: state("up" if x.up else "down")),
        Column("SINCE", lambda x: age(x.since_ns, now_ns), right=True),
        Column("GBIT/S", lambda x: "-" if x.rate_gbps is None else f"{x.rate_gbps:g}", right=True),
        Column("DOWNED", lambda x: "-" if x.link_downed is None else str(x.link_downed), right=True),
        Column("ERRORS", lambda x: "-" if x.errors is None else str(x.errors), right=True),
        Column("READ", lambda x: age(x.at_ns, now_ns)),
    ]


def alerts(items: Sequence[health.AlertRow], now_ns: int) -> list[Column[health.AlertRow]]:
    return [
        Column("ID", lambda a: str(a.id), right=True),
        Column("AGE", lambda a: age(a.at_ns, now_ns), right=True),
        Column("KIND", lambda a: a.kind.value),
        Column("ENTITY", lambda a: a.entity, wide=True),
        Column("WAITS FOR", lambda a: ", ".join(a.waiting) or "-", wide=True),
        Column("SENT", lambda a: "no" if a.waiting else "yes"),
        Column("SUMMARY", lambda a: a.summary),
    ]


def findings(items: Sequence[health.FindingRow], now_ns: int) -> list[Column[health.FindingRow]]:
    return [
        Column("RULE", lambda f: f"{f.rule_id} v{f.rule_version}"),
        Column("ADVICE", lambda f: f.advice.value),
        Column("FIRST", lambda f: age(f.first_ns, now_ns), right=True),
        Column("LAST", lambda f: age(f.last_ns, now_ns), right=True),
        Column("TIMES", lambda f: str(f.repeats + 1), right=True),
        Column("EVENT", lambda f: f"#{f.event_id}", right=True),
        Column("SUMMARY", lambda f: f.summary),
    ]


def repairs(items: Sequence[health.RepairRow], now_ns: int) -> list[Column[health.RepairRow]]:
    return [
        Column("ACTION", lambda r: r.action.name.lower()),
        Column("FOR", lambda r: r.code or "-"),
        Column("BEGAN", lambda r: age(r.at_ns, now_ns), right=True),
        Column("ENDED", lambda r: age(r.ended_ns, now_ns), right=True),
        Column("RESULT", lambda r: state("goes on" if r.ok is None else "ok" if r.ok else "failed")),
        Column("WHO", lambda r: r.who),
        Column("REASON", lambda r: r.reason),
    ]


def scores(items: Sequence[health.ScoreRow], now_ns: int) -> list[Column[health.ScoreRow]]:
    return [
        Column("WORK", lambda s: s.workload),
        Column("SCORE", lambda s: score(s.score), right=True),
        Column("NOISE", lambda s: percent(s.noise), right=True),
        Column("MAD", lambda s: percent(s.mad), right=True),
        Column("N", lambda s: str(s.n), right=True),
        Column("REPEATABILITY", lambda s: percent(s.repeatability), right=True),
        Column("DRIFT", lambda s: percent(s.drift), right=True),
        Column("AGE", lambda s: age(s.scored_ns, now_ns)),
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
