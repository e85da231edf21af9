"""The law of replay: whatever happens to a fleet, each device is the fold over the stimuli that are kept of it."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_inventory_laws import GPUS, HOSTS, Words, devices, histories, hosts, say

from inventory_maker import Fleet
from paceline.inventory.store import Store
from paceline.model.hardware import DeviceState
from paceline.model.health import RepairAction
from paceline.model.ids import DeviceUuid


def unreadable(host: str, device: DeviceUuid) -> Words:
    def at(fleet: Fleet) -> Callable[[], object]:
        made = fleet.report_of(host, unreadable=(device,))
        return lambda: fleet.store.report(made, fleet.now_ns)

    return at


def operator(act: str, device: DeviceUuid) -> Words:
    def at(fleet: Fleet) -> Callable[[], object]:
        store, now_ns = fleet.store, fleet.now_ns
        return {
            "quarantine": lambda: store.quarantine(device, "x", "ada", now_ns),
            "release": lambda: store.release(device, "x", "ada", now_ns),
            "repair": lambda: store.repair(device, RepairAction.RESET_GPU, "x", "ada", now_ns),
            "done": lambda: store.repair_done(device, True, "x", "ada", now_ns),
            "failed": lambda: store.repair_done(device, False, "x", "ada", now_ns),
            "cordon": lambda: store.cordon_device(device, "x", "ada", now_ns),
        }[act]

    return at


acts = st.sampled_from(["quarantine", "release", "repair", "done", "failed", "cordon"])
more = st.one_of(st.builds(unreadable, hosts, devices), st.builds(operator, acts, devices))
lives = st.lists(st.one_of(histories, st.lists(st.tuples(more, st.sampled_from([1, 70])), max_size=6)), max_size=3)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(life=lives)
def test_a_restart_that_folds_again_gets_the_same_state(
    migrated_file: Path, life: list[list[tuple[Words, int]]]
) -> None:
    with tempfile.TemporaryDirectory() as place:
        copy = shutil.copy(migrated_file, Path(place) / "inventory.db")
        with Store(f"sqlite:///{copy}") as store:
            fleet = Fleet(store)
            for host in HOSTS:
                fleet.healthy(host, GPUS)
            for word, seconds in [step for part in life for step in part]:
                fleet.pass_s(seconds)
                say(word(fleet))
            for device in store.devices():
                again = store.refold(device.uuid)
                assert (again.state, again.since_ns, again.reason) == (device.state, device.since_ns, device.reason)
                assert (again.clean_probes, again.bad_findings) == (device.clean_probes, device.bad_findings)
            quarantined = [v for v in store.verdicts(500) if v.mode == "enforce" and v.to_state == DeviceState.DRAINING]
            assert all(v.evidence for v in quarantined if v.automatic), "no exclusion without a reason"
