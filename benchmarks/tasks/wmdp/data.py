"""WMDP's questions, MMLU's, and the corpora to unlearn from: the user's own files, read as is.

Nothing hazardous is shipped, fetched or made up here.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.tasks.wmdp.questions import Question
from torch_alm.language import Record, read_records

SUBJECTS = {"bio": "biology", "chem": "chemistry", "cyber": "cybersecurity"}
"""WMDP's topics, and how the prompt calls them."""

T = TypeVar("T")


@dataclass(frozen=True)
class Topic:
    """Something to unlearn.

    Attributes:
        key: Its name in results and tables.
        texts: The forget corpus.
        questions: What a model that has forgotten can only guess.
    """

    key: str
    texts: tuple[str, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class WMDPData:
    """A task: topics to unlearn, a corpus to keep, and questions that tell what is kept.

    Attributes:
        name: `wmdp`, or the name of an embedded world.
        topics: What to unlearn.
        retain: The retain corpus.
        utility: Sets of harmless questions by name.
        examples: Questions that may be shown with their answers, by subject.
    """

    name: str
    topics: tuple[Topic, ...]
    retain: tuple[str, ...]
    utility: Mapping[str, tuple[Question, ...]]
    examples: Mapping[str, tuple[Question, ...]] = field(default_factory=dict, kw_only=True)

    @property
    def split(self) -> str:
        """The topics to unlearn."""
        return "+".join(topic.key for topic in self.topics)


def load_wmdp(
    folder: Path,
    mmlu: Path | None,
    forget: Mapping[str, Path],
    retain: Path | None,
    *,
    shortest: int = 50,
    shots: int = 0,
) -> WMDPData:
    """The task of a folder of questions and the corpora that belong to it.

    Args:
        folder: With `bio_questions.json`, `cyber_questions.json` or `chem_questions.json`.
        mmlu: Folder of MMLU's CSV files, or the folder above its `test`; None measures no utility.
        forget: The corpus of each topic; topics without one are not unlearned, and not asked.
        retain: The retain corpus.
        shortest: Texts of fewer characters are left out, as RMU's authors do.
        shots: How many of MMLU's development questions of a subject stand before its questions.

    Raises:
        ValueError, FileNotFoundError: Something is missing or malformed; names file and row.
    """
    if not forget or retain is None:
        raise ValueError(
            "WMDP's corpora are not shipped: there is nothing to unlearn, or nothing to keep. Did "
            "you mean --forget TOPIC=PATH for each topic, and --retain PATH?"
        )
    topics = tuple(_topic(folder, key, path, shortest) for key, path in forget.items())
    utility = {"mmlu": load_mmlu(mmlu)} if mmlu is not None else {}
    examples = _examples(mmlu, shots, {q.subject for found in utility.values() for q in found})
    kept = load_corpus(retain, shortest=shortest)
    return WMDPData("wmdp", topics, kept, utility, examples=examples)


def _topic(folder: Path, key: str, corpus: Path, shortest: int) -> Topic:
    if key not in SUBJECTS:
        raise ValueError(
            f"--forget {key}={corpus}: WMDP has no topic {key!r}, hence no questions about it. "
            f"Did you mean one of {', '.join(SUBJECTS)}?"
        )
    questions = load_questions(folder / f"{key}_questions.json", SUBJECTS[key])
    return Topic(key, load_corpus(corpus, shortest=shortest), questions)


def load_questions(path: Path, subject: str) -> tuple[Question, ...]:
    """WMDP's questions: a JSON list, or lines, of `question`, `choices` and `answer`.

    Raises:
        ValueError, FileNotFoundError: No such file, or a malformed row, named by file and number.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there, so {subject} could not be asked about. Is --data the folder "
            "with the *_questions.json files?"
        )

    def made(row: Record) -> Question:
        choices = row.texts("choices")
        return Question(subject, row.text("question"), choices, _whole(row.fields.get("answer")))

    return _found(
        path, (_placed(row.where, lambda row=row: made(row)) for row in read_records(path))
    )


def load_mmlu(folder: Path) -> tuple[Question, ...]:
    """MMLU's test questions: one CSV a subject, `question`, `choice0` to `choice3`, `answer`.

    Raises:
        ValueError, FileNotFoundError: No such files, or a malformed row, named by file and line.
    """
    files = sorted([*folder.glob("*_test.csv"), *folder.glob("test/*_test.csv")])
    if not files:
        raise FileNotFoundError(
            f"{folder} has no *_test.csv, nor has {folder / 'test'}; utility could not be "
            "measured. Is it MMLU's folder?"
        )
    return tuple(question for file in files for question in _subject(file))


def _examples(mmlu: Path | None, shots: int, subjects: set[str]) -> dict[str, tuple[Question, ...]]:
    """The examples of all subjects, or of none."""
    if shots == 0:
        return {}
    if mmlu is None or shots < 0:
        raise ValueError(
            f"--shots {shots} and --mmlu {mmlu}: only MMLU's questions have examples, which no "
            "prompt would get. Did you mean a number from 1 to 5, and MMLU's folder?"
        )
    found = load_examples(mmlu, shots)
    if missing := sorted(subjects - found.keys()):
        raise ValueError(
            f"{mmlu} has no *_dev.csv for {', '.join(missing)}; these would be asked without the "
            f"{shots} examples that the others have. Is the download complete?"
        )
    return found


def load_examples(folder: Path, shots: int) -> dict[str, tuple[Question, ...]]:
    """The first development questions of each of MMLU's subjects; five there are.

    Raises:
        ValueError, FileNotFoundError: No such files, too few rows, or a malformed one.
    """
    files = sorted([*folder.glob("*_dev.csv"), *folder.glob("dev/*_dev.csv")])
    if not files:
        raise FileNotFoundError(
            f"{folder} has no *_dev.csv, nor has {folder / 'dev'}; there is no example to show. Is "
            "it MMLU's folder with all of its parts?"
        )
    found = {questions[0].subject: questions for questions in map(_subject, files)}
    for subject, questions in found.items():
        if len(questions) < shots:
            raise ValueError(
                f"{shots} examples were asked for, and {subject} has {len(questions)}; subjects "
                f"would differ in how they are asked. Did you mean at most {len(questions)}?"
            )
    return {subject: questions[:shots] for subject, questions in found.items()}


def _subject(file: Path) -> tuple[Question, ...]:
    subject = file.stem.rpartition("_")[0].replace("_", " ")

    def made(fields: dict[str, Any]) -> Question:
        choices = tuple(str(fields[f"choice{i}"] or "") for i in range(4))
        return Question(subject, str(fields["question"]), choices, _whole(fields["answer"]))

    with file.open(newline="", encoding="utf-8") as opened:
        reader = csv.DictReader(opened)
        missing = {"question", "answer", *(f"choice{i}" for i in range(4))} - {
            *(reader.fieldnames or ())
        }
        if missing:
            raise ValueError(
                f"{file}: the header has no {', '.join(sorted(missing))}. Is it a copy of MMLU "
                "with a header, as on the hub?"
            )
        rows = (_placed(f"{file}, line {reader.line_num}", lambda f=f: made(f)) for f in reader)
        return _found(file, rows)


def load_corpus(path: Path, *, shortest: int = 0) -> tuple[str, ...]:
    """Texts of a corpus: JSON lines (or a JSON list) with `text`, or one text a line.

    Args:
        path: `.json` and `.jsonl` are JSON, anything else is text.
        shortest: Shorter texts are left out.

    Raises:
        ValueError, FileNotFoundError: No such file, a malformed row, or no text that is left.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file, so there is no corpus. Is it misspelt?")
    if path.suffix in (".json", ".jsonl"):
        texts: Iterable[str] = (row.text("text") for row in read_records(path))
    else:
        texts = path.read_text(encoding="utf-8").split("\n")
    kept = tuple(text for text in texts if text.strip() and len(text) > shortest)
    if not kept:
        raise ValueError(
            f"{path} has no text of more than {shortest} characters; no step could be taken. Is it "
            "the corpus?"
        )
    return kept


def _whole(value: Any) -> int:
    """An answer's number; MMLU writes it as text."""
    if isinstance(value, bool) or not str(value).strip().isdecimal():
        raise ValueError(
            f"the answer is {value!r}, which is none of the choices. Did you mean a number from 0 "
            "to 3?"
        )
    return int(value)


def _placed(where: str, make: Callable[[], T]) -> T:
    """Make something of a row; an error says where the row is."""
    try:
        return make()
    except ValueError as error:
        if str(error).startswith(where):
            raise
        raise ValueError(f"{where}: {error}") from error


def _found(path: Path, questions: Iterator[Question]) -> tuple[Question, ...]:
    found = tuple(questions)
    if not found:
        raise ValueError(f"{path} has no question. Was it written to the end?")
    return found
