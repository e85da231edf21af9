"""A small language model that loads in a second and runs anywhere: for tests, drills and demos without a GPU.

It is a byte-level n-gram model of Python's own help texts (`pydoc_data`, in the standard library), blended with an
n-gram model of the conversation itself (a cache model: Kuhn & De Mori, IEEE PAMI 12(6), 1990). So the next token
depends on the whole prompt, also on earlier turns. Its text is no use to a reader; that its tokens are countable and
reproducible is.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cache
from typing import Final

from paceline.serving.contract import Message, ModelCard, Params, Resume
from paceline.serving.sampling import pick, shape, uniform

ORDER: Final = 4
"""Longest context in bytes. Order 4 spells most words right; order 5 doubles load time for little."""
CORPUS_BYTES: Final = 120_000
CACHE_SHARE: Final = 0.35
"""Weight of the conversation's own n-grams where it has seen the context."""
BACKOFF: Final = 0.1
"""Weight that each shorter context leaves to the longer one."""
PROOF_TOKENS: Final = 64
"""How many emitted positions are sampled again on a resume."""
WINDOW: Final = 8192

CARD: Final = ModelCard(
    name="char", revision="char-ngram4-1", tokenizer="bytes-1", window=WINDOW, eos_ids=frozenset(), resume=Resume.EXACT
)

Table = Mapping[bytes, Mapping[int, int]]


class CharTokenizer:
    """Tokens are the bytes of UTF-8: a character may take up to four."""

    card = CARD

    def render(self, messages: Sequence[Message]) -> list[int]:
        lines = [f"{message.role}: {message.content}\n" for message in messages]
        return list("".join([*lines, "assistant: "]).encode())

    def token_bytes(self, token_id: int) -> bytes:
        return bytes((token_id,))


def count_ngrams(text: bytes, table: defaultdict[bytes, Counter[int]]) -> None:
    """Add each byte of `text` under each of its contexts of 0 to ORDER bytes."""
    for at, byte in enumerate(text):
        for length in range(min(ORDER, at) + 1):
            table[text[at - length : at]][byte] += 1


@cache
def corpus_table() -> Table:
    """Read the corpus once in a process: about a second."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics)).encode()[:CORPUS_BYTES]
    table: defaultdict[bytes, Counter[int]] = defaultdict(Counter)
    count_ngrams(text, table)
    return table


class Distribution:
    """Next-byte weights for one conversation, which grows as tokens are added."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._corpus = corpus_table()
        self._own: defaultdict[bytes, Counter[int]] = defaultdict(Counter)
        self._text = bytearray(prompt)
        count_ngrams(bytes(prompt), self._own)

    def weights(self) -> list[float]:
        """256 weights that sum to about 1."""
        blended = [0.0] * 256
        context = bytes(self._text[-ORDER:])
        for length in range(min(ORDER, len(context)) + 1):
            suffix = context[len(context) - length :]
            self._blend(blended, self._corpus.get(suffix, {}), 1.0 - CACHE_SHARE)
            self._blend(blended, self._own.get(suffix, {}), CACHE_SHARE)
        return blended

    def add(self, token_id: int) -> None:
        at = len(self._text)
        for length in range(min(ORDER, at) + 1):
            self._own[bytes(self._text[at - length :])][token_id] += 1
        self._text.append(token_id)

    @staticmethod
    def _blend(blended: list[float], counts: Mapping[int, int], share: float) -> None:
        if not counts:
            return
        keep = 1.0 - share * (1.0 - BACKOFF)
        scale = share * (1.0 - BACKOFF) / sum(counts.values())
        for index, weight in enumerate(blended):
            blended[index] = weight * keep
        for token_id, count in counts.items():
            blended[token_id] += scale * count


class CharEngine:
    """`token_period_s` is the time from token to token; 0 runs flat out."""

    card = CARD

    def __init__(self, token_period_s: float = 0.0) -> None:
        self._period_s = token_period_s
        corpus_table()

    async def generate(
        self, prompt_ids: Sequence[int], emitted_ids: Sequence[int], params: Params, seed: int
    ) -> AsyncIterator[tuple[int, int]]:
        clock = asyncio.get_running_loop().time
        state = Distribution(prompt_ids)
        for position, token_id in enumerate(emitted_ids):
            if position >= len(emitted_ids) - PROOF_TOKENS:
                yield position, _sample(state, params, seed, position)
            state.add(token_id)
        due_s = clock()
        for position in range(len(emitted_ids), params.max_tokens):
            await asyncio.sleep(max(0.0, due_s - clock()))
            due_s = max(due_s + self._period_s, clock())
            token_id = _sample(state, params, seed, position)
            state.add(token_id)
            yield position, token_id


def _sample(state: Distribution, params: Params, seed: int, position: int) -> int:
    weights = state.weights()
    if params.temperature <= 0.0:
        return max(range(len(weights)), key=lambda token_id: (weights[token_id], -token_id))
    return pick(shape(weights, params.temperature, params.top_p), uniform(seed, position))
