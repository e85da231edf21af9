"""Public reports of what went wrong with the health of GPUs, replayed: what was told then, and the verdict that is right.

Each case is what a report says, as events in the order of their seconds. `ends` is the state of the device after them;
`acted` the rules that asked for more than a record, in order and without repetitions.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import pytest
from test_health_findings import CLEAN, GPU

from paceline.health.catalog import load
from paceline.health.findings import Memory, judge_sample
from paceline.health.machine import (
    Appeared,
    Device,
    Found,
    Hold,
    HoldConfirmed,
    Instruction,
    Missing,
    OperatorRelease,
    ProbeFailed,
    ProbePassed,
    Reported,
    Silent,
    Stimulus,
    Unhold,
    step,
)
from paceline.health.xid_rules import SECOND_NS, XidMemory, judge_sxid, judge_xid
from paceline.model.hardware import DeviceState, Sample, XidEvent
from paceline.model.health import Advice, Finding, NodeAdvice
from paceline.telemetry.xid_lines import parse_record, parse_sxid_record

GITHUB: Final = "https://github.com/"
BEGIN_S: Final = 1_000_000
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
SW_POWER_CAP, HW_THERMAL = 0x04, 0x40
S = DeviceState


@dataclass(frozen=True)
class Nvml:
    """An Xid as NVML tells it."""

    code: int


Event = tuple[float, Nvml | str | Sample | Stimulus]
"""When, in seconds; and an Xid of NVML, a line of the kernel log, a reading, or what happened to the device."""


@dataclass
class Replay:
    device: Device
    xids: XidMemory
    samples: Memory
    findings: list[Finding]
    done: list[Instruction]

    @classmethod
    def of(cls, events: Iterable[Event], begins: DeviceState = S.HEALTHY, kernel_log: bool = True) -> "Replay":
        replay = cls(Device(GPU, begins, 0), XidMemory(kernel_log=kernel_log), Memory(), [], [])
        for second, what in events:
            replay.happens(int((BEGIN_S + second) * SECOND_NS), what)
        return replay

    def happens(self, at_ns: int, what: Nvml | str | Sample | Stimulus) -> None:
        match what:
            case Nvml(code):
                self._xid(XidEvent(GPU, code, at_ns, "nvml"))
            case str():
                line = parse_record(f"3,1,1,-;{what}\n")
                if line is not None:
                    self._xid(XidEvent(GPU, line.code, at_ns, "kmsg", line.detail))
            case Sample():
                self.samples, new = judge_sample(self.samples, replace(what, at_ns=at_ns))
                self._found(new)
            case _:
                self._step(what, at_ns)

    @property
    def acted(self) -> list[str]:
        """Rules that asked for more than a record, each once."""
        return list(dict.fromkeys(f.rule_id for f in self.findings if f.advice is not Advice.OBSERVE))

    def _xid(self, event: XidEvent) -> None:
        self.xids, new = judge_xid(self.xids, event, load())
        self._found((new,) if new else ())

    def _found(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self.findings.append(finding)
            self._step(Found(finding), finding.at_ns)

    def _step(self, stimulus: Stimulus, now_ns: int) -> None:
        self.device, instructions = step(self.device, stimulus, now_ns)
        self.done += instructions


def xid(code: int, text: str = "") -> str:
    return f"NVRM: Xid (PCI:0000:3b:00): {code}" + (f", {text}" if text else "")


def every(period_s: float, count: int, what: Nvml | str | Sample | Stimulus, begin_s: float = 0.0) -> list[Event]:
    return [(begin_s + n * period_s, what) for n in range(count)]


def probes(begin_s: float, count: int = 3) -> list[Event]:
    return every(200, count, ProbePassed(1.0), begin_s)


@dataclass(frozen=True)
class Incident:
    events: list[Event]
    ends: DeviceState
    acted: tuple[str, ...] = ()
    begins: DeviceState = S.HEALTHY
    kernel_log: bool = True


def report(where: str, what: str, incident: Incident) -> object:
    return pytest.param(incident, id=f"{GITHUB}{where} ({what})" if "/" in where else f"{where} ({what})")


TEARDOWN = "pid=2280636, name=python, Ch 00000008"
OFF_THE_BUS = xid(79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
GSP = xid(119, "pid=77, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU0 GSP!")
UNCONTAINED = [xid(95, f"pid={4000 + n}, name=train, Uncontained: LTC TAG (0x2,0x{n:x}).") for n in range(29)]
SM = "pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC {}, TPC {}, SM 0): Illegal Instruction Parameter"

XIDS = [
    report(
        "NVIDIA/NVSentinel/issues/1710",
        "672 Xid 45 in three hours of normal churn",
        Incident(every(3 * HOUR / 672, 672, xid(45, TEARDOWN)), S.HEALTHY),
    ),
    report(
        "NVIDIA/NVSentinel/issues/1120",
        "a storm of Xid 95, 29 distinct lines",
        Incident([(n / 100, UNCONTAINED[n % 29]) for n in range(5000)], S.DRAINING, ("xid",)),
    ),
    report(
        "NVIDIA/NVSentinel/issues/1252",
        "162 and 163 cancel each other",
        Incident(
            [(n * HOUR + at, xid(code)) for n in range(12) for at, code in ((0, 163), (40, 162))],
            S.HEALTHY,
        ),
    ),
    report(
        "NVIDIA/NVSentinel/issues/1888",
        "an unknown code is no call for support",
        Incident([(0, xid(174, "something new")), (1, Nvml(999))], S.HEALTHY),
    ),
    report(
        "NVIDIA/NVSentinel/issues/1748",
        "the monitor hangs with the GPU and hides its ECC error",
        Incident(
            [(0, Silent("NVML does not answer")), (20, xid(48, "pid=1, name=x, DBE (double bit error)"))],
            S.DRAINING,
            ("xid",),
        ),
    ),
    report(
        "NVIDIA/NVSentinel/pull/374",
        "Xid 31 twice on one GPU",
        Incident([(0, xid(31, "MMU Fault")), (9 * HOUR, xid(31, "MMU Fault"))], S.SUSPECT, ("xid.repeated",)),
    ),
    report(
        "NVIDIA/NVSentinel/pull/374",
        "Xid 13 on different processors is software",
        Incident([(n * MINUTE, xid(13, SM.format(n, n))) for n in range(8)], S.HEALTHY),
    ),
    report(
        "NVIDIA/NVSentinel/pull/374",
        "Xid 13 again on one processor",
        Incident([(n * MINUTE, xid(13, SM.format(7, 7))) for n in range(2)], S.SUSPECT, ("xid.repeated",)),
    ),
    report(
        "NVIDIA/NVSentinel/pull/545",
        "an Xid 74 whose bits can be ignored",
        Incident(
            [(0, xid(74, "NVLink: fatal error detected on link 14(0x800001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"))],
            S.HEALTHY,
        ),
    ),
    report(
        "NVIDIA/NVSentinel/pull/545",
        "an Xid 74 that needs a reset of the fabric",
        Incident(
            [
                (0, Nvml(74)),
                (0.2, xid(74, "NVLink: fatal error detected on link 14(0x0, 0x0, 0x0, 0x40000, 0x0, 0x0, 0x0)")),
            ],
            S.DRAINING,
            ("xid",),
        ),
    ),
    report(
        "NVIDIA/DCGM/issues/162",
        "79 is seen by the kernel log alone",
        Incident([(0, OFF_THE_BUS)], S.DRAINING, ("xid",)),
    ),
    report("NVIDIA/DCGM/issues/162", "119 likewise", Incident([(0, GSP)], S.DRAINING, ("xid",))),
    report("NVIDIA/DCGM/issues/162", "120 likewise", Incident([(0, xid(120, "GSP error"))], S.DRAINING, ("xid",))),
    report(
        "NVIDIA/DCGM/issues/235",
        "NVML tells of the 45 and not of the 62 before it",
        Incident([(0, xid(62, "pid=1, 2a6f(0) 00000000")), (0.1, Nvml(45))], S.DRAINING, ("xid",)),
    ),
    report(
        "NVIDIA/DCGM/issues/202",
        "blank readings after an Xid 31",
        Incident(
            [(0, CLEAN), (1, Nvml(31)), *every(1, 300, replace(CLEAN, utilisation_pct=None, ecc_uncorrected=None), 2)],
            S.HEALTHY,
        ),
    ),
    report(
        "NVIDIA/dcgm-exporter/issues/190",
        "a gauge of the last Xid hides the second of two equal ones",
        Incident([(0, Nvml(31)), (2 * HOUR, Nvml(31))], S.SUSPECT, ("xid.repeated",)),
    ),
    report(
        "NVIDIA/dcgm-exporter/issues/190",
        "and the first of two different ones",
        Incident([(0, OFF_THE_BUS), (0.01, xid(45, TEARDOWN))], S.DRAINING, ("xid",)),
    ),
    report(
        "NVIDIA/dcgm-exporter/issues/500",
        "an Xid 31 that is over does not stick",
        Incident([(0, Nvml(31)), *every(HOUR, 48, Reported(), 1)], S.HEALTHY),
    ),
    report(
        "aws/eks-node-monitoring-agent/issues/272",
        "a broken device that says Xid 43 again and again",
        Incident(every(3 * MINUTE, 3, xid(43, TEARDOWN)), S.SUSPECT, ("xid.repeated",)),
    ),
    report(
        "aws/eks-node-monitoring-agent/issues/272",
        "one Xid 43 of an application",
        Incident([(0, Nvml(43)), (0.2, xid(43, TEARDOWN)), (0.3, xid(43, TEARDOWN))], S.HEALTHY),
    ),
    report(
        "awslabs/awsome-distributed-training/pull/1190",
        "64: the remap failed",
        Incident([(0, xid(63, "Row remapping event")), (1, xid(64, "Failed to persist"))], S.DRAINING, ("xid",)),
    ),
    report(
        "NVIDIA/gpu-operator/issues/1065",
        "94 is contained: the device stays",
        Incident([(0, xid(94, "Contained: SM (0x1). RST: No, D-RST: No"))], S.HEALTHY),
    ),
    report(
        "NVIDIA/k8s-device-plugin/issues/189",
        "69 of an application took a device away for good",
        Incident([(0, xid(69, "Class Error: ChId 0008, Class 0000cbc0"))], S.HEALTHY),
    ),
    report(
        "leptonai/gpud/pull/350",
        "one Xid 31 is no fault",
        Incident([(0, Nvml(31)), (0.2, xid(31, "MMU Fault"))], S.HEALTHY),
    ),
    report(
        "leptonai/gpud/blob/main/components/accelerator/nvidia/error/xid/README.md",
        "three lines of one Xid 13, then a 109",
        Incident(
            [
                (0, xid(13, SM.format(7, 7))),
                (0, xid(13, SM.format(7, 7).replace("Warp", "Global"))),
                (0, xid(13, "Graphics Exception: ESR 0x57c730=0xc04000b 0x57c734=0x24")),
                (5, xid(109, "pid=1797828, name=pt_main_thread, Ch 00000008, errorString CTX SWITCH TIMEOUT")),
            ],
            S.SUSPECT,
            ("xid",),
        ),
    ),
    report(
        "leptonai/gpud/issues/1244",
        "94 many times is no reboot",
        Incident(every(HOUR, 24, xid(94, "Contained: SM (0x1)")), S.HEALTHY),
    ),
    report(
        "facebookresearch/gcm",
        "an unknown Xid is not critical",
        Incident([(0, xid(500))], S.HEALTHY),
    ),
    report(
        "arXiv 2503.11901",
        "122 comes before page faults",
        Incident([(0, xid(122)), (30, xid(31, "MMU Fault"))], S.SUSPECT, ("xid",)),
    ),
    report(
        "NVIDIA Xid catalog",
        "48, its row is remapped, and 172 tells where",
        Incident([(0, xid(48)), (0.1, xid(63)), (0.2, xid(171)), (0.3, xid(45, TEARDOWN))], S.DRAINING, ("xid",)),
    ),
    report(
        "NVIDIA Xid catalog",
        "a sub-code that leaves it to the driver, who asks for a reset",
        Incident(
            [
                (0, xid(145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x00000000 0x00000000)")),
                (0.1, xid(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")),
            ],
            S.DRAINING,
            ("xid",),
        ),
    ),
    report(
        "NVIDIA Xid catalog",
        "and who asks for nothing",
        Incident(
            [
                (n / 9, xid(145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x00000000 0x00000000)"))
                for n in range(872)
            ],
            S.HEALTHY,
        ),
    ),
]

READINGS = [
    report(
        "Azure/azurehpc-health-checks/blob/main/customTests/azure_gpu_ecc.nhc",
        "a check of the wrong column never fires: the failed remap must",
        Incident([(0, CLEAN), (1, replace(CLEAN, remap_failed=True))], S.DRAINING, ("remap.failed",)),
    ),
    report(
        "Azure/azurehpc-health-checks/blob/main/customTests/azure_gpu_ecc.nhc",
        "the pending remap",
        Incident([(0, CLEAN), (1, replace(CLEAN, remap_pending=True))], S.SUSPECT, ("remap.pending",)),
    ),
    report(
        "NVIDIA/DCGM/issues/242",
        "a thermal violation of 0.0 seconds",
        Incident([(0, CLEAN), (1, replace(CLEAN, throttle_reasons=HW_THERMAL)), *every(1, 60, CLEAN, 2)], S.HEALTHY),
    ),
    report(
        "NVIDIA/DCGM/issues/285",
        "a GPU under load is at its power cap",
        Incident(every(1, 600, replace(CLEAN, throttle_reasons=SW_POWER_CAP)), S.HEALTHY),
    ),
    report(
        "leptonai/gpud/pull/229",
        "hardware slowdown that lasts for minutes",
        Incident(every(1, 240, replace(CLEAN, throttle_reasons=HW_THERMAL)), S.DRAINING, ("throttle.hardware",)),
    ),
    report(
        "NVIDIA/DCGM",
        "volatile ECC errors begin anew with the driver",
        Incident([(0, replace(CLEAN, ecc_uncorrected=5)), (1, CLEAN), (2, CLEAN)], S.HEALTHY),
    ),
    report(
        "NVIDIA/DCGM",
        "with MIG instances remapped rows cannot be asked for",
        Incident(every(1, 60, replace(CLEAN, remap_pending=None, remap_failed=None)), S.HEALTHY),
    ),
]

OUT: Final[list[Event]] = [(0, GSP), (1, HoldConfirmed())]

LIVES = [
    report(
        "leptonai/gpud/issues/1212",
        "an old Xid aged out and a broken node was healthy again",
        Incident([*OUT, *every(HOUR, 24 * 20, Reported(), 2), *probes(20 * DAY)], S.QUARANTINED, ("xid",)),
    ),
    report(
        "leptonai/gpud/pull/390",
        "likewise, four days",
        Incident([*OUT, *every(HOUR, 24 * 4, CLEAN, 2)], S.QUARANTINED, ("xid",)),
    ),
    report(
        "NVIDIA/NVSentinel/issues/458",
        "a cordon that stays although the fault is gone",
        Incident([*OUT, (HOUR, OperatorRelease("GPU was reset")), *probes(2 * HOUR)], S.HEALTHY, ("xid",)),
    ),
    report(
        "NVIDIA/NVSentinel/issues/1854",
        "a cordon that stays because the validation is never seen again",
        Incident([*OUT, (HOUR, OperatorRelease("GPU was reset")), *probes(2 * HOUR, 5)], S.HEALTHY, ("xid",)),
    ),
    report(
        "NVIDIA/NVSentinel/issues/1451",
        "a fresh fault after the release was cancelled with the old one",
        Incident(
            [*OUT, (HOUR, OperatorRelease("reset")), *probes(2 * HOUR), (3 * HOUR, GSP)],
            S.DRAINING,
            ("xid",),
        ),
    ),
    report(
        "NVIDIA/NVSentinel/issues/121",
        "what was told before the release must not act after it",
        Incident([*OUT, (HOUR, OperatorRelease("reset")), *every(60, 60, Reported(), HOUR + 1)], S.PROBATION, ("xid",)),
    ),
    report(
        "NVIDIA/k8s-device-plugin/issues/1014",
        "a device that was repaired never came back",
        Incident([*OUT, (HOUR, OperatorRelease("node rebooted")), *probes(2 * HOUR)], S.HEALTHY, ("xid",)),
    ),
    report(
        "NVIDIA/k8s-device-plugin/blob/main/internal/rm/health.go",
        "an error while waiting for events took all devices away",
        Incident([(0, Silent("waiting for events failed")), (5, Reported())], S.HEALTHY),
    ),
    report(
        "NVIDIA/nvidia-resiliency-ext",
        "no health daemon, therefore healthy",
        Incident([(0, Silent("no report for 10 s"))], S.UNKNOWN),
    ),
    report(
        "ray-project/ray/issues/59193",
        "a node was called dead because an event loop lagged",
        Incident(
            [(n * 60 + at, what) for n in range(5) for at, what in ((0, Silent("late")), (9, Reported()))], S.HEALTHY
        ),
    ),
    report(
        "NVIDIA/NVSentinel/pull/195",
        "a GPU is gone and no Xid was written",
        Incident([(0, Missing())], S.DRAINING),
    ),
    report(
        "NVIDIA/DCGM/issues/284",
        "a diagnosis passed although nothing ran",
        Incident([(0, Appeared()), (9, ProbeFailed("allocation failed"))], S.DRAINING, (), S.NEW),
    ),
    report(
        "IBM/autopilot/issues/68",
        "a test that failed was told as healthy",
        Incident([(0, ProbeFailed("level 3 failed"))], S.QUARANTINED, (), S.PROBATION),
    ),
]


@pytest.mark.parametrize("incident", [*XIDS, *READINGS, *LIVES])
def test_a_report_ends_with_the_right_verdict(incident: Incident) -> None:
    replay = Replay.of(incident.events, incident.begins, incident.kernel_log)
    assert (replay.device.state, tuple(replay.acted)) == (incident.ends, incident.acted)
    assert len(replay.findings) <= 30


@pytest.mark.parametrize("incident", XIDS)
def test_a_report_on_xids_ends_the_same_without_a_kernel_log_to_wait_for(incident: Incident) -> None:
    """What the texts decide may come out stronger then, and nothing milder."""
    order: list[DeviceState] = [S.HEALTHY, S.UNKNOWN, S.SUSPECT, S.DRAINING]
    alone = Replay.of(incident.events, incident.begins, kernel_log=False)
    assert order.index(alone.device.state) >= order.index(incident.ends)


def test_nvsentinel_1120_keeps_the_first_line_and_counts_the_others() -> None:
    """https://github.com/NVIDIA/NVSentinel/issues/1120: 800,000 lines of Xid 95, 29 distinct ones."""
    lines = [(n / 100, UNCONTAINED[n % 29]) for n in range(20_000)]
    replay = Replay.of(lines)
    assert len(replay.findings) <= 10
    assert replay.findings[0].evidence["detail"] == UNCONTAINED[0].split(": ", 1)[1].split(", ", 1)[1]
    assert replay.findings[0].at_ns == BEGIN_S * SECOND_NS
    told = sum(int(f.evidence["repeats_before"] or 0) + 1 for f in replay.findings)
    assert told > 10_000, "what was kept quiet is in the next finding"


def test_nvsentinel_1252_tells_that_the_163_is_over() -> None:
    """https://github.com/NVIDIA/NVSentinel/issues/1252"""
    replay = Replay.of([(0, xid(163)), (40, xid(162))])
    assert [f.evidence.get("cancels") for f in replay.findings] == [None, 163]


def test_nvsentinel_753_a_device_that_is_given_back_is_held_no_more() -> None:
    """https://github.com/NVIDIA/NVSentinel/issues/753: annotations of a cordon that was over."""
    replay = Replay.of([*OUT, (HOUR, OperatorRelease("GPU was reset")), *probes(2 * HOUR)])
    holds = [one for one in replay.done if isinstance(one, Hold | Unhold)]
    assert isinstance(holds[-1], Unhold)


def _on_each_of_eight(happens: Callable[[int], Iterable[Event]]) -> list[DeviceState]:
    return [Replay.of(happens(number)).device.state for number in range(8)]


def test_the_device_plugin_a_wait_that_failed_is_no_fault_of_any_device() -> None:
    """https://github.com/NVIDIA/k8s-device-plugin/blob/main/internal/rm/health.go: all eight went away for good."""
    assert _on_each_of_eight(lambda _: [(0, Silent("waiting for events failed"))]) == [S.UNKNOWN] * 8
    assert _on_each_of_eight(lambda _: [(0, Silent("waiting failed")), (6, Reported())]) == [S.HEALTHY] * 8


def test_one_bad_device_of_eight_takes_no_other_with_it() -> None:
    """https://github.com/vllm-project/aibrix/issues/1129, https://github.com/NVIDIA/gpu-operator/issues/1065"""
    states = _on_each_of_eight(lambda number: [(0, OFF_THE_BUS)] if number == 3 else [(0, Reported())])
    assert states == [S.HEALTHY] * 3 + [S.DRAINING] + [S.HEALTHY] * 4


SWITCH_REPORTS = [
    pytest.param(
        "12028, Non-fatal, Link 32 egress non-posted PRIV error (First)", NodeAdvice.OBSERVE, id="gpud: 12028"
    ),
    pytest.param("20034, Fatal, Link 30 LTSSM Fault Up", NodeAdvice.CORDON, id="gpud: 20034"),
    pytest.param("24007, Fatal, Link 28 sourcetrack timeout error (First)", NodeAdvice.CORDON, id="NVSentinel: 24007"),
    pytest.param("20009, Non-fatal, Link 04 RX Short Error Rate", NodeAdvice.OBSERVE, id="NVSentinel: 20009"),
    pytest.param("22013, Non-fatal, Link 60 Minion Link DLREQ interrupt", NodeAdvice.OBSERVE, id="22013 at each boot"),
    pytest.param("12030, Fatal, Link 1 x", NodeAdvice.OBSERVE, id="gpud and NVSentinel disagree on 12030"),
]


@pytest.mark.parametrize(("text", "advice"), SWITCH_REPORTS)
def test_a_switch_s_report_ends_with_the_right_verdict(text: str, advice: NodeAdvice) -> None:
    line = parse_sxid_record(f"3,1,1,-;nvidia-nvswitch3: SXid (PCI:0000:05:00.0): {text}\n")
    assert line is not None
    assert judge_sxid(line, 0, load()).advice is advice
