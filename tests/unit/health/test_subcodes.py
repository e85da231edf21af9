"""Texts of Xids as drivers wrote them, and what they say."""

from itertools import permutations

import pytest

from paceline.health.catalog import load
from paceline.health.subcodes import (
    Nvlink5Line,
    Nvlink5Rule,
    gpc_tpc,
    link_fault,
    nvlink5_rule,
    read_nvlink5,
    recovery_action,
)
from paceline.model.health import Advice

CATALOG = load()
RULES = [rule for rules in CATALOG.nvlink5.values() for rule in rules]


@pytest.mark.parametrize(
    ("code", "detail", "line", "unit", "resolution"),
    [
        pytest.param(
            149,
            "NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)",
            Nvlink5Line("NETIR_BER_EVENT", "Nonfatal", 3, 0x00086226, 1),
            "NETIR_BER_EVENT",
            "IGNORE",
            id="bit error rate",
        ),
        pytest.param(
            145,
            "pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 13 "
            "(0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)",
            Nvlink5Line("RLW_RXPIPE", "Nonfatal", 13, 0x0409A0C2, 8),
            "RLW_RXPIPE",
            "IGNORE",
            id="with a process",
        ),
        pytest.param(
            145,
            "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x00000000 0x00000000 0x00000000 0x00000000)",
            Nvlink5Line("RLW_SRC_TRACK", "Nonfatal", 12, 0x040988E2, 8),
            "RLW_SRC_TRACK",
            "XID_154_EVAL",
            id="left to the driver",
        ),
        pytest.param(
            149,
            "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
            Nvlink5Line("NETIR", "Fatal", -1, 0x000FE406, 0),
            "NETIR",
            "RESET_GPU",
            id="no link",
        ),
        pytest.param(
            149,
            "NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
            Nvlink5Line("NETIR_LINK_EVT", "Fatal", 9, 0x025525C6, 0),
            "NETIR_LINK_EVT",
            "RESET_GPU",
            id="link down",
        ),
        pytest.param(
            145,
            "RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000004 0x00000040 0x00000000 0x00000000)",
            Nvlink5Line("RLW_REMAP", "Nonfatal", 10, 4, 0x40),
            "RLW_REMAP",
            "RESET_GPU",
            id="R575 and later",
        ),
    ],
)
def test_a_line_of_nvlink_5_is_read(code: int, detail: str, line: Nvlink5Line, unit: str, resolution: str) -> None:
    assert read_nvlink5(detail) == line
    rule = nvlink5_rule(CATALOG.nvlink5, code, line)
    assert rule is not None
    assert (rule.units[0], rule.resolution) == (unit, resolution)


@pytest.mark.parametrize(
    "detail",
    [
        "",
        "NETIR Fatal XC0 i0 Link -1 (0x000fe406",
        "pid=1, name=x, something else",
        "NETIR Maybe XC0 i0 Link 1 (0x0 0x0)",
    ],
)
def test_a_line_that_is_cut_or_another_is_not_read(detail: str) -> None:
    assert read_nvlink5(detail) is None


def test_the_link_event_that_names_its_reason_is_told_apart() -> None:
    """Bits 20 to 25 hold the reason: 0x004505c6 has 4."""
    line = Nvlink5Line("NETIR_LINK_EVT", "Fatal", 8, 0x004505C6, 0)
    found = nvlink5_rule(CATALOG.nvlink5, 149, line)
    assert found is not None
    assert found.investigate == "INVESTIGATE_LINK_SI"


def _by_both(one: Nvlink5Rule, other: Nvlink5Rule) -> bool:
    """Some word fits `one` by its old form and `other` by its new one."""
    return one.v1.value & other.v2.mask == other.v2.value & one.v1.mask


def test_no_line_means_two_things_by_the_two_forms() -> None:
    clashes = [
        (one.name, other.name)
        for one, other in permutations(RULES, 2)
        if (one.code, one.status) == (other.code, other.status)
        and set(one.units) & set(other.units)
        and (one.resolution, one.alternative) != (other.resolution, other.alternative)
        and _by_both(one, other)
    ]
    assert clashes == []


def test_rules_have_names_of_their_own() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES) == 94


def test_the_registers_of_an_xid_74_are_read() -> None:
    detail = "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
    fault = link_fault(CATALOG.link_bits, detail)
    assert fault is not None
    assert (fault.link, fault.bits.register, fault.bits.name) == (14, 3, "repeated")


def fault_of(*bits: tuple[int, int]) -> tuple[str, Advice] | None:
    """Name and advice for the (register, bit)s that are set."""
    registers = [0] * 7
    for register, bit in bits:
        registers[register - 1] |= 1 << bit
    found = link_fault(CATALOG.link_bits, f"link 3({', '.join(hex(word) for word in registers)})")
    return (found.bits.name, found.bits.advice) if found else None


def test_the_strongest_bit_decides() -> None:
    assert fault_of((1, 0), (1, 4)) == ("parity", Advice.SUSPECT)
    assert fault_of((1, 4), (4, 18)) == ("fabric", Advice.QUARANTINE)
    assert fault_of((5, 20)) == ("corrected", Advice.OBSERVE)


def test_a_secondary_error_counts_only_by_itself() -> None:
    assert fault_of((1, 20)) == ("secondary", Advice.SUSPECT)
    assert fault_of((1, 20), (1, 30)) == ("ignored", Advice.OBSERVE)
    assert fault_of((1, 21), (1, 8)) == ("mechanical", Advice.SUSPECT)


def test_bits_that_nobody_has_described_are_left_to_the_table() -> None:
    assert fault_of((1, 2)) is None
    assert fault_of((1, 0), (1, 2)) is None
    assert fault_of((2, 5)) is None, "register 2 is not for analysis, and nothing else is set"
    assert fault_of((2, 5), (1, 0)) == ("ignored", Advice.OBSERVE)
    assert fault_of() is None
    assert link_fault(CATALOG.link_bits, "NVLink: fatal error detected on link 14(0x0, 0x0)") is None


@pytest.mark.parametrize(
    ("detail", "action"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", 1),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)", 2),
        ("pid=7, name=x, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", 0),
        ("GPU recovery action changed from 0x0 (None) to 0x1f (something new)", 31),
        ("GPU recovery action changed from", None),
        ("(", None),
        ("", None),
    ],
)
def test_what_the_driver_asks_for(detail: str, action: int | None) -> None:
    assert recovery_action(detail) == action


def test_the_processor_of_an_exception() -> None:
    text = "pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 3, SM 0): Out Of Range Address"
    assert gpc_tpc(text) == "GPC 7 TPC 3"
    assert gpc_tpc("pid=1, name=x, Graphics Exception: ESR 0x50df30=0x107000e 0x50df34=0x20") is None
