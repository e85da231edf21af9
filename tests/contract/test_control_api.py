"""The control API over HTTP: who may ask, what errors look like, and that a long poll holds nobody up."""

import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from fastapi.testclient import TestClient
from pydantic import TypeAdapter

from inventory_maker import Fleet, ahead_ns, uuid
from paceline.control import auth
from paceline.control.app import create_app
from paceline.inventory.store import Store
from paceline.model.health import NodeReport


class Api:
    """The application in a thread of its own, a token for it, and a fleet behind it."""

    def __init__(self, client: TestClient, store: Store) -> None:
        self.client, self.store, self.fleet = client, store, Fleet(store, now_ns=ahead_ns())
        token = auth.ensure_admin_token(store)
        assert token is not None
        self.token = token

    def get(self, path: str, **params: object) -> httpx.Response:
        return self.client.get(path, params=params, headers=self.headers)

    def post(self, path: str, body: object) -> httpx.Response:
        return self.client.post(path, json=body, headers=self.headers)

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}


@pytest.fixture
def api(sqlite_store: Store) -> Iterator[Api]:
    with TestClient(create_app(sqlite_store), raise_server_exceptions=False, follow_redirects=False) as client:
        yield Api(client, sqlite_store)


def test_health_is_open_to_all_and_the_rest_is_not(api: Api) -> None:
    assert api.client.get("/healthz").json()["status"] == "ok"
    routes = [r for r in api.client.app.routes if getattr(r, "path", "").startswith("/v1")]
    paths = set(api.get("/v1/openapi.json").json()["paths"]) - {"/healthz"}
    assert len(paths) > 20 or routes
    for path, methods in api.get("/v1/openapi.json").json()["paths"].items():
        for method in methods:
            if path != "/healthz":
                answer = api.client.request(method, path.replace("{", "").replace("}", ""), json={})
                assert (answer.status_code, answer.json()["code"]) == (401, "PL-AUTH-001"), (method, path)
    assert api.client.get("/metrics").status_code == 401


def test_a_wrong_or_revoked_token_is_refused(api: Api) -> None:
    for wrong in ("Bearer nonsense", f"Basic {api.token}", "Bearer ", f"Bearer {api.token}x"):
        answer = api.client.get("/v1/hosts", headers={"authorization": wrong})
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"] == "Refused"
    api.store.revoke_tokens("admin", time.time_ns())
    assert api.get("/v1/hosts").json()["code"] == "PL-AUTH-002"


def test_the_admin_token_is_made_once(api: Api) -> None:
    assert auth.ensure_admin_token(api.store) is None
    other = auth.issue_token(api.store, "agents")
    assert api.client.get("/v1/hosts", headers={"authorization": f"Bearer {other}"}).status_code == 200


def test_a_cookie_reads_and_never_writes(api: Api) -> None:
    api.fleet.healthy("ada", 1)
    api.client.cookies.set(auth.COOKIE, api.token)
    assert api.client.get("/v1/devices").status_code == 200
    answer = api.client.post(f"/v1/devices/{uuid('ada', 0)}/quarantine", json={"reason": "from a foreign page"})
    assert answer.status_code == 401


def test_a_report_travels_as_json_and_is_taken_once(api: Api) -> None:
    api.fleet.gpus["ada"] = 2
    body = TypeAdapter(NodeReport).dump_python(api.fleet.report_of("ada"), mode="json")
    assert api.post("/v1/reports", body).json() == {"accepted": True}
    assert api.post("/v1/reports", body).json() == {"accepted": False}
    assert [d["state"] for d in api.get("/v1/devices").json()] == ["PROBING", "PROBING"]


def test_what_is_wrong_with_a_request_is_said(api: Api) -> None:
    answer = api.post("/v1/holds", {"held": "GPU-1", "released": [], "at_ns": 0})
    assert answer.status_code == 422
    assert answer.json() == {
        "error": "BadRequest",
        "code": "PL-REQ-001",
        "message": "body.held: Input should be a valid list",
        "hint": "GET /v1/openapi.json shows what /v1/holds takes",
    }
    assert api.get("/v1/nowhere").json()["code"] == "PL-FIND-004"
    assert api.client.delete("/v1/hosts", headers=api.headers).status_code == 405
    assert api.get("/v1/devices/GPU-x").json()["message"] == "no device GPU-x is known"
    assert api.get("/v1/fleet", wait_s=31).status_code == 422


def test_a_failure_of_the_server_is_told_without_its_insides(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(api.store, "hosts", broken)
    answer = api.get("/v1/hosts")
    assert (answer.status_code, answer.json()["code"]) == (500, "PL-RUN-500")
    assert "secret" not in answer.text


def test_an_operators_action_is_kept_with_the_name_of_the_token(api: Api) -> None:
    api.fleet.healthy("ada", 2)
    path = f"/v1/devices/{uuid('ada', 0)}/quarantine"
    assert api.post(path, {"reason": ""}).json()["code"] == "PL-REQ-010"
    row = api.post(path, {"reason": "fan is loud"}).json()
    assert (row["state"], row["reason"]) == ("DRAINING", "operator: fan is loud")
    [event] = [e for e in api.get("/v1/events").json() if e["kind"] == "operator"]
    assert (event["body"]["who"], event["body"]["reason"]) == ("admin", "fan is loud")


def test_a_long_poll_waits_for_a_change_and_no_longer(api: Api) -> None:
    api.fleet.healthy("ada", 2)
    revision = api.get("/v1/fleet").json()["revision"]
    answers: list[tuple[int, float]] = []

    def poll() -> None:
        began = time.monotonic()
        got = api.get("/v1/fleet", after=revision, wait_s=20).json()["revision"]
        answers.append((got, time.monotonic() - began))

    waiting = [threading.Thread(target=poll) for _ in range(3)]
    for thread in waiting:
        thread.start()
    api.fleet.lease("job", 1, uuid("ada", 0))
    for thread in waiting:
        thread.join(15)
    assert [got for got, _ in answers] == [revision + 1] * 3
    assert max(took for _, took in answers) < 10
    assert api.get("/v1/fleet", after=revision, wait_s=20).json()["revision"] == revision + 1


def test_a_long_poll_without_a_change_ends_with_the_fleet_as_it_is(api: Api) -> None:
    api.fleet.healthy("ada", 1)
    snapshot = api.get("/v1/fleet").json()
    assert api.get("/v1/fleet", after=snapshot["revision"], wait_s=0.1).json() == snapshot


def test_more_polls_than_threads_do_not_starve_the_rest(api: Api) -> None:
    api.fleet.healthy("ada", 1)
    revision = api.get("/v1/fleet").json()["revision"]
    polls = [
        threading.Thread(target=lambda: api.get("/v1/fleet", after=revision, wait_s=20)) for _ in range(60)
    ]  # the thread pool has 40
    for thread in polls:
        thread.start()
    began = time.monotonic()
    assert api.get("/v1/hosts").status_code == 200
    assert time.monotonic() - began < 10
    api.fleet.lease("job", 1, uuid("ada", 0))
    for thread in polls:
        thread.join(20)
    assert not any(thread.is_alive() for thread in polls)


def test_metrics_tell_states_and_ages(api: Api) -> None:
    api.fleet.ride_through_a_fault()
    text = api.get("/metrics").text
    for line in (
        'paceline_devices{state="QUARANTINED"} 1.0',
        'paceline_devices{state="HEALTHY"} 15.0',
        'paceline_jobs{state="RUNNING"} 1.0',
        "paceline_leases 1.0",
        'paceline_report_age_seconds{host="ada"}',
    ):
        assert line in text
    api.get("/v1/devices/GPU-1")
    text = api.get("/metrics").text
    assert 'paceline_http_requests_total{method="GET",route="/v1/devices/{uuid}",status="404"} 1.0' in text


def test_every_question_has_an_answer_after_a_ride_through_a_fault(api: Api) -> None:
    api.fleet.ride_through_a_fault()
    sick = uuid("ada", 1)
    assert [h["healthy"] for h in api.get("/v1/hosts").json()] == [7, 8]
    assert api.get(f"/v1/devices/{sick}").json()["state"] == "QUARANTINED"
    assert len(api.get(f"/v1/devices/{sick}/samples").json()["raw"]) > 3
    assert api.get(f"/v1/devices/{sick}/story").json()["events"][-2]["kind"] == "attempt resumed"
    assert [x["state"] for x in api.get("/v1/leases").json()] == ["held", "ended"]
    assert api.get("/v1/jobs").json()[0]["starts"] == 2
    assert api.get("/v1/jobs/job-1/run").json()["checkpoints"][-1]["step"] == 200
    assert api.get("/v1/sessions").json() == []
    newest = api.get("/v1/events", newest=True, limit=3).json()
    everything = api.get("/v1/events", limit=5000).json()
    assert newest == everything[-3:]
    assert api.get("/v1/events", entity="job:job-1").json() == [e for e in everything if e["entity"] == "job:job-1"]
