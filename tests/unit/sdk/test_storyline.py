"""How a story is laid out."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.model.events import Event, EventKind
from paceline.model.ids import EventId
from paceline.sdk.storyline import lay_out


def event(number: int, cause: int) -> Event:
    return Event(EventId(number), number, EventKind.JOB, "job:j", str(number), EventId(cause))


def drawn(*pairs: tuple[int, int]) -> list[str]:
    return ["." * line.depth + str(line.event.id) for line in lay_out(event(*pair) for pair in pairs)]


def test_each_effect_stands_under_its_cause_and_chains_stand_in_order() -> None:
    assert drawn((1, 0), (2, 0), (3, 1), (4, 2), (5, 3), (6, 1)) == ["1", ".3", "..5", ".6", "2", ".4"]


def test_an_effect_whose_cause_is_not_told_begins_a_chain() -> None:
    assert drawn((7, 3), (8, 7)) == ["7", ".8"]


@given(
    st.lists(st.integers(0, 10**6), max_size=60).map(lambda draws: [(i + 1, d % (i + 1)) for i, d in enumerate(draws)])
)
def test_every_event_is_told_once_whatever_the_order_of_rows(pairs: list[tuple[int, int]]) -> None:
    lines = lay_out(event(*pair) for pair in pairs)
    assert sorted(line.event.id for line in lines) == [number for number, _ in pairs]
    assert lines == lay_out(event(*pair) for pair in reversed(pairs))
    place = {line.event.id: i for i, line in enumerate(lines)}
    assert all(place[EventId(cause)] < place[EventId(number)] for number, cause in pairs if cause)
