"""The client library, for threads.

GET and calls that are idempotent are sent again, with growing pauses, until `deadline_s` has passed; then Unreachable
(PL-NET-001) is raised. Errors of the server come as the classes of model.errors.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Self, TypeVar

import httpx

from paceline.model.events import Event
from paceline.model.health import NodeReport, RepairAction
from paceline.model.ids import DeviceUuid, LeaseId
from paceline.model.measurement import DeviceScore, Measurement, NodeMeasurement
from paceline.model.plan import FleetSnapshot, LeaseView, Occupant, Plan
from paceline.model.session import SessionUpdate
from paceline.model.workload import AttemptProgress, CheckpointRecord, GangRequest, JobUpdate
from paceline.sdk import calls, config, core, rows, rows_health
from paceline.sdk.aio import AsyncClient

__all__ = ["AsyncClient", "Client"]

T = TypeVar("T")


class Client:
    """The control API of `address` (default: PACELINE_ADDRESS, else the server of PACELINE_HOME). Safe to share by threads.

    `token` defaults to PACELINE_TOKEN, else the file PACELINE_HOME/token. `deadline_s` bounds the retries of one call.
    """

    def __init__(
        self,
        address: str | None = None,
        token: str | None = None,
        *,
        deadline_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.address = config.find_address(address)
        self._deadline_s = deadline_s
        self._http = httpx.Client(**core.options(self.address, config.find_token(token)), transport=transport)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, call: core.Call[T]) -> T:
        attempts = core.Attempts(call, self.address, time.monotonic(), self._deadline_s)
        while True:
            failure: Exception
            try:
                answer = self._http.request(**core.request(call, self._deadline_s))
            except httpx.TransportError as error:
                failure = error
            else:
                if answer.status_code not in core.BUSY:
                    return core.read(call, answer)
                failure = core.error_in(answer)
            time.sleep(attempts.pause_s(failure, time.monotonic()))

    def health(self) -> dict[str, Any]:
        """`{"status": "ok", "revision": N}`; needs no token."""
        return self._do(calls.health())

    # ── what parts of the platform tell ──────────────────────────────────────────────────────────────────────────

    def report(self, report: NodeReport) -> bool:
        """Send a node's report. False if the server had it already or counts the sender as gone; send the next one then."""
        return bool((self._do(calls.report(report)))["accepted"])

    def nodes_alive(self, nodes: Iterable[rows.AliveNode | dict[str, str]], at_ns: int) -> None:
        """All raylets that Ray calls alive; any other is lost."""
        self._do(calls.nodes_alive(nodes, at_ns))

    def measurements(self, values: Iterable[Measurement]) -> tuple[DeviceScore, ...]:
        """Hand in probes, those of one node together. Returns the scores of their devices."""
        return (self._do(calls.measurements(values)))["scores"]

    def node_measurements(self, values: Iterable[NodeMeasurement]) -> None:
        """Hand in a full probe of a host."""
        self._do(calls.node_measurements(values))

    def holds(self, held: Sequence[str], released: Sequence[str], at_ns: int) -> None:
        """What was checked on Ray: `held` cannot be given out, `released` may be."""
        self._do(calls.holds(held, released, at_ns))

    def strangers(self, occupants: Iterable[Occupant]) -> tuple[Occupant, ...]:
        """Of those who are on devices that should be held: who has no business there."""
        return (self._do(calls.strangers(occupants)))["strangers"]

    def create_lease(self, request: GangRequest, plan: Plan) -> LeaseView:
        """Raises Conflict if a device of the plan is not to be had any more: plan again."""
        return self._do(calls.create_lease(request, plan))

    def end_lease(self, lease_id: LeaseId, reason: str) -> None:
        self._do(calls.end_lease(lease_id, reason))

    def correct_lease(self, lease_id: LeaseId, devices: Sequence[DeviceUuid]) -> LeaseView:
        """The gang sits on `devices`, by rank, and not where it was planned."""
        return self._do(calls.correct_lease(lease_id, devices))

    def job_update(self, update: JobUpdate) -> None:
        self._do(calls.job_update(update))

    def attempt(self, progress: AttemptProgress) -> None:
        self._do(calls.attempt(progress))

    def checkpoint(self, record: CheckpointRecord) -> None:
        self._do(calls.checkpoint(record))

    def report_sessions(self, updates: Iterable[SessionUpdate]) -> None:
        self._do(calls.report_sessions(updates))

    # ── operators ────────────────────────────────────────────────────────────────────────────────────────────────

    def quarantine(self, uuid: str, reason: str) -> rows.DeviceRow:
        """Take a device out of service; work on it is moved. `reason` is kept in the history."""
        return self._do(calls.quarantine(uuid, reason))

    def release(self, uuid: str, reason: str) -> rows.DeviceRow:
        """Let a quarantined device prove itself again: it goes to probation, not back to work."""
        return self._do(calls.release(uuid, reason))

    def retire(self, uuid: str, reason: str) -> rows.DeviceRow:
        """Take a device out of the fleet for good; work on it is moved."""
        return self._do(calls.retire(uuid, reason))

    def cordon_device(self, uuid: str, reason: str) -> rows.DeviceRow:
        """Keep a device from new work, whatever its health. The work on it goes on."""
        return self._do(calls.cordon_device(uuid, reason))

    def uncordon_device(self, uuid: str, reason: str) -> rows.DeviceRow:
        return self._do(calls.uncordon_device(uuid, reason))

    def repair(self, uuid: str, action: RepairAction | None, reason: str) -> rows.DeviceRow:
        """A step of the repair ladder begins on a quarantined device; None: the one that is advised."""
        return self._do(calls.repair(uuid, action, reason))

    def repair_done(self, uuid: str, ok: bool, reason: str) -> rows.DeviceRow:
        """The step is over: the device goes to probation, or stays out and the next step is due."""
        return self._do(calls.repair_done(uuid, ok, reason))

    def cordon(self, host: str, reason: str) -> rows_health.HostDetail:
        """Nothing new is placed on a host. The work on it goes on."""
        return self._do(calls.cordon(host, reason))

    def uncordon(self, host: str, reason: str) -> rows_health.HostDetail:
        return self._do(calls.uncordon(host, reason))

    def drain(self, host: str, deadline_s: float, reason: str) -> rows_health.HostDetail:
        """Nothing new is placed on a host, and the work on it must move by the deadline."""
        return self._do(calls.drain(host, deadline_s, reason))

    def probe(self, host: str, reason: str) -> rows_health.HostDetail:
        """Have the sound devices of a host probed together, once they are idle."""
        return self._do(calls.probe(host, reason))

    def label(self, verdict_id: int, right: bool) -> rows_health.VerdictRow:
        """Somebody has looked: the verdict was right, or it was not. The false-positive rate of its rule follows."""
        return self._do(calls.label(verdict_id, right))

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────────────

    def fleet(self, after: int = -1, wait_s: float = 0.0) -> FleetSnapshot:
        """The fleet, at once if its revision is above `after`, else when it is or `wait_s` (at most 30) have passed."""
        return self._do(calls.fleet(after, wait_s))

    def hosts(self) -> list[rows.HostRow]:
        return self._do(calls.hosts())

    def devices(self) -> list[rows.DeviceRow]:
        return self._do(calls.devices())

    def device(self, uuid: str) -> rows.DeviceRow:
        return self._do(calls.device(uuid))

    def samples(self, uuid: str, since_ns: int = 0) -> rows.DeviceSamples:
        return self._do(calls.samples(uuid, since_ns))

    def story(self, uuid: str) -> rows.Story:
        """What happened to a device, what caused that and what it caused, in order."""
        return self._do(calls.story(uuid))

    def leases(self, limit: int = 200) -> list[rows.LeaseRow]:
        """Held leases first, the newest first."""
        return self._do(calls.leases(limit))

    def jobs(self, limit: int = 200) -> list[rows.JobRow]:
        return self._do(calls.jobs(limit))

    def job(self, name: str) -> rows.JobDetail:
        """A run with its attempts and checkpoints: by job id (its newest run) or `<job id>/<run name>`."""
        return self._do(calls.job(name))

    def sessions(self, limit: int = 200) -> list[rows.SessionRow]:
        return self._do(calls.sessions(limit))

    def events(self, after: int = 0, limit: int = 200, entity: str | None = None, newest: bool = False) -> list[Event]:
        """Events above id `after` in order of id: the first `limit` of them, or with `newest` the last."""
        return self._do(calls.events(after, limit, entity, newest))

    # ── questions about health ───────────────────────────────────────────────────────────────────────────────────

    def host(self, name: str) -> rows_health.HostDetail:
        """A host with its devices, its ports, and what watching it costs."""
        return self._do(calls.host(name))

    def device_health(self, uuid: str) -> rows_health.DeviceHealth:
        """Why a device is as it is: verdicts, open findings, repairs and the next one, scores by class of work."""
        return self._do(calls.device_health(uuid))

    def verdicts(
        self, limit: int = 200, uuid: str = "", host: str = "", rule: str = ""
    ) -> list[rows_health.VerdictRow]:
        """Decisions about devices and nodes, the newest first."""
        return self._do(calls.verdicts(limit, uuid, host, rule))

    def rules(self) -> list[rows_health.RuleRow]:
        """The rules in force, each with its verdicts and its false-positive rate."""
        return self._do(calls.rules())

    def reliability(self, days: int = 28) -> rows_health.Reliability:
        """MTBF by SKU, host and device over the last days, and the lemons among the hosts over 28 days."""
        return self._do(calls.reliability(days))

    def links(self, host: str = "") -> list[rows_health.LinkRow]:
        return self._do(calls.links(host))

    def alerts(self, limit: int = 200) -> list[rows_health.AlertRow]:
        """The newest first."""
        return self._do(calls.alerts(limit))
