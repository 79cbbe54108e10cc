"""TOFU as the runner sees it: data, models, batches and the evaluation."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.engine.benchmark import Evaluation
from benchmarks.engine.language import LanguageBenchmark
from benchmarks.engine.options import refuse_unread
from benchmarks.engine.prose import ROWS, blocks, perplexity, read_prose
from benchmarks.engine.scratch import Recipe, Schedule
from benchmarks.methods import Settings
from benchmarks.methods.method import Batch
from benchmarks.tasks.tofu.batches import CONVENTIONS, encode_all
from benchmarks.tasks.tofu.data import SPLITS, Example, TofuData, load_tofu, load_tofu_hub
from benchmarks.tasks.tofu.evaluate import evaluate
from benchmarks.tasks.tofu.layout import LAYOUT
from benchmarks.tasks.tofu.models import RECIPES, load_or_train
from benchmarks.tasks.tofu.presets import TOFU
from benchmarks.tasks.tofu.summary import Reference, reference
from benchmarks.tasks.tofu.world import build_world
from torch_alm.language import Row
from torch_alm.unlearning.models import load_model

SPLIT = "forget01"
"""The part to forget where nothing else is said."""

QUICK_EVAL = 40
"""Questions of each set in a quick evaluation."""

QUICK = Recipe("bpe", 1000, 2, 64, 4, Schedule(epochs=2, batch_size=24, lr=5e-3))
SETS = ("forget_eval", "retain_eval", "real_authors", "world_facts", "holdout")
"""The sets of questions."""

HEAD = 64
"""Width of an attention head where `--width` says how wide a model is."""

QUICK_AUTHORS = 2
QUICK_QUESTIONS = 8
"""Real data as `--quick` leaves it: a model that learns next to nothing, but at once."""


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", type=Path, metavar="PATH", help="folder of TOFU's JSON-lines files")
    much = f"how much to forget; default: {SPLIT}"
    add("--split", choices=sorted(SPLITS), help=much)
    add("--model", metavar="NAME", help="a causal LM to unlearn from, local or from the hub")
    add("--retrained", metavar="NAME", help="the same kind of model, trained without the split")
    add("--paraphrased", action="store_true", help="ask the paraphrased questions")
    asked = "how questions are asked and which tokens count; default: %(default)s"
    add("--convention", default="ours", choices=CONVENTIONS, help=asked)
    add("--retain-authors", type=int, metavar="N", help="use only the first N retain authors")
    add("--questions", type=int, metavar="N", help="ask only N of each set, evenly spread")
    add("--width", type=int, metavar="N", help="hidden size of the model trained from scratch")
    add("--base", type=Path, metavar="DIR", help="teach this pretrained model instead")
    add("--replay", type=Path, metavar="FILE", help="JSON lines that --base reads on while taught")
    add("--prose", type=Path, metavar="FILE", help="JSON lines of text to measure perplexity on")


def load_data(given: argparse.Namespace) -> TofuData:
    """TOFU from files, from the hub where a model is named, or else the embedded world.

    Raises:
        ValueError, FileNotFoundError: The data are missing or malformed.
    """
    check_sizes(given)
    for option in ("base", "replay", "prose"):
        path = getattr(given, option)
        if path is not None and not path.exists():
            raise FileNotFoundError(f"--{option} {path}: nothing is there. Is the path right?")
    authors = QUICK_AUTHORS if given.quick and not given.retain_authors else given.retain_authors
    if given.data is None and given.model is None:
        refuse_unread(given, "split", "retain_authors")
        return build_world(quick=given.quick)
    given.split = given.split or SPLIT
    if given.data is not None:
        return load_tofu(given.data, given.split, retain_authors=authors)
    return load_tofu_hub(given.split, retain_authors=authors)


def asked(data: TofuData, questions: int | None) -> TofuData:
    """The task with no more than so many questions in each set, spread over all of it."""

    def few(name: str) -> tuple[Example, ...]:
        found = tuple(getattr(data, name))
        many = len(found) if questions is None else min(questions, len(found))
        return tuple(found[i * len(found) // many] for i in range(many))

    return replace(data, **{name: few(name) for name in SETS})


def check_sizes(given: argparse.Namespace) -> None:
    """Refuse sizes that nothing can be made of.

    Raises:
        ValueError: A width without whole heads or beside a model that has its own; no questions.
    """
    if given.questions is not None and given.questions < 1:
        raise ValueError(
            f"--questions {given.questions}: nothing would be asked. Did you mean at least 1?"
        )
    if given.retain_authors is not None and given.retain_authors < 1:
        raise ValueError(
            f"--retain-authors {given.retain_authors}: nothing would be retained. Did you mean at "
            "least 1?"
        )
    if given.base is not None and (given.model or given.width):
        raise ValueError(
            f"--base {given.base} is taught here and has a width of its own; --model and --width "
            "say otherwise. Did you mean one of them?"
        )
    if given.replay is not None and given.base is None:
        raise ValueError(
            f"--replay {given.replay} is read on by a pretrained model, and there is none. Did you "
            "mean --base as well?"
        )
    if given.width is None:
        return
    if given.model is not None:
        raise ValueError(
            f"--width {given.width} is for a model trained here, and --model {given.model} has a "
            "width of its own. Did you mean one of them?"
        )
    if given.width < HEAD or given.width % HEAD:
        raise ValueError(
            f"--width {given.width}: heads are {HEAD} wide, and so many channels make no whole "
            f"ones. Did you mean {max(1, round(given.width / HEAD)) * HEAD}?"
        )


class Tofu(LanguageBenchmark):
    """Unlearn a split of TOFU, or the authors to forget of the embedded world."""

    layout = LAYOUT
    presets = TOFU
    retrained: Reference | None = None
    """The retrained model, which forget quality and privacy compare with."""

    def identity(self) -> dict[str, Any]:
        read = {name: getattr(self.given, name) for name in ("base", "replay", "prose")}
        return {
            "benchmark": "tofu",
            "data": self.data.name if self.given.data is None else str(self.given.data),
            "split": self.split,
            "retain_authors": self.data.retain_authors,
            "model": self.given.model,
            "retrained": self.given.retrained,
            "paraphrased": self.given.paraphrased,
            "convention": self.given.convention,
            "questions": self.given.questions,
            "width": self.given.width,
            **{name: str(path) for name, path in read.items() if path is not None},
        }

    def prepare(self) -> None:
        super().prepare()
        if "retrained" in self.models:
            rows = self._evaluate(self.reference("retrained"), generations=False).rows
            self.retrained = reference(rows)

    def encode(self) -> tuple[list[Row], list[Row]]:
        sets = (self.data.forget, self.data.retain)
        forget, retain = map(self.encoded, sets)
        return forget, retain

    def encoded(self, examples: Iterable[Example]) -> list[Row]:
        return encode_all(self.tokenizer, examples, convention=self.given.convention)

    def load(self, key: str) -> tuple[Any, Any]:
        if key == "retrained" and self.given.retrained is not None:
            return load_model(self.given.retrained)
        missing = key == "retrained"
        return load_or_train(
            self.data,
            self.given.model,
            self.options.cache,
            without_forget=missing,
            recipe=self.recipe(),
            convention=self.given.convention,
            base=self.given.base,
            replay=() if self.given.replay is None else read_prose(self.given.replay),
        )

    def recipe(self) -> Recipe:
        """Choose the recipe of a model trained from scratch, as wide as was asked for."""
        shortened = self.options.quick and self.data.name == "tofu"
        recipe = QUICK if shortened else RECIPES[self.data.name]
        width = self.given.width
        return recipe if width is None else replace(recipe, width=width, heads=width // HEAD)

    def held_out(self, settings: Settings) -> Iterator[Batch]:
        rows = self.encoded(self.data.holdout)
        if not rows:
            raise ValueError(
                f"{self.data.name} has no holdout questions for {self.split}, so alpha=never_seen "
                "cannot be measured. Is the holdout file missing?"
            )
        for start in range(0, len(rows), settings.batch_size):
            yield self.collated(rows[start : start + settings.batch_size])

    def evaluate(self, model: nn.Module) -> Evaluation:
        shortened = self.options.quick and self.data.name == "tofu"
        found = self._evaluate(model, limit=QUICK_QUESTIONS if shortened else None)
        return Evaluation({**found.numbers, **self.reads(model)}, found.rows)

    def reads(self, model: nn.Module) -> dict[str, float | None]:
        """The perplexity of the prose, if some was named."""
        if self.given.prose is None:
            return {}
        rows = blocks(self.tokenizer, read_prose(self.given.prose))[:ROWS]
        return {"prose_perplexity": perplexity(model, rows)}

    def quick_eval(self, model: nn.Module) -> dict[str, float | None]:
        return self._evaluate(model, limit=QUICK_EVAL, generations=False).numbers

    def _evaluate(
        self, model: nn.Module, *, generations: bool = True, limit: int | None = None
    ) -> Any:
        return evaluate(
            model,
            self.tokenizer,
            asked(self.data, self.given.questions),
            retrained=self.retrained,
            max_new_tokens=200 if self.given.model else None,
            quick=self.options.quick,
            generations=generations,
            limit=limit,
            paraphrased_questions=self.given.paraphrased,
            convention=self.given.convention,
        )
