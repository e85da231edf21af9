"""An event storm: a million lines of the kernel log through the parser, the rules and the inventory."""

import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from paceline.benchmark.figures import Figure
from paceline.health import catalog
from paceline.health.xid_rules import XidMemory, judge_xid
from paceline.inventory import migrate
from paceline.inventory.store import Store
from paceline.model.hardware import DeviceFacts, HostFacts, XidEvent
from paceline.model.health import NodeReport
from paceline.model.ids import HostName, NodeId
from paceline.sim.fleet import identify
from paceline.telemetry.xid_lines import parse_record

LINES: Final = 1_000_000
SECONDS: Final = 600
"""The storm lasts ten minutes by its own clock, so that quiet times end in it."""
CODES: Final = (95, 95, 95, 95, 95, 95, 74, 31, 13, 63)
"""Mostly Xid 95, as on Delta, where one GPU wrote 99 % of a fleet's lines; others among them must not drown."""


FACTS: Final = HostFacts(HostName("storm-1"), "127.0.0.1", "boot", simulated=True)


def figures() -> Sequence[Figure]:
    """One health actor's share of work, without Ray and HTTP: what is told is written to an inventory on SQLite."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'inventory.db'}"
        migrate.upgrade(url)
        with Store(url) as store:
            calm = _calm(store)
            before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            started = time.perf_counter()
            kinds = _weather(store)
            seconds = time.perf_counter() - started
            grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
            events = store.events(calm, 5000, None, False)
    xids = [event for event in events if event.summary.startswith("Xid")]
    first = {(event.entity, event.body["code"]) for event in xids if "code" in event.body}
    if first != kinds:
        raise RuntimeError(f"the first of each kind must be kept: {sorted(kinds - first)} are missing")
    return [
        Figure("storm_rows", float(len(events)), "rows", 800_000, "lines kept by NVSentinel #1120", "≤ 100"),
        Figure("storm_s", seconds, "s", bar="< 60 s for 10⁶ lines"),
        Figure("storm_growth_mb", grown_mb, "MB", bar="no growth"),
    ]


def _calm(store: Store) -> int:
    """The devices are seen for the first time; returns the last event of it."""
    store.report(_report(0, time.time_ns()), time.time_ns())
    return int(store.events(0, 5000, None, False)[-1].id)


def _weather(store: Store) -> set[tuple[str, int]]:
    """Feeds the storm; returns the kinds in it, as (entity, code)."""
    by_bus = {device.pci_bus_id[9:11].lower(): device.uuid for device in devices()}
    table, memories = catalog.load(), dict.fromkeys(by_bus.values(), XidMemory())
    began_ns, seq, kinds = time.time_ns(), 0, set()
    for bus, code, record in _records(sorted(by_bus)):
        line = parse_record(record)
        if line is None:
            raise RuntimeError(f"not understood: {record}")
        at_ns = began_ns + line.uptime_us * 1000
        event = XidEvent(by_bus[bus], line.code, at_ns, "kmsg", line.detail)
        kinds.add((f"device:{event.uuid}", code))
        memories[event.uuid], finding = judge_xid(memories[event.uuid], event, table)
        if finding is not None:
            seq += 1
            store.report(replace(_report(seq, at_ns), xids=(event,), findings=(finding,)), at_ns)
    return kinds


def _report(seq: int, at_ns: int) -> NodeReport:
    return NodeReport(NodeId("node"), "boot", seq, at_ns, FACTS, devices(), (), (), ())


def devices() -> tuple[DeviceFacts, ...]:
    return tuple(map(_device, range(8)))


def _device(index: int) -> DeviceFacts:
    spec = identify("storm", FACTS.host, index)
    return DeviceFacts(
        spec.uuid, index, spec.serial, spec.pci_bus_id, "NVIDIA H100 80GB HBM3", 80 << 30, 700.0, "580.65.06"
    )


def _records(buses: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    """(bus, code, record of /dev/kmsg): one device storms, the others murmur a line in a thousand."""
    for number in range(LINES):
        bus = buses[number % len(buses)] if number % 1000 == 0 else buses[0]
        code = CODES[number % len(CODES)] if bus == buses[0] else 31
        uptime_us = number * SECONDS * 1_000_000 // LINES
        yield bus, code, f"3,{number},{uptime_us},-;NVRM: Xid (PCI:0000:{bus}:00): {code}, pid=1, name=python, storm"
