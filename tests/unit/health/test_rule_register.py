"""The register of rules: complete, in step with the code, and changed by a site only with a reason."""

import pytest

from paceline.health import findings, links, xid_rules
from paceline.health.rules import load, mode_of
from paceline.model.errors import BadRequest
from paceline.model.health import RuleMode
from paceline.placement.drift import DRIFT_RULE, DRIFT_RULE_VERSION
from paceline.placement.score import CORRUPT_RULE, CORRUPT_RULE_VERSION, SLOW_RULE, SLOW_RULE_VERSION

RULES = load()
IN_CODE = {
    **findings.VERSIONS,
    **xid_rules.VERSIONS,
    **links.VERSIONS,
    SLOW_RULE: SLOW_RULE_VERSION,
    CORRUPT_RULE: CORRUPT_RULE_VERSION,
    DRIFT_RULE: DRIFT_RULE_VERSION,
}
HEADER = "rule_id,mode,reason\n"


@pytest.mark.parametrize(("rule_id", "version"), sorted(IN_CODE.items()))
def test_a_rule_has_the_version_of_the_code_that_judges(rule_id: str, version: int) -> None:
    assert RULES[rule_id].version == version


def test_each_rule_says_what_it_does_and_whence_it_is() -> None:
    for rule_id, rule in RULES.items():
        assert rule.rule_id == rule_id
        assert rule.version >= 1
        assert rule.sentence
        assert rule.source


@pytest.mark.parametrize("rule_id", ["inband.slow", "pcie.degraded", "correlate.fabric", "lemon"])
def test_what_has_no_evidence_behind_it_moves_nothing(rule_id: str) -> None:
    assert mode_of(RULES, rule_id) is RuleMode.SHADOW


def test_an_unknown_rule_moves_nothing() -> None:
    assert mode_of(RULES, "brand.new") is RuleMode.SHADOW


def test_a_site_sets_modes_with_a_reason() -> None:
    site = (
        HEADER
        + '\nthrottle.hardware,shadow,"our racks are hot, we know"\n inband.slow , ENFORCE , labelled since May\n'
    )
    mine = load(site)
    assert (mine["throttle.hardware"].mode, mine["throttle.hardware"].reason) == (
        RuleMode.SHADOW,
        "our racks are hot, we know",
    )
    assert mode_of(mine, "inband.slow") is RuleMode.ENFORCE
    untouched = RULES.keys() - {"throttle.hardware", "inband.slow"}
    assert {rule_id: mine[rule_id] for rule_id in untouched} == {rule_id: RULES[rule_id] for rule_id in untouched}


@pytest.mark.parametrize("nothing", ["", "\n", HEADER])
def test_an_empty_file_changes_nothing(nothing: str) -> None:
    assert load(nothing) == RULES


@pytest.mark.parametrize(
    ("site", "line", "what"),
    [
        ("rule,mode\n", 1, "the first line must be rule_id,mode,reason"),
        (HEADER + "xid,shadow\n", 2, "2 columns, 3 wanted"),
        (HEADER + "xid,shadow,noisy, very\n", 2, "4 columns, 3 wanted"),
        (HEADER + "\nxdi,shadow,noisy\n", 3, "there is no rule 'xdi'"),
        (HEADER + "xid,off,noisy\n", 2, "'off' is no mode"),
        (HEADER + "xid,shadow, \n", 2, "without a reason"),
        (HEADER + "xid,shadow,a\nxid,enforce,b\n", 3, "xid is set a second time"),
        (HEADER + 'xid,shadow,"never ends\n', 2, "not a CSV line"),
    ],
)
def test_a_bad_file_is_refused_with_line_and_reason(site: str, line: int, what: str) -> None:
    with pytest.raises(BadRequest) as refused:
        load(site)
    assert refused.value.code == "PL-REQ-045"
    assert f"line {line}: " in refused.value.message
    assert what in refused.value.message
    assert refused.value.hint
