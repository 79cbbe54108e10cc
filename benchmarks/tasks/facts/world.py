"""A model, what it knows of the list, and what it says and costs before and after unlearning."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from benchmarks.tasks.facts.data import Draw, Fact, asked, gold_row, said_row
from benchmarks.tasks.facts.upper import Rows, Upper, common_start
from torch_alm.language import Batch, Row, generate
from torch_alm.measures import token_nll

PROSE = Path(__file__).with_name("prose.txt")


@dataclass
class World:
    """A causal model of transformers, of which the layers from `first` on are trained.

    The model is in evaluation mode, and changed in place by what trains `upper`.
    """

    model: Any
    tokenizer: Any
    facts: Sequence[Fact]
    first: int
    new_tokens: int
    said: dict[str, str] = field(default_factory=dict)
    """What the model says to each question and rewording before anything is unlearned."""

    def __post_init__(self) -> None:
        common = common_start([self.gold(fact)["input_ids"] for fact in self.facts])
        self.upper = Upper(self.model, self.first, common)
        self.rows = Rows(self.model, self.first, len(common))
        self.trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.published = {n: p.detach().clone() for n, p in self.trained.items()}
        if not self.said:
            questions = [text for fact in self.facts for text in (fact.question, fact.rewording)]
            self.said = dict(zip(questions, self.answers(questions), strict=True))

    def gold(self, fact: Fact) -> Row:
        """The row whose labels are the gold words."""
        return gold_row(self.tokenizer, fact)

    def kept(self, fact: Fact) -> Row:
        """The row whose labels are what the model said before."""
        said = self.said[fact.question]
        return said_row(self.tokenizer, fact.question, said, self.new_tokens)

    def known(self) -> list[Fact]:
        """The facts that the model answers right."""
        return [fact for fact in self.facts if fact.is_in(self.said[fact.question])]

    @cached_property
    def target(self) -> float:
        """alpha: the mean loss of the gold words of the facts that the model gets wrong, in nats.

        Forgotten is then: as unknown as what it does not know.
        """
        known = self.known()
        return self.loss([fact for fact in self.facts if fact not in known])

    def reset(self) -> None:
        """Take the published weights again."""
        self.restore(self.published)

    @torch.no_grad()
    def restore(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self.trained.items():
            parameter.copy_(weights[name])

    def batches(
        self, drawn: Draw, forget: int, retain: int, steps: int, seed: int
    ) -> Iterator[tuple[Batch, Batch]]:
        """Pairs of batches (retain, forget); each side goes through all its rows, then again."""
        going = _cycled([self.gold(fact) for fact in drawn.forget], Random(seed))
        staying = _cycled([self.kept(fact) for fact in drawn.retain], Random(seed + 1))
        for _ in range(steps):
            kept = [next(staying) for _ in range(retain)]
            gone = [next(going) for _ in range(forget)]
            yield self.rows.batch(kept), self.rows.batch(gone)

    def answers(self, questions: Sequence[str]) -> list[str]:
        """Ask with `generate`, greedily."""
        prompts = [asked(self.tokenizer, question) for question in questions]
        return generate(
            self.model, self.tokenizer, prompts, max_new_tokens=self.new_tokens, batch_size=64
        )

    @torch.no_grad()
    def loss(self, facts: Sequence[Fact], size: int = 16) -> float:
        """The mean over facts of the loss of their gold words, in nats per token."""
        rows = sorted((self.gold(fact) for fact in facts), key=lambda row: len(row["input_ids"]))
        parts = [rows[i : i + size] for i in range(0, len(rows), size)]
        total = sum(
            token_nll(self.upper, self.rows.batch(part)).item() * len(part) for part in parts
        )
        return total / len(rows)

    @torch.no_grad()
    def perplexity(self) -> float:
        """exp of the mean loss per token of neutral prose, with the plain model."""
        parts = PROSE.read_text(encoding="utf-8").strip().split("\n\n")
        losses = []
        for part in parts:
            ids = torch.tensor([self.tokenizer(part)["input_ids"]], device=self.model.device)
            logits = self.model(input_ids=ids).logits[0, :-1]
            losses.append(nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none"))
        return math.exp(torch.cat(losses).mean().item())

    def measured(self, drawn: Draw) -> tuple[dict[str, float], dict[str, str]]:
        """Shares that are still said, losses of gold words and the perplexity; and the answers.

        Rewordings and neighbours that were not answered right before are left out.
        """
        reworded = [f for f in drawn.forget if f.is_in(self.said[f.rewording])]
        asked_now = {
            "forget": [(fact, fact.question) for fact in drawn.forget],
            "reworded": [(fact, fact.rewording) for fact in reworded],
            "retain": [(fact, fact.question) for fact in drawn.retain],
            "neighbours": [(fact, fact.question) for fact in drawn.neighbours],
        }
        questions = [question for pairs in asked_now.values() for _, question in pairs]
        said = dict(zip(questions, self.answers(questions), strict=True))
        numbers = {
            f"{name}_said": _share([fact.is_in(said[question]) for fact, question in pairs])
            for name, pairs in asked_now.items()
        }
        for name in ("forget", "retain", "neighbours"):
            numbers[f"{name}_loss"] = self.loss(getattr(drawn, name))
        return numbers | {"perplexity": self.perplexity()}, said

    def relearned(self, drawn: Draw, rows: int, steps: int, lr: float) -> float:
        """The share of the other forget facts that is said after steps on the first few of them."""
        before = {name: p.detach().clone() for name, p in self.trained.items()}
        optimizer = AdamW(self.trained.values(), lr=lr, weight_decay=0.0)
        batch = self.rows.batch([self.gold(fact) for fact in drawn.forget[:rows]])
        for _ in range(steps):
            token_nll(self.upper, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        others = drawn.forget[rows:]
        said = self.answers([fact.question for fact in others])
        self.restore(before)
        return _share([fact.is_in(text) for fact, text in zip(others, said, strict=True)])


def _cycled(rows: list[Row], chance: Random) -> Iterator[Row]:
    while True:
        yield from chance.sample(rows, len(rows))


def _share(right: list[bool]) -> float:
    return sum(right) / len(right) if right else math.nan
