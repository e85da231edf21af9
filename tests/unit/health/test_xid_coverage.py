"""Every row of every Xid table fires when it must and stays silent when it must not: from a kernel line to a state.

The cases are made from the tables themselves, read here as plain CSV; what a row asks for is looked up without the
code under test. A new row is a new pair of cases.
"""

from importlib.resources import files

import pytest

from paceline.health.catalog import load
from paceline.health.machine import Device, Found, step
from paceline.health.xid_rules import SECOND_NS, XidMemory, judge_sxid, judge_xid
from paceline.health.xid_tables import rows_of
from paceline.model.hardware import DeviceState, XidEvent
from paceline.model.health import Advice, Finding, NodeAdvice, NodeFinding
from paceline.model.ids import DeviceUuid
from paceline.telemetry.xid_lines import parse_record, parse_sxid_record

GPU = DeviceUuid("GPU-1")
CATALOG = load()
LEADS_TO = {
    Advice.OBSERVE: DeviceState.HEALTHY,
    Advice.SUSPECT: DeviceState.SUSPECT,
    Advice.QUARANTINE: DeviceState.DRAINING,
}
STRENGTH = {"OBSERVE": 0, "SUSPECT": 1, "QUARANTINE": 2}
Row = dict[str, str]


def table(name: str) -> list[Row]:
    return list(rows_of(files("paceline.health").joinpath(name).read_text("utf-8").splitlines()))


MEANINGS = table("xids.csv")
XIDS = [row for row in MEANINGS if int(row["code"]) < 10_000]
SXIDS = [row for row in MEANINGS if int(row["code"]) >= 10_000]
NVLINK5 = table("xid_nvlink5_rules.csv")
LINK_BITS = table("xid74_bits.csv")
WINDOWS = table("xid_windows.csv")
PAIRS = {row["code"]: row for row in table("xid_pairs.csv")}
RECOVERIES = table("recovery_actions.csv")


def told(*lines: str, every_s: float = 0.0) -> list[Finding]:
    """Findings on the Xids in these texts of the kernel, `every_s` apart."""
    memory, found = XidMemory(), []
    for number, text in enumerate(lines):
        line = parse_record(f"3,{number},1,-;{text}\n")
        if line is not None:
            event = XidEvent(GPU, line.code, int((1000 + number * every_s) * SECOND_NS), "kmsg", line.detail)
            memory, new = judge_xid(memory, event, CATALOG)
            found += [new] if new else []
    return found


def xid(code: str | int, detail: str = "") -> str:
    return f"NVRM: Xid (PCI:0000:3b:00): {code}" + (f", {detail}" if detail else "")


def sxid(code: str | int, detail: str) -> str:
    return f"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): {code}, {detail}"


def state_after(findings: list[Finding]) -> DeviceState:
    device = Device(GPU, DeviceState.HEALTHY, 0)
    for finding in findings:
        device, _ = step(device, Found(finding), finding.at_ns)
    return device.state


def wanted(row: Row, rows: list[Row]) -> Row:
    """The first row of a policy that fits; a column that `row` lacks is not asked."""
    contested = "yes" if "DISAGREE" in row["source"] else "alone" if "=absent" in row["source"] else "no"
    facts = row | {"contested": contested}
    columns = ("code", "severity", "class", "action", "contested", "word")
    return next(one for one in rows if all(one.get(column, "*") in ("*", facts.get(column)) for column in columns))


def by_code(row: Row) -> str:
    return f"{row['code']} {row['name'][:40]}"


# Xids by their code.


@pytest.mark.parametrize("row", XIDS, ids=by_code)
def test_an_xid_must_fire(row: Row) -> None:
    expected = wanted(row, table("xid_policy.csv"))
    advice, why = expected["advice"], expected["why"]
    alone = PAIRS.get(row["code"], {}).get("alone", "")
    if alone and STRENGTH[alone] > STRENGTH[advice]:
        advice, why = alone, PAIRS[row["code"]]["why"]
    (finding,) = told(xid(row["code"], "pid=1, name=x"))
    assert (finding.rule_id, finding.advice.value, finding.evidence["xid"]) == ("xid", advice, int(row["code"]))
    assert (finding.evidence["authority"], finding.evidence["why"]) == ("table", why)
    assert finding.evidence["known"] is True
    assert state_after([finding]) is LEADS_TO[Advice(advice)]


@pytest.mark.parametrize("row", XIDS, ids=by_code)
def test_an_xid_must_not_fire(row: Row) -> None:
    """On another code that has its digits, on a switch's code, on a line of another program, and again at once."""
    code = row["code"]
    assert {f.evidence["known"] for f in told(xid(f"9{code:>03}"), xid(f"{code:<04}"))} <= {False}
    assert state_after(told(xid(f"9{code:>03}"))) is DeviceState.HEALTHY
    assert told(sxid(code, "Fatal, Link 1"), f"app[7]: saw Xid (PCI:0000:3b:00): {code}, GPU has fallen off") == []
    assert len(told(xid(code), xid(code), every_s=4)) == 1


# Xids by repetition.


def occurrence(row: Row) -> str:
    return xid(row["code"], "on (GPC 3, TPC 4, SM 0): x" if row["place"] == "gpc_tpc" else "pid=1, name=x")


@pytest.mark.parametrize("row", WINDOWS, ids=lambda row: row["code"])
def test_a_window_must_fire(row: Row) -> None:
    count, apart = int(row["count"]), (int(row["window_s"]) - 1) / int(row["count"])
    found = told(*[occurrence(row)] * count, every_s=apart)
    repeated = [f for f in found if f.rule_id == "xid.repeated"]
    assert [(f.advice.value, f.evidence["why"], f.evidence["authority"]) for f in repeated] == [
        (row["advice"], row["why"], "table")
    ]
    assert state_after(found) is LEADS_TO[Advice(row["advice"])]


@pytest.mark.parametrize("row", WINDOWS, ids=lambda row: row["code"])
def test_a_window_must_not_fire(row: Row) -> None:
    """Below the count; outside the window; all in one burst."""
    count, window_s, burst_s = int(row["count"]), int(row["window_s"]), int(row["burst_s"])
    below = told(*[occurrence(row)] * (count - 1), every_s=burst_s)
    outside = told(*[occurrence(row)] * count, every_s=window_s / (count - 1))
    burst = told(*[occurrence(row)] * 50, every_s=burst_s - 1)
    for found in (below, outside, burst):
        assert {f.rule_id for f in found} == {"xid"}
        assert state_after(found) is DeviceState.HEALTHY


# Sub-codes of NVLink 5.


def number(pattern: str) -> int:
    return int(pattern.replace("-", "0"), 2)


def by_rule(row: Row) -> str:
    return f"{row['xid']} {row['unit']} {row['error_status']} {row['intrinfo_v2'][6:12]}"


def nvlink5(row: Row, intrinfo: int, unit: str = "", status: int | None = None, word: str = "") -> str:
    word = word or ("Nonfatal" if row["severity"].startswith("Non") else "Fatal")
    status = int(row["error_status"], 16) if status is None else status
    unit = unit or row["unit"].split("/")[-1]
    return xid(row["xid"], f"pid=7, name=x, {unit} {word} XC0 i0 Link 03 ({intrinfo:#010x} {status:#010x} 0x0 0x0)")


def subcode_advice(row: Row, fatal_word: bool = False) -> Advice:
    """By what NVIDIA's sheet says: a reset for what is fatal, a look for a link that is down, nothing for the rest."""
    resolution = (row["alt_action"] if fatal_word else "") or row["resolution"]
    if resolution != "RESET_GPU":
        return Advice.OBSERVE
    return Advice.SUSPECT if row["severity"].startswith("Link") else Advice.QUARANTINE


@pytest.mark.parametrize("version", ["intrinfo_v1", "intrinfo_v2"])
@pytest.mark.parametrize("row", NVLINK5, ids=by_rule)
def test_a_sub_code_must_fire(row: Row, version: str) -> None:
    """With bits set that the rule does not ask for, too."""
    pattern = row[version]
    free = sum(1 << (31 - place) for place, bit in enumerate(pattern) if bit == "-")
    for intrinfo in (number(pattern), number(pattern) | free & 0xFC0FE000):
        (finding,) = told(nvlink5(row, intrinfo))
        assert (finding.rule_id, finding.evidence["authority"]) == ("xid", "sub-code")
        assert str(finding.evidence["sub_code"]).endswith(f"rule {NVLINK5.index(row) + 1}")
        assert finding.advice is subcode_advice(row)
        assert state_after([finding]) is LEADS_TO[subcode_advice(row)]


@pytest.mark.parametrize("row", NVLINK5, ids=by_rule)
def test_a_sub_code_must_not_fire(row: Row) -> None:
    """With another error status, another unit, or a bit of its pattern turned; the table decides then, or another rule."""
    intrinfo, name = number(row["intrinfo_v2"]), f"rule {NVLINK5.index(row) + 1}"
    fixed = [
        1 << (31 - place)
        for place, pair in enumerate(zip(row["intrinfo_v1"], row["intrinfo_v2"], strict=True))
        if "-" not in pair
    ]
    others = [
        nvlink5(row, intrinfo, status=int(row["error_status"], 16) ^ 0x5A000000),
        nvlink5(row, intrinfo, unit="NO_SUCH_UNIT"),
        nvlink5(row, intrinfo ^ fixed[-1]),
        nvlink5(row, intrinfo ^ fixed[0]),
        nvlink5(row, intrinfo).split("0x")[0],
        nvlink5(row, intrinfo).replace(f": {row['xid']},", ": 143,"),
    ]
    for line in others:
        (finding,) = told(line)
        assert not str(finding.evidence.get("sub_code", "")).endswith(name)
    (by_table,) = told(others[0])
    assert by_table.evidence["authority"] == "table"


@pytest.mark.parametrize("row", [row for row in NVLINK5 if row["alt_action"]], ids=by_rule)
def test_a_sub_code_that_its_line_calls_fatal_has_another_resolution(row: Row) -> None:
    (finding,) = told(nvlink5(row, number(row["intrinfo_v2"]), word="Fatal"))
    assert finding.advice is subcode_advice(row, fatal_word=True) is Advice.QUARANTINE


# Bits of an Xid 74.


def link_line(*bits: tuple[int, int]) -> str:
    registers = [0] * 7
    for register, bit in bits:
        registers[register - 1] |= 1 << bit
    return xid(74, f"NVLink: fatal error detected on link 5({', '.join(hex(word) for word in registers)})")


EACH_BIT = [
    pytest.param(row, int(bit), id=f"register {row['register']} bit {bit} {row['name']}")
    for row in LINK_BITS
    for bit in row["bits"].split()
]


@pytest.mark.parametrize(("row", "bit"), EACH_BIT)
def test_a_bit_of_a_link_must_fire(row: Row, bit: int) -> None:
    line = link_line((int(row["register"]), bit))
    (finding,) = told(line)
    assert (finding.advice.value, finding.evidence["why"]) == (row["advice"], row["why"])
    assert finding.evidence["authority"] == "sub-code"
    assert state_after([finding]) is LEADS_TO[Advice(row["advice"])]
    if row["repeated"]:
        again = told(*[line] * int(row["repeats"]), every_s=3600)[-1]
        assert (again.rule_id, again.advice.value) == ("xid.repeated", row["repeated"])


@pytest.mark.parametrize(("row", "bit"), EACH_BIT)
def test_a_bit_of_a_link_must_not_fire(row: Row, bit: int) -> None:
    """In a register that is not for analysis; with a bit that nobody has described; and not by repetition one time less."""
    (elsewhere,) = told(link_line((2, bit)))
    assert elsewhere.evidence["authority"] == "table"
    (with_unknown,) = told(link_line((int(row["register"]), bit), (1, 2)))
    assert with_unknown.evidence["authority"] == "table"
    fewer = told(*[link_line((int(row["register"]), bit))] * max(1, int(row["repeats"]) - 1), every_s=3600)
    assert "xid.repeated" not in {f.rule_id for f in fewer}


# The driver's recovery action.


@pytest.mark.parametrize("row", RECOVERIES, ids=lambda row: row["name"])
def test_a_recovery_action_must_fire(row: Row) -> None:
    line = xid(154, f"GPU recovery action changed from 0x0 (None) to 0x{int(row['value']):x} (…)")
    (finding,) = told(line)
    assert (finding.advice.value, finding.evidence["authority"]) == (row["advice"], "driver")
    assert finding.evidence["action"] == row["action"]
    assert state_after([finding]) is LEADS_TO[Advice(row["advice"])]


@pytest.mark.parametrize("row", RECOVERIES, ids=lambda row: row["name"])
def test_a_recovery_action_must_not_fire(row: Row) -> None:
    """Where the action is the one before, and under another code."""
    before = f"GPU recovery action changed from 0x{int(row['value']):x} (…) to 0x0 (None)"
    for line in (xid(154, before), xid(153, before), xid(154, before.split(" to ")[0])):
        assert state_after(told(line)) is DeviceState.HEALTHY


# SXids.


def switch_finding(text: str) -> NodeFinding | None:
    line = parse_sxid_record(f"3,1,1,-;{text}\n")
    return judge_sxid(line, 7, CATALOG) if line else None


WORDS = {"fatal": "Fatal, Link 46 x (First)", "non-fatal": "Non-fatal, Link 46 x (First)", "none": "Host_x"}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("row", SXIDS, ids=by_code)
def test_an_sxid_must_fire(row: Row, word: str) -> None:
    expected = wanted(row | {"word": word}, table("sxid_policy.csv"))
    finding = switch_finding(sxid(row["code"], WORDS[word]))
    assert finding is not None
    assert (finding.advice.value, finding.evidence["why"]) == (expected["advice"], expected["why"])
    assert finding.evidence["authority"] == ("table" if expected["word"] == "*" else "driver")
    assert (finding.evidence["sxid"], finding.evidence["known"]) == (int(row["code"]), True)


@pytest.mark.parametrize("row", SXIDS, ids=by_code)
def test_an_sxid_must_not_fire(row: Row) -> None:
    """On the lines with its registers, on a GPU's Xid, on a code of more digits; and nothing that is not fatal cordons."""
    code = row["code"]
    assert switch_finding(sxid(code, "Severity 0 Engine instance 60 Sub-engine instance 00")) is None
    assert switch_finding(sxid(code, "Data {0x0000003c, 0x00000000}")) is None
    assert switch_finding(xid(code, "x")) is None
    longer = switch_finding(sxid(f"{code}0", WORDS["fatal"]))
    assert longer is not None
    assert (longer.advice, longer.evidence["known"]) == (NodeAdvice.OBSERVE, False)
    mild = switch_finding(sxid(code, WORDS["non-fatal"]))
    assert mild is not None
    assert mild.advice is NodeAdvice.OBSERVE


def test_the_cases_are_all_there() -> None:
    assert (len(XIDS), len(SXIDS), len(NVLINK5)) == (173, 153, 94)
