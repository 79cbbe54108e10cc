"""MUSE for the runner: options, data, blocks of text and the evaluation."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from torch import nn

from benchmarks.engine.benchmark import Benchmark, Evaluation
from benchmarks.engine.models import load_model, load_taught
from benchmarks.engine.options import Options, option
from benchmarks.engine.presets import Presets
from benchmarks.report.page import Layout
from benchmarks.report.tables import CONTROLLER, Column
from benchmarks.tasks.memorization import membership_auc
from benchmarks.tasks.muse import metrics
from benchmarks.tasks.muse.data import BLOCK, CORPORA, MuseData, blocks, load_muse, load_muse_hub
from benchmarks.tasks.muse.metrics import TextScores
from benchmarks.tasks.muse.models import COURSES, muse_lesson
from benchmarks.tasks.muse.passages import build_passages
from torch_alm.language import Row, losses, pad_id

BLOCKS = {"passages": 256, "passages-quick": 128}
"""Tokens of a block in the embedded worlds, whose texts are short."""

LOOKED_AT = 32
"""Blocks of each corpus whose loss is measured."""


@dataclass
class MuseOptions(Options):
    """MUSE: train, unlearn with several methods, and compare."""

    corpus: Literal["news", "books"] | None = option("default: as --data is called, or news")
    block: int | None = option(f"tokens per block of text; default: {BLOCK}")
    retrained: str | None = option("a model like --model, trained without the texts")


LAYOUT = Layout(
    columns=(
        Column("verbmem_f", "VerbMem forget ↓", 1),
        Column("knowmem_f", "KnowMem forget ↓", 1),
        Column("privleak", "PrivLeak →0", 1),
        Column("knowmem_r", "KnowMem retain ↑", 1),
        Column("membership_auc", "membership →0.5"),
        Column("perplexity_f", "forget perplexity", 1),
        Column("perplexity_unseen", "unseen perplexity", 1),
        Column("forget_loss", "forget nats ↑"),
        Column("retain_loss", "retain nats ↓"),
        *CONTROLLER,
    ),
    utility=Column("knowmem_r", "KnowMem, retain (%)"),
)


class Muse(Benchmark):
    """Unlearn a corpus of MUSE, or the reports to forget of the embedded world."""

    options: MuseOptions
    layout = LAYOUT
    presets = Presets(Path(__file__).with_name("presets.yaml"))
    retrained_auc: float

    def __init__(self, options: MuseOptions) -> None:
        super().__init__(options, load_data(options))
        self.block = options.block or BLOCKS.get(self.data.name, BLOCK)

    def load(self, key: str) -> tuple[Any, Any]:
        named = self.options.model if key == "original" else self.options.retrained
        if named is not None:
            return load_model(named)
        course, missing = COURSES[self.data.name], key == "retrained"
        lesson = muse_lesson(self.data, course, self.block, without_forget=missing)
        return load_taught(lesson, course.recipe, self.options.cache)

    def encode(self) -> tuple[list[Row], list[Row]]:
        forget, retain = (
            blocks(self.tokenizer, texts, self.block)
            for texts in (self.data.forget, self.data.retain)
        )
        return forget, retain

    def prepare(self) -> None:
        super().prepare()
        if "retrained" in self.models:
            self.retrained_auc = _auc(*self.text_scores(self.copy_reference("retrained")))
        else:
            self.retrained_auc = metrics.RETRAINED_AUC[self.split]

    def evaluate(self, model: nn.Module) -> Evaluation:
        tasks = {
            "verbatim": metrics.verbatim_memory(model, self.tokenizer, self.data.verbatim),
            "forget": metrics.knowledge_memory(model, self.tokenizer, self.data.forget_quiz),
            "retain": metrics.knowledge_memory(model, self.tokenizer, self.data.retain_quiz),
        }
        members, strangers = self.text_scores(model)
        auc, pad = _auc(members, strangers), pad_id(self.tokenizer)
        numbers = {
            "verbmem_f": metrics.mean_rouge(tasks["verbatim"]),
            "knowmem_f": metrics.mean_rouge(tasks["forget"]),
            "knowmem_r": metrics.mean_rouge(tasks["retain"]),
            "privleak": metrics.privleak(auc, self.retrained_auc),
            "membership_auc": 1 - auc,
            "perplexity_f": metrics.perplexity(members),
            "perplexity_unseen": metrics.perplexity(strangers),
            "forget_loss": fmean(losses(model, self.forget[:LOOKED_AT], pad)),
            "retain_loss": fmean(losses(model, self.retain[:LOOKED_AT], pad)),
        }
        rows = [
            {"subset": subset, "index": index, **answer}
            for subset, answers in tasks.items()
            for index, answer in enumerate(answers)
        ]
        return Evaluation(numbers, rows)

    def text_scores(self, model: nn.Module) -> tuple[list[TextScores], list[TextScores]]:
        """Score PrivLeak's texts: those from the forget set, and the unseen ones."""
        members, strangers = (
            metrics.text_scores(model, self.tokenizer, texts)
            for texts in (self.data.members, self.data.strangers)
        )
        return members, strangers


def load_data(options: MuseOptions) -> MuseData:
    """Load MUSE from files, from the hub, or else the embedded world.

    Raises:
        ValueError, FileNotFoundError: The data are missing or malformed.
    """
    if options.block is not None and options.block < 2:
        raise ValueError(f"--block {options.block}: too few tokens. Did you mean at least 2?")
    if options.data is not None:
        named = options.data.name if options.data.name in CORPORA else "news"
        return load_muse(options.data, options.corpus or named)
    if options.model is not None:
        return load_muse_hub(options.corpus or "news")
    return build_passages(quick=options.quick)


def _auc(members: list[TextScores], strangers: list[TextScores]) -> float:
    """Return the AUC of Min-40 % for unseen and forget texts, in MUSE's orientation."""
    scores = ([score.min_k for score in of] for of in (members, strangers))
    return membership_auc(*scores, convention="muse")
