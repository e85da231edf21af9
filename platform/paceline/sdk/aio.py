"""The client library, for asyncio. It mirrors `client.Client`, method by method.

GET and calls that are idempotent are sent again, with growing pauses, until `deadline_s` has passed; then Unreachable
(PL-NET-001) is raised. Errors of the server come as the classes of model.errors.
"""

import asyncio
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

T = TypeVar("T")


class AsyncClient:
    """The control API of `address` (default: PACELINE_ADDRESS, else the server of PACELINE_HOME). For one event loop.

    `token` defaults to PACELINE_TOKEN, else the file PACELINE_HOME/token. `deadline_s` bounds the retries of one call.
    """

    def __init__(
        self,
        address: str | None = None,
        token: str | None = None,
        *,
        deadline_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.address = config.find_address(address)
        self._deadline_s = deadline_s
        self._http = httpx.AsyncClient(**core.options(self.address, config.find_token(token)), transport=transport)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _do(self, call: core.Call[T]) -> T:
        attempts = core.Attempts(call, self.address, time.monotonic(), self._deadline_s)
        while True:
            failure: Exception
            try:
                answer = await self._http.request(**core.request(call, self._deadline_s))
            except httpx.TransportError as error:
                failure = error
            else:
                if answer.status_code not in core.BUSY:
                    return core.read(call, answer)
                failure = core.error_in(answer)
            await asyncio.sleep(attempts.pause_s(failure, time.monotonic()))

    async def health(self) -> dict[str, Any]:
        """`{"status": "ok", "revision": N}`; needs no token."""
        return await self._do(calls.health())

    # ── what parts of the platform tell ──────────────────────────────────────────────────────────────────────────

    async def report(self, report: NodeReport) -> bool:
        """Send a node's report. False if the server had it already or counts the sender as gone; send the next one then."""
        return bool((await self._do(calls.report(report)))["accepted"])

    async def nodes_alive(self, nodes: Iterable[rows.AliveNode | dict[str, str]], at_ns: int) -> None:
        """All raylets that Ray calls alive; any other is lost."""
        await self._do(calls.nodes_alive(nodes, at_ns))

    async def measurements(self, values: Iterable[Measurement]) -> tuple[DeviceScore, ...]:
        """Hand in probes, those of one node together. Returns the scores of their devices."""
        return (await self._do(calls.measurements(values)))["scores"]

    async def node_measurements(self, values: Iterable[NodeMeasurement]) -> None:
        """Hand in a full probe of a host."""
        await self._do(calls.node_measurements(values))

    async def holds(self, held: Sequence[str], released: Sequence[str], at_ns: int) -> None:
        """What was checked on Ray: `held` cannot be given out, `released` may be."""
        await self._do(calls.holds(held, released, at_ns))

    async def strangers(self, occupants: Iterable[Occupant]) -> tuple[Occupant, ...]:
        """Of those who are on devices that should be held: who has no business there."""
        return (await self._do(calls.strangers(occupants)))["strangers"]

    async def create_lease(self, request: GangRequest, plan: Plan) -> LeaseView:
        """Raises Conflict if a device of the plan is not to be had any more: plan again."""
        return await self._do(calls.create_lease(request, plan))

    async def end_lease(self, lease_id: LeaseId, reason: str) -> None:
        await self._do(calls.end_lease(lease_id, reason))

    async def correct_lease(self, lease_id: LeaseId, devices: Sequence[DeviceUuid]) -> LeaseView:
        """The gang sits on `devices`, by rank, and not where it was planned."""
        return await self._do(calls.correct_lease(lease_id, devices))

    async def job_update(self, update: JobUpdate) -> None:
        await self._do(calls.job_update(update))

    async def attempt(self, progress: AttemptProgress) -> None:
        await self._do(calls.attempt(progress))

    async def checkpoint(self, record: CheckpointRecord) -> None:
        await self._do(calls.checkpoint(record))

    async def report_sessions(self, updates: Iterable[SessionUpdate]) -> None:
        await self._do(calls.report_sessions(updates))

    # ── operators ────────────────────────────────────────────────────────────────────────────────────────────────

    async def quarantine(self, uuid: str, reason: str) -> rows.DeviceRow:
        """Take a device out of service; work on it is moved. `reason` is kept in the history."""
        return await self._do(calls.quarantine(uuid, reason))

    async def release(self, uuid: str, reason: str) -> rows.DeviceRow:
        """Let a quarantined device prove itself again: it goes to probation, not back to work."""
        return await self._do(calls.release(uuid, reason))

    async def retire(self, uuid: str, reason: str) -> rows.DeviceRow:
        """Take a device out of the fleet for good; work on it is moved."""
        return await self._do(calls.retire(uuid, reason))

    async def cordon_device(self, uuid: str, reason: str) -> rows.DeviceRow:
        """Keep a device from new work, whatever its health. The work on it goes on."""
        return await self._do(calls.cordon_device(uuid, reason))

    async def uncordon_device(self, uuid: str, reason: str) -> rows.DeviceRow:
        return await self._do(calls.uncordon_device(uuid, reason))

    async def repair(self, uuid: str, action: RepairAction | None, reason: str) -> rows.DeviceRow:
        """A step of the repair ladder begins on a quarantined device; None: the one that is advised."""
        return await self._do(calls.repair(uuid, action, reason))

    async def repair_done(self, uuid: str, ok: bool, reason: str) -> rows.DeviceRow:
        """The step is over: the device goes to probation, or stays out and the next step is due."""
        return await self._do(calls.repair_done(uuid, ok, reason))

    async def cordon(self, host: str, reason: str) -> rows_health.HostDetail:
        """Nothing new is placed on a host. The work on it goes on."""
        return await self._do(calls.cordon(host, reason))

    async def uncordon(self, host: str, reason: str) -> rows_health.HostDetail:
        return await self._do(calls.uncordon(host, reason))

    async def drain(self, host: str, deadline_s: float, reason: str) -> rows_health.HostDetail:
        """Nothing new is placed on a host, and the work on it must move by the deadline."""
        return await self._do(calls.drain(host, deadline_s, reason))

    async def probe(self, host: str, reason: str) -> rows_health.HostDetail:
        """Have the sound devices of a host probed together, once they are idle."""
        return await self._do(calls.probe(host, reason))

    async def label(self, verdict_id: int, right: bool) -> rows_health.VerdictRow:
        """Somebody has looked: the verdict was right, or it was not. The false-positive rate of its rule follows."""
        return await self._do(calls.label(verdict_id, right))

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────────────

    async def fleet(self, after: int = -1, wait_s: float = 0.0) -> FleetSnapshot:
        """The fleet, at once if its revision is above `after`, else when it is or `wait_s` (at most 30) have passed."""
        return await self._do(calls.fleet(after, wait_s))

    async def hosts(self) -> list[rows.HostRow]:
        return await self._do(calls.hosts())

    async def devices(self) -> list[rows.DeviceRow]:
        return await self._do(calls.devices())

    async def device(self, uuid: str) -> rows.DeviceRow:
        return await self._do(calls.device(uuid))

    async def samples(self, uuid: str, since_ns: int = 0) -> rows.DeviceSamples:
        return await self._do(calls.samples(uuid, since_ns))

    async def story(self, uuid: str) -> rows.Story:
        """What happened to a device, what caused that and what it caused, in order."""
        return await self._do(calls.story(uuid))

    async def leases(self, limit: int = 200) -> list[rows.LeaseRow]:
        """Held leases first, the newest first."""
        return await self._do(calls.leases(limit))

    async def jobs(self, limit: int = 200) -> list[rows.JobRow]:
        return await self._do(calls.jobs(limit))

    async def job(self, name: str) -> rows.JobDetail:
        """A run with its attempts and checkpoints: by job id (its newest run) or `<job id>/<run name>`."""
        return await self._do(calls.job(name))

    async def sessions(self, limit: int = 200) -> list[rows.SessionRow]:
        return await self._do(calls.sessions(limit))

    async def events(
        self, after: int = 0, limit: int = 200, entity: str | None = None, newest: bool = False
    ) -> list[Event]:
        """Events above id `after` in order of id: the first `limit` of them, or with `newest` the last."""
        return await self._do(calls.events(after, limit, entity, newest))

    # ── questions about health ───────────────────────────────────────────────────────────────────────────────────

    async def host(self, name: str) -> rows_health.HostDetail:
        """A host with its devices, its ports, and what watching it costs."""
        return await self._do(calls.host(name))

    async def device_health(self, uuid: str) -> rows_health.DeviceHealth:
        """Why a device is as it is: verdicts, open findings, repairs and the next one, scores by class of work."""
        return await self._do(calls.device_health(uuid))

    async def verdicts(
        self, limit: int = 200, uuid: str = "", host: str = "", rule: str = ""
    ) -> list[rows_health.VerdictRow]:
        """Decisions about devices and nodes, the newest first."""
        return await self._do(calls.verdicts(limit, uuid, host, rule))

    async def rules(self) -> list[rows_health.RuleRow]:
        """The rules in force, each with its verdicts and its false-positive rate."""
        return await self._do(calls.rules())

    async def reliability(self, days: int = 28) -> rows_health.Reliability:
        """MTBF by SKU, host and device over the last days, and the lemons among the hosts over 28 days."""
        return await self._do(calls.reliability(days))

    async def links(self, host: str = "") -> list[rows_health.LinkRow]:
        return await self._do(calls.links(host))

    async def alerts(self, limit: int = 200) -> list[rows_health.AlertRow]:
        """The newest first."""
        return await self._do(calls.alerts(limit))
