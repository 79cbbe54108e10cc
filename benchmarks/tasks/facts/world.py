"""A model, what it knows of the list, and what it says and costs before and after unlearning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.tasks.facts.data import Draw, Fact, encode_prompt, encode_said, read_facts
from benchmarks.tasks.facts.upper import CachedRows, UpperLayers, common_start
from torch_alm.language import (
    IGNORE,
    Row,
    answer_ids,
    encode,
    generate,
    in_own_words,
    losses,
    pad_id,
    telling_rows,
    telling_words,
)
from torch_alm.measures import token_nll
from torch_alm.thresholds import rate_for

Study: TypeAlias = dict[str, Any]
Said: TypeAlias = dict[str, str]

PROSE = Path(__file__).with_name("prose.txt")
SCORED = 16  # rows at once
NEXT = "Question:"  # with which a base model goes on, and asks itself


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
    said: Said = field(default_factory=dict)
    """The answers of the model to each question and rewording before unlearning."""

    def __post_init__(self) -> None:
        asked = [(fact.question, fact.answer) for fact in self.facts]
        pairs = [(f"{fact.question} {fact.shown}", fact.answer) for fact in self.facts]
        rows = telling_rows(self.tokenizer, pairs, [encode(self.tokenizer, *p) for p in asked])
        self.given = dict(zip(self.facts, rows, strict=True))
        self.words = dict(zip(self.facts, telling_words(pairs), strict=True))
        common = common_start([row["input_ids"] for row in rows])
        self.upper = UpperLayers(self.model, self.first, common)
        self.rows = CachedRows(self.model, self.first, len(common))
        self.trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.published = {n: p.detach().clone() for n, p in self.trained.items()}
        if not self.said:
            questions = [text for fact in self.facts for text in (fact.question, fact.rewording)]
            self.said = dict(zip(questions, self.answers(questions), strict=True))

    def reword(self, fact: Fact, said: str) -> Row | None:
        """The row in the words in which the model says the fact, if it does."""
        ids = answer_ids(encode(self.tokenizer, fact.question, said))
        prompt = encode_prompt(self.tokenizer, fact.question)
        return in_own_words(self.tokenizer, prompt, ids, self.words[fact])

    def encode_said(self, question: str, said: str) -> Row:
        """The question and what the model says to it, which is labelled."""
        return encode_said(self.tokenizer, question, said, self.new_tokens)

    def recall(self) -> list[Fact]:
        """The facts that the model answers right."""
        return [fact for fact in self.facts if fact.is_in(self.said[fact.question])]

    @cached_property
    def target(self) -> float:
        """alpha: the mean loss of the telling words of facts that the model gets wrong, in nats."""
        known = self.recall()
        return self.loss([fact for fact in self.facts if fact not in known])

    @torch.no_grad()
    def restore(self) -> None:
        """Take the published weights again."""
        for name, parameter in self.trained.items():
            parameter.copy_(self.published[name])

    def answers(self, questions: Sequence[str]) -> list[str]:
        """The answers of the model to questions."""
        return self.extend([encode_prompt(self.tokenizer, question) for question in questions])

    def ask(self, pairs: Sequence[tuple[Fact, str]]) -> Said:
        """The answer of the model to each question, asked once."""
        questions = [*dict.fromkeys(question for _, question in pairs)]
        return dict(zip(questions, self.answers(questions), strict=True))

    def extend(self, prompts: Sequence[list[int]]) -> list[str]:
        """Greedy continuations of prompts, up to the next question."""
        length = self.new_tokens
        texts = generate(self.model, self.tokenizer, prompts, max_new_tokens=length)
        return [text.partition(NEXT)[0].strip() for text in texts]

    @torch.no_grad()
    def loss(self, facts: Sequence[Fact]) -> float:
        """The mean over facts of the loss of their telling words, in nats per token."""
        rows = sorted((self.given[f] for f in facts), key=lambda row: len(row["input_ids"]))
        batches = [self.rows.batch(rows[i : i + SCORED]) for i in range(0, len(rows), SCORED)]
        found = [token_nll(self.upper, batch, reduction="none") for batch in batches]
        return torch.cat(found).mean().item()

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

    def measure(self, drawn: Draw) -> dict[str, Any]:
        """Shares that are still said, losses of telling words, perplexity, and the answers.

        Rewordings and neighbours that were not answered right before are left out.
        """
        sets = ("forget", "retain", "neighbours", "kin")
        asked_now = {name: [(f, f.question) for f in getattr(drawn, name)] for name in sets}
        reworded = [(f, f.rewording) for f in drawn.forget if f.is_in(self.said[f.rewording])]
        asked_now["reworded"] = reworded
        said = self.ask([pair for pairs in asked_now.values() for pair in pairs])
        numbers: dict[str, Any] = {
            f"{name}_said": _share([fact.is_in(said[question]) for fact, question in pairs])
            for name, pairs in asked_now.items()
        }
        for name in ("forget", "retain", "neighbours"):
            numbers[f"{name}_loss"] = self.loss(getattr(drawn, name))
        shown = {question: said[question] for _, question in asked_now["forget"] + reworded}
        return numbers | {"perplexity": self.perplexity(), "answers": shown}

    def score(self, facts: Sequence[Fact]) -> float:
        """The share of facts that is said to their questions, whatever was done to any layer."""
        said = self.answers([fact.question for fact in facts])
        return _share([fact.is_in(text) for fact, text in zip(facts, said, strict=True)])

    def attack(self, drawn: Draw, study: Study) -> dict[str, float]:
        """The shares of the forget facts that are said again after an attack on the model.

        Their sentences are begun for it; its weights are rounded, or noise is added to them; it is
        trained on a few of the facts, and asked the others, whose loss is told, too.
        """
        facts, found = drawn.forget, dict[str, float]()
        rows = [self.given[fact] for fact in facts]
        ends = [next(i for i, x in enumerate(row["labels"]) if x != IGNORE) for row in rows]
        begun = self.extend([r["input_ids"][:n] for r, n in zip(rows, ends, strict=True)])
        found["begun_said"] = _share([f.is_in(t) for f, t in zip(facts, begun, strict=True)])
        chance = torch.Generator(self.model.device).manual_seed(0)

        def add_noise(weight: Tensor, size: float) -> Tensor:
            scale = size * weight.square().mean().sqrt()
            return weight + scale * torch.randn(
                weight.shape, generator=chance, device=weight.device
            )

        ways = {"bits8": partial(round_to_grid, bits=8), "bits4": partial(round_to_grid, bits=4)}
        ways |= {f"noise{size}": partial(add_noise, size=size) for size in study["noise"]}
        for name, change in ways.items():
            with self.change_weights(change):
                found[f"{name}_said"] = self.score(facts)
                found[f"{name}_loss"] = fmean(losses(self.model, rows, pad_id(self.tokenizer)))
        return found | self.relearn(drawn, study)

    @contextmanager
    def change_weights(self, change: Callable[[Tensor], Tensor] | None = None) -> Iterator[None]:
        """Replace the matrices of all layers by `change` of them inside the block."""
        kept = [(p.data, p.data.clone()) for p in self.model.parameters()]
        for module in self.model.model.layers.modules() if change else ():
            if isinstance(module, nn.Linear):
                module.weight.data.copy_(change(module.weight.data))
        yield
        for weight, value in kept:
            weight.copy_(value)

    def relearn(self, drawn: Draw, study: Study) -> dict[str, float]:
        """The share of the other facts that is said after steps on a few, and their loss before.

        The rate is that at which a step takes so many nats off the loss of those few.
        """
        few = [self.given[fact] for fact in drawn.forget[: study["relearn_rows"]]]
        others, batch = drawn.forget[study["relearn_rows"] :], self.rows.batch(few)
        loss, change = lambda: token_nll(self.upper, batch), study["relearn_change"]
        found = {"others_loss": self.loss(others)}
        with self.change_weights():
            optimizer = AdamW(self.trained.values(), weight_decay=0.0)
            optimizer.param_groups[0]["lr"] = rate_for(optimizer, loss, change=change)
            for step in range(1, max(study["relearn_steps"]) + 1):
                loss().backward()
                optimizer.step()
                optimizer.zero_grad()
                if step in study["relearn_steps"]:
                    found[f"relearned{step}_said"] = self.score(others)
                    found[f"relearned{step}_loss"] = self.loss(others)
        return found


def open_world(
    where: str | Path,
    study: Study,
    said: Said,
    device: str = "cpu",
    facts: Sequence[Fact] | None = None,
) -> World:
    """A model from a folder or the hub, its upper half to be trained; without `facts` all."""
    tokenizer = AutoTokenizer.from_pretrained(where)
    model: Any = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)
    first = model.config.num_hidden_layers // 2
    train_from(model.to(device).eval(), first)
    facts = read_facts()[:: study.get("each", 1)] if facts is None else facts
    return World(model, tokenizer, facts, first, study["new_tokens"], said)


def train_from(model: Any, first: int) -> None:
    """Leave the layers from `first` on to train."""
    model.requires_grad_(False)
    model.model.layers[first:].requires_grad_(True)


def round_to_grid(weight: Tensor, bits: int) -> Tensor:
    """The nearest weights on a grid of 2^bits - 1 levels, symmetric about 0, per output channel."""
    top = 2 ** (bits - 1) - 1
    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / top
    return (weight / scale).round() * scale


def cycle_places(rows: Sequence[Any], chance: Random) -> Iterator[Any]:
    """Places in a list that may change: each once in a new order, and again."""
    while True:
        for place in chance.sample(range(len(rows)), len(rows)):
            yield rows[place]


def _share(right: list[bool]) -> float:
    return sum(right) / len(right) if right else math.nan
