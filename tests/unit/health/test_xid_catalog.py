"""The Xid and SXid tables of the package: complete, and read as meant; and a site's own word over them."""

from collections.abc import Iterable

import pytest

from paceline.health.catalog import TABLES_VERSION, WORDS, Catalog, load
from paceline.health.xid_tables import PolicyRow, advise, read_meanings, read_policy, rows_of
from paceline.model.errors import BadRequest
from paceline.model.hardware import RecoveryAction
from paceline.model.health import Advice, NodeAdvice

CATALOG = load()
HEADER = "code,advice,why,count,window_s"


def advice(code: int) -> Advice:
    return CATALOG.advise(CATALOG.meanings[code])[0]


def switch_of(catalog: Catalog, code: int, word: str) -> tuple[NodeAdvice, str]:
    ruling = catalog.rule_sxid(code, word)
    return ruling.advice, ruling.authority


def policy(*lines: str) -> tuple[PolicyRow, ...]:
    return read_policy(rows_of(["code,severity,class,action,contested,advice,why", *lines]))


def test_all_xids_are_there_with_their_sources() -> None:
    assert sorted(CATALOG.meanings) == list(range(1, 174))
    assert len(CATALOG.sxids) == 153
    assert min(CATALOG.sxids) == 10001
    assert all(one.source and one.name for one in (*CATALOG.meanings.values(), *CATALOG.sxids.values()))
    assert sum(len(rules) for rules in CATALOG.nvlink5.values()) == 94


@pytest.mark.parametrize("code", [46, 48, 62, 64, 74, 79, 95, 119, 120, 140, 143, 158, 167])
def test_a_device_that_cannot_be_used_is_quarantined(code: int) -> None:
    assert advice(code) is Advice.QUARANTINE


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 69, 137])
def test_an_application_fault_is_observed(code: int) -> None:
    assert advice(code) is Advice.OBSERVE


@pytest.mark.parametrize("code", [63, 92, 94, 121, 154, 162, 163, 171])
def test_what_the_catalog_tolerates_is_observed(code: int) -> None:
    assert advice(code) is Advice.OBSERVE


@pytest.mark.parametrize("code", [54, 109, 122, 136, 149])
def test_what_systems_disagree_about_is_a_suspicion(code: int) -> None:
    assert advice(code) is Advice.SUSPECT


def test_what_one_system_alone_knows_is_no_quarantine() -> None:
    assert [code for code, one in CATALOG.meanings.items() if one.contested == "alone"] == [173]
    assert advice(173) is Advice.SUSPECT


def test_every_contested_code_is_decided_by_itself_with_a_reason() -> None:
    contested = {str(code) for code, one in CATALOG.meanings.items() if one.contested == "yes"}
    decided = {row.code: row.why for row in CATALOG.policy if row.contested == "yes" and row.code != "*"}
    assert contested == set(decided)
    assert all(decided.values())
    switches = {str(code) for code, one in CATALOG.sxids.items() if one.contested == "yes"}
    assert switches == {row.code for row in CATALOG.sxid_policy if row.code != "*"}


def test_no_quarantine_is_contested() -> None:
    acted_on = [m for m in CATALOG.meanings.values() if CATALOG.advise(m)[0] is Advice.QUARANTINE]
    assert acted_on
    assert not [meaning.code for meaning in acted_on if meaning.contested != "no"]


def test_every_row_of_the_policies_is_of_use() -> None:
    """A row that never decides is a mistake in the order of the rows."""
    subs = {ruling.why for ruling in CATALOG.sub_rulings.values()}
    used = {CATALOG.advise(meaning)[1] for meaning in CATALOG.meanings.values()} | subs
    assert [row.why for row in CATALOG.policy if row.why not in used] == []
    told = {CATALOG.rule_sxid(code, word).why for code in CATALOG.sxids for word in WORDS}
    assert [row.why for row in CATALOG.sxid_policy if row.why not in told] == []


def test_every_recovery_action_of_nvml_is_known() -> None:
    assert {action.value: action.name for action in RecoveryAction} == {
        value: row.name for value, row in CATALOG.recoveries.items()
    }


def test_the_first_row_that_fits_decides() -> None:
    rows = policy("*,*,*,restart_app,*,SUSPECT,we had bad luck with these", "*,*,*,*,*,OBSERVE,rest")
    assert advise(rows, CATALOG.meanings[94]) == (Advice.SUSPECT, "we had bad luck with these")
    assert advise(rows, CATALOG.meanings[79]) == (Advice.OBSERVE, "rest")


def test_a_policy_with_a_hole_is_an_error() -> None:
    header = "code,name,class,severity,action,source"
    meanings = read_meanings(rows_of([header, "79,off the bus,hardware,fatal,reboot_node,x"]))
    with pytest.raises(ValueError, match="79"):
        advise((), meanings[79])


# A site's own word.


def site(*rows: str) -> str:
    return "\n".join((HEADER, *rows))


def test_a_site_decides_over_the_table_and_says_so() -> None:
    catalog = load(site("68,QUARANTINE,we decode video,,", "79,OBSERVE,our risers are loose,,"))
    ruling = catalog.rule(68)
    assert (ruling.advice, ruling.authority, ruling.why) == (Advice.QUARANTINE, "site", "we decode video")
    assert catalog.rule(79).advice is Advice.OBSERVE
    assert (catalog.rule(95).advice, catalog.rule(95).authority) == (Advice.QUARANTINE, "table")
    assert catalog.version.startswith(f"{TABLES_VERSION}+site:")
    assert load().version == str(TABLES_VERSION)


def test_two_sites_have_two_stamps() -> None:
    assert load(site("68,QUARANTINE,one,,")).version != load(site("68,QUARANTINE,another,,")).version


def test_a_site_may_count_and_fewer_are_observed() -> None:
    ruling = load(site("43,QUARANTINE,a bad batch,3,600")).rule(43)
    assert ruling.advice is Advice.OBSERVE
    assert ruling.window is not None
    assert (ruling.window.count, ruling.window.window_s, ruling.window.advice) == (3, 600, Advice.QUARANTINE)


def test_a_site_may_know_a_code_that_no_catalog_knows() -> None:
    ruling = load(site("999,SUSPECT,the vendor told us,,")).rule(999)
    assert (ruling.advice, ruling.authority, ruling.known) == (Advice.SUSPECT, "site", True)


def test_a_site_stays_below_the_driver_and_the_sub_code() -> None:
    catalog = load(site("149,OBSERVE,noise,,", "154,OBSERVE,noise,,", "109,SUSPECT,we look,,"))
    link_down = "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000)"
    assert catalog.rule(149, link_down).authority == "sub-code"
    assert catalog.rule(149).authority == "site"
    needed = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    assert (catalog.rule(154, needed).authority, catalog.rule(154, needed).advice) == ("driver", Advice.QUARANTINE)
    standing = catalog.rule(109, recovery=RecoveryAction.GPU_RESET)
    assert (standing.authority, standing.advice, standing.action) == ("driver", Advice.QUARANTINE, "reset_gpu")


def test_a_site_decides_on_switches_but_not_against_the_driver() -> None:
    catalog = load(site("12030,CORDON,our fabric is old,,", "99999,CORDON,the vendor told us,,"))
    assert switch_of(catalog, 12030, "fatal") == (NodeAdvice.CORDON, "site")
    assert switch_of(catalog, 12030, "non-fatal") == (NodeAdvice.OBSERVE, "driver")
    assert switch_of(catalog, 99999, "none") == (NodeAdvice.CORDON, "site")
    assert switch_of(catalog, 99999, "non-fatal") == (NodeAdvice.OBSERVE, "driver")
    assert switch_of(load(), 99999, "fatal") == (NodeAdvice.OBSERVE, "none")


def test_comments_blank_lines_and_the_short_form_are_read() -> None:
    text = '# ours\n\ncode,advice,why\n# a bad batch\n68,SUSPECT,"decoders, of one batch"\n\n'
    assert load(text).rule(68).why == "decoders, of one batch"
    assert load("  \n").version == load().version


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        pytest.param(["code;advice;why"], ["Line 1", "columns are code;advice;why", HEADER], id="header"),
        pytest.param(["# nothing", ""], ["Line 1", "begin with"], id="no header"),
        pytest.param([HEADER, "", "sixty,OBSERVE,x,,"], ["Line 3", "code is 'sixty'", "whole number"], id="code"),
        pytest.param([HEADER, "0,OBSERVE,x,,"], ["Line 2", "code is '0'"], id="code of nothing"),
        pytest.param([HEADER, "9" * 5000 + ",OBSERVE,x,,"], ["Line 2", "whole number"], id="huge code"),
        pytest.param([HEADER, "79,RETIRE,x,,"], ["'RETIRE' is no advice for an Xid", "QUARANTINE"], id="advice"),
        pytest.param([HEADER, "79,CORDON,x,,"], ["'CORDON' is no advice for an Xid"], id="node advice for a device"),
        pytest.param([HEADER, "12028,SUSPECT,x,,"], ["no advice for an SXid", "OBSERVE, CORDON"], id="SXid"),
        pytest.param([HEADER, "79,OBSERVE, ,,"], ["gives no reason", "say why"], id="no reason"),
        pytest.param([HEADER, "43,SUSPECT,x,3,"], ["belong together"], id="count without window"),
        pytest.param([HEADER, "43,SUSPECT,x,three,600"], ["count is 'three'"], id="count"),
        pytest.param([HEADER, "43,SUSPECT,x,3,-1"], ["window_s is '-1'"], id="window"),
        pytest.param([HEADER, "12028,CORDON,x,3,600"], ["SXids are not counted"], id="counted SXid"),
        pytest.param([HEADER, "43,SUSPECT,x,,", "43,OBSERVE,y,,"], ["Line 3", "there twice"], id="twice"),
        pytest.param([HEADER, "43,SUSPECT"], ["has 2 cells"], id="too few"),
        pytest.param([HEADER, "43,SUSPECT,so, so,3,600"], ["has 6 cells", "quote a reason"], id="too many"),
        pytest.param([HEADER, '43,SUSPECT,"' + "x" * 200_000 + '",,'], ["Line 2", "field larger"], id="huge cell"),
    ],
)
def test_a_bad_site_file_names_line_reason_and_remedy(lines: Iterable[str], says: list[str]) -> None:
    with pytest.raises(BadRequest) as error:
        load("\n".join(lines))
    assert error.value.code == "PL-REQ-040"
    assert [word for word in says if word not in str(error.value)] == []
    assert error.value.hint
