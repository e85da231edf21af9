"""What is kept of reports while the server is away."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from paceline.health.backlog import SAMPLED_REPORTS, Backlog, acknowledged, add
from paceline.model.hardware import HostFacts, LinkSample, Sample, XidEvent
from paceline.model.health import NodeAdvice, NodeFinding, NodeReport
from paceline.model.ids import DeviceUuid, HostName, NodeId

GPU = DeviceUuid("GPU-1")
SAMPLE = Sample(GPU, 5, None, None, None, None, None, None, None, None, None, None, None)
HOST = HostFacts(HostName("a"), "10.0.0.1", "boot", False)


def report(seq: int, xid: bool = False) -> NodeReport:
    xids = (XidEvent(GPU, 79, seq, "nvml"),) if xid else ()
    return NodeReport(NodeId("n"), "b", seq, seq, HOST, (), (SAMPLE,), xids, ())


def filled(reports: list[NodeReport]) -> Backlog:
    backlog = Backlog()
    for one in reports:
        backlog = add(backlog, one)
    return backlog


def test_oldest_first_until_acknowledged() -> None:
    backlog = filled([report(1), report(2)])
    assert backlog.oldest == report(1)
    assert acknowledged(backlog, 1).oldest == report(2)
    assert acknowledged(acknowledged(backlog, 1), 2).oldest is None


def test_samples_go_first_and_an_xid_stays() -> None:
    backlog = filled([report(1, xid=True), report(2), *(report(seq) for seq in range(3, SAMPLED_REPORTS + 3))])
    assert [one.seq for one in backlog.reports] == [1, *range(3, SAMPLED_REPORTS + 3)]
    assert (backlog.reports[0].samples, backlog.reports[0].xids) == ((), report(1, xid=True).xids)
    assert backlog.thinned == 2


def test_what_was_found_on_the_machine_stays_and_its_ports_go() -> None:
    found = NodeFinding("link.down", 1, NodeAdvice.CORDON, 1, "mlx5_0/1 is down")
    port = LinkSample("mlx5_0/1", "ib", 1, False, 400.0, 1, 0)
    old = replace(report(1), node_findings=(found,), links=(port,))
    backlog = filled([old, *(report(seq) for seq in range(2, SAMPLED_REPORTS + 2))])
    assert backlog.oldest == replace(old, samples=(), links=())


@given(st.lists(st.booleans(), max_size=300))
def test_no_xid_is_ever_lost_and_the_rest_is_bounded(with_xid: list[bool]) -> None:
    reports = [report(seq, xid) for seq, xid in enumerate(with_xid)]
    backlog = filled(reports)
    assert [one.seq for one in backlog.reports if one.xids] == [one.seq for one in reports if one.xids]
    assert sum(1 for one in backlog.reports if one.samples) <= SAMPLED_REPORTS
    assert sum(1 for one in backlog.reports if not one.xids) <= SAMPLED_REPORTS
    assert [one.seq for one in backlog.reports] == sorted(one.seq for one in backlog.reports)
