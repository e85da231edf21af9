"""A site's own word on Xids and SXids, as text of a file. Pure.

```
code,advice,why,count,window_s
43,SUSPECT,ours come from one bad batch,3,600
68,QUARANTINE,we decode video: a broken decoder is a broken device
12028,CORDON,the vendor told us to
```
One row replaces what the tables say of its code, windows included; the driver's word and a sub-code stay above it.
`count` and `window_s` may be left out: then once is enough. SXids (from 10000) take OBSERVE or CORDON, and no count.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NoReturn

from paceline.model.errors import BadRequest
from paceline.model.health import Advice, NodeAdvice

COLUMNS: Final = ("code", "advice", "why", "count", "window_s")
SXID_FIRST: Final = 10_000
"""SXids are numbered from here, Xids below."""
SXID_LAST: Final = 99_999
COUNT_MOST: Final = 1_000
WINDOW_MOST_S: Final = 30 * 86_400
"""A month; a fault that comes back more rarely is for a person to see."""


@dataclass(frozen=True, slots=True)
class SiteRow:
    """`advice` is the name of an Advice, for an SXid of a NodeAdvice. `count` 1: at once."""

    code: int
    advice: str
    why: str
    count: int = 1
    window_s: int = 0


def read_site(text: str) -> tuple[dict[int, SiteRow], str]:
    """Rows by code, and a stamp of the text for evidence: "" where there is none.

    Raises BadRequest (PL-REQ-040), naming the line.
    """
    if not text.strip():
        return {}, ""
    rows: dict[int, SiteRow] = {}
    lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if _says(line)]
    header = tuple(_cells(*lines[0])) if lines else ()
    if header not in (COLUMNS, COLUMNS[:3]):
        _wrong(lines[0][0] if lines else 1, f"the columns are {', '.join(header)}", f"begin with: {','.join(COLUMNS)}")
    for number, line in lines[1:]:
        cells = _cells(number, line)
        if not 3 <= len(cells) <= len(header):
            _wrong(number, f"it has {len(cells)} cells", f"write {','.join(header)}; quote a reason with a comma in it")
        row = _row(number, dict(zip(header, cells, strict=False)))
        if row.code in rows:
            _wrong(number, f"code {row.code} is there twice", "keep one row for each code")
        rows[row.code] = row
    return rows, f"+site:{sha256(text.encode()).hexdigest()[:8]}"


def _row(number: int, cells: Mapping[str, str]) -> SiteRow:
    code = _whole(number, "code", cells["code"], SXID_LAST)
    switch = code >= SXID_FIRST
    allowed = [advice.value for advice in (NodeAdvice if switch else Advice)]
    if cells["advice"] not in allowed:
        _wrong(
            number,
            f"{cells['advice']!r} is no advice for {'an SXid' if switch else 'an Xid'}",
            f"one of: {', '.join(allowed)}",
        )
    if not cells["why"]:
        _wrong(number, "it gives no reason", "say why: the reason stands in every finding")
    count, window_s = cells.get("count", ""), cells.get("window_s", "")
    if bool(count) != bool(window_s):
        _wrong(number, "count and window_s belong together", "give both, or none of them for at once")
    if not count:
        return SiteRow(code, cells["advice"], cells["why"])
    if switch:
        _wrong(number, "SXids are not counted", "leave count and window_s empty")
    times = _whole(number, "count", count, COUNT_MOST)
    return SiteRow(code, cells["advice"], cells["why"], times, _whole(number, "window_s", window_s, WINDOW_MOST_S))


def _cells(number: int, line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line]))]
    except csv.Error as error:
        _wrong(number, str(error), f"write {','.join(COLUMNS)}; quote a reason with a comma in it")


def _whole(number: int, name: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= most):
        _wrong(number, f"{name} is {text!r}", f"give a whole number, 1 to {most}")
    return int(text)


def _says(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("#")


def _wrong(number: int, reason: str, hint: str) -> NoReturn:
    raise BadRequest("PL-REQ-040", f"Line {number} of the site's Xid file is not right: {reason}", hint)
