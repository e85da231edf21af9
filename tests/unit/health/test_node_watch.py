"""A watch with a probe and a server that the test drives: what is reported, when, and what survives an outage."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from paceline.health.watch import NodeWatch, steady
from paceline.model.errors import BadRequest, PacelineError, Refused, Unreachable
from paceline.model.hardware import DeviceFacts, HostFacts, Sample, XidEvent
from paceline.model.health import Advice, NodeReport
from paceline.model.ids import DeviceUuid, HostName, NodeId
from paceline.telemetry.nvml import Silence
from paceline.telemetry.nvml_wire import Reading

HOST = HostFacts(HostName("host-a"), "10.0.0.1", "boot-1", simulated=True)
DEADLINE_S = 20.0


def facts(index: int) -> DeviceFacts:
    return DeviceFacts(DeviceUuid(f"GPU-{index}"), index, "s", f"00000000:{index:02X}:00.0", "H200", 1, 700.0, "580")


def sample(index: int) -> Sample:
    uuid = DeviceUuid(f"GPU-{index}")
    return Sample(uuid, time.time_ns(), 1980, 50, 300.0, 0, 90, 0, 0, False, False, 0, 1)


def reading(*indices: int) -> Reading:
    return Reading(tuple(map(facts, indices)), tuple(map(sample, indices)), took_us=400)


def xid(index: int, code: int) -> XidEvent:
    return XidEvent(DeviceUuid(f"GPU-{index}"), code, time.time_ns(), "nvml")


class Server:
    """Takes reports while `failure` is None."""

    def __init__(self) -> None:
        self.reports: list[NodeReport] = []
        self.tries = 0
        self.failure: PacelineError | None = None
        self.changed = threading.Condition()

    def report(self, report: NodeReport) -> bool:
        with self.changed:
            self.tries += 1
            self.changed.notify_all()
            if self.failure:
                raise self.failure
            self.reports.append(report)
        return True

    def until(self, wanted: Callable[["Server"], object]) -> "Server":
        with self.changed:
            assert self.changed.wait_for(lambda: wanted(self), DEADLINE_S), self.reports
        return self


class Probe:
    starts = 1

    def __init__(self, on_xid: Callable[[XidEvent], None]) -> None:
        self.on_xid = on_xid
        self.results: queue.Queue[Reading | Silence] = queue.Queue()
        self.closed = threading.Event()

    def read(self, deadline_s: float) -> Reading | Silence:
        try:
            return self.results.get(timeout=deadline_s)
        except queue.Empty:
            return Silence("nothing yet", declared=False)

    def close(self) -> None:
        self.closed.set()


class Bench:
    """A running watch with its probe and its server."""

    def __init__(self) -> None:
        self.server = Server()
        self.deaths: list[BaseException] = []
        self.probes: list[Probe] = []
        self.watch = NodeWatch(NodeId("node-1"), HOST, self.server, self.deaths.append, self._make_probe, period_s=0.02)
        self.watch.start()

    def _make_probe(self, on_xid: Callable[[XidEvent], None]) -> Probe:
        self.probes.append(Probe(on_xid))
        return self.probes[-1]

    @property
    def probe(self) -> Probe:
        return self.probes[0]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.watch.close()
    assert bench.probe.closed.wait(DEADLINE_S)
    assert bench.deaths == []


def test_each_reading_is_reported_with_a_new_number(bench: Bench) -> None:
    bench.probe.results.put(reading(0, 1))
    bench.probe.results.put(reading(0, 1))
    first, second = bench.server.until(lambda s: len(s.reports) == 2).reports
    assert (first.node_id, first.host, first.devices) == ("node-1", HOST, (facts(0), facts(1)))
    assert [one.uuid for one in first.samples] == ["GPU-0", "GPU-1"]
    assert (first.seq, second.seq, first.boot) == (1, 2, second.boot)


def test_an_xid_is_reported_without_waiting_for_the_period(bench: Bench) -> None:
    bench.probe.results.put(reading(0))
    bench.server.until(lambda s: s.reports)
    began = time.monotonic()
    bench.probe.on_xid(xid(0, 79))
    report = bench.server.until(lambda s: len(s.reports) == 2).reports[1]
    assert time.monotonic() - began < 0.2
    assert [(one.code, one.source) for one in report.xids] == [(79, "nvml")]
    assert [(one.advice, one.evidence["xid"]) for one in report.findings] == [(Advice.QUARANTINE, 79)]
    assert report.devices == (facts(0),)


def test_an_xid_before_the_first_reading_does_not_call_the_devices_missing(bench: Bench) -> None:
    bench.probe.on_xid(xid(0, 79))
    bench.probe.results.put(reading(0))
    (report,) = bench.server.until(lambda s: s.reports).reports
    assert (report.devices, [one.code for one in report.xids]) == ((facts(0),), [79])
    assert [one.rule_id for one in report.findings] == ["xid"]


def test_an_xid_that_both_witnesses_tell_is_reported_once(bench: Bench) -> None:
    bench.probe.results.put(reading(0))
    bench.server.until(lambda s: s.reports)
    bench.probe.on_xid(xid(0, 79))
    bench.probe.on_xid(replace(xid(0, 79), source="kmsg"))
    bench.probe.results.put(reading(0))
    reports = bench.server.until(lambda s: len(s.reports) == 3).reports
    assert sum(len(report.xids) for report in reports) == 1


def test_a_rule_on_samples_fires(bench: Bench) -> None:
    bench.probe.results.put(reading(0))
    bench.probe.results.put(Reading((facts(0),), (replace(sample(0), ecc_uncorrected=1),), 400))
    reports = bench.server.until(lambda s: len(s.reports) == 2).reports
    assert [one.rule_id for one in reports[1].findings] == ["ecc.uncorrected"]


def test_declared_silence_is_reported_with_the_devices_that_were_there(bench: Bench) -> None:
    bench.probe.results.put(reading(0))
    bench.probe.results.put(Silence("no answer yet", declared=False))
    bench.probe.results.put(Silence("NVML does not answer", declared=True))
    reports = bench.server.until(lambda s: len(s.reports) == 2).reports
    assert (reports[1].devices, reports[1].nvml_error) == ((facts(0),), "NVML does not answer")
    assert bench.watch.stats()["nvml_error"] == "NVML does not answer"
    bench.probe.results.put(reading(0))
    assert bench.server.until(lambda s: len(s.reports) == 3).reports[2].nvml_error == ""


def test_a_device_that_is_gone_keeps_the_indices_of_the_others(bench: Bench) -> None:
    bench.probe.results.put(reading(0, 1, 2))
    shifted = Reading((facts(0), replace(facts(2), index=1)), (sample(0), sample(2)), 400)
    bench.probe.results.put(shifted)
    report = bench.server.until(lambda s: len(s.reports) == 2).reports[1]
    assert [(one.uuid, one.index) for one in report.devices] == [("GPU-0", 0), ("GPU-2", 2)]


def test_a_new_device_takes_an_index_that_nobody_has() -> None:
    seen = {facts(index).uuid: facts(index) for index in (0, 1)}
    new = replace(facts(7), index=1)
    assert [one.index for one in steady(seen, [facts(0), new])] == [0, 2]


def test_reports_survive_an_outage_in_order(bench: Bench) -> None:
    bench.server.failure = Unreachable("PL-NET-001", "connection refused")
    bench.probe.results.put(reading(0))
    bench.server.until(lambda s: s.tries >= 1)
    bench.probe.on_xid(xid(0, 48))
    bench.server.until(lambda s: s.tries >= 2)
    bench.server.failure = None
    reports = bench.server.until(lambda s: len(s.reports) == 2).reports
    assert [report.seq for report in reports] == [1, 2]
    assert [one.code for one in reports[1].xids] == [48]
    assert bench.watch.stats()["reports_pending"] == 0


def test_a_report_that_the_server_rejects_does_not_block_the_next(bench: Bench) -> None:
    bench.server.failure = BadRequest("PL-REQ-001", "no such field")
    bench.probe.results.put(reading(0))
    bench.server.until(lambda s: s.tries == 1)
    bench.server.failure = None
    bench.probe.results.put(reading(0))
    assert [one.seq for one in bench.server.until(lambda s: s.reports).reports] == [2]
    assert bench.watch.stats()["reports_rejected"] == 1


def test_a_refused_token_keeps_the_reports_for_the_next_server(bench: Bench) -> None:
    bench.server.failure = Refused("PL-AUTH-001", "unknown token")
    bench.probe.results.put(reading(0))
    bench.server.until(lambda s: s.tries >= 1)
    other = Server()
    bench.watch.reconnect(other)
    assert [one.seq for one in other.until(lambda s: s.reports).reports] == [1]


def test_a_watch_that_cannot_watch_says_so() -> None:
    deaths: queue.Queue[BaseException] = queue.Queue()

    class Broken(Probe):
        def read(self, deadline_s: float) -> Reading | Silence:
            raise RuntimeError("a mistake in the program")

    watch = NodeWatch(NodeId("n"), HOST, Server(), deaths.put, Broken, period_s=0.02)
    hook, threading.excepthook = threading.excepthook, lambda args: None
    try:
        watch.start()
        assert "a mistake" in str(deaths.get(timeout=DEADLINE_S))
    finally:
        watch.close()
        threading.excepthook = hook


def test_stats_say_what_it_costs(bench: Bench) -> None:
    bench.probe.results.put(reading(0))
    bench.probe.results.put(reading(0))
    bench.server.until(lambda s: len(s.reports) == 2)
    stats = bench.watch.stats()
    assert (stats["nvml_p50_us"], stats["nvml_reader_starts"], stats["kernel_log"]) == (400, 1, "not read")
    assert float(stats["cpu_s"]) > 0
