"""From Xids to findings: what is told once, what counts by repetition, what belongs together, and what a storm leaves."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from paceline.health.catalog import load
from paceline.health.xid_rules import (
    PLACES_MOST,
    SECOND_NS,
    UNKNOWN_KINDS_MOST,
    VERSIONS,
    XID_QUIET_NS,
    XidMemory,
    hear_sxid,
    judge_sxid,
    judge_xid,
)
from paceline.model.hardware import RecoveryAction, XidEvent
from paceline.model.health import Advice, Finding, NodeAdvice, NodeFinding
from paceline.model.ids import DeviceUuid
from paceline.telemetry.xid_lines import SxidLine

GPU = DeviceUuid("GPU-1")
HOUR = 3600.0
ON_TPC = "pid=1, name=x, Graphics SM Warp Exception on (GPC {}, TPC {}, SM 0): Illegal Instruction Parameter"
BIT_ERRORS = "NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001 0x00000000 0x00000000)"
FATAL = "RLW_REMAP Fatal XC0 i0 Link 10 (0x00000004 0x00000040 0x00000000 0x00000000)"
TO_THE_DRIVER = "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x00000000 0x00000000)"
PARITY = "NVLink: fatal error detected on link {}(0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
NOW_NEEDED = "GPU recovery action changed from 0x0 (None) to 0x{:x} (…)"

Event = tuple[int, float] | tuple[int, float, str]


def heard(events: Iterable[Event], site: str = "", memory: XidMemory | None = None) -> tuple[XidMemory, list[Finding]]:
    """Memory and findings over (code, second) as NVML tells, or (code, second, text) as the kernel log does."""
    memory, found = memory or XidMemory(), []
    for code, second, *text in events:
        event = XidEvent(GPU, code, int(second * SECOND_NS), "kmsg" if text else "nvml", str(text[0]) if text else "")
        memory, new = judge_xid(memory, event, load(site))
        found += [new] if new else []
    return memory, found


def raised(*events: Event, site: str = "", memory: XidMemory | None = None) -> list[Finding]:
    return heard(events, site, memory)[1]


def verdicts(*events: Event, site: str = "", memory: XidMemory | None = None) -> list[tuple[str, Advice]]:
    return [(finding.rule_id, finding.advice) for finding in raised(*events, site=site, memory=memory)]


OBSERVED = ("xid", Advice.OBSERVE)
SUSPECTED = ("xid", Advice.SUSPECT)
QUARANTINED = ("xid", Advice.QUARANTINE)
REPEATED = ("xid.repeated", Advice.SUSPECT)


def test_a_fatal_xid_fires() -> None:
    (finding,) = raised((79, 0))
    assert (finding.rule_id, finding.rule_version, finding.uuid) == ("xid", VERSIONS["xid"], GPU)
    assert finding.advice is Advice.QUARANTINE
    assert finding.summary == "Xid 79: GPU fell off the PCIe bus"
    assert (finding.evidence["xid"], finding.evidence["action"]) == (79, "reboot_node")
    assert "no known system tolerates it" in str(finding.evidence["why"])
    assert (finding.evidence["authority"], finding.evidence["tables"]) == ("table", load().version)


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_an_application_xid_is_only_observed(code: int) -> None:
    assert verdicts((code, 0)) == [OBSERVED]


def test_an_unknown_xid_asks_for_a_look() -> None:
    (finding,) = raised((999, 0))
    assert (finding.advice, finding.evidence["known"], finding.evidence["authority"]) == (Advice.OBSERVE, False, "none")
    assert finding.summary == "Xid 999 is in no catalog: recorded only, look it up"


def test_an_unknown_xid_is_not_acted_on_even_where_the_driver_needs_a_reset() -> None:
    assert verdicts((999, 0), memory=XidMemory(recovery=RecoveryAction.GPU_RESET)) == [OBSERVED]


def test_one_xid_that_both_sources_tell_is_one_finding() -> None:
    assert len(raised((79, 0), (79, 0.4, "GPU has fallen off the bus."))) == 1


def test_different_xids_do_not_hide_each_other() -> None:
    assert [f.evidence["xid"] for f in raised((45, 0), (79, 0.1))] == [45, 79]


def test_an_xid_that_comes_again_fires_again() -> None:
    assert len(raised((79, 0), (79, XID_QUIET_NS / SECOND_NS + 1))) == 2


def test_after_a_quiet_time_a_code_is_new_again() -> None:
    found = raised((95, 0), (95, 5), (95, 15), (95, 1000), (95, 1005))
    assert [f.at_ns // SECOND_NS for f in found] == [0, 5, 15, 1000, 1005]


def test_a_clock_that_is_set_back_silences_nothing() -> None:
    assert len(raised((95, 100_000), (95, 10))) == 2
    assert verdicts((31, 100_000), (31, 90_000))[-1] == REPEATED


def test_a_drip_of_a_code_is_told_more_and_more_rarely() -> None:
    at_s = [f.at_ns // SECOND_NS for f in raised(*((45, n * 16) for n in range(700)))]
    assert at_s[:5] == [0, 16, 32, 64, 112]
    assert len(at_s) <= 22
    assert at_s[-1] - at_s[-2] <= 16 + 900


# What the text says.


def test_a_sub_code_decides_over_the_table() -> None:
    assert verdicts((149, 0)) == [SUSPECTED], "the table's"
    (finding,) = raised((149, 0, BIT_ERRORS))
    assert (finding.advice, finding.evidence["authority"]) == (Advice.OBSERVE, "sub-code")
    assert "NETIR_BER_EVENT" in str(finding.evidence["sub_code"])
    assert finding.evidence["detail"] == BIT_ERRORS
    assert verdicts((145, 0, FATAL)) == [QUARANTINED]


def test_a_kind_that_is_worse_is_not_hidden_by_a_milder_one_of_the_same_code() -> None:
    assert verdicts((145, 0, TO_THE_DRIVER), (145, 0.1, FATAL), (145, 0.2, FATAL)) == [OBSERVED, QUARANTINED]


def test_the_text_that_came_first_speaks_for_the_code_that_nvml_tells_after_it() -> None:
    assert verdicts((149, 0, BIT_ERRORS), (149, 0.3)) == [OBSERVED]


def test_a_storm_of_texts_keeps_speaking_for_nvml() -> None:
    storm = [(149, n / 2, BIT_ERRORS) if n % 2 else (149, n / 2) for n in range(1, 400)]
    assert {finding.advice for finding in raised(*storm)} == {Advice.OBSERVE}


def test_without_its_text_a_code_holds_the_device_until_the_text_comes() -> None:
    """A link's error that may be ignored must not end a job because NVML was a moment faster than the kernel log."""
    ignored = "NVLink: fatal error detected on link 14(0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
    assert verdicts((74, 0), (74, 0.2, ignored), memory=XidMemory(kernel_log=True)) == [SUSPECTED, OBSERVED]
    broken = "NVLink: fatal error detected on link 14(0x0, 0x0, 0x0, 0x40000, 0x0, 0x0, 0x0)"
    assert verdicts((74, 0), (74, 0.2, broken), memory=XidMemory(kernel_log=True)) == [SUSPECTED, QUARANTINED]


def test_where_no_kernel_log_is_read_the_table_decides_at_once() -> None:
    assert verdicts((74, 0)) == [QUARANTINED]


@pytest.mark.parametrize(
    ("action", "advice"),
    [
        (RecoveryAction.NONE, Advice.OBSERVE),
        (RecoveryAction.GPU_RESET, Advice.QUARANTINE),
        (RecoveryAction.NODE_REBOOT, Advice.QUARANTINE),
        (RecoveryAction.DRAIN_P2P, Advice.SUSPECT),
        (RecoveryAction.DRAIN_AND_RESET, Advice.QUARANTINE),
    ],
)
def test_the_driver_says_what_it_needs(action: RecoveryAction, advice: Advice) -> None:
    memory, (finding,) = heard([(154, 0, NOW_NEEDED.format(action))])
    assert (finding.advice, finding.evidence["authority"]) == (advice, "driver")
    assert action.name in finding.summary
    assert memory.recovery == action


def test_a_new_word_of_the_driver_is_not_hidden_by_the_last_one() -> None:
    assert verdicts((154, 0, NOW_NEEDED.format(4)), (154, 1, NOW_NEEDED.format(2))) == [QUARANTINED, QUARANTINED]


@pytest.mark.parametrize("detail", ["", "GPU recovery action changed from", NOW_NEEDED.format(77)])
def test_an_xid_154_that_cannot_be_read_is_observed(detail: str) -> None:
    assert verdicts((154, 0, detail)) == [OBSERVED]


def test_what_is_left_to_the_driver_follows_its_standing_word() -> None:
    assert verdicts((145, 0, TO_THE_DRIVER)) == [OBSERVED]
    found = raised((154, 0, NOW_NEEDED.format(1)), (145, 1, TO_THE_DRIVER), (109, 2), (45, 3))
    assert [(f.evidence["xid"], f.advice, f.evidence["authority"]) for f in found] == [
        (154, Advice.QUARANTINE, "driver"),
        (145, Advice.QUARANTINE, "driver"),
        (109, Advice.QUARANTINE, "driver"),
        (45, Advice.OBSERVE, "table"),
    ]


def test_the_driver_s_word_makes_nothing_weaker() -> None:
    for word in (RecoveryAction.NONE, RecoveryAction.DRAIN_P2P, 77):
        assert verdicts((79, 0), memory=XidMemory(recovery=word)) == [QUARANTINED]


def test_a_withdrawn_word_counts_no_more() -> None:
    assert verdicts((154, 0, NOW_NEEDED.format(1)), (154, 9, NOW_NEEDED.format(0)), (109, 20))[-1] == SUSPECTED


# What counts by repetition.


def test_page_faults_that_come_back_on_one_device_are_a_suspicion() -> None:
    found = raised((31, 0), (31, 5 * HOUR))
    assert [(f.rule_id, f.advice) for f in found] == [OBSERVED, REPEATED]
    assert (
        found[1].summary
        == "Xid 31 came 2 times in 24 h: GPU MMU page fault (illegal access; repeat on one GPU suggests hw)"
    )
    assert (found[1].evidence["count"], found[1].evidence["window_s"], found[1].evidence["first_ns"]) == (2, 86400, 0)


def test_one_burst_of_page_faults_is_one_occurrence() -> None:
    assert {rule for rule, _ in verdicts(*((31, n / 10) for n in range(6000)))} == {"xid"}


def test_page_faults_of_different_days_are_two_applications() -> None:
    assert verdicts((31, 0), (31, 24 * HOUR)) == [OBSERVED, OBSERVED]


def test_a_repetition_is_said_once_a_day() -> None:
    """Three findings are a quarantine: an application that crashes all day must not lead there."""
    hourly = [(31, n * HOUR) for n in range(24)]
    assert [rule for rule, _ in verdicts(*hourly)].count("xid.repeated") == 1
    assert [rule for rule, _ in verdicts(*((31, n * HOUR) for n in range(60)))].count("xid.repeated") == 3


def test_exceptions_on_one_processor_are_a_suspicion_and_on_two_they_are_not() -> None:
    assert verdicts((13, 0, ON_TPC.format(7, 7)), (13, 60, ON_TPC.format(7, 7))) == [OBSERVED, REPEATED]
    assert verdicts((13, 0, ON_TPC.format(7, 7)), (13, 60, ON_TPC.format(7, 6))) == [OBSERVED, OBSERVED]
    assert verdicts((13, 0, ON_TPC.format(7, 7)), (13, 10, ON_TPC.format(7, 7))) == [OBSERVED, OBSERVED], "one burst"


def test_an_exception_that_names_no_processor_is_not_counted() -> None:
    esr = "pid=1, name=x, Graphics Exception: ESR 0x57c730=0xc04000b 0x57c734=0x24"
    assert verdicts((13, 0, esr), (13, 60, esr), (13, 120), (13, 180)) == [OBSERVED] * 4


def test_channel_resets_in_a_row_are_a_suspicion() -> None:
    assert verdicts((43, 0), (43, 60), (43, 120)) == [OBSERVED, OBSERVED, REPEATED]
    assert verdicts((43, 0), (43, 300), (43, 600)) == [OBSERVED] * 3


def test_a_parity_error_that_stays_at_one_link_is_a_quarantine() -> None:
    thrice = [(74, n * HOUR, PARITY.format(14)) for n in range(3)]
    assert verdicts(*thrice) == [SUSPECTED, SUSPECTED, ("xid.repeated", Advice.QUARANTINE)]
    assert raised(*thrice)[2].evidence["place"] == "link 14"
    elsewhere = [(74, n * HOUR, PARITY.format(n)) for n in range(3)]
    assert verdicts(*elsewhere) == [SUSPECTED] * 3


def test_a_site_counts_as_it_likes() -> None:
    site = "code,advice,why,count,window_s\n45,QUARANTINE,ours never churn,2,60\n31,OBSERVE,our students,,\n"
    found = raised((45, 0), (45, 1), (45, 10), site=site)
    assert [(f.rule_id, f.advice, f.evidence["authority"]) for f in found] == [
        ("xid", Advice.OBSERVE, "site"),
        ("xid.repeated", Advice.QUARANTINE, "site"),
    ], "one second is one Xid that both sources tell"
    assert verdicts((31, 0), (31, HOUR), site=site) == [OBSERVED, OBSERVED]
    assert verdicts((45, 0), (45, 70), site=site) == [OBSERVED, OBSERVED]


# What belongs together.


def test_power_smoothing_that_comes_back_cancels_its_loss() -> None:
    site = "code,advice,why,count,window_s\n163,SUSPECT,our grid is weak,2,3600\n"
    lost = [(163, 0), (163, 600)]
    assert verdicts(*lost, site=site)[-1] == REPEATED
    pairs = [(code, n * 600 + (30 if code == 162 else 0)) for n in range(6) for code in (163, 162)]
    found = raised(*pairs, site=site)
    assert {f.advice for f in found} == {Advice.OBSERVE}
    assert [f.evidence["cancels"] for f in found if f.evidence["xid"] == 162] == [163] * 6


def test_a_162_alone_cancels_nothing() -> None:
    (finding,) = raised((162, 0))
    assert "cancels" not in finding.evidence


@pytest.mark.parametrize("code", [171, 172])
def test_the_detail_of_a_48_is_judged_with_it(code: int) -> None:
    found = raised((48, 0), (code, 1))
    assert [(f.advice, f.evidence.get("detail_of")) for f in found] == [(Advice.QUARANTINE, None), (Advice.OBSERVE, 48)]


@pytest.mark.parametrize("code", [171, 172])
def test_the_detail_of_a_48_that_nobody_saw_is_a_suspicion(code: int) -> None:
    (finding,) = raised((code, 0))
    assert (finding.advice, finding.evidence["detail_of"]) == (Advice.SUSPECT, None)
    assert "Xid 48 was not seen" in str(finding.evidence["why"])
    assert verdicts((48, 0), (code, 61))[-1] == SUSPECTED


# Storms.


def size(memory: XidMemory) -> int:
    return len(memory.heard) + len(memory.seen_ns) + sum(1 + len(tally.at_ns) for tally in memory.tallies.values())


def test_a_storm_is_a_handful_of_findings_and_none_is_uncounted() -> None:
    found = raised(*((95, n / 100) for n in range(20_000)))  # 200 s
    assert 2 <= len(found) <= 20
    assert sum(int(f.evidence["repeats_before"] or 0) + 1 for f in found) <= 20_000
    assert found[1].evidence["repeats_before"] == 499


def test_a_storm_of_a_few_kinds_keeps_the_first_of_each_and_a_memory_that_does_not_grow() -> None:
    kinds: list[tuple[int, str]] = [
        (95, ""),
        (31, ""),
        (45, "pid=7, name=python, Ch 00000008"),
        (145, TO_THE_DRIVER),
        (145, FATAL),
        (13, ON_TPC.format(1, 1)),
        (74, PARITY.format(3)),
        (999, ""),
    ]
    events = [(kinds[n % 8][0], n / 50, kinds[n % 8][1]) for n in range(20_000)]
    half, found = heard(events[:10_000])
    whole, more = heard(events[10_000:], memory=half)
    assert size(whole) == size(half) <= 30
    assert len(found + more) <= 100
    first = {(f.evidence["xid"], f.evidence.get("sub_code")): f for f in reversed(found)}
    assert len(first) == 8
    assert all(f.at_ns < 8 * SECOND_NS / 50 for f in first.values())


def test_a_garbled_log_does_not_fill_the_memory() -> None:
    """Each code, each processor, each link is new."""
    events: list[Event] = [(200 + n, n / 10) for n in range(3000)]
    events += [(13, 400 + n / 10, ON_TPC.format(n % 100, n // 100)) for n in range(3000)]
    events += [(74, 800 + n / 10, PARITY.format(n % 1000)) for n in range(3000)]
    memory, found = heard(events)
    assert len(memory.tallies) <= PLACES_MOST
    assert len(memory.heard) <= UNKNOWN_KINDS_MOST + 10
    assert len([f for f in found if not f.evidence["known"]]) <= UNKNOWN_KINDS_MOST + 10
    assert found[0].evidence["xid"] == 200


# Switches.

SWITCH = SxidLine((0, 0xC1, 0), 24007, 0, "Fatal, Link 28 sourcetrack timeout error (First)")


def switches(*lines: tuple[SxidLine, float]) -> tuple[XidMemory, list[NodeFinding]]:
    memory, found = XidMemory(), []
    for line, second in lines:
        memory, new = hear_sxid(memory, line, int(second * SECOND_NS), load())
        found += [new] if new else []
    return memory, found


def test_a_fatal_sxid_cordons_its_machine() -> None:
    finding = judge_sxid(SWITCH, 7, load())
    assert (finding.rule_id, finding.advice, finding.at_ns) == ("sxid", NodeAdvice.CORDON, 7)
    assert finding.summary == "SXid 24007 of switch 0000:c1:00: sourcetrack timeout error"
    assert (finding.evidence["authority"], finding.evidence["switch"]) == ("driver", "0000:c1:00")
    assert finding.evidence["detail"] == SWITCH.detail


@pytest.mark.parametrize(
    "detail", ["Non-fatal, Link 28 sourcetrack timeout error (First)", "Non-Fatal, Link 3 x", "non-fatal, x"]
)
def test_what_the_driver_calls_non_fatal_is_observed(detail: str) -> None:
    finding = judge_sxid(replace(SWITCH, detail=detail), 0, load())
    assert (finding.advice, finding.evidence["authority"]) == (NodeAdvice.OBSERVE, "driver")


def test_an_unknown_sxid_is_recorded_only() -> None:
    finding = judge_sxid(replace(SWITCH, code=31_000), 0, load())
    assert (finding.advice, finding.evidence["known"]) == (NodeAdvice.OBSERVE, False)


def test_a_storm_of_sxids_is_a_handful_of_findings() -> None:
    other = replace(SWITCH, address=(0, 0xC2, 0))
    lines = [(other if n % 2 else SWITCH, n / 100) for n in range(20_000)]
    memory, found = switches(*lines)
    assert len(found) <= 20
    assert {f.evidence["switch"] for f in found[:2]} == {"0000:c1:00", "0000:c2:00"}
    assert len(memory.heard) == 2
    assert found[2].evidence["repeats_before"] == 249


def test_a_garbled_log_of_sxids_does_not_fill_the_memory() -> None:
    memory, _ = switches(*((replace(SWITCH, code=40_000 + n), n / 100) for n in range(2000)))
    assert len(memory.heard) <= UNKNOWN_KINDS_MOST + 2
