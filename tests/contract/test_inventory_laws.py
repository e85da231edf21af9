"""Laws of the inventory that hold after any sequence of words from hosts, probes, placement and runs."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inventory_maker import Fleet, facts, uuid, xid_finding
from paceline.inventory.store import Store
from paceline.model.errors import PacelineError
from paceline.model.events import Event, EventKind
from paceline.model.hardware import XidEvent
from paceline.model.health import Advice, Finding
from paceline.model.ids import DeviceUuid
from paceline.model.plan import FleetSnapshot
from paceline.model.workload import RunState

HOSTS = ("ada", "bea")
GPUS = 4

Words = Callable[[Fleet], Callable[[], object]]
"""Made at a moment: what is said then. Saying it twice must do no more than saying it once."""

hosts = st.sampled_from(HOSTS)
indices = st.integers(0, GPUS - 1)
devices = st.builds(uuid, hosts, indices)


def report(host: str, missing: set[int]) -> Words:
    def at(fleet: Fleet) -> Callable[[], object]:
        made = fleet.report_of(host, devices=tuple(facts(host, i) for i in range(GPUS) if i not in missing))
        return lambda: fleet.store.report(made, fleet.now_ns)

    return at


def xid(host: str, index: int, advice: Advice) -> Words:
    def at(fleet: Fleet) -> Callable[[], object]:
        event = XidEvent(uuid(host, index), 79, fleet.now_ns, "nvml")
        made = fleet.report_of(host, xids=(event,), findings=(xid_finding(host, index, 79, fleet.now_ns, advice),))
        return lambda: fleet.store.report(made, fleet.now_ns)

    return at


def hot(host: str, index: int) -> Words:
    def at(fleet: Fleet) -> Callable[[], object]:
        finding = Finding("throttle.hardware", 1, uuid(host, index), Advice.SUSPECT, fleet.now_ns, "hot", {})
        made = fleet.report_of(host, findings=(finding,))
        return lambda: fleet.store.report(made, fleet.now_ns)

    return at


def silent(host: str) -> Words:
    def at(fleet: Fleet) -> Callable[[], object]:
        made = fleet.report_of(host, devices=(), samples=(), nvml_error="no answer")
        return lambda: fleet.store.report(made, fleet.now_ns)

    return at


def measured(host: str, index: int, seconds: float) -> Words:
    def at(fleet: Fleet) -> Callable[[], object]:
        made = fleet.measurement(host, index, seconds, "" if seconds else "no result")
        return lambda: fleet.store.measurements([made], fleet.now_ns)

    return at


def leased(job: str, attempt: int, gang: set[DeviceUuid]) -> Words:
    return lambda fleet: lambda: fleet.lease(job, attempt, *sorted(gang))


def held(which: set[DeviceUuid], free: set[DeviceUuid]) -> Words:
    return lambda fleet: lambda: fleet.store.holds(sorted(which), sorted(free - which), fleet.now_ns)


def alive(names: set[str]) -> Words:
    return lambda fleet: lambda: fleet.alive(*sorted(names))


def swept() -> Words:
    return lambda fleet: lambda: fleet.store.sweep(fleet.now_ns)


def job_ended(job: str) -> Words:
    return lambda fleet: lambda: fleet.job(job, RunState.FAILED, "out of memory")


jobs = st.sampled_from(["job-1", "job-2"])
gangs = st.sets(devices, min_size=1, max_size=4)
words = st.one_of(
    st.builds(report, hosts, st.sets(indices, max_size=1)),
    st.builds(xid, hosts, indices, st.sampled_from(Advice)),
    st.builds(hot, hosts, indices),
    st.builds(silent, hosts),
    st.builds(measured, hosts, indices, st.sampled_from([0.0, 0.01, 0.0101, 0.02])),
    st.builds(leased, jobs, st.integers(1, 3), gangs),
    st.builds(held, st.sets(devices), st.sets(devices)),
    st.builds(alive, st.sets(hosts)),
    st.builds(swept),
    st.builds(job_ended, jobs),
)
histories = st.lists(st.tuples(words, st.sampled_from([1, 5, 12, 70])), max_size=14)


def say(told: Callable[[], object]) -> None:
    """A refusal is an answer like any other; it must leave nothing behind."""
    try:
        told()
    except PacelineError:
        return


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories)
def test_laws_of_the_inventory(migrated_file: Path, history: list[tuple[Words, int]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        copy = shutil.copy(migrated_file, Path(place) / "inventory.db")
        with Store(f"sqlite:///{copy}") as store:
            fleet = Fleet(store)
            for host in HOSTS:
                fleet.healthy(host, GPUS)
            before = store.fleet()
            for word, seconds in history:
                fleet.pass_s(seconds)
                told = word(fleet)
                say(told)
                after, events = store.fleet(), fleet.events()
                say(told)
                assert (store.fleet(), fleet.events()) == (after, events), "said twice is said once"
                check(before, after, events)
                before = after


def check(before: FleetSnapshot, after: FleetSnapshot, events: list[Event]) -> None:
    assert after.revision >= before.revision
    assert after.revision > before.revision or after == before, "what a snapshot shows has a revision of its own"
    gangs = [device for lease in after.leases for device in lease.devices]
    assert len(gangs) == len(set(gangs)), "no device has two holders"
    assert {d.uuid: d.lease_id for d in after.devices if d.lease_id} == {
        u: x.lease_id for x in after.leases for u in x.devices
    }
    ids = [event.id for event in events]
    assert ids == sorted(set(ids))
    assert all(event.cause_id == 0 or event.cause_id in set(ids[: ids.index(event.id)]) for event in events)
    moved = {e.entity: e for e in events if e.kind in (EventKind.VERDICT, EventKind.QUARANTINED)}
    for device in after.devices:
        last = moved[f"device:{device.uuid}"]
        assert (last.body["to"], last.id) == (device.state.value, device.cause_id), (
            "the state is what the log says, and points to it"
        )
