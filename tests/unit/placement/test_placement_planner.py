"""Gangs on drawn fleets.

A host is a string, a device a character: digit d scores 1.0d (`0` is 1.00, `5` is 1.05), letters score more (`a` 1.10,
`b` 1.20, `c` 1.30); `#` is leased by another job, `=` by an earlier attempt of this run, `x` quarantined, `p` in
probation, `?` not measured. A host whose drawing starts with `!` is not ready. Chosen devices are `host:index`.
"""

import pytest

from paceline.model.errors import BadRequest
from paceline.model.hardware import DeviceState, NodeState
from paceline.model.ids import NO_CAUSE, DeviceUuid, HostName, JobId, LeaseId, NodeId
from paceline.model.plan import DeviceView, FleetSnapshot, LeaseView, NodeView, Plan, Refusal
from paceline.model.workload import GangRequest
from paceline.placement.planner import LEASED, NOT_HEALTHY, OTHER_SKU, OUTSIDE_SPREAD, Terms, plan, why_not

LETTERS = {"a": 1.10, "b": 1.20, "c": 1.30}
STATES = {"x": DeviceState.QUARANTINED, "p": DeviceState.PROBATION}
LEASES = {"#": LeaseId("other"), "=": LeaseId("own")}


def device(host: str, index: int, drawn: str, sku: str) -> DeviceView:
    score = 1 + int(drawn) / 100 if drawn.isdigit() else LETTERS.get(drawn, 1.0)
    return DeviceView(
        uuid=DeviceUuid(f"{host}:{index}"),
        host=HostName(host),
        node_id=NodeId(f"node-{host}"),
        index=index,
        sku=sku,
        state=STATES.get(drawn, DeviceState.HEALTHY),
        score=None if drawn == "?" else score,
        lease_id=LEASES.get(drawn),
        cause_id=NO_CAUSE,
    )


def fleet(skus: dict[str, str] | None = None, **hosts: str) -> FleetSnapshot:
    nodes, devices = [], []
    for host, drawn in hosts.items():
        state = NodeState.LOST if drawn.startswith("!") else NodeState.READY
        nodes.append(NodeView(NodeId(f"node-{host}"), HostName(host), state, "its raylet died" * drawn.startswith("!")))
        sku = (skus or {}).get(host, "H200")
        devices += [device(host, index, one, sku) for index, one in enumerate(drawn.lstrip("!"))]
    leases = [
        LeaseView(lease, attempt, tuple(d.uuid for d in devices if d.lease_id == lease), NO_CAUSE)
        for lease, attempt in ((LeaseId("other"), "job-2/run/1"), (LeaseId("own"), "job-1/run/1"))
    ]
    return FleetSnapshot(7, tuple(nodes), tuple(devices), tuple(leases))


def want(devices: int, max_spread: float = 0.03) -> GangRequest:
    return GangRequest(JobId("job-1"), "run", 2, devices, max_spread)


def chosen(found: Plan | Refusal) -> list[str]:
    assert isinstance(found, Plan), found
    return list(found.devices)


def refused(found: Plan | Refusal) -> Refusal:
    assert isinstance(found, Refusal), found
    return found


def test_the_fastest_of_one_host() -> None:
    found = plan(fleet(a="2102"), want(2))
    assert chosen(found) == ["a:1", "a:2"]
    assert isinstance(found, Plan)
    assert (found.revision, found.step_time) == (7, 1.01)
    assert found.spread == pytest.approx(1 - 1.00 / 1.01)
    assert found.reason == "2 of 4 usable devices: a × 2; slowest 1.010, spread 1.0%, predicted step time 1.010"


def test_a_gang_is_not_torn_apart_for_a_little_speed() -> None:
    assert chosen(plan(fleet(a="03", b="03"), want(2, 0.05))) == ["a:0", "a:1"]


def test_a_gang_leaves_a_host_that_would_slow_it_by_more_than_the_crossing() -> None:
    assert chosen(plan(fleet(a="0b", b="0b"), want(2, 0.5))) == ["a:0", "b:0"]


def test_a_slower_window_may_be_the_only_equal_one() -> None:
    assert chosen(plan(fleet(a="0aaa"), want(3))) == ["a:1", "a:2", "a:3"]


def test_as_few_hosts_as_will_do() -> None:
    assert chosen(plan(fleet(a="00", b="000", c="0000"), want(6))) == ["a:0", "a:1", "c:0", "c:1", "c:2", "c:3"]


def test_the_rest_of_a_gang_goes_where_it_leaves_least_over() -> None:
    assert chosen(plan(fleet(a="0000", b="000", c="0"), want(1))) == ["c:0"]
    assert chosen(plan(fleet(a="0000", b="000", c="0"), want(3))) == ["b:0", "b:1", "b:2"]
    assert chosen(plan(fleet(a="0000", b="000", c="0"), want(5))) == ["a:0", "a:1", "a:2", "a:3", "c:0"]


def test_ties_go_by_id() -> None:
    assert chosen(plan(fleet(b="00", a="00"), want(1))) == ["a:0"]


def test_a_difference_inside_the_noise_does_not_cost_a_host() -> None:
    snapshot = fleet(a="00", b="0", c="0")
    assert chosen(plan(snapshot, want(2))) == ["a:0", "a:1"]


@pytest.mark.parametrize("drawn", ["x", "p", "#", "?"])
def test_what_may_not_be_used_is_not_used(drawn: str) -> None:
    assert chosen(plan(fleet(a=f"{drawn}00"), want(2))) == ["a:1", "a:2"]


def test_a_node_that_is_not_ready_is_not_used() -> None:
    assert chosen(plan(fleet(a="!00", b="00"), want(2))) == ["b:0", "b:1"]


def test_a_device_that_a_stranger_took_is_not_used() -> None:
    assert chosen(plan(fleet(a="000"), want(2), frozenset({DeviceUuid("a:0")}))) == ["a:1", "a:2"]


def test_a_run_may_have_the_devices_of_its_own_earlier_attempt() -> None:
    assert chosen(plan(fleet(a="==x"), want(2))) == ["a:0", "a:1"]


def test_a_gang_is_of_one_sku() -> None:
    refusal = refused(plan(fleet({"a": "H100"}, a="0", b="0"), want(2)))
    assert dict(refusal.counts)[OTHER_SKU] == 1
    assert refusal.reason == "2 devices wanted, 1 can be used now (of H100)"
    assert refusal.remedy == "ask for 1 devices or fewer, or add hosts: no SKU has more than 1"


def test_a_spread_that_is_too_tight_is_named_with_the_one_that_would_do() -> None:
    refusal = refused(plan(fleet(a="0005", b="1"), want(5)))
    assert refusal.reason == "5 devices wanted, 4 are equal within 3.0% (of H200)"
    assert refusal.remedy == "--max-spread 0.048 would start now on a, b"
    assert dict(refusal.counts)[OUTSIDE_SPREAD] == 1
    assert chosen(plan(fleet(a="0005", b="1"), want(5, 0.048)))


def test_waiting_for_a_lease_is_named_with_its_job() -> None:
    refusal = refused(plan(fleet(a="0##x"), want(3)))
    assert refusal.reason == "3 devices wanted, 1 can be used now (of H200)"
    assert refusal.remedy == "wait for the end of job job-2 (2 devices)"
    assert dict(refusal.counts) | {} == dict.fromkeys(dict(refusal.counts), 0) | {LEASED: 2, NOT_HEALTHY: 1}


def test_waiting_for_probes_comes_before_waiting_for_leases() -> None:
    remedy = refused(plan(fleet(a="0pp##"), want(3))).remedy
    assert remedy == "wait: 2 are in PROBATION until clean probes clear them"


def test_what_only_an_operator_can_bring_back() -> None:
    refusal = refused(plan(fleet(a="00xx", b="!00"), want(4)))
    assert refusal.remedy == "2 are QUARANTINED: an operator may release them once they are repaired; bring back b"


def test_a_long_list_of_hosts_is_cut() -> None:
    found = plan(fleet(**dict.fromkeys("abcdefg", "0")), want(7, 0.5))
    assert isinstance(found, Plan)
    assert found.reason.startswith("7 of 7 usable devices: a × 1, b × 1, c × 1, d × 1 and 3 more; slowest")


def test_an_empty_fleet() -> None:
    refusal = refused(plan(fleet(), want(1)))
    assert refusal.reason == "1 devices wanted, none can be used now"
    assert refusal.remedy == "no device has reported yet: look at the hosts' health actors"


def test_why_not_is_the_planners_own_filter() -> None:
    snapshot = fleet(a="0#x?=", b="!0")
    reasons = [why_not(one, Terms.of(snapshot, want(1))) for one in snapshot.devices]
    assert reasons == [
        None,
        "it is leased (other)",
        "it is QUARANTINED",
        "its speed has not been measured yet",
        None,
        "its node b is LOST: its raylet died",
    ]
    assert why_not(snapshot.devices[4], Terms.of(snapshot)) == "it is leased (own)"


@pytest.mark.parametrize("request_", [want(0), want(1, 1.0), want(1, -0.1)])
def test_a_request_that_cannot_be_right(request_: GangRequest) -> None:
    with pytest.raises(BadRequest):
        plan(fleet(a="0"), request_)
