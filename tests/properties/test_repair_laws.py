"""Laws of the repair ladder, over any history."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from paceline.health.repair import LADDER, WINDOW_NS, RepairRecord, next_action
from paceline.model.health import RepairAction
from paceline.model.ids import DeviceUuid

NOW = 10 * WINDOW_NS
ACTIONS = st.sampled_from(RepairAction)
RECORDS = st.builds(
    RepairRecord,
    ACTIONS,
    st.sampled_from(["xid:79", "xid:95"]),
    st.integers(NOW - 2 * WINDOW_NS, NOW),
    st.booleans(),
)
HISTORY = st.lists(RECORDS, max_size=8)
PEERS = st.lists(st.sampled_from("abc"), unique=True).map(lambda names: [DeviceUuid(name) for name in names])


@given(ACTIONS, HISTORY, st.booleans(), PEERS, st.randoms(use_true_random=False))
def test_the_order_of_the_history_is_no_input(
    want: RepairAction, history: list[RepairRecord], nvswitch: bool, peers: list[DeviceUuid], random: Random
) -> None:
    plan = next_action(want, "xid:79", history, NOW, nvswitch, peers)
    random.shuffle(history)
    assert next_action(want, "xid:79", history, NOW, nvswitch, peers[::-1]) == plan


@given(ACTIONS, HISTORY, RECORDS)
def test_the_ladder_is_never_climbed_down(want: RepairAction, history: list[RepairRecord], more: RepairRecord) -> None:
    before = next_action(want, "xid:79", history, NOW, False, ()).action
    after = next_action(want, "xid:79", [*history, more], NOW, False, ()).action
    assert LADDER.index(want) <= LADDER.index(before) <= LADDER.index(after)


@given(ACTIONS, st.lists(st.booleans(), max_size=30))
def test_a_device_that_no_repair_heals_is_replaced_within_a_week(want: RepairAction, outcomes: list[bool]) -> None:
    """Each plan is carried out an hour after the one before: at most two of each rung, and then its replacement."""
    history: list[RepairRecord] = []
    for hour, ok in enumerate(outcomes):
        action = next_action(want, "xid:79", history, NOW + hour, False, ()).action
        if action is RepairAction.REPLACE:
            break
        history.append(RepairRecord(action, "xid:79", NOW + hour, ok))
    assert len(history) <= 6


@given(ACTIONS, HISTORY, st.booleans(), PEERS)
def test_no_repair_ends_work_that_it_does_not_name(
    want: RepairAction, history: list[RepairRecord], nvswitch: bool, peers: list[DeviceUuid]
) -> None:
    plan = next_action(want, "xid:79", history, NOW, nvswitch, peers)
    takes_peers = plan.action in (RepairAction.REBOOT_NODE, RepairAction.REPLACE) or (
        nvswitch and plan.action is RepairAction.RESET_GPU
    )
    assert plan.wait_for == (tuple(sorted(peers)) if takes_peers else ())
