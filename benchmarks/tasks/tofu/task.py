"""TOFU for the runner: options, data, models and the evaluation."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from benchmarks.engine.benchmark import Benchmark, Evaluation
from benchmarks.engine.models import load_model
from benchmarks.engine.options import Options, option
from benchmarks.engine.presets import Presets
from benchmarks.engine.runner import Plan
from benchmarks.report.page import Layout
from benchmarks.report.tables import CONTROLLER, Column
from benchmarks.tasks.tofu import paraphrase
from benchmarks.tasks.tofu.batches import encode_all
from benchmarks.tasks.tofu.chat import Chat
from benchmarks.tasks.tofu.data import Example, TofuData, load_tofu, load_tofu_hub
from benchmarks.tasks.tofu.evaluate import evaluate
from benchmarks.tasks.tofu.judge import judge_folder
from benchmarks.tasks.tofu.models import load_or_train
from benchmarks.tasks.tofu.summary import LogRatios, reference
from benchmarks.tasks.tofu.world import build_world
from torch_alm.language import Row

SETS = ("forget_eval", "retain_eval", "real_authors", "world_facts", "holdout")
"""The sets of questions."""


@dataclass
class TofuOptions(Options):
    """TOFU: train, unlearn with several methods, and compare."""

    split: Literal["forget01", "forget05", "forget10"] = option("how much to forget", "forget01")
    retrained: str | None = option("a model like --model, trained without the split")
    questions: int | None = option("ask only N of each set, evenly spread")
    paraphrased: bool = option("ask the paraphrased questions", False)
    reworded: Path | None = option(
        "ask the questions as this file rewords them; the --judge writes it where it is not there"
    )
    judge: str | None = option(
        "a chat model that judges answers; its key and address: OPENAI_API_KEY, OPENAI_BASE_URL"
    )

    def __post_init__(self) -> None:
        """Raise a ValueError for options that contradict each other or make no sense."""
        super().__post_init__()
        if self.questions is not None and self.questions < 1:
            raise ValueError(
                f"--questions {self.questions}: nothing is left. Did you mean at least 1?"
            )
        if self.reworded and not self.reworded.exists() and self.judge is None:
            raise ValueError(
                f"--reworded {self.reworded} is not there, and no --judge could write it. Is the "
                "path right?"
            )


LAYOUT = Layout(
    columns=(
        Column("forget_probability", "Forget prob. ↓"),
        Column("forget_rouge", "Forget ROUGE-L ↓"),
        Column("forget_exact_match", "Forget exact ↓"),
        Column("certificate", "Forget certificate ↑"),
        Column("retain_probability", "Retain prob. ↑"),
        Column("retain_rouge", "Retain ROUGE-L ↑"),
        Column("real_authors_rouge", "Authors ROUGE-L ↑"),
        Column("world_facts_rouge", "Facts ROUGE-L ↑"),
        Column("rouge_hm", "mean ROUGE-L ↑"),
        Column("model_utility", "utility ↑"),
        Column("forget_quality_log10", "log₁₀ quality ↑", 1),
        Column("membership_auc", "membership →0.5"),
        Column("judge_forget", "Judge Forget ↓", 1),
        Column("judge_retain", "Judge Retain ↑", 1),
        Column("judge_real_authors", "Judge Authors ↑", 1),
        Column("judge_world_facts", "Judge Facts ↑", 1),
        Column("judge_hm", "Judge mean ↑", 1),
        *CONTROLLER,
    ),
    utility=Column("model_utility", "model utility"),
)


class Tofu(Benchmark):
    """Unlearn a split of TOFU, or the authors to forget of the embedded world."""

    options: TofuOptions
    layout = LAYOUT
    presets = Presets(Path(__file__).with_name("presets.yaml"))
    retrained: LogRatios | None = None
    """The retrained model, which forget quality compares with."""
    new_tokens = 200
    """Longest answer of a model from elsewhere."""

    def __init__(self, options: TofuOptions) -> None:
        super().__init__(options, load_data(options))

    def load(self, key: str) -> tuple[Any, Any]:
        named = self.options.model if key == "original" else self.options.retrained
        if named is not None:
            return load_model(named)
        return load_or_train(self.data, self.options.cache, without_forget=key == "retrained")

    def encode(self) -> tuple[list[Row], list[Row]]:
        forget, retain = (
            encode_all(self.tokenizer, rows) for rows in (self.data.forget, self.data.retain)
        )
        return forget, retain

    def prepare(self) -> None:
        super().prepare()
        if "retrained" in self.models:
            self.retrained = reference(self._evaluate(self.copy_reference("retrained"), False).rows)

    def evaluate(self, model: nn.Module) -> Evaluation:
        return self._evaluate(model, True)

    def _evaluate(self, model: nn.Module, generations: bool) -> Evaluation:
        options = self.options
        return evaluate(
            model,
            self.tokenizer,
            shorten(self.data, options.questions),
            retrained=self.retrained,
            max_new_tokens=self.new_tokens if options.model else None,
            generations=generations,
            paraphrased_questions=options.paraphrased or options.reworded is not None,
        )


def load_data(options: TofuOptions) -> TofuData:
    """Load TOFU from files, from the hub if a model is named, or else the embedded world.

    Raises:
        ValueError, FileNotFoundError: The data are missing or malformed.
    """
    if options.data is not None:
        data = load_tofu(options.data, options.split)
    elif options.model is not None:
        data = load_tofu_hub(options.split)
    else:
        data = build_world(quick=options.quick)
    return data if options.reworded is None else reword(data, options.reworded, options.judge)


def reword(data: TofuData, path: Path, writer: str | None) -> TofuData:
    """Return the task with paraphrased questions from a file; the writer makes it if missing."""
    if path.exists() or writer is None:
        return paraphrase.with_paraphrases(data, paraphrase.read_paraphrases(path))
    chat = Chat(writer, path.with_suffix(".replies.jsonl"))
    found = paraphrase.generate_paraphrases(paraphrase.questions(data), chat, path)
    data = paraphrase.with_paraphrases(data, found)
    print(f"{path}: {len(found)} rewordings.")
    return data


def judge_runs(plan: Plan) -> None:
    """Let the judge of the options score the answers of all runs."""
    options = plan.options
    if isinstance(options, TofuOptions) and options.judge is not None:
        judge_folder(plan.folder, Chat(options.judge, plan.folder.path / "judge.replies.jsonl"))


def shorten(data: TofuData, count: int | None) -> TofuData:
    """Return the task with at most `count` questions per set, evenly spread."""

    def select_few(name: str) -> tuple[Example, ...]:
        found: tuple[Example, ...] = getattr(data, name)
        many = len(found) if count is None else min(count, len(found))
        return tuple(found[i * len(found) // many] for i in range(many))

    return replace(data, **{name: select_few(name) for name in SETS})
