"""WMDP for the runner: options, data, batches of one topic each, and the evaluation."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import nn

from benchmarks.engine.benchmark import Benchmark, Evaluation, pairs
from benchmarks.engine.models import load_model, load_taught
from benchmarks.engine.options import Options, option
from benchmarks.engine.presets import Presets
from benchmarks.engine.scratch import Lesson, Recipe
from benchmarks.engine.tokens import token_ids
from benchmarks.engine.training import Schedule
from benchmarks.methods import Settings
from benchmarks.methods.method import Batch
from benchmarks.methods.rmu import RMUSettings, TopicBatch, hidden_size
from benchmarks.report.page import Layout
from benchmarks.report.tables import CONTROLLER, Column
from benchmarks.tasks.wmdp import choices
from benchmarks.tasks.wmdp.data import WMDPData, load_wmdp
from benchmarks.tasks.wmdp.lore import Lore, build_lore
from benchmarks.tasks.wmdp.questions import LETTERS, PREAMBLE, Question
from torch_alm.language import Row

FIRST_RUN = "rmu,rmu+alm,sharp_min_max,relearning_resilient,blur,dual_adamw,dual_adamw+alm,saul"
LENGTHS = 512, 768
"""Most tokens of a text of the first topic and of what is kept, and of the other topics."""

RECIPES = {
    "lore": Recipe(4, 64, 4, Schedule(epochs=4, batch_size=16, lr=3e-3)),
    "lore-quick": Recipe(2, 48, 4, Schedule(epochs=6, batch_size=16, lr=6e-3)),
}
TOPICS = {"bio": "Bio", "cyber": "Cyber", "chem": "Chem", "doom": "Doom", "shade": "Shadow"}
KEPT = {"mmlu": "MMLU", "retain": "kept", "neighbour": "neighbours", "utility": "all kept"}


@dataclass
class WmdpOptions(Options):
    """WMDP: train, unlearn with RMU's losses, and compare."""

    methods: str = option("keys of methods, comma-separated, or all", FIRST_RUN)
    mmlu: Path | None = option("folder of MMLU's CSV files")
    forget: list[str] = option("TOPIC=PATH: a corpus, JSON lines with 'text'", [])
    retain: Path | None = option("the corpus of what is kept")
    batches: int = option("most batches of a pass", 150)
    bos: bool = option("begin prompts with nothing, as lm-eval did up to 0.4.9.1", True)
    shots: int = option("worked examples before each of MMLU's questions", 0)
    questions: int | None = option("ask only the first N of each set")

    def __post_init__(self) -> None:
        """Check the options against each other.

        Raises:
            ValueError: Two contradict each other; the message suggests a fix.
        """
        super().__post_init__()
        if self.model is not None and self.data is None:
            raise ValueError(
                "--model without --data: a model from elsewhere knows nothing of the invented "
                "lore. Did you mean --data DIR, with WMDP's questions?"
            )
        if self.parameters is None and not self.lora:
            # RMU's matrices of a small model are too small to steer it
            self.parameters = "rmu" if self.model else "below"


LAYOUT = Layout(
    columns=(
        *(Column(f"{key}_accuracy", f"{name} →0.25") for key, name in TOPICS.items()),
        Column("forget_accuracy", "forget →0.25"),
        *(Column(f"{key}_accuracy", f"{name} ↑") for key, name in KEPT.items()),
        *CONTROLLER,
    ),
    utility=Column("utility_accuracy", "accuracy on harmless questions"),
)


class Wmdp(Benchmark):
    """Unlearn topics with RMU's losses, down to the accuracy of a guess."""

    options: WmdpOptions
    layout = LAYOUT
    presets = Presets(Path(__file__).with_name("presets.yaml"))
    losses = "rmu"
    references = ("original",)

    def __init__(self, options: WmdpOptions) -> None:
        super().__init__(options, load_data(options))
        self.topics: list[list[Row]] = []

    def load(self, key: str) -> tuple[Any, Any]:
        if not isinstance(self.data, Lore):
            return load_model(str(self.options.model))
        lesson = Lesson(
            name=f"{self.data.name}-{key}",
            texts=self.data.words(),
            content=[self.data.texts, [dataclasses.asdict(q) for q in self.data.lessons]],
            rows=self.data.rows,
            whole=(PREAMBLE,),
        )
        return load_taught(lesson, RECIPES[self.data.name], self.options.cache)

    def encode(self) -> tuple[list[Row], list[Row]]:
        self.topics = [
            self._encode_corpus(topic.texts, LENGTHS[min(number, 1)])
            for number, topic in enumerate(self.data.topics)
        ]
        forget = [row for rows in self.topics for row in rows]
        return forget, self._encode_corpus(self.data.retain, LENGTHS[0])

    def _encode_corpus(self, texts: Sequence[str], longest: int) -> list[Row]:
        """Encode texts with every token labelled."""
        found = [token_ids(self.tokenizer, text)[:longest] for text in texts]
        return [{"input_ids": ids, "labels": ids} for ids in found]

    def batches(self, settings: Settings, seed: int) -> Iterator[tuple[Batch, Batch]]:
        """Yield batches of the topics in turn, as in RMU, until each topic is used up."""
        for epoch in range(settings.epochs):
            turns = [
                pairs(rows, self.retain, settings.batch_size, 1, (seed * 1000 + epoch) * 10 + topic)
                for topic, rows in enumerate(self.topics)
            ]
            drawn = _take_turns(turns)
            most = range(self.options.batches)
            for _, (topic, (retain, forget)) in zip(most, drawn, strict=False):
                yield self.collate_rows(retain), TopicBatch(self.collate_rows(forget), topic)

    def steps_per_epoch(self, settings: Settings) -> int:
        steps = sum(-(-len(rows) // settings.batch_size) for rows in self.topics)
        return min(steps, self.options.batches)

    def resolve_settings(self, settings: Settings) -> Settings:
        """Replace `relative:SHARE` by that share of c^2/d, near which U starts."""
        word, _, share = str(settings.alpha).partition(":")
        if word != "relative" or not isinstance(settings, RMUSettings):
            return settings
        width = hidden_size(self.models["original"])
        return dataclasses.replace(settings, alpha=float(share) * settings.coefficient**2 / width)

    def evaluate(self, model: nn.Module) -> Evaluation:
        limit = self.options.questions
        forget = {topic.key: topic.questions[:limit] for topic in self.data.topics}
        sets = forget | {name: found[:limit] for name, found in self.data.utility.items()}
        asked = [(name, question) for name, found in sets.items() for question in found]
        questions = [question for _, question in asked]
        how = {"bos": self.options.bos, "examples": self.data.examples}
        answers = choices.answers(model, self.tokenizer, questions, **how)
        rows = [
            _row(name, name in forget, index, question, answer)
            for index, ((name, question), answer) in enumerate(zip(asked, answers, strict=True))
        ]
        return Evaluation(numbers(rows), rows)


def load_data(options: WmdpOptions) -> WMDPData:
    """Load WMDP from files, or else the embedded world.

    Raises:
        ValueError, FileNotFoundError: The data are missing or malformed.
    """
    if options.data is None:
        return build_lore(quick=options.quick)
    forget = {}
    for entry in options.forget:
        topic, equals, path = entry.partition("=")
        if not equals:
            raise ValueError(f"--forget {entry!r} names no corpus. Did you mean TOPIC=PATH?")
        forget[topic] = Path(path)
    return load_wmdp(options.data, options.mmlu, forget, options.retain, options.shots)


def numbers(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return the accuracy of every set, the mean over topics, and that of harmless questions."""
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


def _take_turns(turns: Sequence[Iterator[Any]]) -> Iterator[tuple[int, Any]]:
    """Yield (number, item) of each iterator in turn, until the last one is used up."""
    left = dict(enumerate(turns))
    while left:
        for number in list(left):
            item = next(left[number], None)
            if item is None:
                del left[number]
            else:
                yield number, item
