"""The web page: the fleet, its jobs and sessions, and the story of a device. It reads; acting is for the API and the command line."""

import time
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates

from paceline.control import heat
from paceline.control.auth import COOKIE, caller, store_in
from paceline.control.problems import log
from paceline.model.errors import PacelineError, Refused
from paceline.model.workload import FINAL_STATES, split_attempt
from paceline.sdk import rows, words
from paceline.sdk.storyline import lay_out

HERE: Final = Path(__file__).parent
COOKIE_S: Final = 12 * 3600
"""A working day; after it the token is asked for again."""
DEEPEST: Final = 12
"""Steps of indentation in a story that a page of 1280 px can spare."""
LOGIN_BYTES: Final = 4096
SHOWN: Final = 20
"""Newest verdicts and alerts on the page of health; the command line lists more."""
HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}


class PageRoute(APIRoute):
    """Errors become pages; one who is not logged in is sent to the login."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await handle(request)
            except Refused:
                return _to_login(request)
            except PacelineError as error:
                return _render(request, "problem.html", error.http_status, problem=error)

        return shown


router = APIRouter(route_class=PageRoute, include_in_schema=False)
inside = APIRouter(route_class=PageRoute, include_in_schema=False, dependencies=[Depends(caller)])


def install(app: FastAPI) -> None:
    """Routes of the page and its static files."""
    app.include_router(router)
    app.include_router(inside)
    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")


# ── in and out ───────────────────────────────────────────────────────────────────────────────────────────────────────


@router.get("/login")
def login_form(request: Request, next: str = "/") -> Response:  # the name in the URL
    return _render(request, "login.html", next=_local(next), wrong=False)


@router.post("/login")
async def login(request: Request, next: str = "/") -> Response:
    """The token itself is the session; the browser keeps it where no script can read it."""
    token = await _token_of(request)
    if store_in(request).token_holder(token) is None:
        log.warning("login refused", client=request.client.host if request.client else "")
        return _render(request, "login.html", 401, next=_local(next), wrong=True)
    answer = RedirectResponse(_local(next), 303, HEADERS)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, token, COOKIE_S, httponly=True, samesite="strict", secure=secure)
    return answer


async def _token_of(request: Request) -> str:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > LOGIN_BYTES:
            return ""
    return parse_qs(body.decode(errors="replace")).get("token", [""])[0].strip()


@router.post("/logout")
def logout() -> Response:
    answer = RedirectResponse("/login", 303, HEADERS)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def _local(path: str) -> str:
    """`path` if it leads to this server, else the front page: a login must not forward to strangers."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) else "/"


def _to_login(request: Request) -> Response:
    if request.headers.get("hx-request"):
        return Response(status_code=401, headers={"hx-redirect": "/login"})
    return RedirectResponse(f"/login?next={quote(request.url.path)}", 303, HEADERS)


# ── pages ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@inside.get("/")
def fleet(request: Request) -> Response:
    store = store_in(request)
    hosts, devices = store.hosts(), [d for d in store.devices() if d.state != "RETIRED"]
    leases = [lease for lease in store.leases() if lease.state != "ended"]
    return _render(
        request,
        "fleet.html",
        hosts=[(host, [d for d in devices if d.host == host.host]) for host in hosts],
        counts=sorted(Counter(d.state.value for d in devices).items()),
        devices=len(devices),
        leases=leases,
        moving={lease.lease_id for lease in leases if lease.state == "moving"},
        jobs=[job for job in store.jobs(100) if job.state not in FINAL_STATES],
        events=list(reversed(store.events(limit=12, newest=True))),
        names=words.short_names(d.uuid for d in devices),
    )


@inside.get("/health")
def health(request: Request) -> Response:
    store = store_in(request)
    devices = [d for d in store.devices() if d.state != "RETIRED"]
    rows_of = [(host, [d for d in devices if d.host == host.host]) for host in store.hosts()]
    figures = store.health_figures(time.time_ns())
    return _render(
        request,
        "health.html",
        hosts=rows_of,
        columns=max((len(cells) for _, cells in rows_of), default=0),
        counts=sorted(Counter(d.state.value for d in devices).items()),
        held=figures.held,
        shades=[(name, text) for _, name, text in heat.SHADES],
        verdicts=store.verdicts(SHOWN),
        alerts=store.alerts(SHOWN),
        down=[link for link in figures.links if not link.up],
        rules=store.rules(),
        places={d.uuid: words.place(d) for d in devices},
    )


@inside.get("/jobs")
def jobs(request: Request) -> Response:
    return _render(request, "jobs.html", jobs=store_in(request).jobs())


@inside.get("/sessions")
def sessions(request: Request) -> Response:
    store = store_in(request)
    places = {d.uuid: words.place(d) for d in store.devices()}
    return _render(request, "sessions.html", sessions=store.sessions(), places=places)


@inside.get("/events")
def events(request: Request) -> Response:
    return _render(request, "events.html", events=list(reversed(store_in(request).events(limit=200, newest=True))))


@inside.get("/devices/{uuid}")
def device(request: Request, uuid: str) -> Response:
    story = store_in(request).story(uuid)
    return _render(request, "device.html", device=story.device, lines=lay_out(story.events), deepest=DEEPEST)


@inside.get("/jobs/{name:path}")
def job(request: Request, name: str) -> Response:
    store = store_in(request)
    found = store.job(name)
    places = {d.uuid: words.place(d) for d in store.devices()}
    newest = list(reversed(found.checkpoints[-12:]))
    return _render(request, "job.html", job=found, places=places, newest=newest)


# ── how values are written ───────────────────────────────────────────────────────────────────────────────────────────


def _render(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    now_ns = time.time_ns()
    context = values | {"age": lambda ns: words.age(ns, now_ns), "here": request.url.path}
    return templates.TemplateResponse(request, template, context, status, HEADERS)


def _instant(at_ns: int) -> str:
    """UTC, ISO 8601; the browser shows it in local time."""
    return datetime.fromtimestamp(at_ns / 1e9, tz=UTC).isoformat(timespec="milliseconds")


def _entity_path(entity: str) -> str:
    """Page of an event's entity, or empty where it has none."""
    kind, _, name = entity.partition(":")
    if kind == "device":
        return f"/devices/{quote(name)}"
    if kind == "job":
        return f"/jobs/{quote(name)}"
    return attempt_path(name) if kind == "attempt" else ""


def attempt_path(attempt_id: str) -> str:
    """Page of the run that an attempt belongs to."""
    job_id, run_name, _ = split_attempt(attempt_id)
    return f"/jobs/{quote(job_id)}/{quote(run_name)}"


def job_path(row: rows.JobRow) -> str:
    return f"/jobs/{quote(row.job_id)}/{quote(row.run_name)}"


templates: Final = Jinja2Templates(HERE / "templates")
templates.env.filters |= {
    "instant": _instant,
    "score": words.score,
    "percent": words.percent,
    "shade": heat.shade,
    "initial": heat.initial,
    "hover": heat.hover,
    "gibibytes": words.gibibytes,
    "entity_path": _entity_path,
    "attempt_path": attempt_path,
    "job_path": job_path,
    "attempt_name": lambda attempt_id: "{1} #{2}".format(*split_attempt(attempt_id)),
}
templates.env.trim_blocks = templates.env.lstrip_blocks = True
