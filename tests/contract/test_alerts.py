"""The outbox of alerts: each reaches its receiver, in order and signed, whatever the receiver and the database do meanwhile."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
import pytest
from fastapi import FastAPI, Request, Response

from inventory_maker import SECOND_NS, Fleet, ahead_ns, uuid
from paceline.control.alerts import LOG, Delivery, deliveries
from paceline.control.app import create_app
from paceline.inventory import alerts
from paceline.inventory.store import Store
from paceline.model.errors import Unreachable
from paceline.model.events import EventKind
from paceline.sdk import webhook
from paceline.sdk.rows_health import AlertKind
from paceline.sdk.webhook import ALERT_ID, SIGNATURE, Sender, Webhook, verify
from running_server import serve
from waiting import until

SECRET = "s3cret"
HOOK = Webhook("http://receiver.test/hook", SECRET)


@dataclass
class Receiver:
    """A wire to a receiver that does what `does` says for the next requests, and takes alerts after that."""

    does: list[Callable[[httpx.Request], httpx.Response]] = field(default_factory=list)
    asked: int = 0
    failed: int = 0
    taken: list[int] = field(default_factory=list)
    now_s: float = 0.0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        if self.does:
            self.failed += 1
            return self.does.pop(0)(request)
        verify(request.content, request.headers[SIGNATURE], SECRET, self.now_s)
        told = json.loads(request.content)
        assert request.headers[ALERT_ID] == str(told["id"])
        self.taken.append(told["id"])
        return httpx.Response(204)


def down(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused", request=request)


def broken(_request: httpx.Request) -> httpx.Response:
    return httpx.Response(500)


def moved(_request: httpx.Request) -> httpx.Response:
    return httpx.Response(302, headers={"location": "http://elsewhere.test/"})


def rejects(_request: httpx.Request) -> httpx.Response:
    return httpx.Response(422)


@dataclass
class Post:
    """A delivery to `receiver` by the fleet's clock."""

    fleet: Fleet
    receiver: Receiver

    def __post_init__(self) -> None:
        self.fleet.store.alert_targets([HOOK.name], self.fleet.now_ns)

    def turns(self, count: int) -> list[bool]:
        async def run() -> list[bool]:
            sender = Sender(HOOK, httpx.MockTransport(self.receiver))
            delivery = Delivery(self.fleet.store, HOOK.name, sender, lambda: self.fleet.now_ns)
            self.receiver.now_s = self.fleet.now_ns / 1e9
            done = [await delivery.turn() for _ in range(count)]
            await sender.close()
            return done

        return asyncio.run(run())

    @property
    def waiting(self) -> int:
        return self.fleet.store.health_figures(self.fleet.now_ns).waiting[HOOK.name]


@pytest.fixture
def post(fleet: Fleet) -> Post:
    return Post(fleet, Receiver())


def make(fleet: Fleet, count: int) -> list[int]:
    """Ids of `count` new alerts: devices that an operator takes out."""
    name = f"host-{len(fleet.gpus)}"
    fleet.healthy(name, count)
    for index in range(count):
        fleet.store.quarantine(uuid(name, index), "loud", "ada", fleet.now_ns)
    return [alert.id for alert in reversed(fleet.store.alerts(count))]


def test_alerts_come_in_order_and_once(post: Post) -> None:
    ids = make(post.fleet, 3)
    assert post.waiting == 3
    assert post.turns(5) == [True, True, True, False, False]
    assert post.receiver.taken == ids
    assert post.waiting == 0
    assert [alert.waiting for alert in post.fleet.store.alerts()] == [(), (), ()]


@pytest.mark.parametrize("failure", [down, broken, moved])
def test_a_receiver_that_is_away_gets_everything_when_it_is_back(
    post: Post, failure: Callable[[httpx.Request], httpx.Response]
) -> None:
    post.receiver.does = [failure] * 3
    ids = make(post.fleet, 2)
    pauses = []
    while not post.receiver.taken:
        asked = post.receiver.asked
        post.turns(2)
        assert post.receiver.asked <= asked + 2, "a pause is a pause"
        if not post.receiver.taken:
            assert post.fleet.store.alert_due(HOOK.name, post.fleet.now_ns) is None
            waited = 0
            while post.fleet.store.alert_due(HOOK.name, post.fleet.now_ns) is None:
                post.fleet.pass_s(1)
                waited += 1
            pauses.append(waited)
    assert pauses == [1, 2, 4], "pauses grow"
    assert post.receiver.failed == 3
    post.turns(2)
    assert post.receiver.taken == ids
    assert post.fleet.store.alerts()[0].waiting == ()


def test_pauses_end_at_five_minutes_and_alerts_after_a_week(post: Post) -> None:
    make(post.fleet, 1)
    for _ in range(12):
        post.fleet.store.alert_failed(HOOK.name, "down", post.fleet.now_ns)
    assert post.fleet.store.alert_due(HOOK.name, post.fleet.now_ns + 299 * SECOND_NS) is None
    assert post.fleet.store.alert_due(HOOK.name, post.fleet.now_ns + 300 * SECOND_NS) is not None
    post.fleet.now_ns += alerts.TRIED_NS
    assert post.turns(1) == [False]
    [late] = make(post.fleet, 1)
    assert post.turns(2) == [True, False]
    assert post.receiver.taken == [late], "what is a week old is given up, what came after is not"
    post.fleet.now_ns += alerts.KEPT_NS + 1
    post.fleet.store.roll_up(post.fleet.now_ns)
    assert post.fleet.store.alerts() == []


def test_an_alert_that_will_never_be_taken_holds_up_no_other(post: Post) -> None:
    post.receiver.does = [rejects]
    ids = make(post.fleet, 2)
    assert post.turns(3) == [True, True, False]
    assert (post.receiver.failed, post.receiver.taken) == (1, ids[1:])


def test_a_receiver_that_does_not_answer_is_left(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "ANSWER_S", 0.05)
    [alert_id] = make(post.fleet, 1)
    hung: list[bool] = []

    async def hangs(_request: httpx.Request) -> httpx.Response:
        hung.append(True)
        await asyncio.Event().wait()
        raise AssertionError("never reached")

    async def run() -> bool:
        sender = Sender(HOOK, httpx.MockTransport(hangs))
        return await Delivery(post.fleet.store, HOOK.name, sender, lambda: post.fleet.now_ns).turn()

    assert asyncio.run(run()) is False
    assert hung == [True]
    post.fleet.pass_s(1)
    assert post.turns(1) == [True]
    assert post.receiver.taken == [alert_id]


def test_what_was_sent_and_not_written_down_is_sent_again(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is away between the receiver's word and ours: at least once, and the id says that it is the same."""
    [alert_id] = make(post.fleet, 1)
    fired: list[str] = []

    def away(target: str, alert: int, now_ns: int) -> None:
        fired.append(target)
        raise Unreachable("PL-NET-002", "the database does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(post.fleet.store, "alert_delivered", away)
        with pytest.raises(Unreachable):
            post.turns(1)
    assert fired == [HOOK.name]
    assert post.turns(2) == [True, False]
    assert post.receiver.taken == [alert_id, alert_id]


def test_a_new_target_gets_nothing_of_the_past_and_one_that_left_is_forgotten(fleet: Fleet) -> None:
    make(fleet, 2)
    fleet.store.alert_targets([LOG, HOOK.name], fleet.now_ns)
    assert fleet.store.health_figures(fleet.now_ns).waiting == {LOG: 0, HOOK.name: 0}
    make(fleet, 1)
    fleet.store.alert_targets([LOG, HOOK.name], fleet.now_ns)
    assert fleet.store.health_figures(fleet.now_ns).waiting == {LOG: 1, HOOK.name: 1}, "a restart loses nothing"
    fleet.store.alert_targets([LOG], fleet.now_ns)
    assert fleet.store.health_figures(fleet.now_ns).waiting == {LOG: 1}


def test_an_alert_is_of_the_same_transaction_as_its_event(fleet: Fleet) -> None:
    def fails_after_it() -> None:
        with fleet.store._write(fleet.now_ns) as unit:
            event = unit.event(EventKind.FINDING, "device:x", "x")
            alerts.tell(unit, AlertKind.QUARANTINE, "device:x", "x", event)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails_after_it()
    assert (fleet.store.alerts(), fleet.events()) == ([], [])


@pytest.fixture
def listener() -> Iterator[tuple[str, list[dict[str, object]], list[int]]]:
    """A receiver that really listens: its URL, what it has taken, and the answers that it gives first."""
    taken: list[dict[str, object]] = []
    first: list[int] = []
    app = FastAPI()

    @app.post("/hook")
    async def hook(request: Request) -> Response:
        body = await request.body()
        verify(body, request.headers[SIGNATURE], SECRET, time.time())
        if first:
            return Response(status_code=first.pop(0))
        taken.append(json.loads(body))
        return Response(status_code=204)

    with serve(app) as url:
        yield f"{url}/hook", taken, first


def test_a_running_server_delivers_by_itself(
    sqlite_store: Store, listener: tuple[str, list[dict[str, object]], list[int]]
) -> None:
    url, taken, first = listener
    first.append(503)
    hook = Webhook(url, SECRET)
    with serve(create_app(sqlite_store, (hook,))):
        until(lambda: len(sqlite_store.health_figures(0).waiting) == 2, 30, "the targets are known")
        fleet = Fleet(sqlite_store, now_ns=ahead_ns())
        fleet.ride_through_a_fault()
        until(lambda: taken, 30, "the alert has come")
        until(lambda: not sqlite_store.alerts()[0].waiting, 30, "it is acknowledged, and in the log")
    assert first == [], "the receiver did fail"
    [alert] = taken
    assert (alert["kind"], alert["entity"]) == ("quarantine", f"device:{uuid('ada', 1)}")
    assert "Xid 79" in str(alert["summary"])
    assert set(deliveries(sqlite_store, (hook,))) == {LOG, hook.name}
