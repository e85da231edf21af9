"""Watches the devices of one machine: readings and Xids in, findings and reports out. actor.py runs it in Ray."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import quantiles
from typing import Final, Protocol
from uuid import uuid4

import structlog

from paceline.health.catalog import Catalog, load
from paceline.health.findings import Memory, judge_sample, judge_xid
from paceline.health.sender import Sender, Server, start
from paceline.model.hardware import DeviceFacts, HostFacts, Sample, XidEvent
from paceline.model.health import Finding, NodeReport
from paceline.model.ids import DeviceUuid, NodeId
from paceline.telemetry.kmsg import Kmsg
from paceline.telemetry.nvml import PERIOD_S, NvmlProbe, Silence
from paceline.telemetry.nvml_wire import Reading
from paceline.telemetry.xid_lines import PciAddress, parse_address

log = structlog.get_logger()

KMSG_WAIT_S: Final = 1.0
LATENCIES_KEPT: Final = 300


class Probe(Protocol):
    """What reads NVML. `read` blocks up to about `deadline_s`, and never raises for what NVML does."""

    starts: int

    def read(self, deadline_s: float) -> Reading | Silence: ...
    def close(self) -> None: ...


class NodeWatch:
    """Reads every period; reports each reading, and each Xid at once. `start` begins, `close` ends.

    `died` is called when a thread ends by an unforeseen error: a watch that does not watch must not live.
    """

    def __init__(
        self,
        node_id: NodeId,
        host: HostFacts,
        server: Server,
        died: Callable[[BaseException], None],
        probe: Callable[[Callable[[XidEvent], None]], Probe] = NvmlProbe,
        catalog: Catalog | None = None,
        period_s: float = PERIOD_S,
    ) -> None:
        self._node_id, self._host, self._died, self._period_s = node_id, host, died, period_s
        self._catalog = catalog or load()
        self._sender = Sender(server)
        self._probe = probe(self.on_xid)
        self._boot = uuid4().hex
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._named = threading.Event()
        self._seq = 0
        self._devices: tuple[DeviceFacts, ...] | None = None
        self._seen: dict[DeviceUuid, DeviceFacts] = {}
        self._memories: dict[DeviceUuid, Memory] = {}
        self._early: list[tuple[XidEvent, Finding]] = []
        self._latencies_us: deque[int] = deque(maxlen=LATENCIES_KEPT)
        self._last: Reading | None = None
        self._silence = ""
        self._kmsg = "not read"

    def start(self) -> None:
        start(self._sender.run, "reports", self._died)
        start(self._watch, "nvml", self._died)
        if not self._host.simulated:  # the kernel log of this machine tells nothing about simulated devices
            start(self._read_kernel_log, "kernel-log", self._died)

    def close(self) -> None:
        self._closing.set()
        self._sender.close()

    def reconnect(self, server: Server) -> None:
        """Report to another server, or to the same one with another token. What is pending goes there."""
        self._sender.reconnect(server)

    def on_xid(self, event: XidEvent) -> None:
        """Judge and report an Xid now. It waits for the first reading: a report without devices calls all missing."""
        with self._lock:
            memory, finding = judge_xid(self._memories.get(event.uuid, Memory()), event, self._catalog)
            self._memories[event.uuid] = memory
            if finding is None:
                return
            if self._devices is None:
                self._early.append((event, finding))
                return
            self._report((), (event,), (finding,), nvml_error=self._silence)

    def stats(self) -> dict[str, int | float | str]:
        """What the watch itself costs and how it does."""
        with self._lock:
            latencies, last = list(self._latencies_us), self._last
        cuts = quantiles(latencies, n=100) if len(latencies) > 1 else latencies * 99
        return {
            "nvml_p50_us": cuts[49] if cuts else 0,
            "nvml_p99_us": cuts[98] if cuts else 0,
            "nvml_reader_starts": self._probe.starts,
            "nvml_error": self._silence,
            "kernel_log": self._kmsg,
            "cpu_s": round(time.process_time() + (last.cpu_s if last else 0.0), 3),
            "reader_rss_bytes": last.rss_bytes if last else 0,
            "reports_sent": self._sender.sent,
            "reports_pending": self._sender.pending,
            "reports_thinned": self._sender.thinned,
            "reports_rejected": self._sender.rejected,
        }

    def _watch(self) -> None:
        while not self._closing.is_set():
            started = time.monotonic()
            result = self._probe.read(self._period_s)
            with self._lock:
                if isinstance(result, Reading):
                    self._take(result)
                elif result.declared:
                    if not self._silence:
                        log.error("NVML is silent", reason=result.reason)
                    self._silence = result.reason
                    self._report((), (), (), nvml_error=result.reason)
            self._closing.wait(max(0.0, self._period_s - (time.monotonic() - started)))
        self._probe.close()

    def _take(self, reading: Reading) -> None:
        if self._silence:
            log.info("NVML answers again", after=self._silence)
        self._silence, self._last = "", reading
        self._latencies_us.append(reading.took_us)
        self._devices = steady(self._seen, reading.devices)
        self._seen |= {device.uuid: device for device in self._devices}
        self._named.set()
        found: list[Finding] = []
        for sample in reading.samples:
            memory, new = judge_sample(self._memories.get(sample.uuid, Memory()), sample)
            self._memories[sample.uuid] = memory
            found.extend(new)
        early, self._early = self._early, []
        found.extend(finding for _, finding in early)
        self._report(reading.samples, tuple(event for event, _ in early), tuple(found))

    def _report(
        self,
        samples: tuple[Sample, ...],
        xids: tuple[XidEvent, ...],
        found: tuple[Finding, ...],
        nvml_error: str = "",
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
            findings=found,
            nvml_error=nvml_error,
        )
        self._sender.add(report, urgent=bool(found))

    def _read_kernel_log(self) -> None:
        kmsg = Kmsg.open()
        if isinstance(kmsg, str):
            self._kmsg = kmsg
            log.warning("the kernel log is not read", reason=kmsg)
            return
        self._kmsg = "read"
        while not self._named.wait(KMSG_WAIT_S) and not self._closing.is_set():
            pass  # a line names a PCI address: before the first reading there is no device to give it to
        while not self._closing.is_set():
            for line, at_ns in kmsg.wait(KMSG_WAIT_S):
                uuid = self._at(line.address)
                if uuid is None:
                    log.warning("an Xid of a device that NVML has never shown", xid=line.code, address=line.address)
                else:
                    self.on_xid(XidEvent(uuid, line.code, at_ns, "kmsg"))
        kmsg.close()

    def _at(self, address: PciAddress) -> DeviceUuid | None:
        with self._lock:
            return next((one.uuid for one in self._seen.values() if parse_address(one.pci_bus_id) == address), None)


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
