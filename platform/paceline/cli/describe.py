"""Everything about one device, host or job."""

import time
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from rich.console import Console

from paceline.cli import render
from paceline.cli.render import Column
from paceline.cli.show import Output
from paceline.model.domains import spell
from paceline.model.health import AgentStats
from paceline.sdk import words
from paceline.sdk.client import Client
from paceline.sdk.rows import DeviceRow, JobDetail
from paceline.sdk.rows_health import DeviceHealth, HostDetail

T = TypeVar("T")

SHOWN: Final = 8
"""Newest verdicts and repairs in a description; `paceline get verdicts` has them all."""


def device(client: Client, found: DeviceRow, output: Output) -> None:
    health, told = client.device_health(found.uuid), client.story(found.uuid)
    if output is Output.JSON:
        print(render.as_json({"health": health, "story": told}))
        return
    now_ns = time.time_ns()
    raw = client.samples(found.uuid, now_ns - 60 * 10**9).raw
    wide = output is Output.WIDE
    out = render.console(wide)
    now = _reading(raw[-1]) if raw else "no sample in the last minute"
    out.print(render.block([*_facts(health, now_ns), ("now", now)]))
    verdicts, repairs = health.verdicts[:SHOWN], health.repairs[:SHOWN]
    _section(out, "scores by class of work", render.scores(health.scores, now_ns), health.scores, wide)
    _section(out, "open findings", render.findings(health.findings, now_ns), health.findings, wide)
    _section(out, "verdicts", render.verdicts(verdicts, now_ns), verdicts, wide)
    _section(out, "repairs", render.repairs(repairs, now_ns), repairs, wide)
    out.print("\nstory")
    out.print(render.story(told.events, now_ns))


def _section(out: Console, title: str, columns: list[Column[T]], items: Sequence[T], wide: bool) -> None:
    if items:
        out.print(f"\n{title}")
        out.print(render.table(columns, items, wide))


def _facts(health: DeviceHealth, now_ns: int) -> list[tuple[str, Any]]:
    device = health.device
    spread = f", {device.spread:.1%} behind the fastest of its cohort" if device.spread is not None else ""
    score = f"{words.score(device.score)} of the cohort's median time{spread}, noise {words.percent(device.noise)}"
    pairs: list[tuple[str, Any]] = [
        ("device", f"{device.uuid}  ({words.place(device)})"),
        ("sku", device.sku),
        ("serial", f"{device.serial}, PCI {device.pci_bus_id}, driver {device.driver_version}"),
        ("state", render.state(device.state)),
        ("because", f"{device.reason}  ({words.age(device.since_ns, now_ns)})"),
        ("score", score),
        ("on Ray", "held: cannot be given out" if device.held else "not held"),
        ("lease", f"{device.lease_id} for {device.attempt_id}" if device.lease_id else "none"),
    ]
    if device.cordoned_ns:
        since = words.age(device.cordoned_ns, now_ns)
        pairs.append(("cordoned", f"by {device.cordon_by}: {device.cordon_reason}  ({since})"))
    if health.advice is not None:
        wait = f"; wait for {len(health.advice.wait_for)} devices" if health.advice.wait_for else ""
        pairs.append(("repair", f"{health.advice.action.name.lower()}: {health.advice.reason}{wait}"))
    return pairs


def _reading(sample: Any) -> str:
    parts = [
        (sample.sm_clock_mhz, "MHz"),
        (sample.temperature_c, "°C"),
        (sample.power_w, "W"),
        (sample.utilisation_pct, "% busy"),
    ]
    return ", ".join(f"{value:g} {unit}" for value, unit in parts if value is not None) or "no readings"


def host(found: HostDetail, output: Output) -> None:
    if output is Output.JSON:
        print(render.as_json(found))
        return
    now_ns, wide = time.time_ns(), output is Output.WIDE
    out = render.console(wide)
    pairs: list[tuple[str, Any]] = [
        ("host", f"{found.host}  ({found.address})"),
        ("state", render.state(found.state)),
        ("because", f"{found.reason}  ({words.age(found.since_ns, now_ns)})"),
        ("devices", f"{found.healthy} of {found.devices} healthy, {found.leased} leased"),
        ("report", f"{words.age(found.reported_ns, now_ns)} ago"),
        ("machine", ("simulated" if found.simulated else "real") + (", NVSwitch" if found.nvswitch else "")),
        ("domains", ", ".join(spell(found.domains)) or "nobody has told where it stands"),
        ("watch", _watch(found.agent, found.agent_ns, now_ns)),
    ]
    if found.drain_deadline_ns and not found.drained_ns:
        left_s = (found.drain_deadline_ns - now_ns) // 10**9
        pairs.append(("drain", f"{left_s} s left" if left_s > 0 else f"{-left_s} s late"))
    out.print(render.block(pairs))
    verdicts = found.verdicts[:SHOWN]
    _section(out, "devices", render.devices(found.cards, now_ns), found.cards, wide)
    _section(out, "full probe", render.exchanges(found.exchanges, now_ns), found.exchanges, wide)
    _section(out, "ports", render.links(found.links, now_ns), found.links, wide)
    _section(out, "verdicts", render.verdicts(verdicts, now_ns), verdicts, wide)


def _watch(stats: AgentStats | None, at_ns: int, now_ns: int) -> str:
    if stats is None:
        return "has not told yet what it costs"
    return (
        f"{stats.cpu_s:.0f} s of CPU since its start, {stats.rss_bytes / 2**20:.0f} + {stats.reader_rss_bytes / 2**20:.0f} MiB, "
        f"NVML {stats.nvml_p50_us / 1000:.1f} ms (p99 {stats.nvml_p99_us / 1000:.1f}), reader started {stats.reader_starts} ×, "
        f"kernel log: {stats.kernel_log}  ({words.age(at_ns, now_ns)} ago)"
    )


def job(found: JobDetail, output: Output) -> None:
    if output is Output.JSON:
        print(render.as_json(found))
        return
    now_ns, wide = time.time_ns(), output is Output.WIDE
    out = render.console(wide)
    pairs: list[tuple[str, Any]] = [
        ("job", found.job_id + (f"  (runs: {', '.join(found.runs)})" if len(found.runs) > 1 else "")),
        ("run", found.run_name),
        ("state", render.state(found.state)),
        ("since", words.age(found.since_ns, now_ns)),
        ("devices", f"{found.devices} in {found.lease_id}" if found.lease_id else "none"),
        ("step", f"{found.step} at the newest checkpoint"),
        ("storage", found.storage_path or "-"),
    ]
    told = ((name, text) for name, text in (("because", found.reason), ("try", found.hint)) if text)
    out.print(render.block([*pairs, *told]))
    out.print("\nattempts")
    out.print(render.table(render.attempts(found.attempts, now_ns), found.attempts, wide))
    if found.checkpoints:
        newest = found.checkpoints[-5:]
        out.print(f"\ncheckpoints (newest {len(newest)} of {len(found.checkpoints)})")
        out.print(render.table(render.checkpoints(newest, now_ns), newest, wide))
