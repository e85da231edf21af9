"""The rules on the ports of a machine: readings of /sys in, findings out. Pure; memory is `LinkMemory`.

| rule       | fires when                                                                        | advice  |
|------------|-----------------------------------------------------------------------------------|---------|
| link.down  | a port that was up has been down for four minutes                                 | CORDON  |
| link.slow  | a port has run below its group, or below its own best rate, for a minute          | CORDON  |
| link.flaps | a port went down three times within an hour                                       | CORDON  |

A port slower than FABRIC_GBPS serves management: its findings are OBSERVE. A port that was never seen up has no cable. A
counter that is full (None) says nothing. All is of one boot of the machine: the memory lives no longer than its reader.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from paceline.model.hardware import LinkSample
from paceline.model.health import NodeAdvice, NodeFinding

SECOND_NS: Final = 1_000_000_000
DOWN_FOR_NS: Final = 240 * SECOND_NS
"""gpud calls a port dropped after four minutes: a switch that restarts takes two or three."""
SLOW_FOR_NS: Final = 60 * SECOND_NS
FLAPS_WITHIN_NS: Final = 3600 * SECOND_NS
FLAPS: Final = 3
REPEAT_AFTER_NS: Final = 600 * SECOND_NS
"""A fault that lasts is said again after this long."""
GROUP_LEAST: Final = 3
"""Ports of one kind of adapter from which on one of them can be an exception."""
FABRIC_GBPS: Final = 100.0
"""A rail of a GPU machine has at least one EDR port's rate."""
VERSIONS: Final[Mapping[str, int]] = {"link.down": 1, "link.slow": 1, "link.flaps": 1}

Evidence = dict[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class _Port:
    """What is remembered of a port. `downs_ns` has an entry for each time that it went down, within the hour."""

    last: LinkSample
    best_gbps: float | None = None
    was_up: bool = False
    down_since_ns: int | None = None
    slow_since_ns: int | None = None
    downs_ns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkMemory:
    """What the rules remember of a machine's ports; bounded by their number. Start with `LinkMemory()`."""

    ports: Mapping[str, _Port] = field(default_factory=dict)
    spoken: Mapping[tuple[str, str], int] = field(default_factory=dict)


def judge_links(
    memory: LinkMemory, links: Sequence[LinkSample], groups: Mapping[str, str], boot_id: str
) -> tuple[LinkMemory, tuple[NodeFinding, ...]]:
    """Findings on one reading of all ports. `groups` names the ports that should be alike, by port."""
    ports: dict[str, _Port] = {}
    found, spoken = [], dict(memory.spoken)
    for link in links:
        usual = _usual(link, links, groups)
        ports[link.name] = port = _remember(memory.ports.get(link.name), link, usual)
        for finding in _fired(port, usual, boot_id):
            key = (finding.rule_id, link.name)
            if key not in spoken or not 0 <= link.at_ns - spoken[key] < REPEAT_AFTER_NS:
                spoken[key] = link.at_ns
                found.append(finding)
    kept = {key: at_ns for key, at_ns in spoken.items() if key[1] in ports}
    return LinkMemory(ports, kept), tuple(found)


def _remember(before: _Port | None, link: LinkSample, usual: float | None) -> _Port:
    port = before or _Port(link)
    best = max((rate for rate in (port.best_gbps, link.rate_gbps if link.up else None) if rate), default=None)
    target = max((rate for rate in (best, usual) if rate), default=None)
    slow = link.up and link.rate_gbps is not None and target is not None and link.rate_gbps < target
    downs = (*port.downs_ns, *[link.at_ns] * min(FLAPS, _downs(port.last, link)))
    return replace(
        port,
        last=link,
        best_gbps=best,
        was_up=port.was_up or link.up,
        down_since_ns=_since(port.down_since_ns, not link.up, link.at_ns),
        slow_since_ns=_since(port.slow_since_ns, slow, link.at_ns),
        downs_ns=tuple(at_ns for at_ns in downs if 0 <= link.at_ns - at_ns < FLAPS_WITHIN_NS)[-FLAPS:],
    )


def _downs(before: LinkSample, now: LinkSample) -> int:
    """How often the port went down between two readings: by its counter, or by what the readings show."""
    if before.link_downed is not None and now.link_downed is not None:
        return max(0, now.link_downed - before.link_downed)  # a driver that was loaded anew counts from 0
    return int(before.up and not now.up)


def _since(before_ns: int | None, holds: bool, now_ns: int) -> int | None:
    if not holds:
        return None
    return now_ns if before_ns is None or before_ns > now_ns else before_ns


def _usual(link: LinkSample, links: Sequence[LinkSample], groups: Mapping[str, str]) -> float | None:
    """The rate that more than half of the ports of this one's group have; None where there is none."""
    rates = [
        one.rate_gbps for one in links if one.up and one.rate_gbps and groups.get(one.name) == groups.get(link.name)
    ]
    if len(rates) < GROUP_LEAST or link.name not in groups:
        return None
    common = max(sorted(set(rates)), key=rates.count)
    return common if 2 * rates.count(common) > len(rates) else None


def _fired(port: _Port, usual: float | None, boot_id: str) -> Iterator[NodeFinding]:
    link = port.last
    evidence: Evidence = {"port": link.name, "kind": link.kind, "rate_gbps": link.rate_gbps, "boot_id": boot_id}
    if port.was_up and port.down_since_ns is not None and link.at_ns - port.down_since_ns >= DOWN_FOR_NS:
        minutes = (link.at_ns - port.down_since_ns) // (60 * SECOND_NS)
        summary = f"{link.name} has been down for {minutes} min"
        yield _of("link.down", port, summary, evidence | {"down_since_ns": port.down_since_ns})
    if port.slow_since_ns is not None and link.at_ns - port.slow_since_ns >= SLOW_FOR_NS:
        target = max(rate for rate in (port.best_gbps, usual) if rate)
        summary = f"{link.name} runs at {link.rate_gbps:g} of {target:g} Gb/s"
        yield _of("link.slow", port, summary, evidence | {"usual_gbps": usual, "best_gbps": port.best_gbps})
    if len(port.downs_ns) >= FLAPS:
        summary = f"{link.name} went down {len(port.downs_ns)} times within an hour"
        yield _of(
            "link.flaps", port, summary, evidence | {"downs": len(port.downs_ns), "link_downed": link.link_downed}
        )


def _of(rule: str, port: _Port, summary: str, evidence: Evidence) -> NodeFinding:
    fabric = (port.best_gbps or 0.0) >= FABRIC_GBPS
    advice = NodeAdvice.CORDON if fabric else NodeAdvice.OBSERVE
    return NodeFinding(rule, VERSIONS[rule], advice, port.last.at_ns, summary, evidence)
