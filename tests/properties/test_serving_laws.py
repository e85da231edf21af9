"""Laws of the ring, of the blame, of the dice and of the text stream."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.serving.contract import Message
from paceline.serving.ring import Blames, ring_of, route
from paceline.serving.session import StoredTurn, merge
from paceline.serving.text import TextStream

SESSIONS = [f"session-{number}" for number in range(50)]
slots = st.frozensets(st.integers(0, 40), min_size=2, max_size=9)
names = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=8, unique=True)


@given(slots, st.data())
def test_losing_a_replica_moves_only_its_own_sessions(before: frozenset[int], data: st.DataObject) -> None:
    lost = data.draw(st.sampled_from(sorted(before)))
    for session in SESSIONS:
        order = ring_of(before).order(session)
        after = ring_of(before - {lost}).order(session)
        assert after == tuple(slot for slot in order if slot != lost), "also the fall-back order stays"


@given(slots)
def test_a_replacement_gets_the_same_sessions(kept: frozenset[int]) -> None:
    old = [(f"old-{slot}", slot) for slot in kept]
    new = [(f"new-{slot}", slot) for slot in kept]
    for session in SESSIONS[:20]:
        assert [name[4:] for name in route(session, old)] == [name[4:] for name in route(session, new)]


@given(names, st.data())
def test_route_is_an_order_of_all_replicas_with_the_blamed_last(replicas: list[str], data: st.DataObject) -> None:
    placed = [(name, slot) for slot, name in enumerate(replicas)]
    avoid = data.draw(st.lists(st.sampled_from([*replicas, "gone"]), unique=True))
    order = route("s", placed, avoid)
    blamed = [name for name in avoid if name != "gone"]
    assert sorted(order) == sorted(replicas)
    assert list(order[len(order) - len(blamed) :]) == blamed
    shuffled = data.draw(st.permutations(placed))
    assert route("s", shuffled, avoid) == order, "the order of rows is not an input"


def test_shares_are_even_enough() -> None:
    sessions = [f"user-{number}" for number in range(4000)]
    owners = [ring_of(frozenset(range(4))).order(session)[0] for session in sessions]
    assert all(700 < owners.count(slot) < 1350 for slot in range(4))


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 100)), max_size=20), st.floats(100, 200))
def test_blame_is_an_order_by_time_and_expires(blamed: list[tuple[str, float]], now_s: float) -> None:
    blames = Blames(quarantine_s=50)
    for name, at_s in sorted(blamed, key=lambda entry: entry[1]):
        blames.blame(name, at_s)
    last = {name: max(at for other, at in blamed if other == name) for name, _ in blamed}
    avoid = blames.avoid(now_s)
    assert set(avoid) == {name for name, at_s in last.items() if now_s - at_s < 50}
    assert list(avoid) == sorted(avoid, key=lambda name: (last[name], name))


@given(st.text(), st.lists(st.text(min_size=1, max_size=4), max_size=3))
def test_text_is_the_same_however_it_is_cut(text: str, stop: list[str]) -> None:
    raw = text.encode()
    one = TextStream(lambda token_id: raw[token_id : token_id + 1], stop)
    for token_id in range(len(raw)):
        one.push(token_id)
        if one.stopped:
            break
    if not one.stopped:
        one.finish()
    cut = min((at for at in (text.find(s) for s in stop) if at >= 0), default=len(text))
    if one.stopped:
        assert not any(s in one.text for s in stop)
        assert text.startswith(one.text)
        assert len(one.text) >= cut or any(one.text + s in text for s in stop)
    else:
        assert one.text == text


messages = st.lists(st.text(min_size=1), min_size=1, max_size=5)


@given(messages, st.text(min_size=1))
def test_history_or_only_the_new_message_give_one_conversation(said: list[str], new: str) -> None:
    stored = [
        StoredTurn(number, (Message("user", text),), f"re: {text}", True) for number, text in enumerate(said, start=1)
    ]
    history = [line for turn in stored for line in (*turn.messages, Message("assistant", turn.reply))]
    asked = Message("user", new)
    assert merge(stored, [*history, asked]).conversation == merge(stored, [asked]).conversation == (*history, asked)
