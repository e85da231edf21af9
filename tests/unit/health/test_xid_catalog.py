"""The Xid tables of the package: complete, and read as meant."""

import pytest

from paceline.health.catalog import Catalog, load, read_meanings, read_policy
from paceline.model.health import Advice

CATALOG = load()


def advice(code: int) -> Advice:
    return CATALOG.advise(CATALOG.meanings[code])[0]


def test_all_xids_are_there_with_their_sources() -> None:
    assert sorted(CATALOG.meanings) == list(range(1, 174))
    assert all(meaning.source and meaning.name for meaning in CATALOG.meanings.values())


@pytest.mark.parametrize("code", [46, 48, 62, 64, 74, 79, 95, 119, 120, 140, 143, 158, 167])
def test_a_device_that_cannot_be_used_is_quarantined(code: int) -> None:
    assert advice(code) is Advice.QUARANTINE


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 69, 137])
def test_an_application_fault_is_observed(code: int) -> None:
    assert advice(code) is Advice.OBSERVE


@pytest.mark.parametrize("code", [63, 92, 94, 121, 154, 171])
def test_what_the_catalog_tolerates_is_observed(code: int) -> None:
    assert advice(code) is Advice.OBSERVE


@pytest.mark.parametrize("code", [54, 109, 122, 136, 149])
def test_what_systems_disagree_about_is_a_suspicion(code: int) -> None:
    assert advice(code) is Advice.SUSPECT


def test_every_code_has_an_advice_with_a_reason() -> None:
    for meaning in CATALOG.meanings.values():
        assert CATALOG.advise(meaning)[1]


def test_no_quarantine_is_contested() -> None:
    acted_on = [m for m in CATALOG.meanings.values() if CATALOG.advise(m)[0] is Advice.QUARANTINE]
    assert acted_on
    assert not [meaning.code for meaning in acted_on if meaning.contested]


def test_the_first_row_that_fits_decides_and_a_site_may_have_its_own() -> None:
    policy = read_policy(
        [
            "severity,class,action,contested,advice,why",
            "*,*,restart_app,*,SUSPECT,we had bad luck with these",
            "*,*,*,*,OBSERVE,rest",
        ]
    )
    site = Catalog(CATALOG.meanings, policy)
    assert site.advise(CATALOG.meanings[94]) == (Advice.SUSPECT, "we had bad luck with these")
    assert site.advise(CATALOG.meanings[79]) == (Advice.OBSERVE, "rest")


def test_a_policy_with_a_hole_is_an_error() -> None:
    meanings = read_meanings(["code,name,class,severity,action,source", "79,off the bus,hardware,fatal,reboot_node,x"])
    with pytest.raises(ValueError, match="79"):
        Catalog(meanings, ()).advise(meanings[79])
