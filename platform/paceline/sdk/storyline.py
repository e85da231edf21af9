"""How a story is laid out: each event under its cause. Pure; the command line and the page draw the same lines."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.model.events import Event


@dataclass(frozen=True, slots=True)
class Line:
    """One event, `depth` steps below the event that began its chain."""

    event: Event
    depth: int


def lay_out(events: Iterable[Event]) -> tuple[Line, ...]:
    """Chains in the order in which they began; within a chain each effect under its cause, in order of id.

    An event whose cause is not among `events` begins a chain. Causes come before their effects, so there is no cycle.
    """
    ordered = sorted(events, key=lambda event: event.id)
    known = {event.id for event in ordered}
    effects: dict[int, list[Event]] = defaultdict(list)
    for event in ordered:
        effects[event.cause_id if event.cause_id in known else 0].append(event)
    lines: list[Line] = []
    waiting = [Line(event, 0) for event in reversed(effects[0])]
    while waiting:
        line = waiting.pop()
        lines.append(line)
        waiting.extend(Line(effect, line.depth + 1) for effect in reversed(effects[line.event.id]))
    return tuple(lines)
