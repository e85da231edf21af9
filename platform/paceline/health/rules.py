"""The register of all rules: rules.csv, and what a site makes of it. Pure but for `load`, which reads this package's table.

A rule in SHADOW speaks and is written down, and moves nothing: so it can be judged by its labelled verdicts before anyone
loses a device by it.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Final

from paceline.model.errors import BadRequest
from paceline.model.health import RepairAction, RuleMode

SITE_COLUMNS: Final = ("rule_id", "mode", "reason")
BAD_SITE: Final = "PL-REQ-045"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of rules.csv. `repair` is what heals such a device where the finding itself names nothing; None: a human looks.

    `reason` is the site's, where it has changed the mode; "" otherwise.
    """

    rule_id: str
    version: int
    mode: RuleMode
    repair: RepairAction | None
    sentence: str
    source: str
    reason: str = ""


def load(site: str = "") -> Mapping[str, Rule]:
    """All rules by id, with the modes of `site`: the text of a CSV with the columns rule_id, mode, reason.

    Raises BadRequest (PL-REQ-045) that names the line and what is wrong with it.
    """
    table = files("paceline.health").joinpath("rules.csv").read_text("utf-8")
    return override(read(table.splitlines()), site)


def mode_of(rules: Mapping[str, Rule], rule_id: str) -> RuleMode:
    """A rule that is in no table has proved nothing: SHADOW."""
    rule = rules.get(rule_id)
    return rule.mode if rule else RuleMode.SHADOW


def read(lines: Iterable[str]) -> dict[str, Rule]:
    return {
        row["rule_id"]: Rule(
            row["rule_id"],
            int(row["version"]),
            RuleMode(row["mode"]),
            RepairAction(row["repair"]) if row["repair"] else None,
            row["sentence"],
            row["source"],
        )
        for row in csv.DictReader(lines)
    }


def override(rules: Mapping[str, Rule], site: str) -> dict[str, Rule]:
    """`rules` with the modes that the text `site` gives, each with its reason."""
    changed: dict[str, Rule] = {}
    for line, rule_id, mode, reason in _site_rows(site):
        if rule_id not in rules:
            raise _bad(line, f"there is no rule {rule_id!r}", f"the rules are: {', '.join(sorted(rules))}")
        if rule_id in changed:
            raise _bad(line, f"{rule_id} is set a second time", "keep one line for each rule")
        if mode not in tuple(RuleMode):
            raise _bad(line, f"{mode!r} is no mode", f"write {' or '.join(RuleMode)}")
        if not reason:
            raise _bad(
                line, f"the mode of {rule_id} is changed without a reason", "say why: it is kept with each verdict"
            )
        changed[rule_id] = replace(rules[rule_id], mode=RuleMode(mode), reason=reason)
    return {**rules, **changed}


def _site_rows(site: str) -> Iterator[tuple[int, str, str, str]]:
    """(line number, rule_id, mode, reason) of each row; empty lines are skipped."""
    reader = csv.reader(site.splitlines(), strict=True)
    header = False
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise _bad(reader.line_num, f"not a CSV line: {error}", 'quote a reason that has a comma: "…"') from error
        if row is None:
            return
        cells = tuple(cell.strip() for cell in row)
        if not any(cells):
            continue
        if not header:
            if cells != SITE_COLUMNS:
                raise _bad(
                    reader.line_num, f"the first line must be {','.join(SITE_COLUMNS)}", f"it is {','.join(cells)}"
                )
            header = True
        elif len(cells) != len(SITE_COLUMNS):
            hint = 'quote a reason that has a comma: "…"'
            raise _bad(reader.line_num, f"{len(cells)} columns, {len(SITE_COLUMNS)} wanted", hint)
        else:
            rule_id, mode, reason = cells
            yield reader.line_num, rule_id, mode.lower(), reason


def _bad(line: int, what: str, hint: str) -> BadRequest:
    return BadRequest(BAD_SITE, f"the site's rule modes, line {line}: {what}", hint)
