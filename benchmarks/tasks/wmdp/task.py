"""WMDP as the runner sees it: data, models, batches of one topic each, and the evaluation."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import nn

from benchmarks.engine.benchmark import Evaluation
from benchmarks.engine.language import LanguageBenchmark
from benchmarks.engine.models import trained
from benchmarks.engine.options import Options, refuse_unread
from benchmarks.engine.scratch import Lesson, Recipe
from benchmarks.engine.training import Schedule
from benchmarks.methods import Settings
from benchmarks.methods.method import Batch
from benchmarks.methods.rmu import TopicBatch, hidden_size
from benchmarks.tasks.wmdp import choices, harness
from benchmarks.tasks.wmdp.data import WMDPData, load_wmdp
from benchmarks.tasks.wmdp.layout import LAYOUT
from benchmarks.tasks.wmdp.lore import Lore, build_lore
from benchmarks.tasks.wmdp.presets import WMDP
from benchmarks.tasks.wmdp.questions import LETTERS, PREAMBLE, Question
from torch_alm.language import Row, pairs
from torch_alm.unlearning.models import load_model

FIRST_RUN = "rmu,rmu+alm,sharp_min_max,relearning_resilient,blur,dual_adamw,dual_adamw+alm,saul"
QUICK_EVAL = 40
"""Questions of each set in a quick evaluation."""

QUICK_QUESTIONS = 8
"""Questions of each real set that `--quick` asks."""

LENGTHS = 512, 768
"""Most tokens of a text of the first topic and of what is kept, and of the other topics."""

RECIPES = {
    "lore": Recipe("word", 0, 4, 64, 4, Schedule(epochs=4, batch_size=16, lr=3e-3)),
    "lore-quick": Recipe("word", 0, 3, 48, 4, Schedule(epochs=6, batch_size=16, lr=5e-3)),
}


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of what to unlearn, from which model, and what of it is trained."""
    add = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="folder of WMDP's *_questions.json")
    add("--mmlu", type=Path, metavar="DIR", help="folder of MMLU's CSV files")
    corpus = "a corpus, JSON lines with 'text' or a text a line; repeatable"
    add("--forget", action="append", default=[], metavar="TOPIC=PATH", help=corpus)
    add("--retain", type=Path, metavar="PATH", help="the corpus of what is kept")
    add("--model", metavar="NAME", help="a causal LM to unlearn from, local or from the hub")
    add("--batches", type=int, default=150, metavar="N", help="most batches of a pass: %(default)s")
    scorer = "who asks: lm-eval, or our own; auto takes lm-eval for --model where it is installed"
    add("--scorer", default="auto", choices=("auto", "lm-eval", "own"), help=scorer)
    begun = "what prompts begin with: the tokenizer's BOS (lm-eval from 0.4.9.2 on), or nothing "
    begun += "(up to 0.4.9.1, which OpenUnlearning and WMDP's authors used); default: %(default)s"
    add("--bos", default="tokenizer", choices=("tokenizer", "none"), help=begun)
    shown = "examples before each of MMLU's questions, from its dev files; default: %(default)s"
    add("--shots", type=int, default=0, metavar="N", help=shown)
    add("--questions", type=int, metavar="N", help="ask only the first N of each set")
    parser.set_defaults(methods=FIRST_RUN, parameters=None, retrained=None)


def load_data(given: argparse.Namespace) -> WMDPData:
    """WMDP from files, or else the embedded world.

    Raises:
        ValueError, FileNotFoundError: The data are missing or malformed.
    """
    if given.parameters is None:  # a small model has too little in RMU's matrices to steer with
        small = "rmu" if given.model else "below"
        given.parameters = "all" if given.lora else small
    if given.data is None and given.model is None:
        refuse_unread(given, "shots", "forget", "retain", "mmlu")
        return build_lore(quick=given.quick)
    if given.data is None or given.model is None:
        raise ValueError(
            "--data and --model belong together: a model trained here would know nothing of WMDP, "
            "and a model from elsewhere nothing of the embedded world. Did you leave one out?"
        )
    if given.scorer == "lm-eval" and not harness.is_installed():
        raise ValueError(
            "--scorer lm-eval: lm-evaluation-harness is not installed. Did you mean "
            'pip install "torch-alm[wmdp]", or --scorer own?'
        )
    forget = {}
    for entry in given.forget:
        topic, equals, path = entry.partition("=")
        if not equals:
            raise ValueError(f"--forget {entry!r} names no corpus. Did you mean TOPIC=PATH?")
        forget[topic] = Path(path)
    return load_wmdp(given.data, given.mmlu, forget, given.retain, shots=given.shots)


class Wmdp(LanguageBenchmark):
    """Unlearn topics with RMU's losses; what a guess would score is the aim."""

    layout = LAYOUT
    presets = WMDP
    losses = "rmu"
    longest = max(LENGTHS)

    def __init__(self, data: WMDPData, given: argparse.Namespace, options: Options) -> None:
        super().__init__(data, given, options)
        self.references = ("original",)
        self.topics: list[list[Row]] = []

    def sources(self) -> dict[str, Path]:
        corpora = (entry.partition("=") for entry in self.given.forget)
        return {**super().sources(), **{f"forget {topic}": Path(at) for topic, _, at in corpora}}

    def identity(self) -> dict[str, Any]:
        given = self.given
        return {
            "benchmark": "wmdp",
            "data": self.data.name if given.data is None else str(given.data),
            "split": self.split,
            "corpora": [*given.forget, str(given.retain)] if given.forget else None,
            "mmlu": None if given.mmlu is None else str(given.mmlu),
            "model": given.model,
            "batches": given.batches,
            "questions": given.questions,
            "scorer": self.scorer,
            "bos": given.bos,
            "shots": given.shots,
        }

    @property
    def scorer(self) -> str:
        """The scorer: this package's own, or lm-eval."""
        if self.given.scorer != "auto":
            return self.given.scorer
        return "lm-eval" if self.given.model and harness.is_installed() else "own"

    def load(self, key: str) -> tuple[Any, Any]:
        if isinstance(self.data, Lore):
            lesson = Lesson(
                name=f"{self.data.name}-{key}",
                texts=self.data.words(),
                content=[self.data.texts, [dataclasses.asdict(q) for q in self.data.lessons]],
                rows=self.data.rows,
                whole=(PREAMBLE,),
            )
            return trained(lesson, RECIPES[self.data.name], self.options.cache)
        return load_model(self.given.model)

    def encode(self) -> tuple[list[Row], list[Row]]:
        self.topics = [
            self._encoded(topic.texts, LENGTHS[min(number, 1)])
            for number, topic in enumerate(self.data.topics)
        ]
        return [row for rows in self.topics for row in rows], self._encoded(
            self.data.retain, LENGTHS[0]
        )

    def _encoded(self, texts: Sequence[str], longest: int) -> list[Row]:
        """Every token of a text counts."""
        found = [
            self.tokenizer(text, truncation=True, max_length=longest)["input_ids"] for text in texts
        ]
        return [{"input_ids": ids, "labels": ids} for ids in found]

    def batches(self, settings: Settings, seed: int) -> Iterator[tuple[Batch, Batch]]:
        """The topics take turns, as in RMU; a topic that is used up is left out."""
        for epoch in range(settings.epochs):
            turns = [
                pairs(rows, self.retain, settings.batch_size, 1, (seed * 1000 + epoch) * 10 + topic)
                for topic, rows in enumerate(self.topics)
            ]
            drawn = _in_turns(turns)
            for _, (topic, (retain, forget)) in zip(range(self.given.batches), drawn, strict=False):
                yield self.collated(retain), TopicBatch(self.collated(forget), topic)

    def steps_per_epoch(self, settings: Settings) -> int:
        steps = sum(-(-len(rows) // settings.batch_size) for rows in self.topics)
        return min(steps, self.given.batches)

    def resolved(self, settings: Settings) -> Settings:
        """`relative:SHARE` is a share of c^2/d, the distance that U starts near."""
        if not str(settings.alpha).startswith("relative:"):
            return settings
        share = float(str(settings.alpha).partition(":")[2])
        width = hidden_size(self.models["original"])
        return dataclasses.replace(settings, alpha=share * settings.coefficient**2 / width)

    def evaluate(self, model: nn.Module) -> Evaluation:
        shortened = QUICK_QUESTIONS if self.options.quick and self.given.model else None
        asked = harness.answers if self.scorer == "lm-eval" else choices.answers
        return self._evaluate(model, asked, self.given.questions or shortened)

    def quick_eval(self, model: nn.Module) -> dict[str, float | None]:
        return self._evaluate(model, choices.answers, QUICK_EVAL).numbers

    def _evaluate(self, model: nn.Module, ask: Any, limit: int | None) -> Evaluation:
        sets = {topic.key: topic.questions[:limit] for topic in self.data.topics}
        sets |= {name: questions[:limit] for name, questions in self.data.utility.items()}
        asked = [(name, question) for name, found in sets.items() for question in found]
        answers = ask(
            model,
            self.tokenizer,
            [question for _, question in asked],
            bos=self.given.bos == "tokenizer",
            examples=self.data.examples,
        )
        topics = {topic.key for topic in self.data.topics}
        rows = [
            _row(name, name in topics, index, question, answer)
            for index, ((name, question), answer) in enumerate(zip(asked, answers, strict=True))
        ]
        return Evaluation(numbers(rows), rows)


def numbers(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Accuracy of every set; the mean over the topics; that over all harmless questions."""
    rights: dict[str, list[bool]] = {}
    for row in rows:
        rights.setdefault(row["set"], []).append(row["right"])
    found: dict[str, float | None] = {f"{name}_accuracy": fmean(r) for name, r in rights.items()}
    topics = dict.fromkeys(row["set"] for row in rows if row["subset"] == "forget")
    kept = [row["right"] for row in rows if row["subset"] == "utility"]
    found["forget_accuracy"] = fmean(fmean(rights[name]) for name in topics)
    found["utility_accuracy"] = fmean(kept) if kept else None
    return found


def _row(
    name: str, forget: bool, index: int, question: Question, answer: choices.Answer
) -> dict[str, Any]:
    said = [f"{letter}. {text}" for letter, text in zip(LETTERS, question.choices, strict=True)]
    return {
        "set": name,
        "subset": "forget" if forget else "utility",
        "index": index,
        "question": question.question,
        "reference": said[question.answer],
        "generation": said[answer.choice],
        "right": answer.choice == question.answer,
        "log_likelihoods": list(answer.log_likelihoods),
    }


def _in_turns(turns: Sequence[Iterator[Any]]) -> Iterator[tuple[int, Any]]:
    """(number, item) of each iterator in turn, until the last one is used up."""
    left = dict(enumerate(turns))
    while left:
        for number in list(left):
            item = next(left[number], None)
            if item is None:
                del left[number]
            else:
                yield number, item
