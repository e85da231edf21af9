"""Each rule fires when it must and stays silent when it must not."""

from dataclasses import replace

import pytest

from paceline.health.catalog import load
from paceline.health.findings import (
    PCIE_LASTS_NS,
    REPEAT_AFTER_NS,
    SECOND_NS,
    THROTTLE_SAMPLES,
    THROTTLED_NS,
    Memory,
    judge_sample,
)
from paceline.model.hardware import RecoveryAction, Sample
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


def test_time_that_the_driver_counts_as_slowed_fires_although_no_sample_shows_it() -> None:
    counted = [replace(CLEAN, throttle_ns=int(second / 10 * 2) * SECOND_NS) for second in range(70)]
    (finding,) = sampled(*counted)
    assert (finding.rule_id, finding.evidence["samples"], finding.evidence["throttled_s"]) == (
        "throttle.hardware",
        0,
        10.0,
    )


def test_slowdown_that_the_driver_counted_in_one_reading_fires_at_once() -> None:
    quiet = [replace(CLEAN, throttle_ns=5)] * 300
    (finding,) = sampled(*quiet, replace(CLEAN, throttle_ns=5 + THROTTLED_NS))
    assert finding.summary == "hardware slowdown for 10.0 s of the last minute"


@pytest.mark.parametrize(
    "counted",
    [
        pytest.param([100 * SECOND_NS] * 100, id="before we came"),
        pytest.param([second // 10 * SECOND_NS for second in range(300)], id="a tenth of the time"),
        pytest.param([90 * SECOND_NS, 0, 5 * SECOND_NS], id="the driver was loaded anew"),
        pytest.param([None] * 100, id="not supported"),
    ],
)
def test_no_time_slowed_is_no_finding(counted: list[int | None]) -> None:
    assert sampled(*[replace(CLEAN, throttle_ns=value) for value in counted]) == []


def test_the_memory_of_slowdown_is_bounded() -> None:
    memory = Memory()
    for second in range(1000):
        memory, _ = judge_sample(
            memory, replace(CLEAN, at_ns=second * SECOND_NS, throttle_ns=second, throttle_reasons=8)
        )
    assert len(memory.slowed) <= 62
    assert len(memory.throttled_ns) <= 60


@pytest.mark.parametrize(
    ("action", "advice"),
    [
        (RecoveryAction.GPU_RESET, Advice.QUARANTINE),
        (RecoveryAction.NODE_REBOOT, Advice.QUARANTINE),
        (RecoveryAction.DRAIN_AND_RESET, Advice.QUARANTINE),
        (RecoveryAction.DRAIN_P2P, Advice.SUSPECT),
    ],
)
def test_the_drivers_own_word_fires(action: RecoveryAction, advice: Advice) -> None:
    asks = replace(CLEAN, recovery_action=action)
    (finding,) = sampled(CLEAN, asks, asks)
    assert (finding.rule_id, finding.advice) == ("recovery.action", advice)
    assert (finding.evidence["name"], finding.evidence["action"]) == (action.name, load().recoveries[action].action)
    assert len(sampled(*[asks] * (REPEAT_AFTER_NS // SECOND_NS + 1))) == 2


def test_a_word_of_the_driver_that_nobody_knows_is_recorded_only() -> None:
    (finding,) = sampled(replace(CLEAN, recovery_action=99))
    assert (finding.advice, finding.evidence["name"]) == (Advice.OBSERVE, "99")


@pytest.mark.parametrize("action", [RecoveryAction.NONE, None])
def test_a_driver_that_asks_for_nothing_is_no_finding(action: int | None) -> None:
    assert sampled(*[replace(CLEAN, recovery_action=action)] * 5) == []


def test_sram_beyond_its_threshold_fires() -> None:
    (finding,) = sampled(CLEAN, replace(CLEAN, sram_threshold=True))
    assert (finding.rule_id, finding.advice) == ("sram.threshold", Advice.QUARANTINE)
    assert sampled(*[replace(CLEAN, sram_threshold=flag) for flag in (False, None)]) == []


LINKED = replace(CLEAN, pcie_gen=5, pcie_gen_max=5, pcie_width=16, pcie_width_max=16)


@pytest.mark.parametrize(
    ("sample", "summary"),
    [
        (replace(LINKED, pcie_width=8, utilisation_pct=0), "the PCIe link runs at x8 generation 5 of x16 generation 5"),
        (replace(LINKED, pcie_gen=3), "the PCIe link runs at x16 generation 3 of x16 generation 5"),
    ],
)
def test_a_worse_pcie_link_fires_once_it_has_lasted(sample: Sample, summary: str) -> None:
    seconds = PCIE_LASTS_NS // SECOND_NS
    assert sampled(*[sample] * seconds) == []
    (finding,) = sampled(*[sample] * (seconds + 1))
    assert (finding.rule_id, finding.advice, finding.summary) == ("pcie.degraded", Advice.SUSPECT, summary)


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param([replace(LINKED, pcie_gen=1, utilisation_pct=0)] * 300, id="idle devices sleep"),
        pytest.param([replace(LINKED, pcie_gen=1), *[LINKED] * 20] * 20, id="just woken up"),
        pytest.param([replace(LINKED, pcie_width=8, pcie_width_max=8)] * 300, id="a slot of eight lanes"),
        pytest.param([replace(LINKED, pcie_width=None, pcie_gen=None)] * 300, id="not supported"),
    ],
)
def test_these_are_no_worse_pcie_links(samples: list[Sample]) -> None:
    assert sampled(*samples) == []


def test_a_clock_that_is_set_back_neither_silences_a_rule_nor_fires_one() -> None:
    memory, found = Memory(), []
    for second in (1000, 1001, 200, 201, 202):
        memory, new = judge_sample(memory, replace(CLEAN, at_ns=second * SECOND_NS, remap_failed=True))
        found += new
    assert [finding.at_ns // SECOND_NS for finding in found] == [1000, 200]
    memory = Memory()
    for second in (1000, 100, 101):
        memory, new = judge_sample(memory, replace(LINKED, at_ns=second * SECOND_NS, pcie_width=8))
        assert new == ()
