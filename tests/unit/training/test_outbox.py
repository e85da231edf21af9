"""Reports arrive in order, outlive a server that is away, and never raise into the run."""

import threading

from paceline.model.errors import BadRequest, Unreachable
from paceline.training.outbox import Outbox


def test_reports_are_delivered_in_order_once_the_server_is_back() -> None:
    got: list[int] = []
    tries = 0

    def first() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Unreachable("PL-NET-001", "the server is away")
        got.append(1)

    outbox = Outbox()
    outbox.put(first)
    outbox.put(lambda: got.append(2))
    assert outbox.flush(30)
    assert (got, tries) == ([1, 2], 2)


def test_what_the_server_refuses_and_what_breaks_does_not_stop_the_rest() -> None:
    got: list[int] = []

    def refused() -> None:
        raise BadRequest("PL-REQ-001", "no such field")

    def broken() -> None:
        raise KeyError("bug")

    outbox = Outbox()
    for what in (refused, broken, lambda: got.append(3)):
        outbox.put(what)
    assert outbox.flush(30)
    assert got == [3]


def test_flush_tells_that_something_is_left() -> None:
    gate = threading.Event()
    outbox = Outbox()
    outbox.put(gate.wait)
    assert not outbox.flush(0.05)
    gate.set()
    assert outbox.flush(30)
