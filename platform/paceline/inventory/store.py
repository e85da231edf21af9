"""The door to the inventory. Each command is one transaction: rows, events and revision change together or not at all.

Writers take turns (the meta row is locked first), so the order of event ids is the order of commits and no check can be overtaken.
A turn takes about 10 ms for a report of eight devices: one server carries about a hundred nodes that report once a second.
Commands raise the errors of model.errors only; `now_ns` is the caller's clock.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from paceline.health import rules as health_rules
from paceline.health.breaker import BURST
from paceline.health.machine import Device
from paceline.health.rules import Rule
from paceline.inventory import (
    alerts,
    devices,
    fabric,
    full_probes,
    leases,
    links,
    nodes,
    operators,
    probes,
    reads,
    reads_health,
    reads_reliability,
    reads_runs,
    reports,
    runs,
    samples,
    sessions,
    sightings,
    stimuli,
    strangers,
    tokens,
    verdicts,
)
from paceline.inventory.engine import open_engine, reading, unreachable, writing
from paceline.inventory.unit import Unit
from paceline.model.events import Event
from paceline.model.health import AgentStats, NodeReport, RepairAction
from paceline.model.ids import DeviceUuid
from paceline.model.measurement import DeviceScore, Measurement, NodeMeasurement
from paceline.model.plan import FleetSnapshot, LeaseView, Occupant, Plan
from paceline.model.session import SessionUpdate
from paceline.model.workload import AttemptProgress, CheckpointRecord, GangRequest, JobUpdate
from paceline.sdk import rows, rows_health

STORY_LIMIT = 500


class Store:
    """The inventory at `url` (`sqlite:///path` or `postgresql://…`). Safe to share by threads.

    Its schema must be there (`migrate.upgrade`). `rules` are those by which findings are judged; default: as this version brings them.
    """

    def __init__(self, url: str, rules: Mapping[str, Rule] | None = None) -> None:
        self._rules = health_rules.load() if rules is None else rules
        engine = open_engine(url)
        self._engine = engine
        self._writers = sessionmaker(writing(engine), expire_on_commit=False)
        self._readers = sessionmaker(reading(engine), expire_on_commit=False)
        self._listening_since_ns = 0

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _write(self, now_ns: int) -> Iterator[Unit]:
        try:
            with self._writers.begin() as session:
                unit = Unit(session, now_ns, self._rules)
                unit.lock()
                yield unit
                unit.close()
        except OperationalError as error:
            raise unreachable(error) from error

    @contextmanager
    def _read(self) -> Iterator[Session]:
        try:
            with self._readers.begin() as session:
                yield session
        except OperationalError as error:
            raise unreachable(error) from error

    # ── what nodes say ───────────────────────────────────────────────────────────────────────────────────────────

    def report(self, report: NodeReport, now_ns: int) -> bool:
        """Take a node's report. False if it was taken before or its sender is no longer its host's present raylet."""
        with self._write(now_ns) as unit:
            return reports.take(unit, report)

    def nodes_alive(self, listed: Sequence[rows.AliveNode], at_ns: int, now_ns: int) -> None:
        """All raylets that Ray calls alive at `at_ns`."""
        with self._write(now_ns) as unit:
            nodes.alive(unit, list(listed), at_ns)

    def sweep(self, now_ns: int) -> None:
        """Mark what fell silent, and tell what struck several hosts at once. To be called about once a second by one server."""
        self._listening_since_ns = self._listening_since_ns or now_ns
        with self._write(now_ns) as unit:
            nodes.sweep(unit, self._listening_since_ns)
            fabric.sweep(unit)

    def roll_up(self, now_ns: int) -> None:
        """Roll samples up by the minute and drop what is too old. To be called about once a minute."""
        with self._write(now_ns) as unit:
            samples.roll_up(unit)
            sightings.drop_old(unit)
            alerts.drop_old(unit)

    def measurements(self, given: Iterable[Measurement], now_ns: int) -> tuple[DeviceScore, ...]:
        with self._write(now_ns) as unit:
            return probes.take(unit, given)

    def node_measurements(self, given: Sequence[NodeMeasurement], now_ns: int) -> None:
        """What a full probe of a host has measured."""
        with self._write(now_ns) as unit:
            full_probes.take(unit, given)

    # ── placement ────────────────────────────────────────────────────────────────────────────────────────────────

    def holds(self, held: Sequence[str], released: Sequence[str], now_ns: int) -> None:
        """What placement has checked on Ray: `held` cannot be given out, `released` may be."""
        with self._write(now_ns) as unit:
            devices.holds(unit, list(held), list(released))

    def strangers(self, occupants: Sequence[Occupant], now_ns: int) -> tuple[Occupant, ...]:
        """Those who have no business on their devices, of all whom placement has found on devices that it should hold."""
        with self._write(now_ns) as unit:
            return strangers.take(unit, occupants)

    def create_lease(self, request: GangRequest, plan: Plan, now_ns: int) -> LeaseView:
        """Raises Conflict PL-REV-001 if a device is not HEALTHY any more or has another holder."""
        with self._write(now_ns) as unit:
            return leases.take(unit, request, plan)

    def end_lease(self, lease_id: str, reason: str, now_ns: int) -> None:
        with self._write(now_ns) as unit:
            leases.finish(unit, lease_id, reason)

    def correct_lease(self, lease_id: str, actual: Sequence[DeviceUuid], now_ns: int) -> LeaseView:
        with self._write(now_ns) as unit:
            return leases.correct(unit, lease_id, tuple(actual))

    # ── runs and sessions ────────────────────────────────────────────────────────────────────────────────────────

    def job_update(self, update: JobUpdate, now_ns: int) -> None:
        with self._write(now_ns) as unit:
            runs.job(unit, update)

    def attempt(self, progress: AttemptProgress, now_ns: int) -> None:
        with self._write(now_ns) as unit:
            runs.attempt(unit, progress)

    def checkpoint(self, record: CheckpointRecord, now_ns: int) -> None:
        with self._write(now_ns) as unit:
            runs.checkpoint(unit, record)

    def report_sessions(self, updates: Iterable[SessionUpdate], now_ns: int) -> None:
        with self._write(now_ns) as unit:
            for update in sorted(updates, key=lambda u: (u.at_ns, u.session_id)):
                sessions.update(unit, update)

    # ── operators ────────────────────────────────────────────────────────────────────────────────────────────────

    def quarantine(self, uuid: str, reason: str, who: str, now_ns: int) -> rows.DeviceRow:
        with self._write(now_ns) as unit:
            operators.quarantine(unit, uuid, reason, who)
        return self.device(uuid)

    def release(self, uuid: str, reason: str, who: str, now_ns: int) -> rows.DeviceRow:
        with self._write(now_ns) as unit:
            operators.release(unit, uuid, reason, who)
        return self.device(uuid)

    def retire(self, uuid: str, reason: str, who: str, now_ns: int) -> rows.DeviceRow:
        with self._write(now_ns) as unit:
            operators.retire(unit, uuid, reason, who)
        return self.device(uuid)

    def repair(self, uuid: str, action: RepairAction | None, reason: str, who: str, now_ns: int) -> rows.DeviceRow:
        """A step of the repair ladder begins; None: the one that is advised."""
        with self._write(now_ns) as unit:
            operators.repair(unit, uuid, action, reason, who)
        return self.device(uuid)

    def repair_done(self, uuid: str, ok: bool, reason: str, who: str, now_ns: int) -> rows.DeviceRow:
        with self._write(now_ns) as unit:
            operators.repair_done(unit, uuid, ok, reason, who)
        return self.device(uuid)

    def cordon_device(self, uuid: str, reason: str, who: str, now_ns: int) -> rows.DeviceRow:
        with self._write(now_ns) as unit:
            operators.cordon_device(unit, uuid, reason, who)
        return self.device(uuid)

    def uncordon_device(self, uuid: str, reason: str, who: str, now_ns: int) -> rows.DeviceRow:
        with self._write(now_ns) as unit:
            operators.uncordon_device(unit, uuid, reason, who)
        return self.device(uuid)

    def cordon(self, host: str, reason: str, who: str, now_ns: int) -> rows_health.HostDetail:
        with self._write(now_ns) as unit:
            operators.cordon(unit, host, reason, who)
        return self.host(host)

    def uncordon(self, host: str, reason: str, who: str, now_ns: int) -> rows_health.HostDetail:
        with self._write(now_ns) as unit:
            operators.uncordon(unit, host, reason, who)
        return self.host(host)

    def drain(self, host: str, deadline_s: float, reason: str, who: str, now_ns: int) -> rows_health.HostDetail:
        """Nothing new is placed on the host, and the work on it must move by the deadline."""
        with self._write(now_ns) as unit:
            operators.drain(unit, host, deadline_s, reason, who)
        return self.host(host)

    def probe(self, host: str, reason: str, who: str, now_ns: int) -> rows_health.HostDetail:
        """Have the sound devices of a host probed together, once they are idle."""
        with self._write(now_ns) as unit:
            operators.probe(unit, host, reason, who)
        return self.host(host)

    def label(self, verdict_id: int, right: bool, who: str, now_ns: int) -> rows_health.VerdictRow:
        """Somebody has looked: the verdict was right, or it was not."""
        with self._write(now_ns) as unit:
            verdicts.label(unit, verdict_id, right, who)
        with self._read() as session:
            return verdicts.get(session, verdict_id)

    # ── alerts ───────────────────────────────────────────────────────────────────────────────────────────────────

    def alert_targets(self, targets: Iterable[str], now_ns: int) -> None:
        """Who gets alerts from now on. One that is new here gets none of the past."""
        with self._write(now_ns) as unit:
            alerts.know(unit, set(targets))

    def alert_due(self, target: str, now_ns: int) -> rows_health.AlertRow | None:
        """The next alert for `target`, in order; None where none waits, or the pause after a failure is not over."""
        with self._read() as session:
            return alerts.due(session, target, now_ns)

    def alert_delivered(self, target: str, alert_id: int, now_ns: int) -> None:
        with self._write(now_ns) as unit:
            alerts.delivered(unit, target, alert_id)

    def alert_failed(self, target: str, error: str, now_ns: int) -> None:
        with self._write(now_ns) as unit:
            alerts.failed(unit, target, error)

    # ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────

    def add_token(self, name: str, now_ns: int) -> str:
        """A new token, shown this once."""
        with self._write(now_ns) as unit:
            return tokens.add(unit, name)

    def add_first_token(self, name: str, now_ns: int) -> str | None:
        """A token for `name` if no valid one exists yet, else None."""
        with self._write(now_ns) as unit:
            return None if tokens.any_valid(unit.session) else tokens.add(unit, name)

    def revoke_tokens(self, name: str, now_ns: int) -> int:
        with self._write(now_ns) as unit:
            return tokens.revoke(unit, name)

    def token_holder(self, token: str) -> str | None:
        with self._read() as session:
            return tokens.holder(session, token)

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────────────

    def revision(self) -> int:
        with self._read() as session:
            return reads.revision(session)

    def fleet(self) -> FleetSnapshot:
        with self._read() as session:
            return reads.fleet(session)

    def hosts(self) -> list[rows.HostRow]:
        with self._read() as session:
            return reads.hosts(session)

    def devices(self) -> list[rows.DeviceRow]:
        with self._read() as session:
            return reads.devices(session)

    def device(self, uuid: str) -> rows.DeviceRow:
        with self._read() as session:
            return reads.device(session, uuid)

    def device_samples(self, uuid: str, since_ns: int) -> rows.DeviceSamples:
        with self._read() as session:
            reads.device(session, uuid)
            return samples.of_device(session, uuid, since_ns)

    def story(self, uuid: str, limit: int = STORY_LIMIT) -> rows.Story:
        with self._read() as session:
            return reads.story(session, uuid, limit)

    def leases(self, limit: int = 200) -> list[rows.LeaseRow]:
        with self._read() as session:
            return reads.leases(session, limit)

    def jobs(self, limit: int = 200) -> list[rows.JobRow]:
        with self._read() as session:
            return reads_runs.jobs(session, limit)

    def job(self, name: str) -> rows.JobDetail:
        """By job id (its newest run) or `<job id>/<run name>`."""
        with self._read() as session:
            return reads_runs.job(session, name)

    def sessions(self, limit: int = 200) -> list[rows.SessionRow]:
        with self._read() as session:
            return reads.sessions(session, limit)

    def events(self, after: int = 0, limit: int = 200, entity: str | None = None, newest: bool = False) -> list[Event]:
        with self._read() as session:
            return reads.events(session, after, limit, entity, newest)

    def counts(self) -> dict[str, dict[str, int]]:
        with self._read() as session:
            return reads.counts(session)

    # ── questions about health ───────────────────────────────────────────────────────────────────────────────────

    def host(self, name: str) -> rows_health.HostDetail:
        with self._read() as session:
            return reads_health.host(session, name)

    def device_health(self, uuid: str, now_ns: int) -> rows_health.DeviceHealth:
        with self._read() as session:
            return reads_health.device(session, uuid, self._rules, now_ns)

    def verdicts(
        self, limit: int = 200, uuid: str = "", host: str = "", rule_id: str = ""
    ) -> list[rows_health.VerdictRow]:
        """The newest first."""
        with self._read() as session:
            return verdicts.newest(session, limit, uuid, host, rule_id)

    def false_positive_rate(self) -> list[rows_health.RuleStats]:
        """Verdicts by rule and mode: how many, how many were labelled, and how many of those were wrong."""
        with self._read() as session:
            return verdicts.stats(session)

    def rules(self) -> list[rows_health.RuleRow]:
        with self._read() as session:
            return reads_health.rules(session, self._rules)

    def links(self, host: str = "") -> list[rows_health.LinkRow]:
        with self._read() as session:
            return links.all_of(session, host)

    def alerts(self, limit: int = 200) -> list[rows_health.AlertRow]:
        """The newest first, with who has not acknowledged them yet."""
        with self._read() as session:
            return alerts.newest(session, limit)

    def health_figures(self, now_ns: int) -> "HealthFigures":
        """What the metrics page shows of health, from one moment."""
        with self._read() as session:
            return HealthFigures(
                states=reads_health.states(session),
                verdicts=verdicts.stats(session),
                held=verdicts.held_since(session, now_ns - BURST.window_ns),
                alerts=alerts.counts(session),
                waiting=alerts.waiting(session, now_ns),
                agents=reads_health.agents(session),
                links=links.all_of(session),
            )

    def reliability(self, now_ns: int, window_ns: int) -> rows_health.Reliability:
        """How often what has failed in the last `window_ns`, and the lemons of the last 28 days."""
        with self._read() as session:
            return reads_reliability.reliability(session, now_ns, window_ns)

    def refold(self, uuid: str) -> Device:
        """The device as the stimuli that are kept of it leave it: what its row says, if nothing has gone wrong."""
        with self._read() as session:
            return stimuli.fold(session, uuid, reads.first_seen_ns(session, uuid))


@dataclass(frozen=True, slots=True)
class HealthFigures:
    """`states`: devices by host and state. `held`: what the circuit breaker holds now. `waiting`: alerts by target."""

    states: dict[tuple[str, str], int]
    verdicts: list[rows_health.RuleStats]
    held: int
    alerts: dict[str, int]
    waiting: dict[str, int]
    agents: dict[str, AgentStats]
    links: list[rows_health.LinkRow]
