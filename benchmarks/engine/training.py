"""Training a small model until it has memorised its questions and answers."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.engine.prose import next_token_loss
from torch_alm.language import IGNORE, Batch, Row, collate


@dataclass(frozen=True)
class Schedule:
    """Length and speed of a training.

    Attributes:
        epochs: Most passes over the data.
        batch_size: Rows per step.
        lr: Largest learning rate; it warms up over one epoch and falls to a tenth along a cosine.
        target: Share of exact matches at which the training stops.
        bfloat16: Compute under bf16 autocast; the weights stay fp32.
    """

    epochs: int
    batch_size: int
    lr: float
    target: float = 1.0
    bfloat16: bool = False


def train_to_memorisation(
    model: nn.Module,
    rows: Sequence[Row],
    pad_id: int,
    schedule: Schedule,
    *,
    seed: int = 0,
    label: str | None = None,
    prose: Tensor | None = None,
) -> dict[str, float]:
    """AdamW on the answer tokens until the target share of exact matches, or for all epochs.

    Args:
        model: A causal language model of transformers; trained in place, where it is.
        rows: Encoded questions and answers.
        pad_id: Fills rows up to the length of their batch.
        schedule: How long and how fast.
        seed: Of the order of the rows.
        label: Of the progress bar with loss, exact match and the longest time left; None for none.
        prose: Tokens of running text, (rows, length), a row of which is read in every step, so that
            the model does not unlearn to read; None for none.

    Returns:
        What was reached: `exact_match`, the share of rows after the last step; `loss`, the mean
        over the answer tokens of the last epoch; `epochs` and `seconds`.
    """
    began = time.perf_counter()
    random = torch.Generator().manual_seed(seed)
    steps = math.ceil(len(rows) / schedule.batch_size)
    learner = _Learner(model, schedule, steps, prose)
    reached = {"exact_match": 0.0, "loss": math.inf, "epochs": 0.0}
    model.train()
    with tqdm(total=schedule.epochs * steps, desc=label, disable=label is None) as bar:
        while reached["epochs"] < schedule.epochs and reached["exact_match"] < schedule.target:
            batches = _batches(rows, schedule.batch_size, pad_id, random)
            reached["loss"], seen = learner.epoch(batches, bar)
            reached["epochs"] += 1
            if seen >= schedule.target - 0.05 or reached["epochs"] == schedule.epochs:
                reached["exact_match"] = exact_match(model, rows, pad_id).double().mean().item()
            bar.set_postfix(loss=f"{reached['loss']:.3f}", exact=f"{seen:.1%}")
    model.eval()
    return {**reached, "seconds": time.perf_counter() - began}


@torch.no_grad()
def exact_match(model: nn.Module, rows: Sequence[Row], pad_id: int, batch_size: int = 64) -> Tensor:
    """Tell for each row if the model would say the answer word for word, EOS too: (rows,), bool.

    With the true answer fed in, every argmax equals the next answer token exactly when greedy
    decoding from the prompt produces that answer; so one forward decides, without generating.
    """
    matched = torch.zeros(len(rows), dtype=torch.bool)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["input_ids"]))
    was_training = model.training
    model.eval()
    for chosen in _chunks(order, batch_size):
        batch = _moved(collate([rows[i] for i in chosen], pad_id), model)
        logits, labels = _answer_logits(model, batch)
        matched[chosen] = _rows_right(logits.argmax(-1), labels, batch).cpu()
    model.train(was_training)
    return matched


class _Learner:
    """The model, its optimizer, and the learning rate of the moment."""

    def __init__(
        self, model: nn.Module, schedule: Schedule, steps_per_epoch: int, prose: Tensor | None
    ) -> None:
        self.model, self.bfloat16 = model, schedule.bfloat16
        self.prose = None if prose is None else itertools.cycle(_shuffled(prose).split(1))
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=schedule.lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )
        factor = warm_cosine(steps_per_epoch, schedule.epochs * steps_per_epoch)
        self.lr = torch.optim.lr_scheduler.LambdaLR(self.optimizer, factor)

    def epoch(self, batches: Iterator[Batch], bar: tqdm) -> tuple[float, float]:
        """One pass; returns loss per answer token and share of exact matches, seen underway."""
        total, tokens, right, rows = 0.0, 0, 0, 0
        for batch in batches:
            loss, correct = self.step(_moved(batch, self.model))
            answer_tokens = int((batch["labels"] != IGNORE).sum())
            total, tokens = total + loss * answer_tokens, tokens + answer_tokens
            right, rows = right + int(correct.sum()), rows + len(correct)
            bar.update()
        return total / tokens, right / rows

    def step(self, batch: Batch) -> tuple[float, Tensor]:
        device = batch["labels"].device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.bfloat16):
            logits, labels = _answer_logits(self.model, batch)
        loss = nn.functional.cross_entropy(logits.float(), labels)
        loss.backward()
        if self.prose is not None:
            next_token_loss(self.model, next(self.prose), bfloat16=self.bfloat16).backward()
        self.optimizer.step()
        self.lr.step()
        self.optimizer.zero_grad()
        return loss.item(), _rows_right(logits.argmax(-1), labels, batch)


def _shuffled(prose: Tensor) -> Tensor:
    return prose[torch.randperm(len(prose), generator=torch.Generator().manual_seed(0))]


def warm_cosine(warm: int, total: int) -> Callable[[int], float]:
    """Factor of the learning rate: up over `warm` steps, then along a cosine to a tenth."""

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.55 + 0.45 * math.cos(math.pi * (step - warm) / max(total - warm, 1))

    return factor


def _answer_logits(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits and labels of the answer tokens alone, (tokens, vocabulary) and (tokens,).

    The output layer is a large part of a small model; prompts and padding need not pass through it.
    """
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    hidden = model.base_model(**inputs, use_cache=False)[0][:, :-1]
    labels = batch["labels"][:, 1:]
    wanted = labels != IGNORE
    return model.get_output_embeddings()(hidden[wanted]), labels[wanted]


def _rows_right(guesses: Tensor, labels: Tensor, batch: Batch) -> Tensor:
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
    chunks = [chunk for stretch in by_length for chunk in _chunks(stretch, batch_size)]
    for index in torch.randperm(len(chunks), generator=random).tolist():
        yield collate([rows[i] for i in chunks[index]], pad_id)


def _chunks(items: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _moved(batch: Batch, model: nn.Module) -> Batch:
    device = next(model.parameters()).device
    return {name: tensor.to(device) for name, tensor in batch.items()}
