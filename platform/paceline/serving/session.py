"""A conversation: what is stored, what a request adds to it, and what of it fits the model. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from paceline.model.errors import BadRequest
from paceline.serving.contract import Message

SYSTEM_ROLES = frozenset({"system", "developer"})


class TurnState(StrEnum):
    OPEN = "open"
    DONE = "done"
    CANCELLED = "cancelled"  # the client went away
    INTERRUPTED = "interrupted"  # the gateway died
    FAILED = "failed"
    SUPERSEDED = "superseded"  # the client went back in the conversation and took another way


class Form(StrEnum):
    """What a request turned out to be, compared with what is stored."""

    NEW = "new"  # only what is new
    FULL = "full"  # the whole history, equal to what is stored, and something new
    RETRY = "retry"  # the unfinished last turn once more
    BRANCH = "branch"  # a history that leaves the stored one: the stored turns after that point are superseded


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """`messages` are what this turn added; `reply` is what the client was shown, in part if not `whole`."""

    number: int
    messages: tuple[Message, ...]
    reply: str
    whole: bool


@dataclass(frozen=True, slots=True)
class Merged:
    """`kept` turns stay, `added` messages make the new turn."""

    form: Form
    kept: tuple[StoredTurn, ...]
    added: tuple[Message, ...]

    @property
    def conversation(self) -> tuple[Message, ...]:
        """All messages, the latest system message first: what the model gets, before trimming."""
        said = [*chain.from_iterable(_lines(turn) for turn in self.kept), *self.added]
        system = _system(said)
        return (*system, *_dialog(said))


def merge(stored: Sequence[StoredTurn], incoming: Sequence[Message]) -> Merged:
    """Join a request to the stored turns without saying anything twice.

    A client may send only its new message, or, as OpenAI's API has it, the whole history. A history is known by a
    reply in it. Where it leaves the stored one (an edited message, an answer asked for again), the client is right and
    the stored rest is superseded. Raises BadRequest if nothing is asked.
    """
    dialog = _dialog(incoming)
    if not dialog or dialog[-1].role != "user":
        raise BadRequest("PL-REQ-101", "the last message must have the role `user`")
    system = _system(incoming)
    if not any(message.role == "assistant" for message in dialog):
        kept, form = _kept_for_new(stored, dialog), Form.NEW
        if len(kept) < len(stored):
            form = Form.RETRY
    else:
        kept, dialog = _kept_for_history(stored, dialog)
        form = Form.FULL if len(kept) == len(stored) else Form.BRANCH
    known = _system(list(chain.from_iterable(turn.messages for turn in kept)))
    return Merged(form, kept, ((*system, *dialog) if system != known else tuple(dialog)))


def trim(
    conversation: Sequence[Message], count: Callable[[Sequence[Message]], int], window: int, reserve: int
) -> tuple[Message, ...]:
    """Drop the oldest exchanges until prompt and answer fit the window; system messages and the last message stay.

    `count` gives the length of a rendered prompt, `reserve` the tokens kept for the answer. Raises BadRequest if the
    last message alone does not fit.
    """
    system, dialog = _system(conversation), _dialog(conversation)
    while True:
        fitting = (*system, *dialog)
        needed = count(fitting)
        if needed + reserve <= window:
            return fitting
        following = next((at for at in range(1, len(dialog)) if dialog[at].role == "user"), None)
        if following is None:
            raise BadRequest(
                "PL-REQ-102",
                f"the prompt has {needed} tokens and {reserve} are kept for the answer; the model's window is {window}",
                "shorten the message or lower max_tokens",
            )
        dialog = dialog[following:]


def _dialog(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.role not in SYSTEM_ROLES]


def _system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The system message in force: the last one, or none."""
    return tuple(message for message in messages if message.role in SYSTEM_ROLES)[-1:]


def _lines(turn: StoredTurn) -> tuple[Message, ...]:
    return (*turn.messages, Message("assistant", turn.reply)) if turn.reply else turn.messages


def _kept_for_new(stored: Sequence[StoredTurn], dialog: list[Message]) -> tuple[StoredTurn, ...]:
    if stored and not stored[-1].whole and _dialog(stored[-1].messages) == dialog:
        return tuple(stored[:-1])
    return tuple(stored)


def _kept_for_history(
    stored: Sequence[StoredTurn], dialog: list[Message]
) -> tuple[tuple[StoredTurn, ...], list[Message]]:
    """The stored turns that the history begins with, and the rest of the history."""
    kept: list[StoredTurn] = []
    for turn in stored:
        lines = _dialog(_lines(turn))
        theirs = dialog[: len(lines)]
        if len(dialog) <= len(lines) or not all(map(_same, lines, theirs, [turn.whole] * len(lines))):
            break
        kept.append(StoredTurn(turn.number, turn.messages, theirs[-1].content if turn.reply else "", turn.whole))
        dialog = dialog[len(lines) :]
    return tuple(kept), dialog


def _same(ours: Message, theirs: Message, whole: bool) -> bool:
    """A client cut off in mid-answer may hold less of it than we do."""
    if ours.role != theirs.role:
        return False
    ours_text, theirs_text = ours.content.strip(), theirs.content.strip()
    if ours.role == "assistant" and not whole:
        return ours_text.startswith(theirs_text)
    return ours_text == theirs_text
