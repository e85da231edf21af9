"""Watches the devices of one machine: readings and events in, findings and reports out. actor.py runs it in Ray."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import quantiles
from typing import Final, Protocol
from uuid import uuid4

import structlog

from paceline.health.catalog import Catalog, load
from paceline.health.findings import Memory, judge_sample
from paceline.health.links import LinkMemory, judge_links
from paceline.health.sender import Sender, Server, start
from paceline.health.xid_rules import XidMemory, hear_sxid, judge_xid
from paceline.model.hardware import DeviceFacts, HostFacts, LinkSample, Sample, XidEvent
from paceline.model.health import AgentStats, Finding, NodeFinding, NodeReport
from paceline.model.ids import DeviceUuid, NodeId
from paceline.telemetry.kmsg import Kmsg
from paceline.telemetry.nvml import PERIOD_S, NvmlProbe, Silence
from paceline.telemetry.nvml_wire import CallTime, Noticed, Reading
from paceline.telemetry.sysfs import PciLink, read_pci, read_ports
from paceline.telemetry.usage import rss_bytes
from paceline.telemetry.xid_lines import PciAddress, SxidLine, XidLine, parse_address

log = structlog.get_logger()

KMSG_WAIT_S: Final = 1.0
LATENCIES_KEPT: Final = 300
LINKS_PERIOD_S: Final = 10.0
"""Ports: rules on them count in minutes, and each counter of an InfiniBand port is a question to its adapter."""
AGENT_PERIOD_S: Final = 10.0
WAKE_GAP_S: Final = 0.2
"""Least time between two readings: a storm of events must not become a storm of readings."""
STRANGERS_MOST: Final = 100
"""Kinds of Xids of devices that nobody knows which are logged; a garbled log must not fill memory."""


class Probe(Protocol):
    """What reads NVML. `read` blocks up to about `deadline_s`, and never raises for what NVML does."""

    starts: int

    def read(self, deadline_s: float) -> Reading | Silence: ...
    def close(self) -> None: ...


class NodeWatch:
    """Reads every period; reports each reading, and each Xid at once. `start` begins, `close` ends.

    `died` is called when a thread ends by an unforeseen error: a watch that does not watch must not live. `site_policy`
    is the text of a site's file (catalog.load; it raises BadRequest). `kernel_log` and `sys_root` are this machine's;
    None: they are not read, as they tell nothing about simulated devices.
    """

    def __init__(
        self,
        node_id: NodeId,
        host: HostFacts,
        server: Server,
        died: Callable[[BaseException], None],
        probe: Callable[[Callable[[XidEvent], None], Callable[[Noticed], None]], Probe] = NvmlProbe,
        site_policy: str = "",
        period_s: float = PERIOD_S,
        kernel_log: Path | None = None,
        sys_root: Path | None = None,
    ) -> None:
        self._node_id, self._host, self._died, self._period_s = node_id, host, died, period_s
        self._kernel_log, self._sys_root = kernel_log, sys_root
        self._catalog: Catalog = load(site_policy)
        self._sender = Sender(server)
        self._probe = probe(self.on_xid, self.on_event)
        self._boot = uuid4().hex
        self._lock = threading.Lock()
        self._closing, self._named, self._wake = threading.Event(), threading.Event(), threading.Event()
        self._seq = 0
        self._devices: tuple[DeviceFacts, ...] | None = None
        self._unreadable: tuple[DeviceUuid, ...] = ()
        self._seen: dict[DeviceUuid, DeviceFacts] = {}
        self._memories: dict[DeviceUuid, Memory] = {}
        self._xid_memories: dict[DeviceUuid, XidMemory] = {}
        self._switches = XidMemory()
        self._pci: dict[DeviceUuid, PciLink] = {}
        self._addresses: dict[PciAddress | None, DeviceUuid] = {}
        self._early: list[tuple[XidEvent, Finding]] = []
        self._strangers: set[tuple[PciAddress, int]] = set()
        self._latencies_us: deque[int] = deque(maxlen=LATENCIES_KEPT)
        self._slowest: tuple[CallTime, ...] = ()
        self._last: Reading | None = None
        self._silence = ""
        self._kmsg = "not read"
        self._told_agent: float | None = None

    def start(self) -> None:
        start(self._sender.run, "reports", self._died)
        start(self._watch, "nvml", self._died)
        if self._kernel_log is not None:
            start(self._read_kernel_log, "kernel-log", self._died)
        if self._sys_root is not None:
            start(self._read_links, "links", self._died)

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        self._sender.close()

    def reconnect(self, server: Server, site_policy: str = "") -> None:
        """Report to another server, or to the same one with another token. What is pending goes there.

        Raises BadRequest for a site's file that is not right; nothing changes then.
        """
        catalog = load(site_policy)
        with self._lock:
            self._catalog = catalog
        self._sender.reconnect(server)

    def on_xid(self, event: XidEvent) -> None:
        """Judge and report an Xid now. It waits for the first reading: a report without devices calls all missing."""
        with self._lock:
            memory, finding = judge_xid(self._xid_memory(event.uuid), event, self._catalog)
            self._xid_memories[event.uuid] = memory
            if finding is None:
                return
            if self._devices is None:
                self._early.append((event, finding))
                return
            self._report(xids=(event,), findings=(finding,))

    def on_event(self, event: Noticed) -> None:
        """Another event of the driver: what it is about is read now, not after the period."""
        log.info("the driver tells of an event", uuid=event.uuid, kind=hex(event.kind))
        self._wake.set()

    def stats(self) -> dict[str, int | float | str]:
        """What the watch itself costs and how it does."""
        with self._lock:
            agent, last = self._agent(), self._last
            slowest = ", ".join(f"{one.name} {one.p50_us}/{one.p99_us} us" for one in self._slowest)
        return {
            "nvml_p50_us": agent.nvml_p50_us,
            "nvml_p99_us": agent.nvml_p99_us,
            "nvml_slowest_calls": slowest,
            "nvml_counters_age_s": round(last.slow_age_s, 3) if last else 0.0,
            "nvml_reader_starts": agent.reader_starts,
            "nvml_error": self._silence,
            "nvml_unreadable": ", ".join(self._unreadable),
            "kernel_log": agent.kernel_log,
            "cpu_s": agent.cpu_s,
            "reader_rss_bytes": agent.reader_rss_bytes,
            "reports_sent": self._sender.sent,
            "reports_pending": self._sender.pending,
            "reports_thinned": self._sender.thinned,
            "reports_rejected": self._sender.rejected,
        }

    def _agent(self) -> AgentStats:
        last, latencies = self._last, list(self._latencies_us)
        cuts = quantiles(latencies, n=100) if len(latencies) > 1 else latencies * 99
        ended = os.times()
        return AgentStats(
            cpu_s=round(
                time.process_time() + ended.children_user + ended.children_system + (last.cpu_s if last else 0.0), 3
            ),
            rss_bytes=rss_bytes(),
            reader_rss_bytes=last.rss_bytes if last else 0,
            nvml_p50_us=int(cuts[49]) if cuts else 0,
            nvml_p99_us=int(cuts[98]) if cuts else 0,
            reader_starts=self._probe.starts,
            kernel_log=self._kmsg,
        )

    def _xid_memory(self, uuid: DeviceUuid) -> XidMemory:
        memory = self._xid_memories.get(uuid, XidMemory())
        texts = self._kmsg == "read" and not self._host.simulated  # a simulated driver writes no text there by itself
        return replace(memory, kernel_log=texts)

    def _watch(self) -> None:
        while not self._closing.is_set():
            started = time.monotonic()
            result = self._probe.read(self._period_s)
            with self._lock:
                if isinstance(result, Reading):
                    self._take(result)
                else:
                    self._take_silence(result)
            if self._wake.wait(max(0.0, self._period_s - (time.monotonic() - started))):
                self._wake.clear()
                self._closing.wait(min(WAKE_GAP_S, self._period_s))
        self._probe.close()

    def _take_silence(self, silence: Silence) -> None:
        if silence.unreadable != self._unreadable:
            log.error("NVML hangs on devices", uuids=silence.unreadable, reason=silence.reason)
        self._unreadable = silence.unreadable
        if silence.declared:
            if not self._silence:
                log.error("NVML is silent", reason=silence.reason)
            self._silence = silence.reason
            self._report()
        elif silence.unreadable and self._devices is not None:
            self._report()  # the others are read again in a moment: they are no more unknown than before

    def _take(self, reading: Reading) -> None:
        if self._silence:
            log.info("NVML answers again", after=self._silence)
        if reading.unreadable != self._unreadable:
            log.warning(
                "the devices on which NVML hangs are others now", before=self._unreadable, now=reading.unreadable
            )
        self._silence, self._last, self._unreadable = "", reading, reading.unreadable
        self._latencies_us.append(reading.took_us)
        self._slowest = reading.slowest or self._slowest
        self._devices = steady(self._seen, reading.devices)
        self._seen |= {device.uuid: device for device in self._devices}
        self._addresses = {parse_address(one.pci_bus_id): one.uuid for one in self._seen.values()}
        self._named.set()
        samples = tuple(completed(sample, self._pci.get(sample.uuid)) for sample in reading.samples)
        found: list[Finding] = []
        for sample in samples:
            memory, new = judge_sample(self._memories.get(sample.uuid, Memory()), sample)
            self._memories[sample.uuid] = memory
            if sample.recovery_action is not None:
                told = replace(self._xid_memory(sample.uuid), recovery=sample.recovery_action)
                self._xid_memories[sample.uuid] = told
            found.extend(new)
        early, self._early = self._early, []
        found.extend(finding for _, finding in early)
        self._report(samples, tuple(event for event, _ in early), tuple(found), agent=self._due_agent())

    def _due_agent(self) -> AgentStats | None:
        now = time.monotonic()
        if self._told_agent is not None and now - self._told_agent < AGENT_PERIOD_S:
            return None
        self._told_agent = now
        return self._agent()

    def _report(
        self,
        samples: tuple[Sample, ...] = (),
        xids: tuple[XidEvent, ...] = (),
        findings: tuple[Finding, ...] = (),
        links: tuple[LinkSample, ...] = (),
        node_findings: tuple[NodeFinding, ...] = (),
        agent: AgentStats | None = None,
    ) -> None:
        self._seq += 1
        report = NodeReport(
            node_id=self._node_id,
            boot=self._boot,
            seq=self._seq,
            sent_ns=time.time_ns(),
            host=self._host,
            devices=self._devices or (),
            samples=samples,
            xids=xids,
            findings=findings,
            nvml_error=self._silence,
            links=links,
            node_findings=node_findings,
            unreadable=self._unreadable,
            agent=agent,
        )
        self._sender.add(report, urgent=bool(findings or node_findings))

    def _read_kernel_log(self) -> None:
        assert self._kernel_log is not None
        kmsg = Kmsg.open(self._kernel_log)
        if isinstance(kmsg, str):
            self._kmsg = kmsg
            log.warning("the kernel log is not read", reason=kmsg)
            return
        self._kmsg = "read"
        while not self._named.wait(KMSG_WAIT_S) and not self._closing.is_set():
            pass  # a line names a PCI address: before the first reading there is no device to give it to
        while not self._closing.is_set():
            for line, at_ns in kmsg.wait(KMSG_WAIT_S):
                if isinstance(line, SxidLine):
                    self._on_sxid(line, at_ns)
                else:
                    self._on_line(line, at_ns)
        kmsg.close()

    def _on_line(self, line: XidLine, at_ns: int) -> None:
        uuid = self._addresses.get(line.address)
        if uuid is not None:
            self.on_xid(XidEvent(uuid, line.code, at_ns, "kmsg", line.detail))
        elif (line.address, line.code) not in self._strangers and len(self._strangers) < STRANGERS_MOST:
            self._strangers.add((line.address, line.code))
            log.warning("an Xid of a device that NVML has never shown", xid=line.code, address=line.address)

    def _on_sxid(self, line: SxidLine, at_ns: int) -> None:
        with self._lock:
            self._switches, finding = hear_sxid(self._switches, line, at_ns, self._catalog)
            if finding is not None:
                self._report(node_findings=(finding,))

    def _read_links(self) -> None:
        """In a thread of its own: /sys asks a port's adapter, which can hang like any other device."""
        memory = LinkMemory()
        while not self._named.wait(KMSG_WAIT_S) and not self._closing.is_set():
            pass  # before the first reading there is no device to report beside the ports
        while not self._closing.is_set():
            memory = self._look_at_links(memory)
            self._closing.wait(LINKS_PERIOD_S)

    def _look_at_links(self, memory: LinkMemory) -> LinkMemory:
        assert self._sys_root is not None
        ports = read_ports(time.time_ns(), self._sys_root)
        links, groups = tuple(port.sample for port in ports), {port.sample.name: port.group for port in ports}
        memory, found = judge_links(memory, links, groups, self._host.boot_id)
        pci = {device.uuid: read_pci(device.pci_bus_id, self._sys_root) for device in self._untold()}
        with self._lock:
            self._pci = {uuid: link for uuid, link in pci.items() if link is not None}
            if links:
                self._report(links=links, node_findings=found)
        return memory

    def _untold(self) -> list[DeviceFacts]:
        """Devices of whose PCIe link NVML does not tell. The others are not asked: a sick one may hang in its configuration space."""
        with self._lock:
            samples = self._last.samples if self._last else ()
            silent = [sample.uuid for sample in samples if sample.pcie_width is None]
            return [self._seen[uuid] for uuid in silent if uuid in self._seen]


def completed(sample: Sample, link: PciLink | None) -> Sample:
    """`sample` with what /sys says of the PCIe link, where NVML does not tell."""
    if link is None or sample.pcie_width is not None:
        return sample
    return replace(
        sample,
        pcie_gen=link.gen,
        pcie_width=link.width,
        pcie_gen_max=link.gen_max,
        pcie_width_max=link.width_max,
    )


def steady(seen: dict[DeviceUuid, DeviceFacts], devices: Sequence[DeviceFacts]) -> tuple[DeviceFacts, ...]:
    """`devices` with the index that each had when it was seen first.

    NVML counts anew when a device falls off the bus; Ray goes on with the indices of its start. A device that was not
    seen before takes NVML's index, or the next one that nobody has.
    """
    taken = {device.index for device in seen.values()}
    kept = []
    for device in devices:
        index = seen[device.uuid].index if device.uuid in seen else device.index
        if device.uuid not in seen:
            while index in taken:
                index += 1
            taken.add(index)
        kept.append(replace(device, index=index))
    return tuple(kept)
