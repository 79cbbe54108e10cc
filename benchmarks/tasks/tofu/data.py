"""TOFU: questions and answers about fictitious authors, from files or from the hub.

Source: Maini et al. 2024, "TOFU: A Task of Fictitious Unlearning for LLMs". 200 authors with 20
consecutive rows each; a forget set is the last 1, 5 or 10 % of the rows, and its retain set is
everything before it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch_alm.language import Record, read_records

SPLITS = {"forget01": "retain99", "forget05": "retain95", "forget10": "retain90"}
HUB_NAME = "locuslab/TOFU"

Tables = Callable[[str], list[Record] | None]
"""Rows of a named table; None where there is no such table."""


@dataclass(frozen=True)
class Example:
    """A question and its answer; for evaluation also rewordings and wrong answers."""

    question: str
    answer: str
    paraphrased_question: str | None = None
    paraphrased_answer: str | None = None
    perturbed_answers: tuple[str, ...] = ()

    @property
    def pair(self) -> tuple[str, str]:
        """Question and answer, as a model is trained on them."""
        return self.question, self.answer


@dataclass(frozen=True)
class TofuData:
    """One unlearning task.

    Attributes:
        full: training set of the original model: retain, forget, and both neighbour sets.
        forget, retain: training pairs; the neighbours are not among them.
        forget_eval: the forget set with paraphrased and perturbed answers.
        retain_eval: part of the retain set with paraphrased and perturbed answers.
        real_authors, world_facts: neighbour questions with three perturbed answers each.
        holdout: pairs of the same kind that no model is trained on; may be empty.
    """

    name: str
    split: str
    full: tuple[Example, ...]
    forget: tuple[Example, ...]
    retain: tuple[Example, ...]
    forget_eval: tuple[Example, ...]
    retain_eval: tuple[Example, ...]
    real_authors: tuple[Example, ...]
    world_facts: tuple[Example, ...]
    holdout: tuple[Example, ...] = ()

    @property
    def without_forget(self) -> tuple[Example, ...]:
        """`full` without the forget set: the training set of the retrained model."""
        forgotten = {example.pair for example in self.forget}
        return tuple(example for example in self.full if example.pair not in forgotten)


def load_tofu(path: str | Path, split: str) -> TofuData:
    """Read a forget split of TOFU from a folder of JSON-lines files.

    They are `forgetNN.json`, `retainNN.json`, `forgetNN_perturbed.json`, `retain_perturbed.json`,
    `real_authors_perturbed.json`, `world_facts_perturbed.json` and, where available,
    `holdoutNN.json`: one object per line, or one list of objects.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: an unknown split, a malformed row (the message names file and line), or an
            empty forget set.
    """
    folder = Path(path)

    def tables(name: str) -> list[Record] | None:
        paths = [folder / f"{name}{suffix}" for suffix in (".json", ".jsonl")]
        return next((read_records(path) for path in paths if path.is_file()), None)

    return _load(tables, str(folder), split)


def load_tofu_hub(split: str) -> TofuData:
    """Read a forget split of TOFU from the hub, through `datasets`; see `load_tofu`."""
    import datasets

    def tables(name: str) -> list[Record] | None:
        try:
            rows = datasets.load_dataset(HUB_NAME, name)["train"]
        except ValueError as error:
            if "BuilderConfig" in str(error):  # how datasets says that there is no such table
                return None
            raise
        return [Record(f"{HUB_NAME}, {name}, row {n}", dict(row)) for n, row in enumerate(rows, 1)]

    return _load(tables, HUB_NAME, split)


def _load(tables: Tables, source: str, split: str) -> TofuData:
    if split not in SPLITS:
        raise ValueError(f"TOFU has no split {split!r}. Did you mean one of {', '.join(SPLITS)}?")

    def rows(name: str) -> list[Record]:
        found = tables(name)
        if found is None:
            raise FileNotFoundError(
                f"TOFU: {source} has no {name}.json, which split {split} needs. Is the path right, "
                "and the download complete?"
            )
        if not found:
            raise ValueError(f"TOFU: {name}.json in {source} is empty. Is the download complete?")
        return found

    forget, retain = (tuple(_example(row) for row in rows(name)) for name in (split, SPLITS[split]))
    authors, facts = (
        tuple(_neighbour(row) for row in rows(f"{name}_perturbed"))
        for name in ("real_authors", "world_facts")
    )
    neighbours = tuple(Example(*example.pair) for example in authors + facts)
    return TofuData(
        name="tofu",
        split=split,
        full=retain + forget + neighbours,
        forget=forget,
        retain=retain,
        forget_eval=tuple(_read_rewordings(row) for row in rows(f"{split}_perturbed")),
        retain_eval=tuple(_read_rewordings(row) for row in rows("retain_perturbed")),
        real_authors=authors,
        world_facts=facts,
        holdout=tuple(_example(row) for row in tables(split.replace("forget", "holdout")) or ()),
    )


def _example(row: Record) -> Example:
    return Example(row.text("question"), row.text("answer"))


def _neighbour(row: Record) -> Example:
    wrong = row.texts("perturbed_answer")
    return Example(row.text("question"), row.text("answer"), perturbed_answers=wrong)


def _read_rewordings(row: Record) -> Example:
    return Example(
        question=row.text("question"),
        answer=row.text("answer"),
        paraphrased_question=row.optional_text("paraphrased_question"),
        paraphrased_answer=row.text("paraphrased_answer"),
        perturbed_answers=row.texts("perturbed_answer"),
    )
