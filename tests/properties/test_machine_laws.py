"""Laws of the device's state machine, over any sequence of stimuli."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from paceline.health import machine
from paceline.health.machine import Device, Hold, Stimulus, Unhold, replay, step
from paceline.model.hardware import DeviceState
from paceline.model.health import Advice, Finding, RepairAction
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
            machine.Unreadable("no answer"),
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
BY_REPAIR: SearchStrategy[Stimulus] = st.one_of(
    st.builds(machine.RepairStarted, st.sampled_from(RepairAction)),
    st.builds(machine.RepairEnded, st.booleans(), st.just("done")),
)
ANY = st.one_of(BY_MACHINE, BY_OPERATOR, BY_REPAIR)
STATES = st.sampled_from(DeviceState)


def timed(stimuli: list[Stimulus]) -> list[tuple[Stimulus, int]]:
    return [(stimulus, now_ns) for now_ns, stimulus in enumerate(stimuli, start=1)]


GAPS = st.sampled_from([1, machine.QUIET_NS // 2, machine.QUIET_NS])
SLOWLY = st.lists(st.tuples(ANY, GAPS), max_size=60)
"""Stimuli with the time since the one before, so that quiet times pass."""


def spaced(stimuli: list[tuple[Stimulus, int]]) -> list[tuple[Stimulus, int]]:
    now_ns, history = 100, []
    for stimulus, gap in stimuli:
        now_ns += gap
        history.append((stimulus, now_ns))
    return history


NEW = Device(GPU, DeviceState.NEW, 0)


@given(SLOWLY)
def test_ray_may_give_out_a_device_only_while_it_is_healthy(stimuli: list[tuple[Stimulus, int]]) -> None:
    """Follows the instructions as a shell does: held since NEW, until Unhold; held again from Hold on."""
    device, held = NEW, True
    for stimulus, now_ns in spaced(stimuli):
        device, instructions = step(device, stimulus, now_ns)
        for instruction in instructions:
            match instruction:
                case Hold():
                    held = True
                case Unhold():
                    held = False
        assert held is (device.state is not DeviceState.HEALTHY)


@given(st.sampled_from(sorted(machine.STICKY)), st.lists(BY_MACHINE, max_size=60))
def test_only_an_operator_or_a_repair_ends_a_quarantine(state: DeviceState, stimuli: list[Stimulus]) -> None:
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


@given(st.sampled_from([DeviceState.DRAINING, DeviceState.QUARANTINED, DeviceState.REPAIR]), SLOWLY)
def test_an_excluded_device_is_given_out_only_after_a_release_or_a_repair_and_clean_probes(
    state: DeviceState, stimuli: list[tuple[Stimulus, int]]
) -> None:
    device, cured, passes = Device(GPU, state, 0), False, 0
    for stimulus, now_ns in spaced(stimuli):
        before = device.state
        device, _ = step(device, stimulus, now_ns)
        if before in machine.STICKY and device.state is DeviceState.PROBATION:
            assert stimulus == machine.OperatorRelease("r") or stimulus == machine.RepairEnded(True, "done")
            cured, passes = True, 0
        passes += isinstance(stimulus, machine.ProbePassed) and before is DeviceState.PROBATION
        if device.state is DeviceState.HEALTHY:
            assert cured
            assert passes >= machine.CLEAN_PROBES_WANTED
            return


@given(STATES, SLOWLY)
def test_only_a_passed_probe_makes_a_device_healthy(state: DeviceState, stimuli: list[tuple[Stimulus, int]]) -> None:
    """Or the end of a silence in which nothing was found on a device that was healthy before. No age ever does."""
    before = Device(GPU, state, 0, before_unknown=DeviceState.PROBING if state is DeviceState.UNKNOWN else None)
    for stimulus, now_ns in spaced(stimuli):
        after, _ = step(before, stimulus, now_ns)
        if after.state is DeviceState.HEALTHY and before.state is not DeviceState.HEALTHY:
            silence_ends = before.before_unknown is DeviceState.HEALTHY and before.bad_findings == 0
            assert isinstance(stimulus, machine.ProbePassed) or silence_ends
        before = after


@given(SLOWLY)
def test_a_bad_sign_is_never_cleared_before_its_quiet_time(stimuli: list[tuple[Stimulus, int]]) -> None:
    device = Device(GPU, DeviceState.HEALTHY, 0)
    for stimulus, now_ns in spaced(stimuli):
        bad_ns, pardoned_ns = device.bad_ns, device.pardoned_ns
        device, _ = step(device, stimulus, now_ns)
        assert (device.bad_findings > 0) is (device.bad_ns > 0)
        if bad_ns and not device.bad_ns:
            assert now_ns - bad_ns >= machine.QUIET_NS or device.pardoned_ns > pardoned_ns


@given(SLOWLY, st.sampled_from(Advice))
def test_what_is_older_than_a_release_or_a_repair_changes_nothing(
    stimuli: list[tuple[Stimulus, int]], advice: Advice
) -> None:
    history = spaced(stimuli)
    device, _ = replay(NEW, history)
    if device.pardoned_ns:
        late = machine.Found(Finding("r", 1, GPU, advice, device.pardoned_ns - 1, "s"))
        assert step(device, late, history[-1][1] + 1) == (device, ())


@given(
    STATES, st.lists(st.sampled_from([machine.Silent("s"), machine.Unreadable("u"), machine.Reported()]), max_size=30)
)
def test_silence_never_makes_a_device_healthy(state: DeviceState, stimuli: list[Stimulus]) -> None:
    before = Device(GPU, state, 0, before_unknown=DeviceState.SUSPECT if state is DeviceState.UNKNOWN else None)
    after, _ = replay(before, timed(stimuli))
    assert after.state is not DeviceState.HEALTHY or (
        state is DeviceState.HEALTHY and machine.Unreadable("u") not in stimuli
    )
