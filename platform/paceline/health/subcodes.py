"""What the text of an Xid says beyond its code. Pure: text in, facts out; catalog.py makes a ruling of them.

| Xid     | its text                                                                        | read here                |
|---------|---------------------------------------------------------------------------------|--------------------------|
| 13      | Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction         | the processor            |
| 74      | NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)  | the link, its bits       |
| 144–150 | RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x0 0x0 0x0 0x0)   | the rule, the link       |
| 154     | GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)       | what the driver asks for |

Before the text there may be `pid=…, name=…,`. NVML tells codes without texts.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from paceline.model.health import Advice

NVLINK_BITS: Final = 74
NVLINK5: Final = range(144, 151)
RECOVERY_CHANGED: Final = 154
TOLD_BY_TEXT: Final = frozenset({NVLINK_BITS, *NVLINK5, RECOVERY_CHANGED})
"""Codes that mean this or that by their text."""

_NVLINK5: Final = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_/]+)\s+(?P<word>Fatal|Nonfatal)\s+XC\d+\s+i\d+\s+Link\s+(?P<link>-?\d{1,3})\s+"
    r"\((?P<intrinfo>0x[0-9a-fA-F]{1,8})\s+(?P<status>0x[0-9a-fA-F]{1,8})\b"
)
_NVLINK: Final = re.compile(
    r"link (?P<link>\d{1,3})\s*\((?P<registers>0x[0-9a-fA-F]{1,8}(?:,\s*0x[0-9a-fA-F]{1,8}){6})\)"
)
_RECOVERY: Final = re.compile(r"recovery action changed from 0x[0-9a-fA-F]+ \([^)]*\) to 0x(?P<to>[0-9a-fA-F]{1,8})\b")
_SM: Final = re.compile(r"\(GPC (?P<gpc>\d{1,2}), TPC (?P<tpc>\d{1,2})\b")


@dataclass(frozen=True, slots=True)
class Nvlink5Line:
    """`word` is the driver's own severity. `link` is -1 where no link is meant."""

    unit: str
    word: str
    link: int
    intrinfo: int
    status: int


@dataclass(frozen=True, slots=True)
class BitPattern:
    """32 characters of 0, 1 and - (any), the highest bit first."""

    mask: int
    value: int

    @classmethod
    def of(cls, text: str) -> "BitPattern":
        return cls(int(text.translate({45: "0", 48: "1"}), 2), int(text.replace("-", "0"), 2))

    def fits(self, word: int) -> bool:
        return word & self.mask == self.value


@dataclass(frozen=True, slots=True)
class Nvlink5Rule:
    """One row of xid_nvlink5_rules.csv. Drivers before R575 write intrinfo by `v1`, later ones by `v2`.

    The unit's name, which is in the line, tells the two apart: no name fits one rule by v1 and another by v2 with
    another resolution. `alternative` is the resolution where the line calls fatal what the rule does not.
    """

    code: int
    units: tuple[str, ...]
    v1: BitPattern
    v2: BitPattern
    status: int
    resolution: str
    alternative: str
    severity: str
    investigate: str
    number: int

    @property
    def name(self) -> str:
        return f"{'/'.join(self.units)} {self.status:#010x} rule {self.number}"

    def fits(self, line: Nvlink5Line) -> bool:
        return (
            line.status == self.status
            and (self.v1.fits(line.intrinfo) or self.v2.fits(line.intrinfo))
            and any(unit in self.units for unit in line.unit.split("/"))
        )


@dataclass(frozen=True, slots=True)
class LinkBits:
    """One row of xid74_bits.csv: what these bits of the register (counted from 1) ask for.

    `label` is this row's alone. `only`: counts where no other row fits. `repeated` is the advice after `repeats` times on
    one link, 0: never.
    """

    register: int
    mask: int
    name: str
    only: bool
    advice: Advice
    repeats: int
    repeated: Advice
    why: str
    label: str


@dataclass(frozen=True, slots=True)
class LinkFault:
    """An Xid 74 that was read: its link, and the strongest row of its bits."""

    link: int
    bits: LinkBits


def read_nvlink5(detail: str) -> Nvlink5Line | None:
    """The text of an Xid 144 to 150, or None where it is another text or cut off."""
    found = _NVLINK5.search(detail)
    if found is None:
        return None
    return Nvlink5Line(
        found["unit"], found["word"], int(found["link"]), int(found["intrinfo"], 16), int(found["status"], 16)
    )


def nvlink5_rule(
    rules: Mapping[tuple[int, int], tuple[Nvlink5Rule, ...]], code: int, line: Nvlink5Line
) -> Nvlink5Rule | None:
    """The first of the rules by (code, status) that fits, or None: the sub-code is in no table."""
    return next((rule for rule in rules.get((code, line.status), ()) if rule.fits(line)), None)


def link_fault(rows: Iterable[LinkBits], detail: str) -> LinkFault | None:
    """What the registers of an Xid 74 say; None without registers, without bits, and with a bit that no row names."""
    found = _NVLINK.search(detail)
    if found is None:
        return None
    registers = [int(word, 16) for word in found["registers"].split(",")]
    left = {number: registers[number - 1] for number in _WATCHED_REGISTERS}
    fitting = []
    for row in rows:
        if registers[row.register - 1] & row.mask:
            left[row.register] &= ~row.mask
            fitting.append(row)
    if not fitting or any(left.values()):
        return None
    primary = [row for row in fitting if not row.only] or fitting
    return LinkFault(int(found["link"]), max(primary, key=lambda row: (_STRENGTH[row.advice], row.repeats)))


def recovery_action(detail: str) -> int | None:
    """The action that an Xid 154 changes to, as NVML field 230 counts them; None where the text is another."""
    found = _RECOVERY.search(detail)
    return int(found["to"], 16) if found else None


def gpc_tpc(detail: str) -> str | None:
    """The processor that an Xid 13 names: `GPC 7 TPC 7`."""
    found = _SM.search(detail)
    return f"GPC {int(found['gpc'])} TPC {int(found['tpc'])}" if found else None


def stronger(one: Advice, other: Advice) -> bool:
    return _STRENGTH[one] > _STRENGTH[other]


def nvlink5_rules(rows: Iterable[Mapping[str, str]]) -> dict[tuple[int, int], tuple[Nvlink5Rule, ...]]:
    """Rules by code and error status."""
    rules = defaultdict(list)
    for number, row in enumerate(rows, start=1):
        rule = Nvlink5Rule(
            code=int(row["xid"]),
            units=tuple(row["unit"].split("/")),
            v1=BitPattern.of(row["intrinfo_v1"]),
            v2=BitPattern.of(row["intrinfo_v2"]),
            status=int(row["error_status"], 16),
            resolution=row["resolution"],
            alternative=row["alt_action"],
            severity=row["severity"].rstrip("*?"),
            investigate=row["investigatory"],
            number=number,
        )
        rules[rule.code, rule.status].append(rule)
    return {key: tuple(found) for key, found in rules.items()}


def link_bits(rows: Iterable[Mapping[str, str]]) -> tuple[LinkBits, ...]:
    return tuple(
        LinkBits(
            register=int(row["register"]),
            mask=sum(1 << int(bit) for bit in row["bits"].split()),
            name=row["name"],
            only=row["only"] == "yes",
            advice=Advice(row["advice"]),
            repeats=int(row["repeats"]),
            repeated=Advice(row["repeated"] or row["advice"]),
            why=row["why"],
            label=f"{row['name']} {row['register']}:{row['bits'].replace(' ', ',')}",
        )
        for row in rows
    )


_WATCHED_REGISTERS: Final = (1, 3, 4, 5)
"""The others are not for analysis (WORKFLOW_NVLINK_ERR)."""
_STRENGTH: Final = {advice: strength for strength, advice in enumerate(Advice)}
assert list(_STRENGTH) == [Advice.OBSERVE, Advice.SUSPECT, Advice.QUARANTINE], "Advice is in the order of its strength"
