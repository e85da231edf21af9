"""What each Xid means and what it asks for. Pure but for `load`, which reads this package's own tables once.

xids.csv says what a code means, with what NVIDIA's catalog, gpud, DCGM, NVSentinel and others make of it (`source`).
xid_policy.csv says what Paceline makes of such a code; the first row that fits decides. Both are data: a site can have
its own.
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from paceline.model.health import Advice

ANY: Final = "*"
CONTESTED: Final = "DISAGREE"
"""Mark in `source`: some systems act on the device for this code, and others tolerate it."""


@dataclass(frozen=True, slots=True)
class XidMeaning:
    """One row of xids.csv. `fault_class` is hardware, driver, fabric, thermal, user_app or unknown."""

    code: int
    name: str
    fault_class: str
    severity: str
    action: str
    source: str

    @property
    def contested(self) -> bool:
        return CONTESTED in self.source


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """Advice for all Xids with these properties; `*` fits any. `contested` is yes, no or `*`."""

    severity: str
    fault_class: str
    action: str
    contested: str
    advice: Advice
    why: str

    def fits(self, meaning: XidMeaning) -> bool:
        pairs = (
            (self.severity, meaning.severity),
            (self.fault_class, meaning.fault_class),
            (self.action, meaning.action),
            (self.contested, "yes" if meaning.contested else "no"),
        )
        return all(wanted in (ANY, found) for wanted, found in pairs)


@dataclass(frozen=True, slots=True)
class Catalog:
    """Meanings by code, and the policy in the order in which it applies."""

    meanings: Mapping[int, XidMeaning]
    policy: tuple[PolicyRow, ...]

    def advise(self, meaning: XidMeaning) -> tuple[Advice, str]:
        """Advice and the reason for it. The last row of a policy must fit all; ValueError where none does."""
        for row in self.policy:
            if row.fits(meaning):
                return row.advice, row.why
        raise ValueError(f"no row of the Xid policy fits {meaning.code}")


@cache
def load() -> Catalog:
    """The tables of this package. Read once in a process."""
    here = files("paceline.health")
    meanings = read_meanings(here.joinpath("xids.csv").read_text("utf-8").splitlines())
    return Catalog(meanings, read_policy(here.joinpath("xid_policy.csv").read_text("utf-8").splitlines()))


def read_meanings(lines: Iterable[str]) -> dict[int, XidMeaning]:
    return {
        int(row["code"]): XidMeaning(
            int(row["code"]), row["name"], row["class"], row["severity"], row["action"], row["source"]
        )
        for row in csv.DictReader(lines)
    }


def read_policy(lines: Iterable[str]) -> tuple[PolicyRow, ...]:
    return tuple(
        PolicyRow(row["severity"], row["class"], row["action"], row["contested"], Advice(row["advice"]), row["why"])
        for row in csv.DictReader(lines)
    )
