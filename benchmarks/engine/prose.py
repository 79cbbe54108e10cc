"""Running text that nobody trained a model for, and the perplexity of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torch_alm.language import read_records

ROWS, LENGTH = 64, 256
"""The size of the text that is read: so many rows of so many tokens."""


def read_prose(path: Path) -> list[str]:
    """The `text` of every line of a JSON-lines file.

    Raises:
        ValueError: There is none, or a line without one, which is named.
    """
    found = [record.text("text") for record in read_records(path)]
    if not found:
        raise ValueError(f"{path} is empty, so there is no prose to read. Did it get lost?")
    return found


def blocks(tokenizer: Any, texts: Sequence[str], length: int = LENGTH) -> Tensor:
    """Texts one after the other, EOS after each, cut into rows: (rows, length)."""
    stream: list[int] = []
    for start in range(0, len(texts), 1000):
        for row in tokenizer(list(texts[start : start + 1000]))["input_ids"]:
            stream += [*row, tokenizer.eos_token_id]
    whole = len(stream) // length * length
    return torch.tensor(stream[:whole]).reshape(-1, length)


def next_token_loss(model: Any, rows: Tensor, *, bfloat16: bool = False) -> Tensor:
    """Mean cross-entropy of the next token over (rows, length) tokens, in nats."""
    rows = rows.to(next(model.parameters()).device)
    with torch.autocast(rows.device.type, torch.bfloat16, enabled=bfloat16):
        logits = model(input_ids=rows, use_cache=False).logits[:, :-1]
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


@torch.no_grad()
def perplexity(model: Any, rows: Tensor, batch_size: int = 16) -> float:
    """exp of the mean cross-entropy of the next token; the cost is a forward pass over the rows."""
    parts = rows.split(batch_size)
    total = sum(next_token_loss(model, part).item() * len(part) for part in parts)
    return math.exp(total / len(rows))
