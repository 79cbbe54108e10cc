"""MUSE: text to forget and to retain, and questions on it.

Source: Shi et al. 2024, "MUSE: Machine Unlearning Six-Way Evaluation for Language Models". A corpus
(News or Books) is a folder of JSON files in four parts, as on the hub: `raw`, `verbmem`, `knowmem`
and `privleak`.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch_alm.language import Record, Row, record_of

CORPORA = {"news": "News", "books": "Books"}
HUB_NAME = "muse-bench/MUSE-{}"
SHOTS = 10
BLOCK = 2048
SEPARATOR = "\n\n"

Tables = Callable[[str, str], list[Record]]  # the records of a part and a split of it


class Extract(NamedTuple):
    """The beginning of a text to forget, and its continuation."""

    prompt: str
    continuation: str


class Pair(NamedTuple):
    """A question and its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class Quiz:
    """Questions about a corpus, and the pairs shown before each of them."""

    pairs: tuple[Pair, ...]
    shots: tuple[Pair, ...]


@dataclass(frozen=True)
class MuseData:
    """One unlearning task: texts, and questions on them.

    Attributes:
        name: The source of the data: `muse`, or the name of an embedded world.
        split: The corpus, which picks the row of the presets.
        members: Texts from the forget set, for PrivLeak; no model is trained on `strangers`.
    """

    name: str
    split: str
    forget: tuple[str, ...]
    retain: tuple[str, ...]
    verbatim: tuple[Extract, ...]
    forget_quiz: Quiz
    retain_quiz: Quiz
    members: tuple[str, ...]
    strangers: tuple[str, ...]


def load_muse(folder: Path, corpus: str) -> MuseData:
    """Read a corpus of MUSE from its JSON files.

    Args:
        folder: With `raw/forget.json`, `raw/retain1.json`, `verbmem/forget.json`,
            `knowmem/{forget,retain}_qa{,_icl}.json` and `privleak/{forget,holdout}.json`; or the
            folder above it, which then holds a folder of the corpus' name.
        corpus: `news` or `books`.

    Raises:
        FileNotFoundError, ValueError: A missing or malformed file; names file and row.
    """
    root = folder / corpus if (folder / corpus).is_dir() else folder
    return _load(lambda part, split: read_values(root / part / f"{split}.json"), corpus)


def load_muse_hub(corpus: str) -> MuseData:
    """Read a corpus of MUSE from the hub, through `datasets`; see `load_muse`."""
    import datasets

    name = HUB_NAME.format(CORPORA[corpus])

    def tables(part: str, split: str) -> list[Record]:
        rows = datasets.load_dataset(name, part, split=split)
        return [
            Record(f"{name}, {part}, {split}, row {n}", dict(row)) for n, row in enumerate(rows, 1)
        ]

    return _load(tables, corpus)


def read_values(path: Path) -> list[Record]:
    """Return the records of a JSON list; a bare string is a record's `text`.

    Raises:
        FileNotFoundError: No such file.
        ValueError: No JSON list of strings or objects; names file and row.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}). Is the file cut off?") from error
    if not isinstance(values, list) or not values:
        raise ValueError(f"{path} must be a list with at least one entry. Is this the right file?")
    named = ({"text": value} if isinstance(value, str) else value for value in values)
    return [record_of(f"{path}, row {number}", value) for number, value in enumerate(named, 1)]


def _load(tables: Tables, corpus: str) -> MuseData:
    return MuseData(
        name="muse",
        split=corpus,
        forget=_corpus(tables("raw", "forget")),
        retain=_corpus(tables("raw", "retain1")),
        verbatim=tuple(
            Extract(row.text("prompt"), row.text("gt")) for row in tables("verbmem", "forget")
        ),
        forget_quiz=_quiz(tables, "forget_qa"),
        retain_quiz=_quiz(tables, "retain_qa"),
        members=_texts(tables("privleak", "forget")),
        strangers=_texts(tables("privleak", "holdout")),
    )


def _texts(records: Iterable[Record]) -> tuple[str, ...]:
    return tuple(record.text("text") for record in records)


def _corpus(records: Sequence[Record]) -> tuple[str, ...]:
    """Return the texts to train on; the few empty ones of News become an empty line."""
    texts = tuple("" if r.fields.get("text") == "" else r.text("text") for r in records)
    if not any(texts):
        raise ValueError(f"{records[0].where}: no text here or below. Is the download complete?")
    return texts


def _quiz(tables: Tables, name: str) -> Quiz:
    pairs, shots = (
        tuple(Pair(row.text("question"), row.text("answer")) for row in tables("knowmem", table))
        for table in (name, f"{name}_icl")
    )
    return Quiz(pairs, shots)


def blocks(tokenizer: Any, texts: Sequence[str], length: int = BLOCK) -> list[Row]:
    """Join all texts and cut them into rows of `length` tokens; every token is labelled.

    The texts are joined by an empty line. Each row starts with BOS, where the tokenizer has one,
    and the last one is filled up from the first. Source: MUSE's data set of plain text.
    """
    ids = tokenizer(SEPARATOR.join(texts), add_special_tokens=False)["input_ids"]
    if not ids:
        raise ValueError(f"blocks: {len(texts)} texts without a token; nothing could be learnt.")
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    step = length - len(start)
    rows = [[*start, *ids[at : at + step]] for at in range(0, len(ids), step)]
    rows[-1] = (rows[-1] + rows[0])[:length]
    return [{"input_ids": row, "labels": row} for row in rows]
