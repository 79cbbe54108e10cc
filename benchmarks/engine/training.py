"""Training a small model until it has memorised its questions and answers."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import get_cosine_with_min_lr_schedule_with_warmup

from torch_alm.language import IGNORE, Batch, Row, answer_scores, collate


@dataclass(frozen=True)
class Schedule:
    """Length and speed of a training.

    Attributes:
        epochs: Most passes over the data.
        batch_size: Rows per step.
        lr: Largest learning rate; it warms up over one epoch and falls to a tenth along a cosine.
    """

    epochs: int
    batch_size: int
    lr: float


def train_to_memorisation(
    model: Any, rows: Sequence[Row], pad_id: int, schedule: Schedule, *, label: str
) -> dict[str, float]:
    """AdamW on the answer tokens until all rows are exact matches, or for all epochs.

    The model is trained in place, where it is. `pad_id` fills rows up to the length of their batch,
    `label` stands beside the progress bar.

    Returns:
        What was reached: `exact_match`, the share of rows after the last step, and `epochs`.
    """
    random = torch.Generator().manual_seed(0)
    steps = math.ceil(len(rows) / schedule.batch_size)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=schedule.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    rate = get_cosine_with_min_lr_schedule_with_warmup(
        optimizer, steps, schedule.epochs * steps, min_lr_rate=0.1
    )
    reached, epoch = 0.0, 0
    model.train()
    with tqdm(total=schedule.epochs * steps, desc=label, disable=None) as bar:
        while epoch < schedule.epochs and reached < 1.0:
            right = 0
            for batch in _batches(rows, schedule.batch_size, pad_id, random):
                there = {name: tensor.to(model.device) for name, tensor in batch.items()}
                right += _step(model, there, optimizer)
                rate.step()
                bar.update()
            epoch += 1
            if right >= 0.95 * len(rows) or epoch == schedule.epochs:
                reached = fmean(s.exact_match for s in answer_scores(model, rows, pad_id, tau=1.0))
            bar.set_postfix(exact=f"{right / len(rows):.1%}")
    model.eval()
    return {"exact_match": reached, "epochs": epoch}


def _step(model: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer) -> int:
    """One step; returns how many rows were right before it."""
    logits, labels = _answer_logits(model, batch)
    nn.functional.cross_entropy(logits, labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    return int(_is_right_by_row(logits.argmax(-1), labels, batch).sum())


def _answer_logits(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits and labels of the answer tokens alone, (tokens, vocabulary) and (tokens,).

    The output layer is a large part of a small model; prompts and padding need not pass through it.
    """
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    hidden = model.base_model(**inputs, use_cache=False)[0][:, :-1]
    labels = batch["labels"][:, 1:]
    wanted = labels != IGNORE
    return model.get_output_embeddings()(hidden[wanted]), labels[wanted]


def _is_right_by_row(guesses: Tensor, labels: Tensor, batch: Batch) -> Tensor:
    """Per row of the batch, whether all its answer tokens were guessed."""
    row_of = (batch["labels"][:, 1:] != IGNORE).nonzero()[:, 0]
    wrong = torch.zeros(len(batch["labels"]), device=labels.device)
    return wrong.index_add(0, row_of, (guesses != labels).float()) == 0


def _batches(
    rows: Sequence[Row], batch_size: int, pad_id: int, random: torch.Generator
) -> Iterator[Batch]:
    """One epoch: shuffled, then sorted by length in stretches of eight batches, to pad little."""
    stretches = torch.randperm(len(rows), generator=random).split(8 * batch_size)
    by_length = [sorted(s.tolist(), key=lambda i: len(rows[i]["input_ids"])) for s in stretches]
    starts = ((stretch, at) for stretch in by_length for at in range(0, len(stretch), batch_size))
    chunks = [stretch[at : at + batch_size] for stretch, at in starts]
    for index in torch.randperm(len(chunks), generator=random).tolist():
        yield collate([rows[i] for i in chunks[index]], pad_id)
