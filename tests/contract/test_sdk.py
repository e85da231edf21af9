"""The client against a server that really listens, and against wires that break."""

import asyncio
import inspect
import math
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from inventory_maker import Fleet, ahead_ns, uuid
from paceline.control import auth
from paceline.control.app import create_app
from paceline.inventory.store import Store
from paceline.model.errors import (
    BY_NAME,
    BadRequest,
    Conflict,
    HostSetup,
    NotFound,
    PacelineError,
    Refused,
    Unreachable,
)
from paceline.model.hardware import DeviceState
from paceline.model.ids import AttemptId, JobId, SessionId
from paceline.model.plan import Plan
from paceline.model.session import SessionUpdate
from paceline.model.workload import AttemptProgress, CheckpointRecord, GangRequest, JobUpdate, RunState
from paceline.sdk.aio import AsyncClient
from paceline.sdk.client import Client
from running_server import serve


@pytest.fixture
def server(sqlite_store: Store) -> Iterator[tuple[str, str, Fleet]]:
    token = auth.issue_token(sqlite_store, "tester")
    with serve(create_app(sqlite_store)) as url:
        yield url, token, Fleet(sqlite_store, now_ns=ahead_ns())


def test_a_fleet_is_told_and_asked_through_the_client_alone(server: tuple[str, str, Fleet]) -> None:
    url, token, fleet = server
    fleet.gpus["ada"] = 8
    with Client(url, token) as client:
        assert client.health()["status"] == "ok"
        assert client.report(fleet.report_of("ada"))
        client.nodes_alive([{"node_id": "node-ada", "host_hint": "ada", "address": "10.0.0.1"}], fleet.now_ns)
        scores = client.measurements([fleet.measurement("ada", i) for i in range(8)])
        assert [round(s.score, 3) for s in scores] == [1.0] * 8
        client.holds([], [uuid("ada", i) for i in range(8)], fleet.now_ns)
        snapshot = client.fleet()
        assert {d.state for d in snapshot.devices} == {DeviceState.HEALTHY}
        gang = (uuid("ada", 0), uuid("ada", 1))
        request = GangRequest(JobId("job"), "run", 1, 2, 0.03)
        lease = client.create_lease(request, Plan(snapshot.revision, gang, 0.0, 1.0, "equals"))
        assert client.fleet(after=snapshot.revision, wait_s=5).leases == (lease,)
        assert client.correct_lease(lease.lease_id, (uuid("ada", 2), uuid("ada", 1))).devices[0] == uuid("ada", 2)
        client.job_update(JobUpdate(JobId("job"), "run", RunState.RUNNING, fleet.now_ns))
        client.attempt(AttemptProgress(AttemptId("job/run/1"), lease.lease_id, "started", fleet.now_ns))
        client.checkpoint(
            CheckpointRecord(AttemptId("job/run/1"), "c-1", 10, fleet.now_ns, {"loss": math.nan, "lr": 0.1})
        )
        assert client.job("job/run").checkpoints[0].metrics == {"loss": None, "lr": 0.1}
        client.report_sessions([SessionUpdate(SessionId("s"), fleet.now_ns, 1, 5, 0, "r", "", "idle")])
        assert client.sessions()[0].turns == 1
        client.end_lease(lease.lease_id, "done")
        assert client.leases()[0].state == "ended"
        assert client.quarantine(uuid("ada", 3), "loud").state is DeviceState.DRAINING
        assert client.hosts()[0].healthy == 7
        assert client.jobs()[0].state is RunState.RUNNING
        assert client.samples(uuid("ada", 0)).raw[0].sm_clock_mhz == 1980
        assert client.events(newest=True, limit=1)[0].id == client.events(limit=5000)[-1].id
        assert client.story(uuid("ada", 3)).device == client.device(uuid("ada", 3)) == client.devices()[3]


def test_errors_are_the_same_on_both_sides(server: tuple[str, str, Fleet]) -> None:
    url, token, fleet = server
    fleet.healthy("ada", 2)
    taken = fleet.lease("job", 1, uuid("ada", 0))
    with Client(url, token) as client:
        with pytest.raises(NotFound) as missing:
            client.device("GPU-x")
        assert (missing.value.code, missing.value.exit_code) == ("PL-FIND-001", 3)
        assert missing.value.hint == "`paceline get devices` lists them"
        with pytest.raises(BadRequest, match="needs a reason"):
            client.quarantine(uuid("ada", 0), "")
        with pytest.raises(Conflict, match="is leased by job/run/1"):
            client.create_lease(GangRequest(JobId("other"), "run", 1, 1, 0.1), Plan(1, taken.devices, 0, 1, ""))
    with Client(url, "wrong") as client, pytest.raises(Refused):
        client.hosts()


@pytest.mark.parametrize("cls", BY_NAME.values())
def test_every_class_of_error_survives_the_wire(cls: type[PacelineError]) -> None:
    from paceline.control.problems import answer

    def wire(_request: httpx.Request) -> httpx.Response:
        told = answer(cls("PL-X-1", "what", "do this"), 409)
        return httpx.Response(told.status_code, content=bytes(told.body))

    with Client("http://server", "t", transport=httpx.MockTransport(wire)) as client, pytest.raises(cls) as seen:
        client.hosts()
    assert (seen.value.code, seen.value.message, seen.value.hint) == ("PL-X-1", "what", "do this")


class Flaky:
    """A wire that fails `failures` times, then answers `{}`-like JSON."""

    def __init__(self, failures: int, failure: Callable[[httpx.Request], httpx.Response], body: str = "{}") -> None:
        self.failures, self.failure, self.body, self.seen = failures, failure, body, 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen += 1
        return self.failure(request) if self.seen <= self.failures else httpx.Response(200, text=self.body)


def refuses(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def breaks(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("connection reset", request=request)


def restarts(_request: httpx.Request) -> httpx.Response:
    return httpx.Response(503, json={"error": "Unreachable", "code": "PL-NET-002", "message": "database", "hint": ""})


@pytest.mark.parametrize("failure", [refuses, breaks, restarts])
def test_what_may_be_sent_twice_is_sent_again(failure: Callable[[httpx.Request], httpx.Response]) -> None:
    wire = Flaky(2, failure)
    with Client("http://server", "t", transport=httpx.MockTransport(wire)) as client:
        client.holds([], [], 0)
    assert wire.seen == 3


def test_an_operators_word_is_sent_again_only_if_it_never_left() -> None:
    wire = Flaky(1, breaks)
    with (
        Client("http://server", "t", transport=httpx.MockTransport(wire)) as client,
        pytest.raises(Unreachable) as seen,
    ):
        client.quarantine("GPU-1", "loud")
    assert (wire.seen, seen.value.code, seen.value.exit_code) == (1, "PL-NET-001", 8)
    wire = Flaky(1, refuses, "[]")
    with (
        Client("http://server", "t", transport=httpx.MockTransport(wire)) as client,
        pytest.raises(Unreachable, match="not understood"),
    ):
        client.quarantine("GPU-1", "loud")
    assert wire.seen == 2


def test_the_deadline_bounds_all_tries() -> None:
    began = time.monotonic()
    wire = Flaky(10**6, refuses)
    with (
        Client("http://server", "t", deadline_s=0.5, transport=httpx.MockTransport(wire)) as client,
        pytest.raises(Unreachable, match="http://server does not answer: refused"),
    ):
        client.hosts()
    assert time.monotonic() - began < 20
    assert wire.seen > 1


def test_something_else_that_listens_there_is_told_apart() -> None:
    def other(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(404, text="<html>nginx</html>")

    with (
        Client("http://server", "t", transport=httpx.MockTransport(other)) as client,
        pytest.raises(Unreachable, match="HTTP 404, not as a Paceline server") as seen,
    ):
        client.hosts()
    assert seen.value.code == "PL-NET-003"


def test_the_async_client_does_the_same(server: tuple[str, str, Fleet]) -> None:
    url, token, fleet = server
    fleet.healthy("ada", 2)

    async def use() -> None:
        async with AsyncClient(url, token) as client:
            snapshot = await client.fleet()
            poll = asyncio.create_task(client.fleet(after=snapshot.revision, wait_s=20))
            lease = await client.create_lease(
                GangRequest(JobId("j"), "r", 1, 1, 0.1), Plan(1, (uuid("ada", 0),), 0, 1, "")
            )
            assert (await poll).leases == (lease,)
            with pytest.raises(NotFound):
                await client.job("none")

    asyncio.run(use())


def test_the_async_client_retries_and_gives_up_like_the_other() -> None:
    async def use(wire: Flaky, deadline_s: float) -> None:
        async with AsyncClient("http://s", "t", deadline_s=deadline_s, transport=httpx.MockTransport(wire)) as client:
            await client.holds([], [], 0)

    wire = Flaky(2, breaks)
    asyncio.run(use(wire, 10))
    assert wire.seen == 3
    with pytest.raises(Unreachable):
        asyncio.run(use(Flaky(10**6, refuses), 0.3))


def test_both_clients_have_the_same_methods() -> None:
    def public(cls: type) -> dict[str, inspect.Signature]:
        return {
            n: inspect.signature(f) for n, f in vars(cls).items() if inspect.isfunction(f) and not n.startswith("_")
        }

    assert public(Client) == public(AsyncClient)


def test_address_and_token_come_from_the_home_that_paceline_up_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PACELINE_ADDRESS", raising=False)
    monkeypatch.delenv("PACELINE_TOKEN", raising=False)
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    with pytest.raises(HostSetup, match=r"no Paceline server is known here"):
        Client()
    (tmp_path / "server.json").write_text('{"url": "http://127.0.0.1:1234/", "pid": 1, "started": 0}')
    token = tmp_path / "token"
    token.write_text("pl_secret\n")
    token.chmod(0o644)
    with pytest.raises(Refused, match="others may read the token file"):
        Client()
    token.chmod(stat.S_IRUSR | stat.S_IWUSR)
    seen: list[httpx.Request] = []

    def wire(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, text="[]")

    with Client(transport=httpx.MockTransport(wire)) as client:
        assert client.address == "http://127.0.0.1:1234"
        client.hosts()
    assert seen[0].headers["authorization"] == "Bearer pl_secret"
    monkeypatch.setenv("PACELINE_ADDRESS", "elsewhere:80")
    assert Client(token="x").address == "http://elsewhere:80"


def test_the_client_needs_neither_ray_nor_torch_nor_sql() -> None:
    script = (
        "import sys; import paceline; light = set(sys.modules); paceline.Client; import paceline.sdk.rows\n"
        "heavy = {'ray', 'torch', 'sqlalchemy', 'fastapi', 'alembic', 'numpy', 'psutil'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert 'httpx' not in light and 'pydantic' not in light\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
