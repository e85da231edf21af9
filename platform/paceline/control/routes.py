"""The routes under /v1. Each hands one request to one method of the store."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from paceline.control.auth import caller, store_in
from paceline.control.watch import Watch
from paceline.inventory.store import Store
from paceline.model.events import Event
from paceline.model.health import NodeReport
from paceline.model.ids import DeviceUuid
from paceline.model.measurement import DeviceScore, Measurement, NodeMeasurement
from paceline.model.plan import FleetSnapshot, LeaseView, Occupant, Plan
from paceline.model.session import SessionUpdate
from paceline.model.workload import AttemptProgress, CheckpointRecord, GangRequest, JobUpdate
from paceline.sdk import rows

LONGEST_POLL_S = 30


def now_of(_request: Request) -> int:
    """The server's clock, unix nanoseconds."""
    return time.time_ns()


Inventory = Annotated[Store, Depends(store_in)]
Now = Annotated[int, Depends(now_of)]
Caller = Annotated[str, Depends(caller)]
Limit = Annotated[int, Query(ge=1, le=5000)]

router = APIRouter(prefix="/v1", dependencies=[Depends(caller)])


class AliveBody(BaseModel):
    nodes: list[rows.AliveNode]
    at_ns: int


class MeasurementsBody(BaseModel):
    measurements: list[Measurement]


class NodeMeasurementsBody(BaseModel):
    measurements: list[NodeMeasurement]


class HoldsBody(BaseModel):
    held: list[DeviceUuid]
    released: list[DeviceUuid]
    at_ns: int


class OccupantsBody(BaseModel):
    occupants: list[Occupant]


class LeaseBody(BaseModel):
    request: GangRequest
    plan: Plan


class ReasonBody(BaseModel):
    reason: str


class DevicesBody(BaseModel):
    devices: list[DeviceUuid]


class SessionsBody(BaseModel):
    sessions: list[SessionUpdate]


@router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request) -> dict[str, Any]:
    schema: dict[str, Any] = request.app.openapi()
    return schema


# ── what parts of the platform tell ──────────────────────────────────────────────────────────────────────────────────


@router.post("/reports")
def report(store: Inventory, now_ns: Now, body: NodeReport) -> dict[str, bool]:
    return {"accepted": store.report(body, now_ns)}


@router.post("/nodes/alive")
def nodes_alive(store: Inventory, now_ns: Now, body: AliveBody) -> dict[str, str]:
    store.nodes_alive(body.nodes, body.at_ns, now_ns)
    return {}


@router.post("/measurements")
def measurements(store: Inventory, now_ns: Now, body: MeasurementsBody) -> dict[str, tuple[DeviceScore, ...]]:
    return {"scores": store.measurements(body.measurements, now_ns)}


@router.post("/node-measurements")
def node_measurements(store: Inventory, now_ns: Now, body: NodeMeasurementsBody) -> dict[str, str]:
    store.node_measurements(body.measurements, now_ns)
    return {}


@router.post("/holds")
def holds(store: Inventory, now_ns: Now, body: HoldsBody) -> dict[str, str]:
    store.holds(body.held, body.released, now_ns)
    return {}


@router.post("/strangers")
def strangers(store: Inventory, now_ns: Now, body: OccupantsBody) -> dict[str, tuple[Occupant, ...]]:
    return {"strangers": store.strangers(body.occupants, now_ns)}


@router.post("/leases")
def create_lease(store: Inventory, now_ns: Now, body: LeaseBody) -> LeaseView:
    return store.create_lease(body.request, body.plan, now_ns)


@router.post("/leases/{lease_id}/end")
def end_lease(store: Inventory, now_ns: Now, lease_id: str, body: ReasonBody) -> dict[str, str]:
    store.end_lease(lease_id, body.reason, now_ns)
    return {}


@router.post("/leases/{lease_id}/correct")
def correct_lease(store: Inventory, now_ns: Now, lease_id: str, body: DevicesBody) -> LeaseView:
    return store.correct_lease(lease_id, body.devices, now_ns)


@router.post("/jobs")
def job_update(store: Inventory, now_ns: Now, body: JobUpdate) -> dict[str, str]:
    store.job_update(body, now_ns)
    return {}


@router.post("/attempts")
def attempt(store: Inventory, now_ns: Now, body: AttemptProgress) -> dict[str, str]:
    store.attempt(body, now_ns)
    return {}


@router.post("/checkpoints")
def checkpoint(store: Inventory, now_ns: Now, body: CheckpointRecord) -> dict[str, str]:
    store.checkpoint(body, now_ns)
    return {}


@router.post("/sessions")
def report_sessions(store: Inventory, now_ns: Now, body: SessionsBody) -> dict[str, str]:
    store.report_sessions(body.sessions, now_ns)
    return {}


# ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────────


@router.get("/fleet")
async def fleet(
    request: Request,
    store: Inventory,
    after: int = -1,
    wait_s: Annotated[float, Query(ge=0, le=LONGEST_POLL_S)] = 0.0,
) -> FleetSnapshot:
    """A long poll holds no thread while it waits."""
    watch: Watch = request.app.state.watch
    if wait_s > 0:
        await watch.above(after, wait_s)
    return await run_in_threadpool(store.fleet)


@router.get("/hosts")
def hosts(store: Inventory) -> list[rows.HostRow]:
    return store.hosts()


@router.get("/devices")
def devices(store: Inventory) -> list[rows.DeviceRow]:
    return store.devices()


@router.get("/devices/{uuid}")
def device(store: Inventory, uuid: str) -> rows.DeviceRow:
    return store.device(uuid)


@router.get("/devices/{uuid}/samples")
def samples(store: Inventory, uuid: str, since_ns: int = 0) -> rows.DeviceSamples:
    return store.device_samples(uuid, since_ns)


@router.get("/devices/{uuid}/story")
def story(store: Inventory, uuid: str) -> rows.Story:
    return store.story(uuid)


@router.get("/leases")
def leases(store: Inventory, limit: Limit = 200) -> list[rows.LeaseRow]:
    return store.leases(limit)


@router.get("/jobs")
def jobs(store: Inventory, limit: Limit = 200) -> list[rows.JobRow]:
    return store.jobs(limit)


@router.get("/jobs/{name:path}")
def job(store: Inventory, name: str) -> rows.JobDetail:
    return store.job(name)


@router.get("/sessions")
def sessions(store: Inventory, limit: Limit = 200) -> list[rows.SessionRow]:
    return store.sessions(limit)


@router.get("/events")
def events(
    store: Inventory,
    after: Annotated[int, Query(ge=0)] = 0,
    limit: Limit = 200,
    entity: str | None = None,
    newest: bool = False,
) -> list[Event]:
    return store.events(after, limit, entity, newest)
