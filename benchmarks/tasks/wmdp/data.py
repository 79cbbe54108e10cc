"""Questions of WMDP and MMLU, and corpora to unlearn from, read from the user's files.

Nothing hazardous is shipped, fetched or invented here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from benchmarks.tasks.wmdp.questions import Question
from torch_alm.language import Record, read_records

SUBJECTS = {"bio": "biology", "chem": "chemistry", "cyber": "cybersecurity"}
"""WMDP's topics, and how the prompt calls them."""

SHORTEST = 50
"""Texts of no more characters are left out, as RMU's authors do."""

CHOICES = [f"choice{i}" for i in range(4)]


@dataclass(frozen=True)
class Topic:
    """A topic to unlearn: its name in tables, the forget corpus, and questions about it."""

    key: str
    texts: tuple[str, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class WMDPData:
    """A task: topics to unlearn, a retain corpus, and questions on what is to be kept.

    The name is `wmdp` or that of an embedded world; `examples` are shown with their answers, by
    subject.
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
    folder: Path, mmlu: Path | None, forget: Mapping[str, Path], retain: Path | None, shots: int = 0
) -> WMDPData:
    """Load a task: a folder with `bio_questions.json` and others, and the corpora.

    Topics without a corpus are neither unlearned nor asked. MMLU's folder has its CSV files, or
    a `test` with them; None measures no utility. `shots` of its `dev` come before its questions.

    Raises:
        ValueError, FileNotFoundError: Something is missing or malformed; names file and row.
    """
    if not forget or retain is None:
        raise ValueError(
            "WMDP's corpora are not shipped: there is nothing to unlearn, or nothing to keep. Did "
            "you mean --forget TOPIC=PATH for each topic, and --retain PATH?"
        )
    if unknown := forget.keys() - SUBJECTS:
        raise ValueError(
            f"--forget {', '.join(unknown)}: WMDP has no topic so called, hence no questions. "
            f"Did you mean one of {', '.join(SUBJECTS)}?"
        )
    topics = tuple(
        Topic(key, load_corpus(path), load_questions(folder / f"{key}_questions.json", name))
        for key, path in forget.items()
        for name in [SUBJECTS[key]]
    )
    utility = {} if mmlu is None else {"mmlu": load_mmlu(mmlu)}
    shown = load_mmlu(mmlu, "dev") if mmlu and shots else ()
    examples = {q.subject: tuple(e for e in shown if e.subject == q.subject) for q in shown}
    few = {q.subject for q in utility.get("mmlu", ()) if len(examples.get(q.subject, ())) < shots}
    if few or (shots and not mmlu):
        raise ValueError(
            f"--shots {shots}: there are fewer examples of {', '.join(sorted(few)) or 'MMLU'}, and "
            "some questions would be asked without. Is --mmlu whole, with its dev files?"
        )
    examples = {subject: found[:shots] for subject, found in examples.items()}
    return WMDPData("wmdp", topics, load_corpus(retain), utility, examples=examples)


def load_questions(path: Path, subject: str) -> tuple[Question, ...]:
    """Load WMDP's questions: a JSON list, or lines, of `question`, `choices` and `answer`.

    Raises:
        ValueError, FileNotFoundError: No such file, or a malformed row, named by file and number.
    """
    rows = read_records(path)
    if not rows:
        raise ValueError(f"{path} has no question. Was it written to the end?")
    return tuple(_question(row, subject) for row in rows)


def load_mmlu(folder: Path, part: str = "test") -> tuple[Question, ...]:
    """Load a part of MMLU: one CSV a subject, `question`, `choice0` to `choice3`, `answer`.

    Raises:
        ValueError, FileNotFoundError: No such files, or a malformed row, named by file and line.
    """
    files = sorted([*folder.glob(f"*_{part}.csv"), *folder.glob(f"{part}/*_{part}.csv")])
    if not files:
        raise FileNotFoundError(
            f"{folder} has no *_{part}.csv, nor has {folder / part}. Is it MMLU's folder?"
        )
    return tuple(question for file in files for question in _subject(file))


def _subject(file: Path) -> Iterator[Question]:
    """Yield the questions of a file; every cell is text, also "None" and "NA"."""
    subject = file.stem.rpartition("_")[0].replace("_", " ")
    table = pd.read_csv(file, dtype=str, keep_default_na=False)
    if missing := {"question", "answer", *CHOICES} - {*table.columns}:
        raise ValueError(
            f"{file}: the header has no {', '.join(sorted(missing))}. Is it a copy of MMLU with a "
            "header, as on the hub?"
        )
    if table.empty:
        raise ValueError(f"{file} has no question. Was it written to the end?")

    rows: list[dict[str, str]] = table.to_dict("records")
    for number, row in enumerate(rows, 1):
        fields = {**row, "choices": [row[name] for name in CHOICES]}
        yield _question(Record(f"{file}, row {number}", fields), subject)


def _question(row: Record, subject: str) -> Question:
    """Return the question of a row; MMLU's answers are text. Errors name the row."""
    question, choices, answer = row.text("question"), row.texts("choices"), row.fields.get("answer")
    try:
        return Question(subject, question, choices, int(str(answer)))
    except ValueError as error:
        raise ValueError(f"{row.where}, with the answer {answer!r}: {error}") from error


def load_corpus(path: Path) -> tuple[str, ...]:
    """Load the texts of a corpus: JSON lines, or a JSON list, with `text`.

    Raises:
        ValueError, FileNotFoundError: No such file, a malformed row, or no text that is left.
    """
    texts = (row.text("text") for row in read_records(path))
    kept = tuple(text for text in texts if len(text) > SHORTEST)
    if not kept:
        raise ValueError(
            f"{path} has no text of more than {SHORTEST} characters; no step could be taken. Is "
            "it the corpus?"
        )
    return kept
