"""Stored turns and incoming messages: nothing said twice, nothing lost; the oldest goes first when the window is
full."""

from collections.abc import Sequence

import pytest

from paceline.model.errors import BadRequest
from paceline.serving.contract import Message
from paceline.serving.session import Form, StoredTurn, merge, trim


def user(text: str) -> Message:
    return Message("user", text)


def reply(text: str) -> Message:
    return Message("assistant", text)


def system(text: str) -> Message:
    return Message("system", text)


FIRST = StoredTurn(1, (system("be brief"), user("hi")), "hello", whole=True)
SECOND = StoredTurn(2, (user("more"),), "and more", whole=True)
CUT = StoredTurn(2, (user("more"),), "and mo", whole=False)


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.content for message in messages]


def test_only_the_new_message() -> None:
    merged = merge([FIRST, SECOND], [user("go on")])
    assert merged.form is Form.NEW
    assert texts(merged.conversation) == ["be brief", "hi", "hello", "more", "and more", "go on"]
    assert texts(merged.added) == ["go on"]


def test_whole_history_is_not_doubled() -> None:
    incoming = [system("be brief"), user("hi"), reply("hello"), user("more"), reply("and more"), user("go on")]
    merged = merge([FIRST, SECOND], incoming)
    assert merged.form is Form.FULL
    assert texts(merged.added) == ["go on"]
    assert merged.conversation == merge([FIRST, SECOND], [user("go on")]).conversation


def test_history_without_its_system_message_keeps_the_stored_one() -> None:
    merged = merge([FIRST], [user("hi"), reply("hello"), user("more")])
    assert texts(merged.conversation) == ["be brief", "hi", "hello", "more"]


def test_a_new_system_message_takes_over() -> None:
    merged = merge([FIRST], [system("be long"), user("more")])
    assert texts(merged.conversation) == ["be long", "hi", "hello", "more"]
    later = StoredTurn(2, merged.added, "long answer", whole=True)
    assert merge([FIRST, later], [user("x")]).conversation[0] == system("be long")


def test_answer_asked_for_again_supersedes_the_old_one() -> None:
    merged = merge([FIRST, SECOND], [user("hi"), reply("hello"), user("more")])
    assert merged.form is Form.BRANCH
    assert merged.kept == (FIRST,)
    assert texts(merged.added) == ["more"]


def test_edited_history_is_the_clients_to_edit() -> None:
    merged = merge([FIRST, SECOND], [user("hi"), reply("HELLO"), user("more")])
    assert (merged.form, merged.kept) == (Form.BRANCH, ())
    assert texts(merged.conversation) == ["hi", "HELLO", "more"]


def test_unfinished_turn_asked_again_is_a_retry() -> None:
    merged = merge([FIRST, CUT], [user("more")])
    assert (merged.form, merged.kept) == (Form.RETRY, (FIRST,))


def test_finished_turn_asked_again_is_a_new_turn() -> None:
    assert merge([FIRST, SECOND], [user("more")]).form is Form.NEW


def test_client_cut_off_may_hold_less_than_was_journaled() -> None:
    merged = merge([FIRST, CUT], [user("hi"), reply("hello"), user("more"), reply("and"), user("go on")])
    assert merged.form is Form.FULL
    assert texts(merged.conversation) == ["be brief", "hi", "hello", "more", "and", "go on"]


def test_unanswered_turn_keeps_its_question() -> None:
    silent = StoredTurn(2, (user("more"),), "", whole=False)
    assert texts(merge([FIRST, silent], [user("still there?")]).conversation)[-2:] == ["more", "still there?"]


@pytest.mark.parametrize("incoming", [[], [system("x")], [user("a"), reply("b")]])
def test_nothing_asked_is_refused(incoming: list[Message]) -> None:
    with pytest.raises(BadRequest):
        merge([], incoming)


def count(messages: Sequence[Message]) -> int:
    return sum(len(message.content) for message in messages)


def test_trim_drops_the_oldest_exchange_and_keeps_the_system_message() -> None:
    talk = [system("S"), user("aaaa"), reply("bbbb"), user("cccc"), reply("dddd"), user("ee")]
    assert texts(trim(talk, count, window=100, reserve=10)) == texts(talk)
    assert texts(trim(talk, count, window=12, reserve=1)) == ["S", "cccc", "dddd", "ee"]
    assert texts(trim(talk, count, window=4, reserve=1)) == ["S", "ee"]


def test_trim_refuses_what_cannot_fit() -> None:
    with pytest.raises(BadRequest, match="window is 3"):
        trim([system("S"), user("ee")], count, window=3, reserve=1)
