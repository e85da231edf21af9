"""A small character-level transformer on real English text, as an ordinary Ray Train script.

Nothing here knows of Paceline: `ray job submit -- python jobs/train_lm.py`. The text is Python's own language reference (pydoc_data).
Simulated GPUs have no CUDA, so the script names gloo and computes on the CPU.
"""

import argparse
import math
import os
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

import ray.train
import torch
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch import nn

CONTEXT = 64
WIDTH = 64


class CharTransformer(nn.Module):
    """Two pre-norm transformer layers over characters: (batch, CONTEXT) ids to (batch, CONTEXT, vocabulary) logits."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, WIDTH)
        self.place = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.token(ids) + self.place.weight
        return self.head(self.body(hidden, mask=self.mask, is_causal=True))


def batch_of(text: torch.Tensor, step: int, rank: int, seed: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of a rank at a step: a function of both, so that a resumed run reads what it would have read."""
    dice = torch.Generator().manual_seed(seed * 1_000_003 + step * 1_009 + rank)
    starts = torch.randint(len(text) - CONTEXT - 1, (size,), generator=dice)
    windows = torch.stack([text[s : s + CONTEXT + 1] for s in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, folder: str) -> Checkpoint:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, Path(folder) / "state.pt")
    return Checkpoint.from_directory(folder)


def load(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step after the latest checkpoint, with its state loaded; 0 where there is none."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder) / "state.pt", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"]) + 1


def train(config: dict) -> None:
    torch.manual_seed(config["seed"])
    torch.set_num_threads(1)
    corpus = "".join(topics[name] for name in sorted(topics))
    letters = sorted(set(corpus))
    number = {letter: i for i, letter in enumerate(letters)}
    text = torch.tensor([number[letter] for letter in corpus])
    # DDP orders its buckets anew after the first step of a process, and with them the order in which gradients are summed. This flag
    # keeps the first order, so that a resumed run adds up exactly what an undisturbed one does.
    keep_order = {"find_unused_parameters": True}
    model = prepare_model(CharTransformer(len(letters)), move_to_device=False, parallel_strategy_kwargs=keep_order)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rank = ray.train.get_context().get_world_rank()
    for step in range(load(model, optimizer), config["steps"]):
        ids, targets = batch_of(text, step, rank, config["seed"], config["batch"])
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % config["checkpoint_every"] == 0 or step + 1 == config["steps"]:
            report(model, optimizer, step, loss, rank)


def report(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, loss: torch.Tensor, rank: int) -> None:
    """Rank 0 saves; every rank reports the mean loss over ranks."""
    mean = loss.detach().clone()
    torch.distributed.all_reduce(mean, op=torch.distributed.ReduceOp.SUM)
    mean /= ray.train.get_context().get_world_size()
    metrics = {"step": step, "loss": mean.item(), "perplexity": math.exp(mean.item())}
    with tempfile.TemporaryDirectory() as folder:
        ray.train.report(metrics, checkpoint=save(model, optimizer, step, folder) if rank == 0 else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="train_lm", help="run name: a run with this name resumes where it stopped")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint-every", type=int, default=20)
    parser.add_argument("--batch", type=int, default=4, help="sequences a worker and step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--storage", default=os.path.expanduser("~/ray_results"))
    args = parser.parse_args()
    trainer = TorchTrainer(
        train,
        train_loop_config=vars(args),
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=True),
        run_config=RunConfig(
            name=args.name,
            storage_path=args.storage,
            checkpoint_config=CheckpointConfig(num_to_keep=3),
            failure_config=FailureConfig(max_failures=3),
        ),
    )
    result = trainer.fit()
    print(f"finished at step {result.metrics['step']}: loss {result.metrics['loss']:.17g}")


if __name__ == "__main__":
    main()
