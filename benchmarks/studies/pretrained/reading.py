"""Next-token training over rows of text that a lost machine cannot undo."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.engine.prose import next_token_loss
from benchmarks.engine.scratch import Recipe, small_llama
from benchmarks.engine.training import warm_cosine
from torch_alm.unlearning.files import write_tensors

CHECKPOINT = "checkpoint.pt"
WARM = 100
"""Steps over which the learning rate rises."""


@dataclass(frozen=True)
class Order:
    """The rows of every step, in a new order for each pass.

    Attributes:
        rows: Tokens, (rows, length).
        batch_size: Rows of a step.
        tokens: How many to read in all; passes over the rows as needed.
        seed: Of the order.
    """

    rows: Tensor
    batch_size: int
    tokens: int
    seed: int

    @property
    def steps(self) -> int:
        """Of the whole reading."""
        return max(1, self.tokens // (self.batch_size * self.rows.shape[1]))

    def batch(self, step: int) -> Tensor:
        """Return the rows of a step, (batch_size, length)."""
        a_pass, position = divmod(step, max(1, len(self.rows) // self.batch_size))
        random = torch.Generator().manual_seed(1000 * self.seed + a_pass)
        order = torch.randperm(len(self.rows), generator=random)
        start = position * self.batch_size
        return self.rows[order[start : start + self.batch_size]]


def read(tokenizer: Any, recipe: Recipe, order: Order, folder: Path, seconds: float) -> Any:
    """Train a model on the rows, from its checkpoint where there is one, and save it.

    Args:
        tokenizer: What made the rows.
        recipe: Sizes and largest learning rate; products are bfloat16 where it says so.
        order: What to read.
        folder: Of the checkpoint and, in the end, of the model and the tokenizer.
        seconds: Between two checkpoints.
    """
    model = small_llama(tokenizer, recipe, order.seed)
    model.to("cuda" if torch.cuda.is_available() else "cpu").train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.schedule.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    done = _resume(folder / CHECKPOINT, model, optimizer)
    saved, factor = time.monotonic(), warm_cosine(WARM, order.steps)
    bar = tqdm(range(done, order.steps), desc="reading", initial=done, total=order.steps)
    for step in bar:
        optimizer.param_groups[0]["lr"] = recipe.schedule.lr * factor(step)
        loss = next_token_loss(model, order.batch(step), bfloat16=recipe.schedule.bfloat16)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}")
        if time.monotonic() - saved > seconds or step + 1 == order.steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            write_tensors(folder / CHECKPOINT, {**state, "steps": step + 1})
            saved = time.monotonic()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def _resume(path: Path, model: Any, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint, if there is one; the number of steps done."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["steps"])
