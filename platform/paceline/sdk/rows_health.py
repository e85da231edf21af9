"""What the server answers about health: verdicts, repairs, alerts, links, rules. Times are unix nanoseconds; 0 means not yet."""

from enum import StrEnum

from paceline.model.health import Advice, AgentStats, RepairAction, RuleMode
from paceline.model.ids import DeviceUuid, EventId, HostName
from paceline.sdk.rows import DeviceRow, HostRow, Row


class VerdictMode(StrEnum):
    """What became of a decision."""

    ENFORCE = "enforce"  # it was carried out
    SHADOW = "shadow"  # the rule is on trial: nothing was done
    HELD = "held"  # the circuit breaker kept it from being carried out
    EXCUSED = "excused"  # the application that ran there explains it: nothing was done


class AlertKind(StrEnum):
    QUARANTINE = "quarantine"
    BREAKER_HELD = "breaker held"
    UNKNOWN_XID = "unknown xid"
    NODE_CORDONED = "node cordoned"
    DEVICE_LOST = "device lost"
    REPLACE = "replace"
    DRAIN_LATE = "drain late"
    STRANGER = "stranger"
    FABRIC = "fabric"


class VerdictRow(Row):
    """A decision about a device, or about a node: then `uuid` is empty.

    `to_state` is what came of it; where `mode` is not enforce, what would have. `evidence` are the events that it rests on, `event_id`
    is the one that tells of it. `label` says whether it was right, once somebody has looked.
    """

    id: int
    uuid: DeviceUuid
    host: HostName
    rule_id: str
    rule_version: int
    advice: str
    mode: VerdictMode
    automatic: bool
    from_state: str
    to_state: str
    reason: str
    evidence: tuple[EventId, ...]
    at_ns: int
    event_id: EventId
    label: bool | None
    label_by: str
    label_ns: int


class RuleStats(Row):
    """Verdicts of one rule in one mode. `false_rate` is `labelled_false / labelled`: None while nobody has labelled any."""

    rule_id: str
    mode: VerdictMode
    verdicts: int
    labelled: int
    labelled_false: int

    @property
    def false_rate(self) -> float | None:
        return self.labelled_false / self.labelled if self.labelled else None


class MtbfScope(StrEnum):
    """What failures and hours are added up by."""

    SKU = "sku"
    RACK = "rack"
    HOST = "host"
    DEVICE = "device"


class RuleRow(Row):
    """A rule as the server applies it, with its verdicts in every mode. `false_rate` as in `RuleStats`, over all modes."""

    rule_id: str
    version: int
    mode: RuleMode
    sentence: str
    verdicts: int
    shadow: int
    held: int
    excused: int
    labelled: int
    labelled_false: int
    false_rate: float | None


class FindingRow(Row):
    """The last time that a rule fired on a device; `repeats` counts how often it did so without a pause."""

    rule_id: str
    rule_version: int
    advice: Advice
    summary: str
    first_ns: int
    last_ns: int
    repeats: int
    event_id: EventId


class RepairRow(Row):
    """A step of the repair ladder. `ok` is None while it goes on; `code` is the Xid or the rule that it is for."""

    id: int
    serial: str
    uuid: DeviceUuid
    action: RepairAction
    code: str
    at_ns: int
    ended_ns: int
    ok: bool | None
    reason: str
    who: str
    event_id: EventId


class RepairAdvice(Row):
    """The next step, and why. It takes the devices `wait_for` along: it must not begin while they work."""

    action: RepairAction
    reason: str
    wait_for: tuple[DeviceUuid, ...] = ()


class ScoreRow(Row):
    """A device's time in one class of work, relative to the median of its cohort.

    `noise` is within its last probe, `mad` from probe to probe over the last `n` scores; `repeatability` is the largest difference
    that two probes of an unchanged device show in 95 of 100 cases. `drift` is what it has lost since its first probes.
    """

    workload: str
    score: float
    noise: float
    mad: float | None
    n: int
    repeatability: float | None
    drift: float | None
    scored_ns: int


class DeviceHealth(Row):
    """Why a device is as it is. `findings` are those since it was HEALTHY last; `advice` is the next step of its repair, where
    it is out and a step is known.
    """

    device: DeviceRow
    verdicts: tuple[VerdictRow, ...]
    findings: tuple[FindingRow, ...]
    repairs: tuple[RepairRow, ...]
    advice: RepairAdvice | None
    scores: tuple[ScoreRow, ...]


class LinkRow(Row):
    """The last reading of a port. `since_ns`: when it came up or went down, as far as it was seen."""

    host: HostName
    name: str
    kind: str
    at_ns: int
    up: bool
    since_ns: int
    rate_gbps: float | None
    link_downed: int | None
    errors: int | None


class AlertRow(Row):
    """`waiting` names who has not acknowledged it yet: the host of a webhook and a digest of its address."""

    id: int
    at_ns: int
    kind: AlertKind
    entity: str
    summary: str
    event_id: EventId
    body: dict[str, str | int | float | bool | None]
    waiting: tuple[str, ...] = ()


class NodeMeasurementRow(Row):
    """The last full probe of a host in one benchmark: an exchange between its devices.

    `seconds` is the median of its repetitions, `bus_gbps` what the busiest link carried then (10⁹ bytes a second), `relative` the time
    over the median of hosts that are alike. None where it failed.
    """

    benchmark: str
    devices: int
    at_ns: int
    ok: bool
    error: str
    seconds: float | None
    bus_gbps: float | None
    relative: float | None


class HostDetail(HostRow):
    """A host with its devices, its ports, its last full probe, and what watching it costs. `domains`: kind of failure domain → name."""

    domains: dict[str, str]
    cards: tuple[DeviceRow, ...]
    links: tuple[LinkRow, ...]
    exchanges: tuple[NodeMeasurementRow, ...]
    verdicts: tuple[VerdictRow, ...]
    agent: AgentStats | None
    agent_ns: int


class MtbfRow(Row):
    """Failures of the devices of one SKU, rack or host, or of one device, and the hours for which they were in service and watched.

    `mtbf_h` is None while none has failed; `low_h` and `high_h` hold with 95 %, exactly for a Poisson count. None: no such bound.
    """

    scope: MtbfScope
    name: str
    device_hours: float
    failures: int
    mtbf_h: float | None
    low_h: float | None
    high_h: float | None


class SignalRow(Row):
    """A signal over its bar: `count` in 28 days, where the other hosts let expect `expected`."""

    signal: str
    count: int
    expected: float


class LemonRow(Row):
    """A host that fails again and again, and stands out of its fleet."""

    host: HostName
    over: tuple[SignalRow, ...]
    why: str


class Reliability(Row):
    """How often what has failed in a window of time, and which hosts are lemons over 28 days, the worst first.

    `lemons` is None where too few hosts have reported to compare them. `signals` are those that they are judged by: what the
    inventory does not know is not among them.
    """

    from_ns: int
    to_ns: int
    mtbf: tuple[MtbfRow, ...]
    lemons: tuple[LemonRow, ...] | None
    signals: tuple[str, ...]
