"""What a model knows of the user's rows: numbers per set, and the answers they are the means of."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

from rouge_score.rouge_scorer import RougeScorer  # pyright: ignore[reportMissingTypeStubs]

from torch_alm.cli.files import Entry
from torch_alm.language import (
    LanguageModel,
    Reading,
    Row,
    Tokenizer,
    answer_ids,
    decode,
    membership_auc,
    prompt_ids,
    read_answers,
    with_prefix,
)

Encoded = Sequence[tuple[Entry, Row]]
MAX_NEW_TOKENS = 200
TEXT_SHARE = 0.5  # of a plain text is given, and the rest is what the model shall go on with


class Shown(NamedTuple):
    """How a number is shown: what it says, its digits, and whether in percent."""

    told: str
    digits: int
    percent: bool = False


ROWS = {
    "loss": Shown("loss, nats per token", 2),
    "probability": Shown("probability of the answer", 3),
    "rouge": Shown("words of the answer said (ROUGE-L)", 0, percent=True),
    "exact_match": Shown("answered word for word", 0, percent=True),
    "extraction_strength": Shown("follows once begun", 0, percent=True),
    "certificate": Shown("certified not word for word", 0, percent=True),
}
MEMBERSHIP = Shown("forget against unseen", 2)


def measure(
    model: LanguageModel, tokenizer: Tokenizer, sets: Mapping[str, Encoded]
) -> dict[str, Any]:
    """Numbers and answers per set, and how well forget rows are told from the holdout's.

    `membership_auc` is 1 where the model gives away which rows it was trained on, 0.5 where it
    cannot be told; `None` without a holdout.
    """
    found = {name: read(model, tokenizer, rows) for name, rows in sets.items()}
    auc = None
    if found.get("holdout") and found.get("forget"):
        forget, unseen = ([r.min_k for r in found[name]] for name in ("forget", "holdout"))
        auc = membership_auc(forget, unseen, convention="openunlearning")
    answers = {n: answers_of(tokenizer, sets[n], found[n]) for n in found if n != "holdout"}
    return {
        "numbers": {name: numbers(found[name], answers.get(name, ())) for name in found},
        "membership_auc": auc,
        "answers": answers,
    }


def read(model: LanguageModel, tokenizer: Tokenizer, rows: Encoded) -> list[Reading]:
    """Read every row; what a plain text goes on with is asked after its first half."""
    asked = [_asked(entry, row) for entry, row in rows]
    whole = [row for _, row in rows]
    longest = max((len(row["input_ids"]) - len(prompt_ids(row)) for row in asked), default=0)
    limit = min(MAX_NEW_TOKENS, 8 + longest)
    said = read_answers(model, tokenizer, asked, max_new_tokens=limit)
    if asked == whole:
        return said
    scored = read_answers(model, tokenizer, whole, texts=False)
    return [replace(full, text=part.text) for full, part in zip(scored, said, strict=True)]


def numbers(readings: Sequence[Reading], answers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The means of a set."""
    means = {
        "rows": float(len(readings)),
        "loss": fmean(r.loss for r in readings),
        "probability": fmean(math.exp(-r.loss) for r in readings),
        "exact_match": fmean(r.exact_match for r in readings),
        "extraction_strength": fmean(r.extraction_strength for r in readings),
        "certificate": fmean(r.certificate for r in readings),
    }
    return means | ({"rouge": fmean(a["rouge"] for a in answers)} if answers else {})


def answers_of(
    tokenizer: Tokenizer, rows: Encoded, readings: Sequence[Reading]
) -> list[dict[str, Any]]:
    """Per row: what was asked, what is right, what the model says."""
    return [
        _answer(tokenizer, entry, row, reading)
        for (entry, row), reading in zip(rows, readings, strict=True)
    ]


def _answer(tokenizer: Tokenizer, entry: Entry, row: Row, reading: Reading) -> dict[str, Any]:
    asked = _asked(entry, row)
    reference = text_of(tokenizer, asked)
    given = len(row["input_ids"]) - len(answer_ids(asked))
    prompt = entry.prompt or decode(tokenizer, row["input_ids"][:given])
    return {
        "where": entry.where,
        "prompt": prompt,
        "reference": reference,
        "answer": reading.text,
        "rouge": rouge_l_recall(reading.text or "", reference),
        "loss": reading.loss,
        "exact_match": reading.exact_match,
    }


def text_of(tokenizer: Tokenizer, row: Row) -> str:
    """The labelled words of a row, without the end of sequence."""
    return decode(tokenizer, answer_ids(row))


def rouge_l_recall(said: str, reference: str) -> float:
    """Share of the reference's words said in order, as TOFU measures it; 0 for an empty text."""
    return float(_ROUGE.score(reference, said)["rougeL"].recall)


_ROUGE = RougeScorer(["rougeL"], use_stemmer=True)


def _asked(entry: Entry, row: Row) -> Row:
    return (with_prefix(row, TEXT_SHARE) or row) if entry.is_text else row
