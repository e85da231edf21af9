"""What the gateway and an engine say to each other, and what every engine must be. Pure: standard library only.

One *attempt* is one call of one engine replica. It answers with frames, in this order:

    Hello                            at once, before the prompt is read: which replica works on it
    Checked                          only on a resume, after the prompt and the emitted tokens were read again
    Tokens* | Beat*                  tokens in order of position; a beat while there is nothing to say

A replica that neither speaks nor beats is frozen or gone; `serving.watchdog` decides when.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

BEAT_S: Final = 0.1
"""A replica's longest silence while its process and its event loop are alive."""


class Resume(StrEnum):
    """What a resumed answer is, seen from the answer that an undisturbed run would have given."""

    NONE = "none"  # it was never resumed
    EXACT = "exact"  # same tokens: the engine sampled the emitted positions again and all of them matched
    PREFIX = "prefix"  # a valid continuation of the emitted tokens, but equality is not claimed


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, as OpenAI's API names them: role `system`, `user` or `assistant`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Params:
    """How to sample. `temperature` 0 takes the likeliest token."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What an engine declares. Two engines with one `revision` give the same tokens for the same attempt."""

    name: str
    revision: str
    tokenizer: str
    """Revision of the tokenizer: token ids mean the same only under one tokenizer."""
    window: int
    """Most tokens of prompt and answer together."""
    eos_ids: frozenset[int]
    resume: Resume


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """Who does the work: Serve's replica id and rank, the process, and the GPU that it holds ("" if none)."""

    replica_id: str
    rank: int
    pid: int
    node_id: str
    device: str = ""
    device_index: str = ""


@dataclass(slots=True)
class EngineRequest:
    """One attempt. `emitted_ids` are the tokens that the client may already have seen.

    `avoid` lists replica ids, the least recently blamed first: they are tried last and in this order. The router writes
    the replicas that it prefers into `trail` before it sends: a frozen replica never says which one it is.
    """

    session: str
    prompt_ids: tuple[int, ...]
    emitted_ids: tuple[int, ...]
    params: Params
    seed: int
    avoid: tuple[str, ...] = ()
    trail: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Hello:
    replica: ReplicaFacts
    card: ModelCard


@dataclass(frozen=True, slots=True)
class Checked:
    """Of the emitted tokens, `checked` were sampled again and `matched` came out the same."""

    checked: int
    matched: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """`ids[i]` stands at `position + i` of the answer, counted from 0 over all attempts."""

    position: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Beat:
    pass


Frame = Hello | Checked | Tokens | Beat


class Tokenizer(Protocol):
    """The gateway's half of a model: cheap to load, no weights."""

    @property
    def card(self) -> ModelCard: ...

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Prompt of the conversation, up to where the answer begins."""

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 of one token; may be part of a character. Empty for a special token."""


class Engine(Protocol):
    """A model that can go on from any position.

    `generate` yields `(position, token id)`. Randomness may come from `(seed, position)` only, so that any replica
    gives the same token at the same position. With `emitted_ids` it may first yield the last few emitted positions
    again, as it would sample them now (that is what `Checked` counts); then it goes on at `len(emitted_ids)`. It ends
    after a token in `card.eos_ids` or after `params.max_tokens` tokens, counted from position 0. It must never block
    the event loop.
    """

    @property
    def card(self) -> ModelCard: ...

    def generate(
        self, prompt_ids: Sequence[int], emitted_ids: Sequence[int], params: Params, seed: int
    ) -> AsyncIterator[tuple[int, int]]: ...


EngineOptions = Mapping[str, str | int | float]
"""Settings of an adapter, as they travel through Serve; each adapter checks its own."""
