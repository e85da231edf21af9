"""Lists, once or as they change."""

import sys
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table

from paceline.cli import render
from paceline.sdk.client import Client

REFRESH_S: Final = 2.0
FOLLOW_S: Final = 1.0


class Kind(StrEnum):
    """What can be listed. `gpus` and `nodes` are other words for devices and hosts."""

    HOSTS = "hosts"
    NODES = "nodes"
    DEVICES = "devices"
    GPUS = "gpus"
    LEASES = "leases"
    JOBS = "jobs"
    SESSIONS = "sessions"
    EVENTS = "events"
    VERDICTS = "verdicts"
    RULES = "rules"
    LINKS = "links"
    ALERTS = "alerts"
    RELIABILITY = "reliability"


class Output(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"


class Listing(NamedTuple):
    """`items` are the rows of an answer that holds more than those; `below` is drawn under their table."""

    ask: Callable[[Client, int], Any]
    columns: Callable[[Any, int], list[render.Column[Any]]]
    items: Callable[[Any], list[Any]] = list
    below: Callable[[Any], RenderableType] | None = None
    nothing: str = ""


_HOSTS: Final = Listing(lambda client, _: client.hosts(), render.hosts)
_DEVICES: Final = Listing(lambda client, _: client.devices(), render.devices)
LISTINGS: Final = {
    Kind.HOSTS: _HOSTS,
    Kind.NODES: _HOSTS,
    Kind.DEVICES: _DEVICES,
    Kind.GPUS: _DEVICES,
    Kind.LEASES: Listing(lambda client, limit: client.leases(limit), render.leases),
    Kind.JOBS: Listing(lambda client, limit: client.jobs(limit), render.jobs),
    Kind.SESSIONS: Listing(lambda client, limit: client.sessions(limit), render.sessions),
    Kind.EVENTS: Listing(lambda client, limit: client.events(limit=limit, newest=True), render.events),
    Kind.VERDICTS: Listing(lambda client, limit: client.verdicts(limit), render.verdicts),
    Kind.RULES: Listing(lambda client, _: client.rules(), render.rules),
    Kind.LINKS: Listing(lambda client, _: client.links(), render.links),
    Kind.ALERTS: Listing(lambda client, limit: client.alerts(limit), render.alerts),
    Kind.RELIABILITY: Listing(
        lambda client, _: client.reliability(),
        render.mtbf,
        lambda answer: list(answer.mtbf),
        render.lemons,
        "no device was watched in the last 28 days",
    ),
}


def print_table(client: Client, kind: Kind, output: Output, limit: int) -> None:
    """The list as it is now; says on stderr if there is nothing."""
    listing = LISTINGS[kind]
    answer = listing.ask(client, limit)
    if output is Output.JSON:
        print(render.as_json(answer))
    elif listing.items(answer):
        render.console(output is Output.WIDE).print(_drawn(kind, answer, output))
    else:
        print(listing.nothing or f"no {kind.value}", file=sys.stderr)


def _drawn(kind: Kind, answer: Any, output: Output) -> RenderableType:
    listing = LISTINGS[kind]
    drawn = _table(kind, listing.items(answer), output)
    return Group(drawn, listing.below(answer)) if listing.below else drawn


def _table(kind: Kind, items: list[Any], output: Output) -> Table:
    columns = LISTINGS[kind].columns(items, time.time_ns())
    return render.table(columns, items, output is Output.WIDE)


def watch(client: Client, kind: Kind, output: Output, limit: int) -> None:
    """On a terminal the list in place, again and again; elsewhere a new list whenever it has changed. Until interrupted."""
    if output is not Output.JSON and sys.stdout.isatty():
        with Live(console=render.console(output is Output.WIDE), auto_refresh=False) as live:
            while True:
                live.update(_drawn(kind, LISTINGS[kind].ask(client, limit), output), refresh=True)
                time.sleep(REFRESH_S)
    shown: Any = None
    while True:
        answer = LISTINGS[kind].ask(client, limit)
        if answer != shown:
            print_table(client, kind, output, limit)
            sys.stdout.flush()
            shown = answer
        time.sleep(REFRESH_S)


def follow_events(client: Client, output: Output, limit: int) -> None:
    """The newest events, then each new one. None is missed: the log is read on from the last id."""
    items = client.events(limit=limit, newest=True)
    last = items[-1].id if items else 0
    head = True
    while True:
        if items:
            if output is Output.JSON:
                print("\n".join(render.as_json(item) for item in items), flush=True)
            else:
                drawn = _table(Kind.EVENTS, items, output)
                drawn.show_header = head
                render.console(output is Output.WIDE).print(drawn)
            last, head = items[-1].id, False
        else:
            time.sleep(FOLLOW_S)
        items = client.events(after=last, limit=1000)
