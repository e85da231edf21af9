"""The life of a device as a state machine. Pure: what must be done comes back as instructions. Chart: README.md.

Placement may give out a HEALTHY device only. A device in any other state is held: Ray cannot give it out.
QUARANTINED and REPAIR are left by an operator's release or the end of a repair, and RETIRED never: not by age, and not
because samples look good. The way back leads through probes. A restart that folds the stored stimuli again gets the same state.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, assert_never

from paceline.model.hardware import DeviceState
from paceline.model.health import Advice, Finding, RepairAction
from paceline.model.ids import DeviceUuid

CLEAN_PROBES_WANTED: Final = 3
"""Clean probes in a row that clear a suspicion or a probation. One lucky run must not give a flapping device back."""
FIRST_PROBES_WANTED: Final = 1
"""A device about which nothing bad is known needs one measurement only: a fleet must not wait for three."""
BAD_FINDINGS_LIMIT: Final = 3
"""SUSPECT findings that make a quarantine. A rule on a lasting condition speaks at most once a minute
(`findings.REPEAT_AFTER_NS`), so this is minutes of heat, not one hot moment."""
QUIET_NS: Final = 90 * 1_000_000_000
"""A bad sign this young is not cleared by any number of clean probes: a rule on a lasting condition speaks once a minute, and
must get the chance to speak again."""
assert 1 <= FIRST_PROBES_WANTED <= CLEAN_PROBES_WANTED, "a suspicion must cost at least as much proof as none"
assert BAD_FINDINGS_LIMIT >= 2, "one SUSPECT finding must not quarantine: that is what QUARANTINE advice is for"

STICKY: Final = frozenset({DeviceState.QUARANTINED, DeviceState.REPAIR, DeviceState.RETIRED})
"""No finding, reading or probe moves a device out of these."""
_EXCLUDED: Final = STICKY | {DeviceState.DRAINING}
"""On the way out or out: new evidence and silence change nothing."""
_UNDER_PROBE: Final = frozenset({DeviceState.PROBING, DeviceState.SUSPECT, DeviceState.PROBATION})


@dataclass(frozen=True, slots=True)
class Device:
    """State of one device. `clean_probes` and `bad_findings` count since it was HEALTHY last, was released or repaired."""

    uuid: DeviceUuid
    state: DeviceState
    since_ns: int
    reason: str = ""
    clean_probes: int = 0
    bad_findings: int = 0
    before_unknown: DeviceState | None = None
    bad_ns: int = 0
    """When the last of `bad_findings` came; 0: there is none."""
    pardoned_ns: int = 0
    """When the device was released or repaired last: older findings are about what it was before. 0: never."""


# Stimuli: what can happen to a device.


@dataclass(frozen=True, slots=True)
class Appeared:
    """NVML shows the device for the first time."""


@dataclass(frozen=True, slots=True)
class Reported:
    """A report of the host has come, and the device is in it."""


@dataclass(frozen=True, slots=True)
class Silent:
    """No report came in time, or NVML did not answer. Says nothing about the device itself."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """NVML hangs or fails on this device alone, while it answers for others. While that lasts, it is fed instead of Reported."""

    reason: str


@dataclass(frozen=True, slots=True)
class Missing:
    """NVML answered and does not show the device: it fell off the bus."""


@dataclass(frozen=True, slots=True)
class Found:
    """`finding.at_ns` is compared with times of `step`: a host's clock that is far off must be put right before."""

    finding: Finding


@dataclass(frozen=True, slots=True)
class ProbeStarted:
    pass


@dataclass(frozen=True, slots=True)
class ProbePassed:
    """`score` is the device's time relative to its cohort. Apply the findings of the same probe before this."""

    score: float


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """The probe gave an error or no result. A test that did not run is not a pass."""

    reason: str


@dataclass(frozen=True, slots=True)
class HoldConfirmed:
    """Placement has checked that Ray can no longer give the device out."""


@dataclass(frozen=True, slots=True)
class RepairStarted:
    """Somebody has begun to repair the device, or has handed it over for that."""

    action: RepairAction


@dataclass(frozen=True, slots=True)
class RepairEnded:
    """`ok`: the repair did what it should; whether that helped is for the probes. A repair without an end must be ended as failed."""

    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class OperatorQuarantine:
    reason: str


@dataclass(frozen=True, slots=True)
class OperatorRelease:
    reason: str


@dataclass(frozen=True, slots=True)
class OperatorRetire:
    reason: str


Stimulus = (
    Appeared
    | Reported
    | Silent
    | Unreadable
    | Missing
    | Found
    | ProbeStarted
    | ProbePassed
    | ProbeFailed
    | HoldConfirmed
    | RepairStarted
    | RepairEnded
    | OperatorQuarantine
    | OperatorRelease
    | OperatorRetire
)


# Instructions: what the shell must do. Each is idempotent.


@dataclass(frozen=True, slots=True)
class Hold:
    """Take the device out of Ray's hands, as soon as it is free."""

    uuid: DeviceUuid
    reason: str


@dataclass(frozen=True, slots=True)
class Unhold:
    """Give the device back to Ray."""

    uuid: DeviceUuid


@dataclass(frozen=True, slots=True)
class Probe:
    """Measure the device once it is held and free, and say ProbePassed or ProbeFailed."""

    uuid: DeviceUuid


@dataclass(frozen=True, slots=True)
class MoveLease:
    """If a lease has the device, it must be moved elsewhere."""

    uuid: DeviceUuid
    reason: str


Instruction = Hold | Unhold | Probe | MoveLease
Outcome = tuple[Device, tuple[Instruction, ...]]


def step(device: Device, stimulus: Stimulus, now_ns: int) -> Outcome:
    """Next state of `device`, and what must be done about it. Equal inputs give equal outputs; O(1)."""
    match stimulus:
        case Appeared() | Reported():
            return _seen(device, now_ns)
        case Silent(reason):
            return _silent(device, reason, now_ns)
        case Unreadable(reason):
            return _unreadable(device, reason, now_ns)
        case Missing():
            return _condemn(device, "not seen by NVML", now_ns)
        case Found(finding):
            return _found(device, finding, now_ns)
        case ProbeStarted():
            return device, ()
        case ProbePassed():
            return _passed(device, now_ns)
        case ProbeFailed(reason):
            return _failed(device, reason, now_ns)
        case HoldConfirmed():
            if device.state is DeviceState.DRAINING:
                return _enter(device, DeviceState.QUARANTINED, device.reason, now_ns), ()
            return device, ()
        case RepairStarted(action):
            return _repair(device, action, now_ns)
        case RepairEnded(ok, reason):
            return _repaired(device, ok, reason, now_ns)
        case OperatorQuarantine(reason):
            return _condemn(device, f"operator: {reason}", now_ns)
        case OperatorRelease(reason):
            return _release(device, reason, now_ns)
        case OperatorRetire(reason):
            return _retire(device, reason, now_ns)
        case _:
            assert_never(stimulus)


def replay(device: Device, stimuli: Iterable[tuple[Stimulus, int]]) -> Outcome:
    """Fold of `step` over (stimulus, now_ns): the last state and all instructions, in order."""
    done: list[Instruction] = []
    for stimulus, now_ns in stimuli:
        device, instructions = step(device, stimulus, now_ns)
        done.extend(instructions)
    return device, tuple(done)


def why_not_release(device: Device) -> str | None:
    """Why an operator's release would change nothing, or None where it starts a probation."""
    match device.state:
        case DeviceState.QUARANTINED | DeviceState.REPAIR:
            return None
        case DeviceState.DRAINING:
            return f"the device is still being drained ({device.reason}): release it once it is quarantined"
        case DeviceState.RETIRED:
            return f"the device is retired: {device.reason}"
        case _:
            return f"the device is {device.state.value}, not quarantined"


def why_not_repair(device: Device) -> str | None:
    """Why a repair must not begin now, or None where it may: only what Ray can no longer give out may be reset or rebooted."""
    match device.state:
        case DeviceState.QUARANTINED:
            return None
        case DeviceState.DRAINING:
            return f"the device is still being drained ({device.reason}): repair it once it is quarantined"
        case DeviceState.REPAIR:
            return f"a repair is going on: {device.reason}"
        case _:
            return f"the device is {device.state.value}, not quarantined"


def probes_wanted(device: Device) -> int:
    """Clean probes in a row that `device` still needs to be HEALTHY; 0 where probes do not lead there.

    One more is wanted for as long as the last bad sign is younger than QUIET_NS.
    """
    if device.state not in _UNDER_PROBE:
        return 0
    unblemished = device.state is DeviceState.PROBING and device.bad_findings == 0
    return max(1, (FIRST_PROBES_WANTED if unblemished else CLEAN_PROBES_WANTED) - device.clean_probes)


def _enter(device: Device, state: DeviceState, reason: str, now_ns: int) -> Device:
    return replace(device, state=state, since_ns=now_ns, reason=reason, before_unknown=None)


def _seen(device: Device, now_ns: int) -> Outcome:
    if device.state is DeviceState.NEW:
        probing = _enter(device, DeviceState.PROBING, "new: not measured yet", now_ns)
        return probing, (Hold(device.uuid, probing.reason), Probe(device.uuid))
    if device.state is not DeviceState.UNKNOWN:
        return device, ()
    back = _enter(device, device.before_unknown or DeviceState.PROBING, "its host reports again", now_ns)
    if back.state is DeviceState.HEALTHY:
        return back, (Unhold(device.uuid),)
    return back, (Probe(device.uuid),)


def _silent(device: Device, reason: str, now_ns: int) -> Outcome:
    if device.state in _EXCLUDED or device.state in (DeviceState.NEW, DeviceState.UNKNOWN):
        return device, ()
    unknown = replace(_enter(device, DeviceState.UNKNOWN, reason, now_ns), before_unknown=device.state)
    return unknown, (Hold(device.uuid, reason),)


def _unreadable(device: Device, reason: str, now_ns: int) -> Outcome:
    """UNKNOWN like after silence; but it is the device's own doing, so it counts as a bad finding, once each time."""
    if device.state in _EXCLUDED or device.state is DeviceState.NEW:
        return device, ()
    if device.state is not DeviceState.UNKNOWN:
        marked, instructions = _suspect(device, reason, now_ns)
        if marked.state in _EXCLUDED:
            return marked, instructions
        unknown = replace(_enter(marked, DeviceState.UNKNOWN, reason, now_ns), before_unknown=marked.state)
        return unknown, (Hold(device.uuid, reason),)
    if device.before_unknown is DeviceState.HEALTHY:
        return _suspect(replace(device, reason=reason), reason, now_ns)
    return replace(device, reason=reason), ()


def _condemn(device: Device, reason: str, now_ns: int) -> Outcome:
    """Out of service, by the way of DRAINING where Ray may still have the device."""
    if device.state in _EXCLUDED:
        return device, ()
    if device.state is DeviceState.PROBATION:  # its hold was confirmed before and has stayed
        return _enter(device, DeviceState.QUARANTINED, reason, now_ns), (Hold(device.uuid, reason),)
    draining = _enter(device, DeviceState.DRAINING, reason, now_ns)
    return draining, (Hold(device.uuid, reason), MoveLease(device.uuid, reason))


def _found(device: Device, finding: Finding, now_ns: int) -> Outcome:
    if finding.uuid != device.uuid:
        raise ValueError(f"a finding on {finding.uuid} was given to {device.uuid}")
    if finding.at_ns < device.pardoned_ns:
        return device, ()  # it came late: the device was released or repaired after it
    match finding.advice:
        case Advice.OBSERVE:
            return device, ()
        case Advice.SUSPECT:
            return _suspect(device, finding.summary, now_ns)
        case Advice.QUARANTINE:
            return _condemn(device, finding.summary, now_ns)
        case _:
            assert_never(finding.advice)


def _suspect(device: Device, reason: str, now_ns: int) -> Outcome:
    """One more bad finding: it voids the clean probes so far, and is too much at BAD_FINDINGS_LIMIT."""
    if device.state in _EXCLUDED:
        return device, ()
    marked = replace(device, clean_probes=0, bad_findings=device.bad_findings + 1, bad_ns=now_ns)
    if marked.bad_findings >= BAD_FINDINGS_LIMIT:
        return _condemn(marked, f"{reason} ({marked.bad_findings} bad findings)", now_ns)
    if device.state is DeviceState.HEALTHY:
        suspect = _enter(marked, DeviceState.SUSPECT, reason, now_ns)
        return suspect, (Hold(device.uuid, reason), Probe(device.uuid))
    if device.before_unknown is DeviceState.HEALTHY:
        return replace(marked, before_unknown=DeviceState.SUSPECT), ()
    return marked, ()


def _passed(device: Device, now_ns: int) -> Outcome:
    wanted = probes_wanted(device)
    if wanted == 0:
        return device, ()
    restless = device.bad_findings > 0 and now_ns - device.bad_ns < QUIET_NS
    if wanted > 1 or restless:
        return replace(device, clean_probes=device.clean_probes + 1), (Probe(device.uuid),)
    reason = "measured" if device.state is DeviceState.PROBING else f"{device.clean_probes + 1} clean probes"
    clean = replace(device, clean_probes=0, bad_findings=0, bad_ns=0)
    return _enter(clean, DeviceState.HEALTHY, reason, now_ns), (Unhold(device.uuid),)


def _failed(device: Device, reason: str, now_ns: int) -> Outcome:
    reason = f"probe failed: {reason}"
    if device.state in _UNDER_PROBE:
        return _condemn(device, reason, now_ns)
    if device.state is DeviceState.HEALTHY:
        return _suspect(device, reason, now_ns)
    return device, ()


def _release(device: Device, reason: str, now_ns: int) -> Outcome:
    if why_not_release(device) is not None:
        return device, ()
    return _on_probation(device, f"released by operator: {reason}", now_ns)


def _repair(device: Device, action: RepairAction, now_ns: int) -> Outcome:
    if why_not_repair(device) is not None:
        return device, ()
    return _enter(device, DeviceState.REPAIR, f"{action.value} for: {device.reason}", now_ns), ()


def _repaired(device: Device, ok: bool, reason: str, now_ns: int) -> Outcome:
    if device.state is not DeviceState.REPAIR:
        return device, ()  # an operator has released or retired it meanwhile
    if ok:
        return _on_probation(device, f"repaired: {reason}", now_ns)
    reason = f"repair failed: {reason}"
    return _enter(device, DeviceState.QUARANTINED, reason, now_ns), (Hold(device.uuid, reason),)


def _on_probation(device: Device, reason: str, now_ns: int) -> Outcome:
    """Let the device prove itself, with a clean slate. It stays held."""
    fresh = replace(device, clean_probes=0, bad_findings=0, bad_ns=0, pardoned_ns=now_ns)
    return _enter(fresh, DeviceState.PROBATION, reason, now_ns), (Probe(device.uuid),)


def _retire(device: Device, reason: str, now_ns: int) -> Outcome:
    if device.state is DeviceState.RETIRED:
        return device, ()
    reason = f"retired by operator: {reason}"
    retired = _enter(device, DeviceState.RETIRED, reason, now_ns)
    return retired, (Hold(device.uuid, reason), MoveLease(device.uuid, reason))
