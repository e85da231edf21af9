"""Every route of the control API as a value: what to send and how to read the answer."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter

from paceline.model.events import Event
from paceline.model.health import NodeReport, RepairAction
from paceline.model.ids import DeviceUuid, LeaseId
from paceline.model.measurement import DeviceScore, Measurement, NodeMeasurement
from paceline.model.plan import FleetSnapshot, LeaseView, Occupant, Plan
from paceline.model.session import SessionUpdate
from paceline.model.workload import AttemptProgress, CheckpointRecord, GangRequest, JobUpdate
from paceline.sdk import rows, rows_health
from paceline.sdk.core import Call

T = TypeVar("T")

ANY: Final[TypeAdapter[dict[str, Any]]] = TypeAdapter(dict[str, Any])
FLEET: Final = TypeAdapter(FleetSnapshot)
LEASE: Final = TypeAdapter(LeaseView)
SCORES: Final = TypeAdapter(dict[str, tuple[DeviceScore, ...]])
STRANGERS: Final = TypeAdapter(dict[str, tuple[Occupant, ...]])
EVENTS: Final = TypeAdapter(list[Event])
HOSTS: Final = TypeAdapter(list[rows.HostRow])
DEVICES: Final = TypeAdapter(list[rows.DeviceRow])
DEVICE: Final = TypeAdapter(rows.DeviceRow)
SAMPLES: Final = TypeAdapter(rows.DeviceSamples)
STORY: Final = TypeAdapter(rows.Story)
LEASES: Final = TypeAdapter(list[rows.LeaseRow])
JOBS: Final = TypeAdapter(list[rows.JobRow])
JOB: Final = TypeAdapter(rows.JobDetail)
SESSIONS: Final = TypeAdapter(list[rows.SessionRow])
HOST: Final = TypeAdapter(rows_health.HostDetail)
DEVICE_HEALTH: Final = TypeAdapter(rows_health.DeviceHealth)
VERDICTS: Final = TypeAdapter(list[rows_health.VerdictRow])
VERDICT: Final = TypeAdapter(rows_health.VerdictRow)
RULES: Final = TypeAdapter(list[rows_health.RuleRow])
RELIABILITY: Final = TypeAdapter(rows_health.Reliability)
LINKS: Final = TypeAdapter(list[rows_health.LinkRow])
ALERTS: Final = TypeAdapter(list[rows_health.AlertRow])

_REPORT: Final = TypeAdapter(NodeReport)
_REQUEST: Final = TypeAdapter(GangRequest)
_PLAN: Final = TypeAdapter(Plan)
_MEASUREMENTS: Final = TypeAdapter(tuple[Measurement, ...])
_NODE_MEASUREMENTS: Final = TypeAdapter(tuple[NodeMeasurement, ...])
_SESSIONS: Final = TypeAdapter(tuple[SessionUpdate, ...])
_OCCUPANTS: Final = TypeAdapter(tuple[Occupant, ...])
_JOB: Final = TypeAdapter(JobUpdate)
_ATTEMPT: Final = TypeAdapter(AttemptProgress)
_CHECKPOINT: Final = TypeAdapter(CheckpointRecord)
_NODES: Final = TypeAdapter(tuple[rows.AliveNode, ...])


def _get(path: str, answer: TypeAdapter[T], polls_s: float = 0.0, **params: Any) -> Call[T]:
    return Call("GET", path, answer, {key: value for key, value in params.items() if value is not None}, wait_s=polls_s)


def _post(path: str, body: Any, answer: TypeAdapter[T], again: bool = True) -> Call[T]:
    return Call("POST", path, answer, {}, body, again)


def _json(adapter: TypeAdapter[T], value: Any) -> Any:
    return adapter.dump_python(adapter.validate_python(value), mode="json")


def _name(part: str) -> str:
    return quote(part, safe="")


def health() -> Call[dict[str, Any]]:
    return _get("/healthz", ANY)


def report(value: NodeReport) -> Call[dict[str, Any]]:
    return _post("/v1/reports", _json(_REPORT, value), ANY)


def nodes_alive(nodes: Iterable[rows.AliveNode | dict[str, str]], at_ns: int) -> Call[dict[str, Any]]:
    return _post("/v1/nodes/alive", {"nodes": _json(_NODES, tuple(nodes)), "at_ns": at_ns}, ANY)


def fleet(after: int, wait_s: float) -> Call[FleetSnapshot]:
    return _get("/v1/fleet", FLEET, wait_s, after=after, wait_s=wait_s)


def measurements(values: Iterable[Measurement]) -> Call[dict[str, tuple[DeviceScore, ...]]]:
    return _post("/v1/measurements", {"measurements": _json(_MEASUREMENTS, tuple(values))}, SCORES)


def node_measurements(values: Iterable[NodeMeasurement]) -> Call[dict[str, Any]]:
    return _post("/v1/node-measurements", {"measurements": _json(_NODE_MEASUREMENTS, tuple(values))}, ANY)


def holds(held: Sequence[str], released: Sequence[str], at_ns: int) -> Call[dict[str, Any]]:
    return _post("/v1/holds", {"held": list(held), "released": list(released), "at_ns": at_ns}, ANY)


def strangers(occupants: Iterable[Occupant]) -> Call[dict[str, tuple[Occupant, ...]]]:
    return _post("/v1/strangers", {"occupants": _json(_OCCUPANTS, tuple(occupants))}, STRANGERS)


def create_lease(request: GangRequest, plan: Plan) -> Call[LeaseView]:
    return _post("/v1/leases", {"request": _json(_REQUEST, request), "plan": _json(_PLAN, plan)}, LEASE)


def end_lease(lease_id: LeaseId, reason: str) -> Call[dict[str, Any]]:
    return _post(f"/v1/leases/{_name(lease_id)}/end", {"reason": reason}, ANY)


def correct_lease(lease_id: LeaseId, devices: Sequence[DeviceUuid]) -> Call[LeaseView]:
    return _post(f"/v1/leases/{_name(lease_id)}/correct", {"devices": list(devices)}, LEASE)


def job_update(update: JobUpdate) -> Call[dict[str, Any]]:
    return _post("/v1/jobs", _json(_JOB, update), ANY)


def attempt(progress: AttemptProgress) -> Call[dict[str, Any]]:
    return _post("/v1/attempts", _json(_ATTEMPT, progress), ANY)


def checkpoint(record: CheckpointRecord) -> Call[dict[str, Any]]:
    return _post("/v1/checkpoints", _json(_CHECKPOINT, record), ANY)


def report_sessions(updates: Iterable[SessionUpdate]) -> Call[dict[str, Any]]:
    return _post("/v1/sessions", {"sessions": _json(_SESSIONS, tuple(updates))}, ANY)


def _on_device(uuid: str, verb: str, body: dict[str, Any]) -> Call[rows.DeviceRow]:
    return _post(f"/v1/devices/{_name(uuid)}/{verb}", body, DEVICE, again=False)


def _on_host(host: str, verb: str, body: dict[str, Any]) -> Call[rows_health.HostDetail]:
    return _post(f"/v1/hosts/{_name(host)}/{verb}", body, HOST, again=False)


def quarantine(uuid: str, reason: str) -> Call[rows.DeviceRow]:
    return _on_device(uuid, "quarantine", {"reason": reason})


def release(uuid: str, reason: str) -> Call[rows.DeviceRow]:
    return _on_device(uuid, "release", {"reason": reason})


def retire(uuid: str, reason: str) -> Call[rows.DeviceRow]:
    return _on_device(uuid, "retire", {"reason": reason})


def cordon_device(uuid: str, reason: str) -> Call[rows.DeviceRow]:
    return _on_device(uuid, "cordon", {"reason": reason})


def uncordon_device(uuid: str, reason: str) -> Call[rows.DeviceRow]:
    return _on_device(uuid, "uncordon", {"reason": reason})


def repair(uuid: str, action: RepairAction | None, reason: str) -> Call[rows.DeviceRow]:
    return _on_device(uuid, "repair", {"reason": reason, "action": action})


def repair_done(uuid: str, ok: bool, reason: str) -> Call[rows.DeviceRow]:
    return _on_device(uuid, "repair-done", {"reason": reason, "ok": ok})


def cordon(host: str, reason: str) -> Call[rows_health.HostDetail]:
    return _on_host(host, "cordon", {"reason": reason})


def uncordon(host: str, reason: str) -> Call[rows_health.HostDetail]:
    return _on_host(host, "uncordon", {"reason": reason})


def drain(host: str, deadline_s: float, reason: str) -> Call[rows_health.HostDetail]:
    return _on_host(host, "drain", {"reason": reason, "deadline_s": deadline_s})


def probe(host: str, reason: str) -> Call[rows_health.HostDetail]:
    return _on_host(host, "probe", {"reason": reason})


def label(verdict_id: int, right: bool) -> Call[rows_health.VerdictRow]:
    return _post(f"/v1/verdicts/{verdict_id}/label", {"label": right}, VERDICT)


def hosts() -> Call[list[rows.HostRow]]:
    return _get("/v1/hosts", HOSTS)


def devices() -> Call[list[rows.DeviceRow]]:
    return _get("/v1/devices", DEVICES)


def device(uuid: str) -> Call[rows.DeviceRow]:
    return _get(f"/v1/devices/{_name(uuid)}", DEVICE)


def samples(uuid: str, since_ns: int) -> Call[rows.DeviceSamples]:
    return _get(f"/v1/devices/{_name(uuid)}/samples", SAMPLES, since_ns=since_ns)


def story(uuid: str) -> Call[rows.Story]:
    return _get(f"/v1/devices/{_name(uuid)}/story", STORY)


def leases(limit: int) -> Call[list[rows.LeaseRow]]:
    return _get("/v1/leases", LEASES, limit=limit)


def jobs(limit: int) -> Call[list[rows.JobRow]]:
    return _get("/v1/jobs", JOBS, limit=limit)


def job(name: str) -> Call[rows.JobDetail]:
    return _get(f"/v1/jobs/{quote(name)}", JOB)


def sessions(limit: int) -> Call[list[rows.SessionRow]]:
    return _get("/v1/sessions", SESSIONS, limit=limit)


def events(after: int, limit: int, entity: str | None, newest: bool) -> Call[list[Event]]:
    return _get("/v1/events", EVENTS, after=after, limit=limit, entity=entity, newest="true" if newest else None)


def host(name: str) -> Call[rows_health.HostDetail]:
    return _get(f"/v1/hosts/{_name(name)}", HOST)


def device_health(uuid: str) -> Call[rows_health.DeviceHealth]:
    return _get(f"/v1/devices/{_name(uuid)}/health", DEVICE_HEALTH)


def verdicts(limit: int, uuid: str, host: str, rule: str) -> Call[list[rows_health.VerdictRow]]:
    return _get("/v1/verdicts", VERDICTS, limit=limit, uuid=uuid, host=host, rule=rule)


def rules() -> Call[list[rows_health.RuleRow]]:
    return _get("/v1/rules", RULES)


def reliability(days: int) -> Call[rows_health.Reliability]:
    return _get("/v1/reliability", RELIABILITY, days=days)


def links(host: str) -> Call[list[rows_health.LinkRow]]:
    return _get("/v1/links", LINKS, host=host)


def alerts(limit: int) -> Call[list[rows_health.AlertRow]]:
    return _get("/v1/alerts", ALERTS, limit=limit)
