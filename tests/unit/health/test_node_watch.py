"""A watch with a probe and a server that the test drives: what is reported, when, and what survives an outage."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.health.watch import NodeWatch, completed, steady
from paceline.model.errors import BadRequest, PacelineError, Refused, Unreachable
from paceline.model.hardware import DeviceFacts, HostFacts, Sample, XidEvent
from paceline.model.health import Advice, NodeReport
from paceline.model.ids import DeviceUuid, HostName, NodeId
from paceline.telemetry.nvml import Silence
from paceline.telemetry.nvml_wire import Noticed, Reading
from paceline.telemetry.sysfs import PciLink

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

    def __init__(self, on_xid: Callable[[XidEvent], None], on_event: Callable[[Noticed], None]) -> None:
        self.on_xid, self.on_event = on_xid, on_event
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

    def __init__(self, period_s: float = 0.02, kernel_log: Path | None = None, sys_root: Path | None = None) -> None:
        self.server = Server()
        self.deaths: list[BaseException] = []
        self.probes: list[Probe] = []
        self.watch = NodeWatch(
            NodeId("node-1"),
            HOST,
            self.server,
            self.deaths.append,
            self._make_probe,
            period_s=period_s,
            kernel_log=kernel_log,
            sys_root=sys_root,
        )
        self.watch.start()

    def _make_probe(self, on_xid: Callable[[XidEvent], None], on_event: Callable[[Noticed], None]) -> Probe:
        self.probes.append(Probe(on_xid, on_event))
        return self.probes[-1]

    def end(self) -> None:
        self.watch.close()
        assert self.probe.closed.wait(DEADLINE_S)
        assert self.deaths == []

    @property
    def probe(self) -> Probe:
        return self.probes[0]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.end()


def test_each_reading_is_reported_with_a_new_number(bench: Bench) -> None:
    bench.probe.results.put(reading(0, 1))
    bench.probe.results.put(reading(0, 1))
    first, second = bench.server.until(lambda s: len(s.reports) == 2).reports
    assert (first.node_id, first.host, first.devices) == ("node-1", HOST, (facts(0), facts(1)))
    assert [one.uuid for one in first.samples] == ["GPU-0", "GPU-1"]
    assert (first.seq, second.seq, first.boot) == (1, 2, second.boot)


def test_an_xid_is_reported_without_waiting_for_the_period() -> None:
    bench = Bench(period_s=1000 * DEADLINE_S)
    bench.probe.results.put(reading(0))
    bench.server.until(lambda s: s.reports)
    bench.probe.results.put(reading(0))
    bench.probe.on_xid(xid(0, 79))
    report = bench.server.until(lambda s: any(one.xids for one in s.reports)).reports[-1]
    bench.end()
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


def test_a_device_that_hangs_is_told_before_and_with_the_next_reading(bench: Bench) -> None:
    bench.probe.results.put(reading(0, 1))
    bench.probe.results.put(Silence("GPU-1 hangs", declared=False, unreadable=(facts(1).uuid,)))
    bench.probe.results.put(replace(reading(0), devices=(facts(0), facts(1)), unreadable=(facts(1).uuid,)))
    _, told, after = bench.server.until(lambda s: len(s.reports) == 3).reports
    assert (told.devices, told.unreadable, told.nvml_error) == ((facts(0), facts(1)), ("GPU-1",), "")
    assert (after.devices, after.unreadable, len(after.samples)) == ((facts(0), facts(1)), ("GPU-1",), 1)
    assert bench.watch.stats()["nvml_unreadable"] == "GPU-1"
    bench.probe.results.put(reading(0, 1))
    assert bench.server.until(lambda s: len(s.reports) == 4).reports[3].unreadable == ()


def test_an_event_of_the_driver_is_read_at_once() -> None:
    bench = Bench(period_s=3600.0)
    try:
        bench.probe.results.put(reading(0))
        bench.server.until(lambda s: s.reports)
        bench.probe.results.put(Reading((facts(0),), (replace(sample(0), recovery_action=1),), 400))
        bench.probe.on_event(Noticed(facts(0).uuid, 0x8000))
        report = bench.server.until(lambda s: len(s.reports) == 2).reports[1]
        assert [(one.rule_id, one.advice) for one in report.findings] == [("recovery.action", Advice.QUARANTINE)]
    finally:
        bench.end()


def test_the_cost_of_watching_is_told_now_and_then(bench: Bench) -> None:
    for _ in range(5):
        bench.probe.results.put(replace(reading(0), cpu_s=0.4, rss_bytes=7))
    reports = bench.server.until(lambda s: len(s.reports) == 5).reports
    (agent,) = [report.agent for report in reports if report.agent]
    assert (agent.reader_rss_bytes, agent.nvml_p50_us, agent.reader_starts, agent.kernel_log) == (7, 400, 1, "not read")
    assert agent.rss_bytes > 10_000_000
    assert agent.cpu_s > 0.4


def kernel_line(code: int, bus: int = 0) -> str:
    uptime_us = time.monotonic_ns() // 1000
    return f"3,1,{uptime_us},-;NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, pid=1, name=x, its text\n"


def test_the_kernel_log_is_judged_back_to_the_boot_and_tells_the_same_after_a_restart(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(kernel_line(119) + kernel_line(79, bus=0x55))
    told = []
    for _ in range(2):
        bench = Bench(kernel_log=log)
        try:
            bench.probe.results.put(reading(0))
            report = bench.server.until(lambda s: any(one.xids for one in s.reports)).reports[-1]
            assert report.findings[0].rule_id == "xid"
            told.append(report.xids)
            assert bench.watch.stats()["kernel_log"] == "read"
        finally:
            bench.end()
    assert told[0] == told[1], "uuid, code, time and source: the server knows it"
    assert [(one.uuid, one.code, one.detail) for one in told[0]] == [("GPU-0", 119, "pid=1, name=x, its text")]


def test_an_sxid_is_about_the_machine(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(
        "3,1,9,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 28 sourcetrack timeout (First)\n"
    )
    bench = Bench(kernel_log=log)
    try:
        bench.probe.results.put(reading(0))
        report = bench.server.until(lambda s: any(one.node_findings for one in s.reports)).reports[-1]
        assert [(one.rule_id, one.evidence["sxid"]) for one in report.node_findings] == [("sxid", 24007)]
        assert report.findings == ()
    finally:
        bench.end()


def test_a_kernel_log_that_cannot_be_read_is_said_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_char_device", lambda path: True)
    bench = Bench(kernel_log=tmp_path / "no-such-device")
    try:
        bench.probe.results.put(reading(0))
        agent = bench.server.until(lambda s: s.reports).reports[0].agent
        assert agent is not None
        assert "No such file" in str(bench.watch.stats()["kernel_log"])
    finally:
        bench.end()


def test_a_storm_of_lines_is_a_few_reports_and_the_first_of_each_kind_is_there(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text((kernel_line(95) + kernel_line(31)) * 20_000 + kernel_line(119))
    bench = Bench(kernel_log=log)
    try:
        bench.probe.results.put(reading(0))
        told = [xid.code for one in bench.server.until(lambda s: _tells(s, 119)).reports for xid in one.xids]
        assert {95, 31, 119} == set(told)
        assert len(told) < 30
    finally:
        bench.end()


def _tells(server: Server, code: int) -> bool:
    return any(xid.code == code for report in server.reports for xid in report.xids)


def test_ports_are_read_and_reported(tmp_path: Path) -> None:
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    for name, text in {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "link_layer": "InfiniBand"}.items():
        (port / name).write_text(text)
    bench = Bench(sys_root=tmp_path)
    try:
        bench.probe.results.put(reading(0))
        report = bench.server.until(lambda s: any(one.links for one in s.reports)).reports[-1]
        assert [(one.name, one.up) for one in report.links] == [("mlx5_0/1", True)]
    finally:
        bench.end()


def test_a_pcie_link_that_nvml_does_not_tell_is_what_the_machine_says() -> None:
    unknown, link = sample(0), PciLink(gen=4, width=8, gen_max=5, width_max=16)
    assert completed(unknown, link).pcie_width == 8
    assert completed(replace(unknown, pcie_width=16), link).pcie_width == 16
    assert completed(unknown, None) == unknown


def test_a_wall_clock_that_is_set_does_not_stop_the_watch(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.probe.results.put(reading(0))
    bench.server.until(lambda s: s.reports)
    for wall_ns in (5, 10**19):
        monkeypatch.setattr(time, "time_ns", lambda wall_ns=wall_ns: wall_ns)
        count = len(bench.server.reports)
        bench.probe.results.put(reading(0))
        assert bench.server.until(lambda s, count=count: len(s.reports) > count).reports[-1].sent_ns == wall_ns


def test_a_sites_policy_is_taken_at_the_start_and_later(bench: Bench) -> None:
    with pytest.raises(BadRequest):
        bench.watch.reconnect(bench.server, "no such column\n1,2")
    bench.watch.reconnect(bench.server, "code,advice,why\n79,OBSERVE,ours fall off and come back\n")
    bench.probe.results.put(reading(0))
    bench.server.until(lambda s: s.reports)
    bench.probe.on_xid(xid(0, 79))
    report = bench.server.until(lambda s: len(s.reports) == 2).reports[1]
    assert [(one.advice, one.evidence["authority"]) for one in report.findings] == [(Advice.OBSERVE, "site")]


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
