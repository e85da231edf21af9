"""SmolLM2-135M-Instruct in plain torch: fp32, one KV cache a request, sampling by (seed, position).

fp32 because a resume reads the emitted tokens as one prompt: in bf16 the rounding differs from token-by-token decoding
and changed 1 answer in 8; in fp32 none in 18. Compute runs in one thread, off the event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from paceline.serving.contract import Params
from paceline.serving.sampling import uniform
from paceline.serving.smol_files import card, field, reader

PROOF_TOKENS: Final = 16
"""How many emitted positions are sampled again on a resume: their logits come free with the prompt, picking does
not."""


@dataclass(frozen=True, slots=True)
class Block:
    """Weights of one layer; names as in the GGUF."""

    attn_norm: Tensor
    attn_q: Tensor
    attn_k: Tensor
    attn_v: Tensor
    attn_output: Tensor
    ffn_norm: Tensor
    ffn_gate: Tensor
    ffn_up: Tensor
    ffn_down: Tensor


class Cache:
    """Keys and values of one request, room for `length` tokens."""

    def __init__(self, layers: int, heads: int, length: int, width: int, device: torch.device) -> None:
        self.keys = torch.empty(layers, heads, length, width, device=device)
        self.values = torch.empty(layers, heads, length, width, device=device)
        self.used = 0


class Llama:
    """The Llama architecture, as far as SmolLM2 needs it: grouped-query attention, rotary positions, SwiGLU, tied
    head."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.layers = int(field("llama.block_count"))
        self.heads = int(field("llama.attention.head_count"))
        self.kv_heads = int(field("llama.attention.head_count_kv"))
        self.width = int(field("llama.rope.dimension_count"))
        self.eps = float(field("llama.attention.layer_norm_rms_epsilon"))
        weights = _load(reader(), device)
        self.embed = weights["token_embd.weight"]
        self.norm = weights["output_norm.weight"]
        self.blocks = [_block(weights, layer) for layer in range(self.layers)]
        self.cos, self.sin = _rotary(card().window, self.width, float(field("llama.rope.freq_base")), device)

    def cache(self, length: int) -> Cache:
        return Cache(self.layers, self.kv_heads, length, self.width, self.device)

    @torch.inference_mode()
    def forward(self, ids: Sequence[int], cache: Cache, last: int) -> Tensor:
        """Read `ids` after what the cache holds. Logits of the last `last` positions, shape (last, vocabulary)."""
        begin, end = cache.used, cache.used + len(ids)
        hidden = embedding(torch.tensor(ids, device=self.device), self.embed)
        mask = torch.ones(len(ids), end, dtype=torch.bool, device=self.device).tril(begin)
        for layer, block in enumerate(self.blocks):
            normed = rms_norm(hidden, hidden.shape[-1:], block.attn_norm, self.eps)
            hidden = hidden + self._attend(normed, block, cache, layer, mask)
            normed = rms_norm(hidden, hidden.shape[-1:], block.ffn_norm, self.eps)
            hidden = hidden + linear(
                silu(linear(normed, block.ffn_gate)) * linear(normed, block.ffn_up), block.ffn_down
            )
        cache.used = end
        return linear(rms_norm(hidden[-last:], hidden.shape[-1:], self.norm, self.eps), self.embed)

    def _attend(self, normed: Tensor, block: Block, cache: Cache, layer: int, mask: Tensor) -> Tensor:
        count, end = mask.shape
        begin = end - count
        query = self._rotate(self._split(linear(normed, block.attn_q), self.heads), begin)
        cache.keys[layer, :, begin:end] = self._rotate(self._split(linear(normed, block.attn_k), self.kv_heads), begin)
        cache.values[layer, :, begin:end] = self._split(linear(normed, block.attn_v), self.kv_heads)
        groups = self.heads // self.kv_heads
        keys = cache.keys[layer, :, :end].repeat_interleave(groups, dim=0)
        values = cache.values[layer, :, :end].repeat_interleave(groups, dim=0)
        mixed = scaled_dot_product_attention(query[None], keys[None], values[None], attn_mask=mask)[0]
        return linear(mixed.transpose(0, 1).reshape(count, -1), block.attn_output)

    def _split(self, flat: Tensor, heads: int) -> Tensor:
        return flat.view(flat.shape[0], heads, self.width).transpose(0, 1)

    def _rotate(self, heads: Tensor, begin: int) -> Tensor:
        """Rotary positions, pairs side by side: llama.cpp stores Q and K of this architecture permuted that way."""
        cos, sin = self.cos[begin : begin + heads.shape[1]], self.sin[begin : begin + heads.shape[1]]
        even, odd = heads[..., 0::2], heads[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class SmolEngine:
    """`device` is a torch device; empty takes CUDA where there is one."""

    def __init__(self, device: str = "") -> None:
        self.card = card()
        self._model = Llama(torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="smollm2")

    async def generate(
        self, prompt_ids: Sequence[int], emitted_ids: Sequence[int], params: Params, seed: int
    ) -> AsyncIterator[tuple[int, int]]:
        loop = asyncio.get_running_loop()
        cache = self._model.cache(len(prompt_ids) + params.max_tokens)
        begin = len(emitted_ids) - min(PROOF_TOKENS, len(emitted_ids))
        ids = [*prompt_ids, *emitted_ids]
        picked = await loop.run_in_executor(self._pool, self._step, ids, cache, params, seed, begin, len(emitted_ids))
        for position, token_id in enumerate(picked, start=begin):
            yield position, token_id
        for position in range(len(emitted_ids) + 1, params.max_tokens):
            if picked[-1] in self.card.eos_ids:
                return
            picked = await loop.run_in_executor(
                self._pool, self._step, picked[-1:], cache, params, seed, position, position
            )
            yield position, picked[-1]

    def _step(self, ids: Sequence[int], cache: Cache, params: Params, seed: int, begin: int, end: int) -> list[int]:
        """Read `ids`, then sample positions `begin` to `end`, both included."""
        logits = self._model.forward(ids, cache, last=end - begin + 1)
        return [_sample(row, params, seed, position) for position, row in enumerate(logits, start=begin)]


@torch.inference_mode()
def _sample(logits: Tensor, params: Params, seed: int, position: int) -> int:
    if params.temperature <= 0.0:
        return int(logits.argmax())
    shares = torch.softmax(logits.double() / params.temperature, dim=-1)
    draw = uniform(seed, position)
    if params.top_p >= 1.0:
        return _covering(shares, draw)
    ranked, order = shares.sort(descending=True, stable=True)
    kept = ranked[: int((ranked.cumsum(0) < params.top_p).sum()) + 1]
    return int(order[_covering(kept, draw)])


def _covering(shares: Tensor, draw: float) -> int:
    reached = shares.cumsum(0)
    return min(int(torch.searchsorted(reached, draw * float(reached[-1]), right=True)), len(shares) - 1)


def _load(file: GGUFReader, device: torch.device) -> dict[str, Tensor]:
    return {
        tensor.name: torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)).to(
            device
        )
        for tensor in file.tensors
    }


def _block(weights: dict[str, Tensor], layer: int) -> Block:
    return Block(*(weights[f"blk.{layer}.{name}.weight"] for name in Block.__dataclass_fields__))


def _rotary(length: int, width: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine, shape (length, width / 2), worked out in double precision."""
    rates = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), rates)
    return angles.cos().float().to(device), angles.sin().float().to(device)
