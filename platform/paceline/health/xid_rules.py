"""The rules on Xids and SXids: events in, findings out. Pure; what a device's Xids leave behind is in `XidMemory`.

| rule         | fires when                                                                    | advice              |
|--------------|-------------------------------------------------------------------------------|---------------------|
| xid          | the driver raised an Xid                                                      | catalog.py's ruling |
| xid.repeated | a code came as often at one place as its window says (xid_windows.csv, xid74_bits.csv, a site's file) | the window's |
| sxid         | an NVSwitch raised an SXid                                                    | catalog.py's ruling |

Each kind of event (code, sub-code, advice) is told when it is seen first, and then after quiet times that double: a
million lines are a few findings, and the first of each kind is one of them. Windows count what is kept quiet too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from paceline.health.catalog import NOBODY, ONE_EVENT_S, TABLES_VERSION, WORDS, Catalog, Ruling
from paceline.health.subcodes import TOLD_BY_TEXT, gpc_tpc, stronger
from paceline.health.xid_tables import Pair, Window
from paceline.model.hardware import XidEvent
from paceline.model.health import Advice, Finding, NodeFinding
from paceline.telemetry.xid_lines import SxidLine

SECOND_NS: Final = 1_000_000_000
XID_QUIET_NS: Final = ONE_EVENT_S * SECOND_NS
"""Shortest time between two findings on one kind of event. NVML and the kernel log tell of one Xid at once."""
XID_QUIET_MOST_NS: Final = 900 * SECOND_NS
"""The quiet time doubles up to this while a kind comes again sooner: one GPU wrote 99 % of a fleet's Xid 95 lines (Delta),
and processes that end drip an Xid 45 every few seconds (NVSentinel #1710)."""
UNKNOWN_KINDS_MOST: Final = 16
"""Codes in no table that are told one by one; further ones share a place, so that a garbled log cannot fill the memory."""
PLACES_MOST: Final = 128
"""Places that are counted; the one that was silent longest makes way. A GPU has 72 processors in TPCs, and 18 links."""
assert XID_QUIET_NS < XID_QUIET_MOST_NS
assert PLACES_MOST > 72 + 18 + 2

VERSIONS: Final[Mapping[str, int]] = {"xid": TABLES_VERSION, "xid.repeated": 1, "sxid": 1}
"""Version of each rule; it grows when the rule would judge differently, so that old findings stay explainable."""

Evidence = dict[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class Heard:
    """When a kind was told last, for how long it is quiet after that, and what it has kept to itself since."""

    at_ns: int
    quiet_ns: int
    suppressed: int = 0


@dataclass(frozen=True, slots=True)
class Tally:
    """Occurrences at one place that still count, its last event, and when its window fired last."""

    at_ns: tuple[int, ...] = ()
    last_ns: int | None = None
    fired_ns: int | None = None


@dataclass(frozen=True, slots=True)
class XidMemory:
    """What the Xids of one device, or the SXids of one machine, leave behind. Start with `XidMemory()`.

    `kernel_log`: it is read here, so a text follows on a code that NVML tells without one. `recovery` is the driver's
    standing word; set it from `Sample.recovery_action` too. All maps are bounded by the tables and by the limits above.
    """

    kernel_log: bool = False
    recovery: int | None = None
    heard: Mapping[str, Heard] = field(default_factory=dict)
    tallies: Mapping[str, Tally] = field(default_factory=dict)
    seen_ns: Mapping[int, int] = field(default_factory=dict)
    """Last time of codes that another one belongs to, and of those whose text came."""


def judge_xid(memory: XidMemory, event: XidEvent, catalog: Catalog) -> tuple[XidMemory, Finding | None]:
    """A finding, or None where the same was told a moment ago, by the other source or in a storm."""
    if (
        not event.detail
        and event.code in TOLD_BY_TEXT
        and _near(memory.seen_ns.get(event.code), event.at_ns, XID_QUIET_NS)
    ):
        return memory, None
    ruling = _ruling(memory, event, catalog)
    pair = catalog.pairs.get(event.code)
    ruling, evidence = _paired(memory, event, ruling, pair) if pair else (ruling, {})
    memory = _noted(memory, event, ruling, catalog)
    if pair and pair.cancels:
        memory = _cancelled(memory, pair.other)
    if ruling.window is not None:
        memory, tally = _tallied(memory, event, ruling, ruling.window)
        if tally is not None and not stronger(ruling.advice, ruling.window.advice):
            return memory, _repeated(event, ruling, ruling.window, tally, catalog)
    memory, suppressed = _told(memory, _kind(memory, event.code, ruling), event.at_ns)
    if suppressed is None:
        return memory, None
    return memory, _finding(event, ruling, catalog, evidence | {"repeats_before": suppressed})


def judge_sxid(line: SxidLine, at_ns: int, catalog: Catalog) -> NodeFinding:
    """What an SXid asks for. A storm is for `hear_sxid`."""
    ruling = catalog.rule_sxid(line.code, _word(line))
    meaning = catalog.sxids.get(line.code)
    name = meaning.name.removeprefix("SXid: ") if meaning else "in no catalog: recorded only, look it up"
    evidence: Evidence = {
        "sxid": line.code,
        "switch": _switch(line),
        "word": _word(line),
        "detail": line.detail,
        "known": ruling.authority != NOBODY,
        "authority": ruling.authority,
        "why": ruling.why,
        "tables": catalog.version,
    }
    if meaning:
        evidence |= {"severity": meaning.severity, "class": meaning.fault_class, "action": meaning.action}
    summary = f"SXid {line.code} of switch {_switch(line)}: {name}"
    return NodeFinding("sxid", VERSIONS["sxid"], ruling.advice, at_ns, summary, evidence)


def hear_sxid(memory: XidMemory, line: SxidLine, at_ns: int, catalog: Catalog) -> tuple[XidMemory, NodeFinding | None]:
    """`judge_sxid` with the quiet times of Xids, for one memory a machine: each switch, code and advice is a kind."""
    ruling = catalog.rule_sxid(line.code, _word(line))
    code = str(line.code) if ruling.authority != NOBODY else _unknown_name(memory, str(line.code))
    memory, suppressed = _told(memory, f"{code}:{_switch(line)}:{ruling.advice.value}", at_ns)
    if suppressed is None:
        return memory, None
    finding = judge_sxid(line, at_ns, catalog)
    return memory, replace(finding, evidence=finding.evidence | {"repeats_before": suppressed})


def _word(line: SxidLine) -> str:
    word = line.detail.split(",", 1)[0].strip().lower()
    return word if word in WORDS else WORDS[-1]


def _switch(line: SxidLine) -> str:
    domain, bus, device = line.address
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def _ruling(memory: XidMemory, event: XidEvent, catalog: Catalog) -> Ruling:
    ruling = catalog.rule(event.code, event.detail, memory.recovery)
    if memory.kernel_log and not event.detail and event.code in TOLD_BY_TEXT and ruling.advice is Advice.QUARANTINE:
        return replace(ruling, advice=Advice.SUSPECT, why=f"its text follows and decides; without one: {ruling.why}")
    return ruling


def _paired(memory: XidMemory, event: XidEvent, ruling: Ruling, pair: Pair) -> tuple[Ruling, Evidence]:
    seen_ns = memory.seen_ns.get(pair.other)
    if pair.cancels:
        return ruling, {"cancels": pair.other} if seen_ns is not None else {}
    if _near(seen_ns, event.at_ns, pair.within_s * SECOND_NS):
        return ruling, {"detail_of": pair.other}
    if pair.alone is not None and stronger(pair.alone, ruling.advice):
        return replace(ruling, advice=pair.alone, why=pair.why), {"detail_of": None}
    return ruling, {"detail_of": None}


def _noted(memory: XidMemory, event: XidEvent, ruling: Ruling, catalog: Catalog) -> XidMemory:
    if ruling.recovery is not None:
        memory = replace(memory, recovery=ruling.recovery)
    if event.code in catalog.paired or (event.detail and event.code in TOLD_BY_TEXT):
        return replace(memory, seen_ns={**memory.seen_ns, event.code: event.at_ns})
    return memory


def _cancelled(memory: XidMemory, code: int) -> XidMemory:
    kept = {key: tally for key, tally in memory.tallies.items() if not key.startswith(f"{code}:")}
    return replace(memory, tallies=kept, seen_ns={key: at_ns for key, at_ns in memory.seen_ns.items() if key != code})


def _tallied(memory: XidMemory, event: XidEvent, ruling: Ruling, window: Window) -> tuple[XidMemory, Tally | None]:
    """The memory with this event counted, and the full tally where the window fires now."""
    place = _place(event, ruling, window)
    if place is None:
        return memory, None
    key = f"{event.code}:{ruling.sub}:{place}"
    before = memory.tallies.get(key, Tally())
    counted = tuple(at_ns for at_ns in before.at_ns if abs(event.at_ns - at_ns) < window.window_s * SECOND_NS)
    if before.last_ns is None or abs(event.at_ns - before.last_ns) >= window.burst_s * SECOND_NS:
        counted = (*counted, event.at_ns)[-window.count :]
    tally = Tally(counted, event.at_ns, before.fired_ns)
    rests = before.fired_ns is not None and abs(event.at_ns - before.fired_ns) < window.quiet_s * SECOND_NS
    fires = len(counted) >= window.count and not rests
    tallies = {**memory.tallies, key: Tally((), event.at_ns, event.at_ns) if fires else tally}
    if len(tallies) > PLACES_MOST:
        tallies.pop(min(tallies, key=lambda one: (tallies[one].last_ns or 0, one)))
    return replace(memory, tallies=tallies), tally if fires else None


def _place(event: XidEvent, ruling: Ruling, window: Window) -> str | None:
    """What the window counts for; "" the device; None where the text names no processor."""
    return gpc_tpc(event.detail) if window.by_processor else ruling.place


def _kind(memory: XidMemory, code: int, ruling: Ruling) -> str:
    """Bounded by the tables: a sub-code's name is a row's, never a text's."""
    name = str(code) if ruling.known else _unknown_name(memory, str(code))
    return f"{name}:{ruling.sub}:{ruling.advice.value}"


def _unknown_name(memory: XidMemory, code: str) -> str:
    known_as = f"unknown {code}"
    unknown = [key for key in memory.heard if key.startswith("unknown ")]
    told = any(key.startswith(f"{known_as}:") for key in unknown)
    return known_as if told or len(unknown) < UNKNOWN_KINDS_MOST else "unknown, further"


def _told(memory: XidMemory, kind: str, at_ns: int) -> tuple[XidMemory, int | None]:
    """None within the quiet time of this kind; else how many were kept quiet before.

    A clock that was set back does not silence a kind: times far before the last one are outside its quiet time.
    """
    before = memory.heard.get(kind)
    since_ns = at_ns - before.at_ns if before else 0
    if before and -XID_QUIET_NS < since_ns < before.quiet_ns:
        return _heard(memory, kind, replace(before, suppressed=before.suppressed + 1)), None
    again = before is not None and 0 <= since_ns < max(2 * before.quiet_ns, XID_QUIET_MOST_NS)
    quiet_ns = min(2 * before.quiet_ns, XID_QUIET_MOST_NS) if before and again else XID_QUIET_NS
    return _heard(memory, kind, Heard(at_ns, quiet_ns)), before.suppressed if before else 0


def _heard(memory: XidMemory, kind: str, heard: Heard) -> XidMemory:
    return replace(memory, heard={**memory.heard, kind: heard})


def _near(then_ns: int | None, now_ns: int, within_ns: int) -> bool:
    return then_ns is not None and abs(now_ns - then_ns) <= within_ns


def _finding(event: XidEvent, ruling: Ruling, catalog: Catalog, more: Evidence) -> Finding:
    summary = f"Xid {event.code}: {ruling.name}" if ruling.known else f"{ruling.name}: recorded only, look it up"
    evidence = _evidence(event, ruling, ruling.why, catalog) | more
    return Finding("xid", VERSIONS["xid"], event.uuid, ruling.advice, event.at_ns, summary, evidence)


def _repeated(event: XidEvent, ruling: Ruling, window: Window, tally: Tally, catalog: Catalog) -> Finding:
    hours = f"{window.window_s / 3600:g} h" if window.window_s >= 3600 else f"{window.window_s / 60:g} min"
    place = _place(event, ruling, window)
    at = f" at {place}" if place else ""
    summary = f"Xid {event.code} came {window.count} times in {hours}{at}: {ruling.name}"
    evidence = _evidence(event, ruling, window.why, catalog) | {
        "count": len(tally.at_ns),
        "window_s": window.window_s,
        "place": place,
        "first_ns": tally.at_ns[0],
    }
    rule = "xid.repeated"
    return Finding(rule, VERSIONS[rule], event.uuid, window.advice, event.at_ns, summary, evidence)


def _evidence(event: XidEvent, ruling: Ruling, why: str, catalog: Catalog) -> Evidence:
    evidence: Evidence = {
        "xid": event.code,
        "source": event.source,
        "known": ruling.known,
        "authority": ruling.authority,
        "why": why,
        "tables": catalog.version,
    }
    if event.detail:
        evidence["detail"] = event.detail
    if ruling.sub:
        evidence["sub_code"] = ruling.sub
    if ruling.known:
        evidence |= {"severity": ruling.severity, "class": ruling.fault_class, "action": ruling.action}
    return evidence
