"""MUSE as the runner sees it: data, models, blocks of text and the evaluation."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import nn

from benchmarks.engine.benchmark import Evaluation
from benchmarks.engine.language import LanguageBenchmark
from benchmarks.engine.models import trained
from benchmarks.engine.options import refuse_unread
from benchmarks.methods import Settings
from benchmarks.methods.method import Batch
from benchmarks.tasks.muse import metrics
from benchmarks.tasks.muse.data import BLOCK, CORPORA, MuseData, blocks, load_muse, load_muse_hub
from benchmarks.tasks.muse.layout import LAYOUT
from benchmarks.tasks.muse.lesson import COURSES, muse_lesson
from benchmarks.tasks.muse.metrics import TextScores
from benchmarks.tasks.muse.passages import build_passages
from benchmarks.tasks.muse.presets import MUSE
from torch_alm.language import Row, losses, pad_id
from torch_alm.unlearning.models import load_model

BLOCKS = {"passages": 256, "passages-quick": 128}
"""Tokens of a block in the embedded worlds, whose texts are short."""

LOOKED_AT = 32
"""Blocks of each corpus whose loss is measured."""

QUICK_COUNT, QUICK_CHARACTERS = 6, 600
"""Real data as `--quick` leaves it: a model that learns next to nothing, but at once."""


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", type=Path, metavar="PATH", help="folder of MUSE's JSON files")
    add("--hub", action="store_true", help="MUSE from the hub; the default with --model")
    add("--corpus", choices=sorted(CORPORA), help="default: as the folder is called, or news")
    add("--retain", type=Path, metavar="FILE", help="texts to retain, for raw/retain1.json")
    add("--texts", type=int, metavar="N", help="use only the first N texts of each kind")
    add("--block", type=int, metavar="N", help=f"tokens per block of text; default: {BLOCK}")
    add("--model", metavar="NAME", help="a causal LM to unlearn from, local or from the hub")
    add("--retrained", metavar="NAME", help="the same kind of model, trained without the texts")


def load_data(given: argparse.Namespace) -> MuseData:
    """MUSE from files, from the hub, or else the embedded world.

    Raises:
        ValueError, FileNotFoundError: The data are missing or malformed.
    """
    if given.block is not None and given.block < 2:
        raise ValueError(f"--block {given.block}: too few tokens. Did you mean at least 2?")
    if given.data is None and not given.hub and given.model is None:
        refuse_unread(given, "corpus", "retain", "texts")
        return build_passages(quick=given.quick)
    if given.data is None:
        data = load_muse_hub(given.corpus or "news")
    else:
        named = given.data.name if given.data.name in CORPORA else "news"
        data = load_muse(given.data, given.corpus or named, given.retain)
    found = data if given.texts is None else data.shortened(given.texts)
    return found.glimpse(QUICK_COUNT, QUICK_CHARACTERS) if given.quick else found


class Muse(LanguageBenchmark):
    """Unlearn a corpus of MUSE, or the reports to forget of the embedded world."""

    layout = LAYOUT
    presets = MUSE

    def identity(self) -> dict[str, Any]:
        return {
            "benchmark": "muse",
            "data": self.data.name if self.given.data is None else str(self.given.data),
            "split": self.split,
            "retain": None if self.given.retain is None else str(self.given.retain),
            "texts": self.given.texts,
            "block": self.block,
            "model": self.given.model,
            "retrained": self.given.retrained,
        }

    @property
    def is_real(self) -> bool:
        """Tell whether these are MUSE's own texts."""
        return self.data.name == "muse"

    @property
    def block(self) -> int:
        return self.given.block or BLOCKS.get(self.data.name, BLOCK)

    @property
    def longest(self) -> int:
        """Tokens of the longest row: those of a block."""
        return self.block

    def prepare(self) -> None:
        super().prepare()
        self.retrained_auc = metrics.RETRAINED_AUC.get(self.split)
        if "retrained" in self.models:
            members, strangers = self.text_scores(self.reference("retrained"))
            self.retrained_auc = _auc(members, strangers, "min_k")

    def load(self, key: str) -> tuple[Any, Any]:
        if self.given.model is not None:
            return load_model(self.given.model if key == "original" else self.given.retrained)
        if key == "retrained" and self.given.retrained is not None:
            return load_model(self.given.retrained)
        kind = self.data.name + ("-quick" if self.is_real and self.options.quick else "")
        course, missing = COURSES[kind], key == "retrained"
        lesson = muse_lesson(self.data, course, self.block, without_forget=missing)
        return trained(lesson, course.recipe, self.options.cache)

    def encode(self) -> tuple[list[Row], list[Row]]:
        return self._blocks(self.data.forget), self._blocks(self.data.retain)

    def _blocks(self, texts: tuple[str, ...]) -> list[Row]:
        return blocks(self.tokenizer, texts, self.block)

    def held_out(self, settings: Settings) -> Iterator[Batch]:
        rows = self._blocks(self.data.strangers)[: len(self.forget)]
        for at in range(0, len(rows), settings.batch_size):
            yield self.collated(rows[at : at + settings.batch_size])

    def evaluate(self, model: nn.Module) -> Evaluation:
        tasks = {
            "verbatim": metrics.verbatim_memory(model, self.tokenizer, self.data.verbatim),
            "forget": metrics.knowledge_memory(model, self.tokenizer, self.data.forget_quiz),
            "retain": metrics.knowledge_memory(model, self.tokenizer, self.data.retain_quiz),
        }
        numbers = {
            "verbmem_f": metrics.mean_rouge(tasks["verbatim"]),
            "knowmem_f": metrics.mean_rouge(tasks["forget"]),
            "knowmem_r": metrics.mean_rouge(tasks["retain"]),
            **self.membership(model),
        }
        rows = [
            {"subset": subset, "index": index, **answer}
            for subset, answers in tasks.items()
            for index, answer in enumerate(answers)
        ]
        return Evaluation(numbers | self.text_losses(model), rows)

    def quick_eval(self, model: nn.Module) -> dict[str, float | None]:
        numbers = self.text_losses(model)
        kept = numbers["retain_loss"]
        quizzes = {"forget": self.data.forget_quiz, "retain": self.data.retain_quiz}
        for name, quiz in quizzes.items():
            known = metrics.answer_probability(model, self.tokenizer, quiz)
            numbers[f"{name}_answer_probability"] = known
        return numbers | {"retain_probability": math.exp(-kept)}

    def text_losses(self, model: nn.Module) -> dict[str, float]:
        """Cross-entropy per token of the first blocks of both corpora, in nats."""
        corpora = {"forget_loss": self.forget, "retain_loss": self.retain}
        pad = pad_id(self.tokenizer)
        return {name: fmean(losses(model, rows[:LOOKED_AT], pad)) for name, rows in corpora.items()}

    def text_scores(self, model: nn.Module) -> tuple[list[TextScores], list[TextScores]]:
        """Score PrivLeak's texts: those from the forget set, and the unseen ones."""
        members, strangers = (
            metrics.text_scores(model, self.tokenizer, texts)
            for texts in (self.data.members, self.data.strangers)
        )
        return members, strangers

    def membership(self, model: nn.Module) -> dict[str, float | None]:
        """PrivLeak, perplexities, and membership AUCs that are near 1 for a model that knows."""
        members, strangers = self.text_scores(model)
        auc, theirs = _auc(members, strangers, "min_k"), self.retrained_auc
        return {
            "privleak": metrics.privleak(auc, theirs),
            "membership_auc": 1 - auc,
            "retrained_membership_auc": 1 - theirs,
            "membership_auc_min_k_plus_plus": 1 - _auc(members, strangers, "min_k_plus_plus"),
            "membership_auc_loss": 1 - _auc(members, strangers, "loss"),
            "perplexity_f": metrics.perplexity(members),
            "perplexity_unseen": metrics.perplexity(strangers),
        }


def _auc(members: Sequence[TextScores], strangers: Sequence[TextScores], score: str) -> float:
    """Measure how well a score tells unseen texts from forget texts, in MUSE's orientation."""
    return metrics.forget_auc(*([getattr(s, score) for s in of] for of in (members, strangers)))
