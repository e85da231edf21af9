"""Reports that the server has not acknowledged yet. Pure.

While the server is away, samples are the first to go, oldest first; a report with nothing left in it goes with them,
as a newer one says the same. Xids and findings, of devices and of the machine, are never dropped: their own quiet times
bound them (xid_rules.py, findings.py, links.py).
"""

from dataclasses import dataclass, replace
from typing import Final

from paceline.model.health import NodeReport

SAMPLED_REPORTS: Final = 60
"""Newest reports that keep their samples: a minute at one report a second, about 150 kB for eight devices."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Oldest first. `thinned` counts the reports that have lost their samples."""

    reports: tuple[NodeReport, ...] = ()
    thinned: int = 0

    @property
    def oldest(self) -> NodeReport | None:
        return self.reports[0] if self.reports else None


def add(backlog: Backlog, report: NodeReport) -> Backlog:
    """`report` behind the others. O(n), n ≤ SAMPLED_REPORTS and the reports with an Xid or a finding."""
    old, recent = backlog.reports[: -(SAMPLED_REPORTS - 1)], backlog.reports[-(SAMPLED_REPORTS - 1) :]
    kept = tuple(replace(one, samples=(), links=(), agent=None) for one in old if _tells(one))
    thinned = sum(1 for one in old if one.samples)
    return Backlog((*kept, *recent, report), backlog.thinned + thinned)


def _tells(report: NodeReport) -> bool:
    return bool(report.xids or report.findings or report.node_findings)


def acknowledged(backlog: Backlog, seq: int) -> Backlog:
    """Without the report `seq`."""
    return replace(backlog, reports=tuple(one for one in backlog.reports if one.seq != seq))
