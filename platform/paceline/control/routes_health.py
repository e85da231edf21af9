"""The routes under /v1 about health: what an operator does by hand, and what he asks."""

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel

from paceline.control.auth import caller
from paceline.control.routes import Caller, Inventory, Limit, Now, ReasonBody
from paceline.model.health import RepairAction
from paceline.sdk import rows, rows_health

DAY_NS: Final = 86_400_000_000_000
LONGEST_WINDOW_DAYS: Final = 3650

health = APIRouter(prefix="/v1", dependencies=[Depends(caller)])


class RepairBody(BaseModel):
    """`action` None: the step that is advised."""

    reason: str
    action: RepairAction | None = None


class RepairDoneBody(BaseModel):
    reason: str
    ok: bool


class DrainBody(BaseModel):
    reason: str
    deadline_s: float


class LabelBody(BaseModel):
    label: bool


# ── devices ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@health.post("/devices/{uuid}/quarantine")
def quarantine(store: Inventory, now_ns: Now, who: Caller, uuid: str, body: ReasonBody) -> rows.DeviceRow:
    return store.quarantine(uuid, body.reason, who, now_ns)


@health.post("/devices/{uuid}/release")
def release(store: Inventory, now_ns: Now, who: Caller, uuid: str, body: ReasonBody) -> rows.DeviceRow:
    return store.release(uuid, body.reason, who, now_ns)


@health.post("/devices/{uuid}/retire")
def retire(store: Inventory, now_ns: Now, who: Caller, uuid: str, body: ReasonBody) -> rows.DeviceRow:
    return store.retire(uuid, body.reason, who, now_ns)


@health.post("/devices/{uuid}/cordon")
def cordon_device(store: Inventory, now_ns: Now, who: Caller, uuid: str, body: ReasonBody) -> rows.DeviceRow:
    return store.cordon_device(uuid, body.reason, who, now_ns)


@health.post("/devices/{uuid}/uncordon")
def uncordon_device(store: Inventory, now_ns: Now, who: Caller, uuid: str, body: ReasonBody) -> rows.DeviceRow:
    return store.uncordon_device(uuid, body.reason, who, now_ns)


@health.post("/devices/{uuid}/repair")
def repair(store: Inventory, now_ns: Now, who: Caller, uuid: str, body: RepairBody) -> rows.DeviceRow:
    return store.repair(uuid, body.action, body.reason, who, now_ns)


@health.post("/devices/{uuid}/repair-done")
def repair_done(store: Inventory, now_ns: Now, who: Caller, uuid: str, body: RepairDoneBody) -> rows.DeviceRow:
    return store.repair_done(uuid, body.ok, body.reason, who, now_ns)


@health.get("/devices/{uuid}/health")
def device_health(store: Inventory, now_ns: Now, uuid: str) -> rows_health.DeviceHealth:
    return store.device_health(uuid, now_ns)


# ── hosts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@health.get("/hosts/{host}")
def host(store: Inventory, host: str) -> rows_health.HostDetail:
    return store.host(host)


@health.post("/hosts/{host}/cordon")
def cordon(store: Inventory, now_ns: Now, who: Caller, host: str, body: ReasonBody) -> rows_health.HostDetail:
    return store.cordon(host, body.reason, who, now_ns)


@health.post("/hosts/{host}/uncordon")
def uncordon(store: Inventory, now_ns: Now, who: Caller, host: str, body: ReasonBody) -> rows_health.HostDetail:
    return store.uncordon(host, body.reason, who, now_ns)


@health.post("/hosts/{host}/drain")
def drain(store: Inventory, now_ns: Now, who: Caller, host: str, body: DrainBody) -> rows_health.HostDetail:
    return store.drain(host, body.deadline_s, body.reason, who, now_ns)


@health.post("/hosts/{host}/probe")
def probe(store: Inventory, now_ns: Now, who: Caller, host: str, body: ReasonBody) -> rows_health.HostDetail:
    return store.probe(host, body.reason, who, now_ns)


# ── verdicts, rules, links, alerts ───────────────────────────────────────────────────────────────────────────────────


@health.get("/verdicts")
def verdicts(
    store: Inventory,
    limit: Limit = 200,
    uuid: str = "",
    host: str = "",
    rule: str = "",
) -> list[rows_health.VerdictRow]:
    return store.verdicts(limit, uuid, host, rule)


@health.post("/verdicts/{verdict_id}/label")
def label(
    store: Inventory, now_ns: Now, who: Caller, verdict_id: Annotated[int, Path(ge=1)], body: LabelBody
) -> rows_health.VerdictRow:
    return store.label(verdict_id, body.label, who, now_ns)


@health.get("/rules")
def rules(store: Inventory) -> list[rows_health.RuleRow]:
    return store.rules()


@health.get("/reliability")
def reliability(
    store: Inventory, now_ns: Now, days: Annotated[int, Query(ge=1, le=LONGEST_WINDOW_DAYS)] = 28
) -> rows_health.Reliability:
    """How often what has failed in the last days."""
    return store.reliability(now_ns, days * DAY_NS)


@health.get("/links")
def links(store: Inventory, host: str = "") -> list[rows_health.LinkRow]:
    return store.links(host)


@health.get("/alerts")
def alerts(store: Inventory, limit: Limit = 200) -> list[rows_health.AlertRow]:
    return store.alerts(limit)
