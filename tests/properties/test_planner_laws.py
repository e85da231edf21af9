"""Laws of the planner on any fleet, checked against a search over all gangs."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from paceline.model.hardware import DeviceState, NodeState
from paceline.model.ids import NO_CAUSE, DeviceUuid, HostName, JobId, LeaseId, NodeId
from paceline.model.plan import DeviceView, FleetSnapshot, NodeView, Plan, Refusal
from paceline.model.workload import GangRequest
from paceline.placement.gang import locality, spread_of
from paceline.placement.planner import NOISE, Terms, plan, why_not

SCORES = st.one_of(st.none(), st.sampled_from([1.0, 1.001, 1.002, 1.01, 1.02, 1.04, 1.08, 1.2, 1.5]))


@st.composite
def fleets(draw: st.DrawFn) -> FleetSnapshot:
    nodes, devices = [], []
    for host in "abc":
        state = draw(st.sampled_from([NodeState.READY, NodeState.READY, NodeState.READY, NodeState.LOST]))
        nodes.append(NodeView(NodeId(host), HostName(host), state))
        devices += [
            DeviceView(
                uuid=DeviceUuid(f"{host}{index}"),
                host=HostName(host),
                node_id=NodeId(host),
                index=index,
                sku=draw(st.sampled_from(["H200", "H200", "H200", "H100"])),
                state=draw(st.sampled_from([DeviceState.HEALTHY] * 5 + [DeviceState.QUARANTINED])),
                score=draw(SCORES),
                lease_id=draw(st.sampled_from([None] * 4 + [LeaseId("lease")])),
                cause_id=NO_CAUSE,
            )
            for index in range(draw(st.integers(0, 4)))
        ]
    return FleetSnapshot(1, tuple(nodes), tuple(devices), ())


REQUESTS = st.builds(
    lambda devices, spread: GangRequest(JobId("j"), "run", 1, devices, spread),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.002, 0.01, 0.03, 0.1, 0.5]),
)


def usable(snapshot: FleetSnapshot, request: GangRequest) -> list[DeviceView]:
    terms = Terms.of(snapshot, request)
    return [device for device in snapshot.devices if why_not(device, terms) is None]


def shape(gang: tuple[DeviceView, ...]) -> tuple[float, int]:
    """Slowest score and number of hosts."""
    return max(device.score or 0 for device in gang), len({device.host for device in gang})


def allowed_gangs(snapshot: FleetSnapshot, request: GangRequest) -> list[tuple[DeviceView, ...]]:
    def allowed(gang: tuple[DeviceView, ...]) -> bool:
        scores = [device.score or 0 for device in gang]
        spread = spread_of(min(scores), max(scores))
        return len({device.sku for device in gang}) == 1 and spread <= request.max_spread + 1e-9

    return [gang for gang in combinations(usable(snapshot, request), request.devices) if allowed(gang)]


@given(fleets(), REQUESTS)
def test_a_gang_is_whole_or_absent_and_of_usable_equals(snapshot: FleetSnapshot, request: GangRequest) -> None:
    found = plan(snapshot, request)
    if isinstance(found, Plan):
        by_uuid = {device.uuid: device for device in usable(snapshot, request)}
        gang = [by_uuid[uuid] for uuid in found.devices]
        assert len(set(found.devices)) == request.devices
        assert len({device.sku for device in gang}) == 1
        assert found.spread <= request.max_spread + 1e-9
        assert gang == sorted(gang, key=lambda device: (device.host, device.index))
    else:
        assert isinstance(found, Refusal)
        assert found.remedy
        assert found.reason


@given(fleets(), REQUESTS)
def test_no_allowed_gang_is_faster_than_the_plan(snapshot: FleetSnapshot, request: GangRequest) -> None:
    found = plan(snapshot, request)
    gangs = allowed_gangs(snapshot, request)
    assert isinstance(found, Plan) is bool(gangs)
    if isinstance(found, Plan):
        least = min(slowest * locality(hosts) for slowest, hosts in map(shape, gangs))
        assert least <= found.step_time + 1e-9
        assert found.step_time <= least * (1 + NOISE) + 1e-9


@given(fleets(), REQUESTS)
def test_the_plan_is_no_slower_than_any_gang_of_its_sku_on_as_few_hosts(
    snapshot: FleetSnapshot, request: GangRequest
) -> None:
    found = plan(snapshot, request)
    if isinstance(found, Plan):
        mine = tuple(device for device in snapshot.devices if device.uuid in found.devices)
        slowest, hosts = shape(mine)
        rivals = [gang for gang in allowed_gangs(snapshot, request) if gang[0].sku == mine[0].sku]
        assert slowest <= min(rival for rival, on in map(shape, rivals) if on <= hosts)


@given(fleets(), REQUESTS, st.randoms())
def test_the_order_of_rows_is_not_an_input(snapshot: FleetSnapshot, request: GangRequest, dice: object) -> None:
    nodes, devices = list(snapshot.nodes), list(snapshot.devices)
    dice.shuffle(nodes)
    dice.shuffle(devices)
    shuffled = FleetSnapshot(1, tuple(nodes), tuple(devices), ())
    assert plan(snapshot, request) == plan(shuffled, request)


@given(fleets(), REQUESTS, st.data())
def test_an_excluded_device_is_never_used(snapshot: FleetSnapshot, request: GangRequest, data: st.DataObject) -> None:
    uuids = [device.uuid for device in snapshot.devices]
    gone = frozenset(data.draw(st.lists(st.sampled_from(uuids)))) if uuids else frozenset[DeviceUuid]()
    found = plan(snapshot, request, gone)
    if isinstance(found, Plan):
        assert not gone & set(found.devices)
        assert set(found.devices) <= {device.uuid for device in usable(snapshot, request)}


@given(fleets(), REQUESTS)
def test_a_refusal_accounts_for_every_device(snapshot: FleetSnapshot, request: GangRequest) -> None:
    found = plan(snapshot, request)
    if isinstance(found, Refusal):
        assert sum(count for _, count in found.counts) <= len(snapshot.devices)
        assert all(count >= 0 for _, count in found.counts)


@given(fleets(), REQUESTS)
def test_the_spread_that_a_refusal_names_would_do(snapshot: FleetSnapshot, request: GangRequest) -> None:
    found = plan(snapshot, request)
    if isinstance(found, Refusal) and found.remedy.startswith("--max-spread "):
        wider = GangRequest(request.job_id, "run", 1, request.devices, float(found.remedy.split()[1]))
        assert isinstance(plan(snapshot, wider), Plan)
