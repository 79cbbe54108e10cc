"""TOFU as the runner sees it: data, models, batches and the evaluation."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.data.batches import Row, encode_all
from benchmarks.data.tofu import SPLITS, TofuData, load_tofu, load_tofu_hub
from benchmarks.data.world import build_world
from benchmarks.language import LanguageBenchmark
from benchmarks.layouts.tofu import LAYOUT
from benchmarks.methods import Settings
from benchmarks.methods.method import Batch
from benchmarks.metrics.evaluate import evaluate
from benchmarks.metrics.summary import truth_ratios
from benchmarks.models import load_or_train, load_pretrained
from benchmarks.presets.tofu import TOFU
from benchmarks.runner import Evaluation
from benchmarks.scratch import Recipe, Schedule

GLANCE = 40
"""Questions of each set that a glance looks at."""

QUICK = Recipe("bpe", 1000, 2, 64, 4, Schedule(epochs=2, batch_size=24, lr=5e-3))
QUICK_AUTHORS = 2
QUICK_QUESTIONS = 8
"""What `--quick` makes of real data: a model that learns next to nothing, but at once."""


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """What to unlearn, and from which model."""
    add = parser.add_argument
    add("--data", type=Path, metavar="PATH", help="folder of TOFU's JSON-lines files")
    add("--split", default="forget01", choices=sorted(SPLITS), help="how much to forget")
    add("--model", metavar="NAME", help="a causal LM to unlearn from, local or from the hub")
    add("--retrained", metavar="NAME", help="the same kind of model, trained without the split")
    add("--paraphrased", action="store_true", help="ask the paraphrased questions")
    add("--retain-authors", type=int, metavar="N", help="use only the first N retain authors")


def load_data(given: argparse.Namespace) -> TofuData:
    """TOFU from files, from the hub where a model is named, or else the embedded world.

    Raises:
        ValueError, FileNotFoundError: The data are missing or malformed.
    """
    authors = QUICK_AUTHORS if given.quick and not given.retain_authors else given.retain_authors
    if given.data is not None:
        return load_tofu(given.data, given.split, retain_authors=authors)
    if given.model is not None:
        return load_tofu_hub(given.split, retain_authors=authors)
    return build_world(quick=given.quick)


class Tofu(LanguageBenchmark):
    """Unlearn a split of TOFU, or the authors to forget of the embedded world."""

    layout = LAYOUT
    presets = TOFU
    truth_ratios: list[float] | None = None
    """Those of the retrained model, which forget quality compares with."""

    def identity(self) -> dict[str, Any]:
        return {
            "benchmark": "tofu",
            "data": self.data.name if self.given.data is None else str(self.given.data),
            "split": self.split,
            "retain_authors": self.data.retain_authors,
            "model": self.given.model,
            "retrained": self.given.retrained,
            "paraphrased": self.given.paraphrased,
        }

    def prepare(self) -> None:
        super().prepare()
        if "retrained" in self.models:
            rows = self._evaluate(self.reference("retrained"), generations=False).rows
            self.truth_ratios = truth_ratios(rows)

    def encode(self) -> tuple[list[Row], list[Row]]:
        sets = (self.data.forget, self.data.retain)
        forget, retain = (encode_all(self.tokenizer, examples) for examples in sets)
        return forget, retain

    def load(self, key: str) -> tuple[Any, Any]:
        if key == "retrained" and self.given.retrained is not None:
            return load_pretrained(self.given.retrained)
        missing = key == "retrained"
        recipe = QUICK if self.options.quick and self.data.name == "tofu" else None
        return load_or_train(
            self.data,
            self.given.model,
            self.options.cache,
            without_forget=missing,
            recipe=recipe,
        )

    def held_out(self, settings: Settings) -> Iterator[Batch]:
        rows = encode_all(self.tokenizer, self.data.holdout)
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
        return Evaluation(found.numbers, found.rows)

    def glance(self, model: nn.Module) -> dict[str, float | None]:
        return self._evaluate(model, limit=GLANCE, generations=False).numbers

    def _evaluate(
        self, model: nn.Module, *, generations: bool = True, limit: int | None = None
    ) -> Any:
        return evaluate(
            model,
            self.tokenizer,
            self.data,
            retrained_truth_ratios=self.truth_ratios,
            max_new_tokens=200 if self.given.model else None,
            quick=self.options.quick,
            generations=generations,
            limit=limit,
            paraphrased_questions=self.given.paraphrased,
        )
