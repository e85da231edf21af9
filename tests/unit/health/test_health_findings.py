"""Each rule fires when it must and stays silent when it must not."""

from dataclasses import replace

import pytest

from paceline.health.catalog import load
from paceline.health.findings import (
    REPEAT_AFTER_NS,
    SECOND_NS,
    THROTTLE_SAMPLES,
    XID_QUIET_NS,
    Memory,
    judge_sample,
    judge_xid,
)
from paceline.model.hardware import Sample, XidEvent
from paceline.model.health import Advice, Finding
from paceline.model.ids import DeviceUuid

GPU = DeviceUuid("GPU-1")
CLEAN = Sample(
    uuid=GPU,
    at_ns=0,
    sm_clock_mhz=1980,
    temperature_c=60,
    power_w=600.0,
    memory_used_bytes=0,
    utilisation_pct=99,
    ecc_corrected=0,
    ecc_uncorrected=0,
    remap_pending=False,
    remap_failed=False,
    throttle_reasons=0,
    process_count=1,
)
SW_POWER_CAP, SW_THERMAL, HW_SLOWDOWN, HW_THERMAL, POWER_BRAKE = 0x04, 0x20, 0x08, 0x40, 0x80


def sampled(*samples: Sample) -> list[Finding]:
    """Findings over a series, one sample a second."""
    memory, found = Memory(), []
    for second, sample in enumerate(samples):
        memory, new = judge_sample(memory, replace(sample, at_ns=second * SECOND_NS))
        found += new
    return found


def raised(*events: tuple[int, float], source: str = "nvml") -> list[Finding]:
    """Findings over (code, second)."""
    memory, found = Memory(), []
    for code, second in events:
        memory, new = judge_xid(memory, XidEvent(GPU, code, int(second * SECOND_NS), source), load())
        found += [new] if new else []
    return found


def test_a_fatal_xid_fires() -> None:
    (finding,) = raised((79, 0))
    assert (finding.rule_id, finding.rule_version, finding.uuid, finding.advice) == ("xid", 1, GPU, Advice.QUARANTINE)
    assert finding.summary == "Xid 79: GPU fell off the PCIe bus"
    assert (finding.evidence["xid"], finding.evidence["action"]) == (79, "reboot_node")
    assert "no known system tolerates it" in str(finding.evidence["why"])


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_an_application_xid_is_only_observed(code: int) -> None:
    assert [(f.advice, f.evidence["xid"]) for f in raised((code, 0))] == [(Advice.OBSERVE, code)]


def test_an_unknown_xid_asks_for_a_look() -> None:
    (finding,) = raised((999, 0))
    assert (finding.advice, finding.evidence["known"]) == (Advice.OBSERVE, False)
    assert finding.summary == "Xid 999 is in no catalog: recorded only, look it up"


def test_one_xid_that_both_sources_tell_is_one_finding() -> None:
    assert len(raised((79, 0), (79, 0.4))) == 1


def test_different_xids_do_not_hide_each_other() -> None:
    assert [f.evidence["xid"] for f in raised((45, 0), (79, 0.1))] == [45, 79]


def test_an_xid_that_comes_again_fires_again() -> None:
    assert len(raised((79, 0), (79, XID_QUIET_NS / SECOND_NS + 1))) == 2


def test_a_storm_is_a_handful_of_findings_and_none_is_uncounted() -> None:
    found = raised(*((95, n / 100) for n in range(100_000)))  # 1000 s
    assert 2 <= len(found) <= 20
    assert sum(int(f.evidence["repeats_before"] or 0) + 1 for f in found) <= 100_000
    assert found[1].evidence["repeats_before"] == 499


def test_after_a_quiet_time_a_code_is_new_again() -> None:
    found = raised((95, 0), (95, 5), (95, 15), (95, 1000), (95, 1005))
    assert [f.at_ns // SECOND_NS for f in found] == [0, 5, 15, 1000, 1005]


def test_a_rise_of_uncorrectable_errors_fires() -> None:
    (finding,) = sampled(CLEAN, replace(CLEAN, ecc_uncorrected=2), replace(CLEAN, ecc_uncorrected=2))
    assert (finding.rule_id, finding.advice) == ("ecc.uncorrected", Advice.SUSPECT)
    assert finding.evidence == {"before": 0, "now": 2}
    assert finding.summary == "2 more uncorrectable memory errors"


def test_every_rise_fires() -> None:
    assert len(sampled(*(replace(CLEAN, ecc_uncorrected=n) for n in range(4)))) == 3


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param([replace(CLEAN, ecc_uncorrected=5)], id="old errors at the first look"),
        pytest.param([replace(CLEAN, ecc_uncorrected=5), CLEAN], id="driver was reloaded"),
        pytest.param([replace(CLEAN, ecc_uncorrected=None)] * 2, id="not supported"),
        pytest.param([CLEAN, replace(CLEAN, ecc_corrected=9)], id="corrected ones"),
    ],
)
def test_no_new_uncorrectable_error_is_no_finding(samples: list[Sample]) -> None:
    assert sampled(*samples) == []


def test_a_failed_remap_fires_and_is_said_again() -> None:
    failed = replace(CLEAN, remap_failed=True)
    assert [(f.rule_id, f.advice) for f in sampled(failed, failed)] == [("remap.failed", Advice.QUARANTINE)]
    assert len(sampled(*[failed] * (REPEAT_AFTER_NS // SECOND_NS + 1))) == 2


def test_a_pending_remap_fires_once() -> None:
    pending = replace(CLEAN, remap_pending=True)
    assert [(f.rule_id, f.advice) for f in sampled(*[pending] * 200)] == [("remap.pending", Advice.SUSPECT)]


@pytest.mark.parametrize("flags", [(False, False), (None, None)])
def test_no_remap_is_no_finding(flags: tuple[bool | None, bool | None]) -> None:
    assert sampled(replace(CLEAN, remap_pending=flags[0], remap_failed=flags[1])) == []


@pytest.mark.parametrize("bit", [HW_SLOWDOWN, HW_THERMAL, POWER_BRAKE])
def test_hardware_throttling_that_lasts_fires_once_a_minute(bit: int) -> None:
    hot = replace(CLEAN, throttle_reasons=bit | SW_POWER_CAP)
    (finding,) = sampled(*[hot] * 60)
    assert (finding.rule_id, finding.advice) == ("throttle.hardware", Advice.SUSPECT)
    assert finding.evidence["samples"] == THROTTLE_SAMPLES
    assert len(sampled(*[hot] * 180)) == 3


@pytest.mark.parametrize("bits", [SW_POWER_CAP, SW_THERMAL, SW_POWER_CAP | SW_THERMAL, None])
def test_software_throttling_is_no_finding(bits: int | None) -> None:
    assert sampled(*[replace(CLEAN, throttle_reasons=bits)] * 120) == []


def test_a_hot_moment_is_no_finding() -> None:
    hot = replace(CLEAN, throttle_reasons=HW_THERMAL)
    assert sampled(*[hot] * (THROTTLE_SAMPLES - 1), *[CLEAN] * 120, *[hot] * (THROTTLE_SAMPLES - 1)) == []
