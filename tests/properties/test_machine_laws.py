"""Laws of the device's state machine, over any sequence of stimuli."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from paceline.health import machine
from paceline.health.machine import Device, Hold, Stimulus, Unhold, replay, step
from paceline.model.hardware import DeviceState
from paceline.model.health import Advice, Finding
from paceline.model.ids import DeviceUuid

GPU = DeviceUuid("GPU-1")
FINDINGS = st.builds(
    lambda advice, at_ns: machine.Found(Finding("r", 1, GPU, advice, at_ns, "s")),
    st.sampled_from(Advice),
    st.integers(0, 60),
)
BY_MACHINE: SearchStrategy[Stimulus] = st.one_of(
    st.sampled_from(
        [
            machine.Appeared(),
            machine.Reported(),
            machine.Silent("no report"),
            machine.Missing(),
            machine.ProbeStarted(),
            machine.ProbePassed(1.0),
            machine.ProbeFailed("error"),
            machine.HoldConfirmed(),
        ]
    ),
    FINDINGS,
)
BY_OPERATOR: SearchStrategy[Stimulus] = st.sampled_from(
    [machine.OperatorQuarantine("q"), machine.OperatorRelease("r"), machine.OperatorRetire("t")]
)
ANY = st.one_of(BY_MACHINE, BY_OPERATOR)
STATES = st.sampled_from(DeviceState)


def timed(stimuli: list[Stimulus]) -> list[tuple[Stimulus, int]]:
    return [(stimulus, now_ns) for now_ns, stimulus in enumerate(stimuli, start=1)]


NEW = Device(GPU, DeviceState.NEW, 0)


@given(st.lists(ANY, max_size=60))
def test_ray_may_give_out_a_device_only_while_it_is_healthy(stimuli: list[Stimulus]) -> None:
    """Follows the instructions as a shell does: held since NEW, until Unhold; held again from Hold on."""
    device, held = NEW, True
    for stimulus, now_ns in timed(stimuli):
        device, instructions = step(device, stimulus, now_ns)
        for instruction in instructions:
            match instruction:
                case Hold():
                    held = True
                case Unhold():
                    held = False
        assert held is (device.state is not DeviceState.HEALTHY)


@given(st.sampled_from(sorted(machine.STICKY)), st.lists(BY_MACHINE, max_size=60))
def test_only_an_operator_ends_a_quarantine(state: DeviceState, stimuli: list[Stimulus]) -> None:
    assert replay(Device(GPU, state, 0), timed(stimuli)) == (Device(GPU, state, 0), ())


@given(st.lists(ANY, max_size=60), st.integers(0, 60))
def test_a_fold_over_the_history_gives_the_state_that_was_reached_step_by_step(
    stimuli: list[Stimulus], cut: int
) -> None:
    history = timed(stimuli)
    whole = replay(NEW, history)
    half, first = replay(NEW, history[:cut])
    assert replay(half, history[cut:]) == (whole[0], whole[1][len(first) :])


@given(STATES, st.lists(BY_MACHINE, max_size=30))
def test_silence_never_hides_a_quarantine_finding(before: DeviceState, stimuli: list[Stimulus]) -> None:
    unknown = Device(GPU, DeviceState.UNKNOWN, 0, before_unknown=before)
    bad = machine.Found(Finding("r", 1, GPU, Advice.QUARANTINE, 5, "s"))
    device, _ = replay(step(unknown, bad, 5)[0], timed(stimuli))
    assert device.state in (DeviceState.DRAINING, DeviceState.QUARANTINED)


@given(st.lists(ANY, max_size=60))
def test_a_device_is_unknown_exactly_while_it_remembers_what_it_was(stimuli: list[Stimulus]) -> None:
    device, _ = replay(NEW, timed(stimuli))
    assert (device.state is DeviceState.UNKNOWN) is (device.before_unknown is not None)


@given(STATES, ANY)
def test_a_state_changes_only_with_a_reason_and_a_time(state: DeviceState, stimulus: Stimulus) -> None:
    before = Device(GPU, state, 0, "why", before_unknown=DeviceState.HEALTHY if state is DeviceState.UNKNOWN else None)
    after, _ = step(before, stimulus, 9)
    assert after.state is state or (after.since_ns == 9 and after.reason)
