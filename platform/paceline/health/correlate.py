"""Who else has it? What several sightings say together that none of them says alone. Pure.

| kind        | rule                  | when                                                | means                 |
|-------------|-----------------------|-----------------------------------------------------|-----------------------|
| APPLICATION | correlate.application | one code on several devices of one job, in a burst  | do not blame a device |
| HARDWARE    | correlate.hardware    | one code on one device in several jobs, there alone | blame the device      |
| FABRIC      | correlate.fabric      | links or silence on several hosts of one domain     | look at the domain    |

NVSentinel's analyzer does the first two for Xid 13 and 31 (24 h; bursts of 15 s to 3 min). Its issue #1704 is a trap avoided
here: a rule that reads its own output keeps itself alive, so findings made of findings (DERIVED) are no sightings.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from paceline.model.health import Finding
from paceline.model.ids import DeviceUuid, HostName, JobId

SECOND_NS: Final = 1_000_000_000
BURST_NS: Final = 60 * SECOND_NS
"""Sightings this close have one cause. A bug meets all ranks in the same step, and a rack loses power at once; what spreads
them is the period of the readings and the difference between the hosts' clocks."""
LOOK_BACK_NS: Final = 24 * 3600 * SECOND_NS
"""Older sightings say nothing. NVSentinel counts repeated Xids over a day as well."""
DEVICES_OF_A_JOB: Final = 2
JOBS_OF_A_DEVICE: Final = 2
HOSTS_OF_A_DOMAIN: Final = 2
assert BURST_NS < LOOK_BACK_NS, "a burst must fit into what is looked at"
assert min(DEVICES_OF_A_JOB, JOBS_OF_A_DEVICE, HOSTS_OF_A_DOMAIN) >= 2, "one sighting correlates with nothing"

BY_APPLICATION: Final = frozenset({11, 13, 25, 31, 43, 45, 68, 69, 94, 137, 141})
"""Xids that a program can bring on several devices at once: class user_app in xids.csv, and 94, a contained memory error,
which the catalog calls "sympathetic" where poison came from a peer over NVLink. The device with the real error is found by
its own counters (ecc.uncorrected), which no correlation excuses."""
BY_TEARDOWN: Final = frozenset({43, 45})
"""Channels that end with their process: 672 false fatals in 3 h of normal churn (NVSentinel #1710). Never hardware."""
OVER_NVLINK: Final = frozenset({74, 136, 144, 145, 146, 147, 148, 149, 150, 155})
"""Xids about a link between devices: either end, or what lies between them, may be at fault. Class fabric in xids.csv."""
SILENT: Final = "silent"
"""`code_or_rule` of a host that does not report."""
FABRIC_RULES: Final = frozenset({SILENT, "sxid", "link.down", "link.slow", "link.flaps"})
DERIVED: Final = frozenset({"xid.repeated", "correlate.application", "correlate.hardware", "correlate.fabric", "lemon"})
XID: Final = "xid:"
FABRIC_CODES: Final = FABRIC_RULES | {f"{XID}{code}" for code in OVER_NVLINK}
"""What speaks of a domain where several of its hosts have it."""


class Kind(StrEnum):
    APPLICATION = "APPLICATION"
    HARDWARE = "HARDWARE"
    FABRIC = "FABRIC"


@dataclass(frozen=True, slots=True)
class Sighting:
    """One code, or one rule that fired, on one device of a host. Only observations: OBSERVE findings too, DERIVED ones not.

    `uuid` is "" where a host has it, not a device; `job_id` is "" where no job had the device. `domain` is a switch, a rack or
    a power feed by name ("" if unknown); a host in several domains gives a sighting for each. `at_ns` is on the server's clock.
    """

    uuid: DeviceUuid
    host: HostName
    domain: str
    code_or_rule: str
    job_id: JobId
    at_ns: int


@dataclass(frozen=True, slots=True)
class Correlation:
    """`uuids` are the devices meant, sorted; `code_or_rule` is what was seen on them, "" for several.

    `domains`, all that the `hosts` share, are set for FABRIC only, `job_id` for APPLICATION only. Both are sorted.
    """

    kind: Kind
    rule_id: str
    uuids: tuple[DeviceUuid, ...]
    why: str
    code_or_rule: str
    domains: tuple[str, ...] = ()
    hosts: tuple[HostName, ...] = ()
    job_id: str = ""


def code_of(finding: Finding) -> str:
    """The `code_or_rule` of a finding: `xid:<code>`, or the rule."""
    code = finding.evidence.get("xid")
    return f"{XID}{code}" if finding.rule_id == "xid" and isinstance(code, int) else finding.rule_id


def explain(sightings: Sequence[Sighting], now_ns: int) -> tuple[Correlation, ...]:
    """All correlations of the last LOOK_BACK_NS, sorted. Order and repetition of `sightings` are no input. O(n log n)."""
    recent = {one for one in sightings if one.at_ns > now_ns - LOOK_BACK_NS and one.code_or_rule not in DERIVED}
    rows = sorted(recent, key=_by_time)
    on_devices = [row for row in rows if row.uuid and row.job_id and row.code_or_rule not in FABRIC_RULES]
    return tuple(sorted([*_application(on_devices), *_hardware(on_devices), *_fabric(rows)], key=_by_name))


def _application(rows: Sequence[Sighting]) -> list[Correlation]:
    """What no program can cause, on a device of the same job in the same burst, voids it: then the program is a victim."""
    jobs: dict[JobId, list[Sighting]] = defaultdict(list)
    for row in rows:
        jobs[row.job_id].append(row)
    found = []
    for job, of_job in jobs.items():
        faults = [row.at_ns for row in of_job if _xid(row) not in BY_APPLICATION]
        codes: dict[str, list[Sighting]] = defaultdict(list)
        for row in of_job:
            if _xid(row) in BY_APPLICATION and not _near(faults, row.at_ns):
                codes[row.code_or_rule].append(row)
        for code, of_code in codes.items():
            together = _together(of_code, lambda row: row.uuid, DEVICES_OF_A_JOB)
            if together:
                uuids = _uuids(together)
                why = f"{_spell(code)} on {len(uuids)} devices of job {job} within {BURST_NS // SECOND_NS} s"
                found.append(Correlation(Kind.APPLICATION, "correlate.application", uuids, why, code, job_id=job))
    return found


def _hardware(rows: Sequence[Sighting]) -> list[Correlation]:
    """Of a code that a program can cause, only jobs count whose other devices did not have it all day."""
    devices: dict[tuple[JobId, str], set[DeviceUuid]] = defaultdict(set)
    for row in rows:
        devices[row.job_id, row.code_or_rule].add(row.uuid)
    jobs: dict[tuple[DeviceUuid, str], set[JobId]] = defaultdict(set)
    for row in rows:
        alone = devices[row.job_id, row.code_or_rule] == {row.uuid}
        if _xid(row) not in BY_TEARDOWN and (alone or _xid(row) not in BY_APPLICATION):
            jobs[row.uuid, row.code_or_rule].add(row.job_id)
    found = []
    for (uuid, code), of_device in jobs.items():
        if len(of_device) >= JOBS_OF_A_DEVICE:
            why = f"{_spell(code)} on this one device in {len(of_device)} jobs within a day"
            found.append(Correlation(Kind.HARDWARE, "correlate.hardware", (uuid,), why, code))
    return found


def _fabric(rows: Sequence[Sighting]) -> list[Correlation]:
    """One correlation for the hosts that were struck, however many domains they share; hosts that are some of another one's are
    left out with their domains: a wider one explains more."""
    domains: dict[str, list[Sighting]] = defaultdict(list)
    for row in rows:
        if row.domain and row.code_or_rule in FABRIC_CODES:
            domains[row.domain].append(row)
    struck = {name: _together(of_one, lambda row: row.host, HOSTS_OF_A_DOMAIN) for name, of_one in domains.items()}
    shared: dict[frozenset[HostName], list[Sighting]] = defaultdict(list)
    for together in struck.values():
        if together:
            shared[frozenset(row.host for row in together)].extend(together)
    return [_of_hosts(hosts, rows) for hosts, rows in shared.items() if not any(hosts < others for others in shared)]


def _of_hosts(struck: frozenset[HostName], rows: Sequence[Sighting]) -> Correlation:
    hosts, domains = tuple(sorted(struck)), tuple(sorted({row.domain for row in rows}))
    codes = sorted({row.code_or_rule for row in rows})
    where = f"{len(hosts)} hosts of {', '.join(domains)} ({', '.join(hosts)})"
    why = f"{', '.join(map(_spell, codes))} on {where} within {BURST_NS // SECOND_NS} s"
    code = codes[0] if len(codes) == 1 else ""
    return Correlation(Kind.FABRIC, "correlate.fabric", _uuids(rows), why, code, domains, hosts)


T = TypeVar("T", bound=Hashable)


def _together(rows: Sequence[Sighting], key: Callable[[Sighting], T], least: int) -> list[Sighting]:
    """Those of `rows` (by time) that lie in some span of BURST_NS which holds `least` different keys."""
    kept: list[Sighting] = []
    inside: Counter[T] = Counter()
    first = kept_to = 0
    for last, row in enumerate(rows):
        inside[key(row)] += 1
        while row.at_ns - rows[first].at_ns > BURST_NS:
            gone = key(rows[first])
            inside[gone] -= 1
            if not inside[gone]:
                del inside[gone]
            first += 1
        if len(inside) >= least:
            kept.extend(rows[max(first, kept_to) : last + 1])
            kept_to = last + 1
    return kept


def _near(times_ns: Sequence[int], at_ns: int) -> bool:
    """Whether one of the sorted `times_ns` is within BURST_NS of `at_ns`."""
    first = bisect_left(times_ns, at_ns - BURST_NS)
    return first < len(times_ns) and times_ns[first] <= at_ns + BURST_NS


def _xid(row: Sighting) -> int | None:
    """Its Xid; None for a rule. A rule on a device's counters speaks of hardware, like an Xid that no program can cause."""
    return int(row.code_or_rule.removeprefix(XID)) if row.code_or_rule.startswith(XID) else None


def _spell(code: str) -> str:
    return f"Xid {code.removeprefix(XID)}" if code.startswith(XID) else code


def _uuids(rows: Iterable[Sighting]) -> tuple[DeviceUuid, ...]:
    return tuple(sorted({row.uuid for row in rows if row.uuid}))


def _by_time(row: Sighting) -> tuple[int, str, str, str, str, str]:
    return row.at_ns, row.uuid, row.host, row.domain, row.code_or_rule, row.job_id


def _by_name(one: Correlation) -> tuple[str, tuple[str, ...], str, str, tuple[DeviceUuid, ...]]:
    return one.kind, one.domains, one.job_id, one.code_or_rule, one.uuids
