"""Each arrow of the state chart in health/README.md."""

import pytest

from paceline.health.findings import REPEAT_AFTER_NS
from paceline.health.machine import (
    BAD_FINDINGS_LIMIT,
    CLEAN_PROBES_WANTED,
    QUIET_NS,
    Appeared,
    Device,
    Found,
    Hold,
    HoldConfirmed,
    Missing,
    MoveLease,
    OperatorQuarantine,
    OperatorRelease,
    OperatorRetire,
    Probe,
    ProbeFailed,
    ProbePassed,
    ProbeStarted,
    RepairEnded,
    RepairStarted,
    Reported,
    Silent,
    Stimulus,
    Unhold,
    Unreadable,
    probes_wanted,
    replay,
    step,
    why_not_release,
    why_not_repair,
)
from paceline.model.hardware import DeviceState
from paceline.model.health import Advice, Finding, RepairAction
from paceline.model.ids import DeviceUuid

GPU = DeviceUuid("GPU-1")
S = DeviceState


def device(state: DeviceState, **changes: object) -> Device:
    return Device(GPU, state, since_ns=100, **changes)


def found(advice: Advice, at_ns: int = 200) -> Found:
    return Found(Finding("xid.fatal", 1, GPU, advice, at_ns, "Xid 79: off the bus", {"xid": 79}))


def walk(start: DeviceState, *stimuli: Stimulus) -> list[DeviceState]:
    current, states = device(start), []
    for now_ns, stimulus in enumerate(stimuli, start=201):
        current, _ = step(current, stimulus, now_ns)
        states.append(current.state)
    return states


def test_a_new_device_is_given_out_after_one_probe() -> None:
    probing, asked = step(device(S.NEW), Appeared(), 5)
    assert probing.state is S.PROBING
    assert asked == (Hold(GPU, probing.reason), Probe(GPU))
    healthy, asked = step(probing, ProbePassed(1.0), 6)
    assert (healthy.state, healthy.since_ns, asked) == (S.HEALTHY, 6, (Unhold(GPU),))


@pytest.mark.parametrize("state", [S.NEW, S.PROBING, S.HEALTHY, S.SUSPECT, S.UNKNOWN])
def test_a_quarantine_finding_drains_and_the_confirmed_hold_ends_it(state: DeviceState) -> None:
    draining, asked = step(device(state), found(Advice.QUARANTINE), 7)
    assert draining.state is S.DRAINING
    assert asked == (Hold(GPU, "Xid 79: off the bus"), MoveLease(GPU, "Xid 79: off the bus"))
    quarantined, asked = step(draining, HoldConfirmed(), 8)
    assert (quarantined.state, quarantined.reason, asked) == (S.QUARANTINED, "Xid 79: off the bus", ())


def test_observe_changes_nothing() -> None:
    assert step(device(S.HEALTHY), found(Advice.OBSERVE), 7) == (device(S.HEALTHY), ())


def test_suspicion_needs_several_clean_probes() -> None:
    suspect, asked = step(device(S.HEALTHY), found(Advice.SUSPECT), 7)
    assert (suspect.state, asked) == (S.SUSPECT, (Hold(GPU, suspect.reason), Probe(GPU)))
    assert walk(S.SUSPECT, *[ProbePassed(1.0)] * CLEAN_PROBES_WANTED) == [S.SUSPECT] * (CLEAN_PROBES_WANTED - 1) + [
        S.HEALTHY
    ]


def test_a_bad_finding_voids_the_clean_probes() -> None:
    almost = device(S.SUSPECT, clean_probes=CLEAN_PROBES_WANTED - 1, bad_findings=1)
    marked, _ = step(almost, found(Advice.SUSPECT), 7)
    assert (marked.state, marked.clean_probes, probes_wanted(marked)) == (S.SUSPECT, 0, CLEAN_PROBES_WANTED)


def test_clean_probes_do_not_clear_a_fresh_suspicion() -> None:
    """They clear it once the rule has had the chance to speak again, and did not."""
    suspect, _ = step(device(S.HEALTHY), found(Advice.SUSPECT), 1_000)
    passes: list[tuple[Stimulus, int]] = [(ProbePassed(1.0), 1_001 + n) for n in range(2 * CLEAN_PROBES_WANTED)]
    restless, asked = replay(suspect, passes)
    assert (restless.state, probes_wanted(restless)) == (S.SUSPECT, 1)
    assert asked == (Probe(GPU),) * len(passes)
    assert step(restless, ProbePassed(1.0), 999 + QUIET_NS)[0].state is S.SUSPECT
    healthy, asked = step(restless, ProbePassed(1.0), 1_000 + QUIET_NS)
    assert (healthy.state, healthy.bad_findings, healthy.bad_ns, asked) == (S.HEALTHY, 0, 0, (Unhold(GPU),))


def test_quiet_alone_clears_nothing() -> None:
    suspect, _ = step(device(S.HEALTHY), found(Advice.SUSPECT), 1_000)
    assert step(suspect, Reported(), 1_000 * QUIET_NS) == (suspect, ())
    assert step(suspect, ProbePassed(1.0), 1_000 * QUIET_NS)[0].state is S.SUSPECT, "three probes, not one"


def test_a_lasting_condition_speaks_again_within_the_quiet_time() -> None:
    assert QUIET_NS > REPEAT_AFTER_NS


def test_repeated_suspicion_is_a_quarantine() -> None:
    states = walk(S.HEALTHY, *[found(Advice.SUSPECT)] * BAD_FINDINGS_LIMIT)
    assert states == [S.SUSPECT] * (BAD_FINDINGS_LIMIT - 1) + [S.DRAINING]


def test_a_finding_during_the_first_probe_asks_for_more_proof() -> None:
    marked, _ = step(device(S.PROBING), found(Advice.SUSPECT), 7)
    assert (marked.state, probes_wanted(marked)) == (S.PROBING, CLEAN_PROBES_WANTED)


def test_falling_off_the_bus_drains() -> None:
    draining, asked = step(device(S.HEALTHY), Missing(), 7)
    assert (draining.state, draining.reason) == (S.DRAINING, "not seen by NVML")
    assert asked == (Hold(GPU, "not seen by NVML"), MoveLease(GPU, "not seen by NVML"))


@pytest.mark.parametrize("state", [S.PROBING, S.HEALTHY, S.SUSPECT, S.PROBATION])
def test_silence_is_unknown_and_a_report_leads_back(state: DeviceState) -> None:
    unknown, asked = step(device(state), Silent("no report for 6 s"), 7)
    assert (unknown.state, unknown.before_unknown) == (S.UNKNOWN, state)
    assert asked == (Hold(GPU, "no report for 6 s"),)  # the lease stays: the work may well go on
    back, asked = step(unknown, Reported(), 8)
    assert (back.state, back.before_unknown) == (state, None)
    assert asked == ((Unhold(GPU),) if state is S.HEALTHY else (Probe(GPU),))


def test_what_is_found_in_silence_counts() -> None:
    unknown = device(S.UNKNOWN, before_unknown=S.HEALTHY)
    assert step(unknown, found(Advice.QUARANTINE), 7)[0].state is S.DRAINING
    marked, _ = step(unknown, found(Advice.SUSPECT), 7)
    assert (marked.state, step(marked, Reported(), 8)[0].state) == (S.UNKNOWN, S.SUSPECT)
    assert step(unknown, Missing(), 7)[0].state is S.DRAINING


@pytest.mark.parametrize("state", [S.PROBING, S.HEALTHY, S.SUSPECT, S.PROBATION])
def test_a_device_that_hangs_nvml_is_unknown_and_has_to_prove_itself_when_it_answers(state: DeviceState) -> None:
    unknown, asked = step(device(state, clean_probes=1), Unreadable("no answer within 2 s"), 7)
    assert (unknown.state, unknown.reason, asked) == (S.UNKNOWN, "no answer within 2 s", (Hold(GPU, unknown.reason),))
    again, asked = step(unknown, Unreadable("no answer within 2 s"), 8)
    assert (again, asked) == (unknown, ()), "one hang is one bad finding, however long it lasts"
    back, asked = step(again, Reported(), 9)
    assert back.state is (S.SUSPECT if state is S.HEALTHY else state)
    assert (back.bad_findings, back.bad_ns, probes_wanted(back), asked) == (1, 7, CLEAN_PROBES_WANTED, (Probe(GPU),))


def test_a_device_that_hangs_nvml_again_and_again_is_quarantined() -> None:
    hangs = [Unreadable("no answer"), Reported()] * BAD_FINDINGS_LIMIT
    assert walk(S.HEALTHY, *hangs) == [S.UNKNOWN, S.SUSPECT] * (BAD_FINDINGS_LIMIT - 1) + [S.DRAINING] * 2


def test_a_hang_after_the_silence_of_its_host_is_the_devices_own() -> None:
    silent, _ = step(device(S.HEALTHY), Silent("no report for 10 s"), 7)
    hung, _ = step(silent, Unreadable("no answer within 2 s"), 8)
    assert (hung.state, hung.reason, hung.before_unknown) == (S.UNKNOWN, "no answer within 2 s", S.SUSPECT)
    assert step(hung, Unreadable("no answer within 2 s"), 9) == (hung, ())


@pytest.mark.parametrize("state", [S.DRAINING, S.QUARANTINED, S.REPAIR, S.RETIRED])
def test_an_excluded_device_stays_whatever_it_reports(state: DeviceState) -> None:
    for stimulus in (
        Reported(),
        Appeared(),
        Silent("x"),
        Unreadable("x"),
        Missing(),
        found(Advice.QUARANTINE),
        ProbePassed(1.0),
    ):
        assert step(device(state), stimulus, 7) == (device(state), ())


def test_release_leads_through_probation() -> None:
    probation, asked = step(device(S.QUARANTINED), OperatorRelease("riser replaced"), 300)
    assert (probation.state, probation.reason) == (S.PROBATION, "released by operator: riser replaced")
    assert asked == (Probe(GPU),)  # it stays held
    passes: list[tuple[Stimulus, int]] = [(ProbePassed(1.0), 301 + n) for n in range(CLEAN_PROBES_WANTED)]
    healthy, asked = replay(probation, passes)
    assert healthy.state is S.HEALTHY
    assert asked == (Probe(GPU),) * (CLEAN_PROBES_WANTED - 1) + (Unhold(GPU),)


@pytest.mark.parametrize("bad", [ProbeFailed("wrong result"), found(Advice.QUARANTINE), Missing()])
def test_one_bad_sign_in_probation_is_quarantine_again(bad: Stimulus) -> None:
    quarantined, asked = step(device(S.PROBATION), bad, 300)
    assert quarantined.state is S.QUARANTINED
    assert isinstance(asked[0], Hold)


@pytest.mark.parametrize("cured", [OperatorRelease("riser replaced"), RepairEnded(True, "reset done")])
def test_a_report_that_comes_late_does_not_undo_a_release_or_a_repair(cured: Stimulus) -> None:
    probation, _ = step(device(S.REPAIR), cured, 300)
    for advice in Advice:
        assert step(probation, found(advice, at_ns=299), 400) == (probation, ())
    healthy, _ = replay(probation, [(ProbePassed(1.0), 301 + n) for n in range(CLEAN_PROBES_WANTED)])
    assert healthy.state is S.HEALTHY
    assert step(healthy, found(Advice.QUARANTINE, at_ns=299), 500) == (healthy, ())
    assert step(healthy, found(Advice.QUARANTINE, at_ns=300), 500)[0].state is S.DRAINING


def test_what_came_while_a_device_on_probation_was_unknown_counts() -> None:
    probation, _ = step(device(S.QUARANTINED), OperatorRelease("riser replaced"), 300)
    back, _ = replay(probation, [(Silent("no report"), 400), (Reported(), 500)])
    assert step(back, found(Advice.QUARANTINE, at_ns=450), 501)[0].state is S.QUARANTINED


def test_a_repair_leads_through_probation() -> None:
    repair, asked = step(device(S.QUARANTINED, reason="Xid 95"), RepairStarted(RepairAction.RESET_GPU), 300)
    assert (repair.state, repair.reason, asked) == (S.REPAIR, "RESET_GPU for: Xid 95", ())
    probation, asked = step(repair, RepairEnded(True, "reset done"), 400)
    assert (probation.state, probation.reason) == (S.PROBATION, "repaired: reset done")
    assert (probation.pardoned_ns, asked) == (400, (Probe(GPU),))  # it stays held


def test_a_repair_that_failed_leads_back_to_quarantine() -> None:
    back, asked = step(device(S.REPAIR), RepairEnded(False, "no end within 10 min"), 400)
    assert (back.state, back.reason) == (S.QUARANTINED, "repair failed: no end within 10 min")
    assert asked == (Hold(GPU, back.reason),)
    assert back.pardoned_ns == 0


@pytest.mark.parametrize("state", [state for state in S if state is not S.QUARANTINED])
def test_only_a_quarantined_device_is_repaired(state: DeviceState) -> None:
    assert step(device(state), RepairStarted(RepairAction.REBOOT_NODE), 7) == (device(state), ())


@pytest.mark.parametrize("state", [state for state in S if state is not S.REPAIR])
def test_the_end_of_a_repair_that_was_overtaken_changes_nothing(state: DeviceState) -> None:
    assert step(device(state), RepairEnded(True, "done"), 7) == (device(state), ())


def test_repair_says_why_not() -> None:
    assert why_not_repair(device(S.QUARANTINED)) is None
    assert why_not_repair(device(S.HEALTHY)) == "the device is HEALTHY, not quarantined"
    assert "still being drained (Xid 79)" in (why_not_repair(device(S.DRAINING, reason="Xid 79")) or "")
    assert "going on: RESET_GPU" in (why_not_repair(device(S.REPAIR, reason="RESET_GPU for: Xid 95")) or "")


def test_a_failed_probe_is_no_pass() -> None:
    assert walk(S.PROBING, ProbeFailed("no result")) == [S.DRAINING]
    assert walk(S.SUSPECT, ProbeFailed("no result")) == [S.DRAINING]
    assert walk(S.HEALTHY, ProbeFailed("no result")) == [S.SUSPECT]


def test_a_started_probe_changes_nothing() -> None:
    assert step(device(S.PROBING), ProbeStarted(), 7) == (device(S.PROBING), ())


def test_operators_quarantine_and_retire() -> None:
    assert step(device(S.HEALTHY), OperatorQuarantine("odd noise"), 7)[0].reason == "operator: odd noise"
    retired, asked = step(device(S.QUARANTINED), OperatorRetire("sent back"), 7)
    assert retired.state is S.RETIRED
    assert [type(one) for one in asked] == [Hold, MoveLease]
    assert step(retired, OperatorRelease("oops"), 8) == (retired, ())


def test_release_says_why_not() -> None:
    assert why_not_release(device(S.QUARANTINED)) is None
    assert why_not_release(device(S.HEALTHY)) == "the device is HEALTHY, not quarantined"
    assert "still being drained (Xid 79)" in (why_not_release(device(S.DRAINING, reason="Xid 79")) or "")
    assert "retired" in (why_not_release(device(S.RETIRED)) or "")


def test_a_finding_on_another_device_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="GPU-2"):
        step(
            Device(DeviceUuid("GPU-2"), S.HEALTHY, 0),
            found(Advice.OBSERVE),
            7,
        )
