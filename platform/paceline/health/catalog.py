"""What each Xid and SXid means and what it asks for. Pure but for `load`, which reads this package's own tables once.

Rows and their columns: xid_tables.py.

| table                 | says                                                                                       |
|-----------------------|--------------------------------------------------------------------------------------------|
| xids.csv              | what a code means, and what NVIDIA's catalog, gpud, DCGM, NVSentinel and others make of it |
| xid_policy.csv        | what Paceline makes of such a code, with the reason; the first row that fits decides       |
| xid_windows.csv       | codes that count by repetition                                                             |
| xid_pairs.csv         | codes that belong to another one                                                           |
| xid_nvlink5_rules.csv | sub-codes of Xid 144 to 150                                                                |
| xid74_bits.csv        | bits of an Xid 74                                                                          |
| recovery_actions.csv  | what the driver itself asks for                                                            |
| sxid_policy.csv       | what Paceline makes of an NVSwitch's SXid                                                  |

Who decides, strongest first: the driver's own word (an Xid 154; NVML's recovery action, while it lasts), the sub-code,
the site's file, the table. The finding names it as `authority`. A code that is in no table is OBSERVE: recorded, never
acted on.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from paceline.health import subcodes
from paceline.health.site_policy import SXID_FIRST, SiteRow, read_site
from paceline.health.subcodes import LinkBits, Nvlink5Rule
from paceline.health.xid_tables import (
    ANY,
    Pair,
    PolicyRow,
    Recovery,
    SxidPolicyRow,
    Window,
    XidMeaning,
    advise,
    read_meanings,
    read_pairs,
    read_policy,
    read_recoveries,
    read_sxid_policy,
    read_windows,
    rows_of,
)
from paceline.model.health import Advice, NodeAdvice

TABLES_VERSION: Final = 2
"""Grows with every change to a table of this folder that would judge differently."""
DAY_S: Final = 86_400
ONE_EVENT_S: Final = 5
"""NVML and the kernel log tell of one Xid within this time."""

DRIVER: Final = "driver"
SUBCODE: Final = "sub-code"
SITE: Final = "site"
TABLE: Final = "table"
NOBODY: Final = "none"
FOLLOW_154: Final = "xid_154_eval"
"""Action of a sub-code that leaves it to the driver's recovery action."""
NON_FATAL: Final = "non-fatal"
WORDS: Final = ("fatal", NON_FATAL, "none")
"""What the driver itself calls an SXid, in its line."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What is to be made of one Xid. `authority` is driver, sub-code, site, table or none; `sub` the sub-code's name.

    `place` is the link of an Xid 74, for which its window counts; "" the device. `recovery` is set by an Xid 154.
    """

    advice: Advice
    authority: str
    why: str
    name: str
    severity: str = ""
    fault_class: str = ""
    action: str = ""
    sub: str = ""
    place: str = ""
    window: Window | None = None
    recovery: int | None = None

    @property
    def known(self) -> bool:
        return self.authority != NOBODY


@dataclass(frozen=True, slots=True)
class SxidRuling:
    """What is to be made of an SXid; `authority` as in Ruling."""

    advice: NodeAdvice
    authority: str
    why: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """All tables, and the rulings that depend on the code or the sub-code only, made once. `version` goes into evidence."""

    version: str
    meanings: Mapping[int, XidMeaning]
    sxids: Mapping[int, XidMeaning]
    policy: tuple[PolicyRow, ...]
    sxid_policy: tuple[SxidPolicyRow, ...]
    windows: Mapping[int, Window]
    pairs: Mapping[int, Pair]
    paired: frozenset[int]
    """Codes that another one belongs to."""
    recoveries: Mapping[int, Recovery]
    link_bits: tuple[LinkBits, ...]
    nvlink5: Mapping[tuple[int, int], tuple[Nvlink5Rule, ...]]
    rulings: Mapping[int, Ruling]
    sub_rulings: Mapping[tuple[int, bool], Ruling]
    """By the number of the NVLink 5 rule, and whether the line calls it fatal."""
    link_rulings: Mapping[str, Ruling]
    """By the name of the row of `link_bits`."""
    sxid_rulings: Mapping[tuple[int, str], SxidRuling]
    """By code, and the driver's word."""

    def advise(self, meaning: XidMeaning) -> tuple[Advice, str]:
        """The table's advice and the reason for it."""
        return advise(self.policy, meaning)

    def rule(self, code: int, detail: str = "", recovery: int | None = None) -> Ruling:
        """The ruling on an Xid with this text. `recovery` is the driver's standing word (NVML field 230), None: unknown.

        That word may make a ruling stronger, where the code is not for observation only or leaves it to the driver.
        It makes none weaker: it may be older than the fault.
        """
        if code == subcodes.RECOVERY_CHANGED and (told := self._told(detail)):
            return told
        ruling = self._by_subcode(code, detail) or self.rulings.get(code) or _unknown(code)
        standing = self.recoveries.get(recovery) if recovery else None
        asks = ruling.advice is not Advice.OBSERVE or ruling.action == FOLLOW_154
        if standing and asks and ruling.known and subcodes.stronger(standing.advice, ruling.advice):
            return replace(
                ruling, advice=standing.advice, authority=DRIVER, why=standing.why, action=standing.action, window=None
            )
        return ruling

    def rule_sxid(self, code: int, word: str) -> SxidRuling:
        """The ruling for the switch's machine. `word` is the driver's own: fatal, non-fatal or none."""
        return self.sxid_rulings.get((code, word)) or SxidRuling(
            NodeAdvice.OBSERVE, NOBODY, "in no catalog: recorded only"
        )

    def _told(self, detail: str) -> Ruling | None:
        value = subcodes.recovery_action(detail)
        row = None if value is None else self.recoveries.get(value)
        if row is None:
            return None
        meaning = self.meanings[subcodes.RECOVERY_CHANGED]
        name = f"the driver's recovery action is now {row.name}"
        return Ruling(
            row.advice,
            DRIVER,
            row.why,
            name,
            meaning.severity,
            meaning.fault_class,
            row.action,
            row.name,
            recovery=value,
        )

    def _by_subcode(self, code: int, detail: str) -> Ruling | None:
        if not detail:
            return None
        if code == subcodes.NVLINK_BITS:
            fault = subcodes.link_fault(self.link_bits, detail)
            return replace(self.link_rulings[fault.bits.label], place=f"link {fault.link}") if fault else None
        if code in subcodes.NVLINK5 and (line := subcodes.read_nvlink5(detail)):
            rule = subcodes.nvlink5_rule(self.nvlink5, code, line)
            return self.sub_rulings[rule.number, line.word == "Fatal"] if rule else None
        return None


_RESOLUTIONS: Final = {"IGNORE": "none", "RESET_GPU": "reset_gpu", "XID_154_EVAL": FOLLOW_154}
_SEVERITIES: Final = {"Fatal": "fatal", "Non-fatal": "warn", "Link Fatal": "link_fatal"}


@cache
def load(site: str = "") -> Catalog:
    """The tables of this package, with the text of a site's file over them (site_policy.py). Read once in a process.

    Raises BadRequest (PL-REQ-040) for a file that is not right, naming the line.
    """
    both = read_meanings(_rows("xids.csv"))
    meanings = {code: meaning for code, meaning in both.items() if code < SXID_FIRST}
    sxids = {code: meaning for code, meaning in both.items() if code >= SXID_FIRST}
    policy = read_policy(_rows("xid_policy.csv"))
    nvlink5 = subcodes.nvlink5_rules(_rows("xid_nvlink5_rules.csv"))
    windows = read_windows(_rows("xid_windows.csv"))
    pairs = read_pairs(_rows("xid_pairs.csv"))
    link_bits = subcodes.link_bits(_rows("xid74_bits.csv"))
    sxid_policy = read_sxid_policy(_rows("sxid_policy.csv"))
    rows, stamp = read_site(site)
    return Catalog(
        version=f"{TABLES_VERSION}{stamp}",
        meanings=MappingProxyType(meanings),
        sxids=MappingProxyType(sxids),
        policy=policy,
        sxid_policy=sxid_policy,
        windows=MappingProxyType(windows),
        pairs=MappingProxyType(pairs),
        paired=frozenset(pair.other for pair in pairs.values()),
        recoveries=MappingProxyType(read_recoveries(_rows("recovery_actions.csv"))),
        link_bits=link_bits,
        nvlink5=MappingProxyType(nvlink5),
        rulings=MappingProxyType(_rulings(meanings, policy, windows, rows)),
        sub_rulings=MappingProxyType(_sub_rulings(meanings, policy, nvlink5)),
        link_rulings=MappingProxyType(_link_rulings(meanings[subcodes.NVLINK_BITS], link_bits)),
        sxid_rulings=MappingProxyType(_sxid_rulings(sxids, sxid_policy, rows)),
    )


def _rows(table: str) -> Iterator[dict[str, str]]:
    return rows_of(files("paceline.health").joinpath(table).read_text("utf-8").splitlines())


def _rulings(
    meanings: Mapping[int, XidMeaning],
    policy: Iterable[PolicyRow],
    windows: Mapping[int, Window],
    site: Mapping[int, SiteRow],
) -> dict[int, Ruling]:
    rulings = {}
    for code, meaning in meanings.items():
        advice, why = advise(policy, meaning)
        rulings[code] = _of(meaning, advice, TABLE, why, windows.get(code))
    for code, row in site.items():
        if code < SXID_FIRST:
            meaning = meanings.get(code) or XidMeaning(code, "known to this site only", "unknown", "unknown", "", "")
            rulings[code] = _site_ruling(meaning, row)
    return rulings


def _site_ruling(meaning: XidMeaning, row: SiteRow) -> Ruling:
    """A site's row replaces the table's advice and window. With a count, fewer occurrences are observed."""
    if row.count <= 1:
        return _of(meaning, Advice(row.advice), SITE, row.why, None)
    window = Window(False, row.count, row.window_s, ONE_EVENT_S, row.window_s, Advice(row.advice), row.why)
    return _of(meaning, Advice.OBSERVE, SITE, f"fewer than {row.count} in {row.window_s} s: {row.why}", window)


def _sub_rulings(
    meanings: Mapping[int, XidMeaning],
    policy: tuple[PolicyRow, ...],
    nvlink5: Mapping[tuple[int, int], tuple[Nvlink5Rule, ...]],
) -> dict[tuple[int, bool], Ruling]:
    rulings = {}
    for rule in (rule for rules in nvlink5.values() for rule in rules):
        for called_fatal in (False, True):
            raised = called_fatal and bool(rule.alternative)
            meaning = replace(
                meanings[rule.code],
                name=f"{rule.units[0]}, {rule.severity.lower()}: NVIDIA says {rule.resolution}, {rule.investigate}",
                severity="fatal" if raised else _SEVERITIES[rule.severity],
                action=_RESOLUTIONS[rule.alternative if raised else rule.resolution],
                source="",
            )
            advice, why = advise(policy, meaning)
            rulings[rule.number, called_fatal] = replace(_of(meaning, advice, SUBCODE, why, None), sub=rule.name)
    return rulings


def _sxid_rulings(
    sxids: Mapping[int, XidMeaning], policy: tuple[SxidPolicyRow, ...], site: Mapping[int, SiteRow]
) -> dict[tuple[int, str], SxidRuling]:
    """A site stays below the driver, who calls an SXid non-fatal."""
    rulings = {}
    for meaning in sxids.values():
        for word in WORDS:
            row = next(row for row in policy if row.fits(meaning, word))
            rulings[meaning.code, word] = SxidRuling(row.advice, DRIVER if row.word != ANY else TABLE, row.why)
    for code, ours in site.items():
        for word in WORDS if code >= SXID_FIRST else ():
            rulings[code, word] = SxidRuling(NodeAdvice(ours.advice), SITE, ours.why)
            if word == NON_FATAL:
                rulings[code, word] = SxidRuling(NodeAdvice.OBSERVE, DRIVER, "the driver itself calls it non-fatal")
    return rulings


def _link_rulings(meaning: XidMeaning, rows: Iterable[LinkBits]) -> dict[str, Ruling]:
    rulings = {}
    for row in rows:
        again = f"{row.why}, {row.repeats} times on one link"
        window = Window(False, row.repeats, DAY_S, ONE_EVENT_S, DAY_S, row.repeated, again) if row.repeats else None
        ruling = _of(meaning, row.advice, SUBCODE, row.why, window)
        rulings[row.label] = replace(ruling, name=f"{meaning.name}: {row.name}", sub=row.label)
    return rulings


def _of(meaning: XidMeaning, advice: Advice, authority: str, why: str, window: Window | None) -> Ruling:
    return Ruling(
        advice, authority, why, meaning.name, meaning.severity, meaning.fault_class, meaning.action, window=window
    )


def _unknown(code: int) -> Ruling:
    return Ruling(Advice.OBSERVE, NOBODY, "in no catalog: recorded only", f"Xid {code} is in no catalog")
