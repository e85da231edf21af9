"""Rows of this folder's tables, as values. Pure; catalog.py reads the files and makes rulings of the rows."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from paceline.model.health import Advice, NodeAdvice

ANY: Final = "*"
CONTESTED: Final = "DISAGREE"
"""Mark in `source`: some systems act on the device for this code, and others tolerate it."""
ALONE: Final = "=absent"
"""Mark in `source`: one system knows the code, the other does not."""


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
    def contested(self) -> str:
        """yes, alone or no."""
        return "yes" if CONTESTED in self.source else "alone" if ALONE in self.source else "no"


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """Advice for all Xids with these properties; `*` fits any."""

    code: str
    severity: str
    fault_class: str
    action: str
    contested: str
    advice: Advice
    why: str

    def fits(self, meaning: XidMeaning) -> bool:
        pairs = (
            (self.code, str(meaning.code)),
            (self.severity, meaning.severity),
            (self.fault_class, meaning.fault_class),
            (self.action, meaning.action),
            (self.contested, meaning.contested),
        )
        return all(wanted in (ANY, found) for wanted, found in pairs)


@dataclass(frozen=True, slots=True)
class SxidPolicyRow:
    """Advice for all SXids with these properties, and with this word of the driver: fatal, non-fatal or none."""

    code: str
    severity: str
    action: str
    word: str
    contested: str
    advice: NodeAdvice
    why: str

    def fits(self, meaning: XidMeaning, word: str) -> bool:
        pairs = (
            (self.code, str(meaning.code)),
            (self.severity, meaning.severity),
            (self.action, meaning.action),
            (self.word, word),
            (self.contested, meaning.contested),
        )
        return all(wanted in (ANY, found) for wanted, found in pairs)


@dataclass(frozen=True, slots=True)
class Window:
    """`count` occurrences at one place within `window_s` give `advice`; then the rule rests for `quiet_s`.

    Times nearer than `burst_s` to the one before are one occurrence. `by_processor`: the place is the GPC and TPC in
    the text, and a text without one is not counted; else it is the device, or the link of the ruling.
    """

    by_processor: bool
    count: int
    window_s: int
    burst_s: int
    quiet_s: int
    advice: Advice
    why: str


@dataclass(frozen=True, slots=True)
class Pair:
    """`cancels`: the occurrences of `other` no longer count. Else this code explains it: `alone` is its advice then."""

    other: int
    cancels: bool
    within_s: int
    alone: Advice | None
    why: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """What NVML's recovery action asks for."""

    name: str
    action: str
    advice: Advice
    why: str


def advise(policy: Iterable[PolicyRow], meaning: XidMeaning) -> tuple[Advice, str]:
    """Advice of the first row that fits, and its reason. ValueError where none does."""
    for row in policy:
        if row.fits(meaning):
            return row.advice, row.why
    raise ValueError(f"no row of the Xid policy fits {meaning.code}")


def read_meanings(rows: Iterable[Mapping[str, str]]) -> dict[int, XidMeaning]:
    return {
        int(row["code"]): XidMeaning(
            int(row["code"]), row["name"], row["class"], row["severity"], row["action"], row["source"]
        )
        for row in rows
    }


def read_policy(rows: Iterable[Mapping[str, str]]) -> tuple[PolicyRow, ...]:
    return tuple(
        PolicyRow(
            row["code"],
            row["severity"],
            row["class"],
            row["action"],
            row["contested"],
            Advice(row["advice"]),
            row["why"],
        )
        for row in rows
    )


def read_sxid_policy(rows: Iterable[Mapping[str, str]]) -> tuple[SxidPolicyRow, ...]:
    return tuple(
        SxidPolicyRow(
            row["code"],
            row["severity"],
            row["action"],
            row["word"],
            row["contested"],
            NodeAdvice(row["advice"]),
            row["why"],
        )
        for row in rows
    )


def read_windows(rows: Iterable[Mapping[str, str]]) -> dict[int, Window]:
    return {
        int(row["code"]): Window(
            row["place"] == "gpc_tpc",
            int(row["count"]),
            int(row["window_s"]),
            int(row["burst_s"]),
            int(row["quiet_s"]),
            Advice(row["advice"]),
            row["why"],
        )
        for row in rows
    }


def read_pairs(rows: Iterable[Mapping[str, str]]) -> dict[int, Pair]:
    return {
        int(row["code"]): Pair(
            int(row["other"]),
            row["relation"] == "cancels",
            int(row["within_s"]),
            Advice(row["alone"]) if row["alone"] else None,
            row["why"],
        )
        for row in rows
    }


def read_recoveries(rows: Iterable[Mapping[str, str]]) -> dict[int, Recovery]:
    return {int(row["value"]): Recovery(row["name"], row["action"], Advice(row["advice"]), row["why"]) for row in rows}


def rows_of(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Rows of a table; lines that begin with # are about the table."""
    return csv.DictReader(line for line in lines if not line.startswith("#"))
