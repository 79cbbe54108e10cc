"""Knowledge of the user's rows: numbers per set, and the answers they are the means of."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any, NamedTuple

from rouge_score.rouge_scorer import RougeScorer  # pyright: ignore[reportMissingTypeStubs]

from torch_alm.cli.files import Encoded, Entry, plain
from torch_alm.cli.saying import bar
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
from torch_alm.unlearning.models import positions_of

SPARE_TOKENS = 32  # so that an answer that goes on is seen to, and one that begins late is seen
ROWS_PER_BATCH = 128
NEARLY = 0.9  # share of an answer's words in order from which on it is said
BAR = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} rows {remaining}"
TEXT_SHARE = 0.5  # of a plain text is given, and the rest is what the model shall go on with


class Shown(NamedTuple):
    """The form in which a number is shown: its name, its digits, and whether in percent."""

    told: str
    digits: int
    percent: bool = False


ROWS = {
    "loss": Shown("loss, nats per token", 2),
    "probability": Shown("probability of the answer", 3),
    "rouge": Shown("words of the answer said (ROUGE-L)", 0, percent=True),
    "exact_match": Shown("answered word for word", 0, percent=True),
    "said": Shown("said, but for a tenth or less", 0, percent=True),
    "extraction_strength": Shown("follows once begun", 0, percent=True),
    "certificate": Shown("certified not word for word", 0, percent=True),
}
MEMBERSHIP = Shown("forget against unseen", 2)


def measure(
    model: LanguageModel, tokenizer: Tokenizer, sets: Mapping[str, Encoded], label: str
) -> dict[str, Any]:
    """Numbers and answers per set, and how well forget rows are told from the holdout's.

    `membership_auc` is 1 where the model gives away which rows it was trained on, 0.5 where it
    cannot be told; `None` without a holdout. A bar on standard error bears the label.
    """
    with bar(label, BAR, sum(map(len, sets.values()))) as shown:
        found = {name: read(model, tokenizer, rows, shown.update) for name, rows in sets.items()}
    auc = None
    if found.get("holdout") and found.get("forget"):
        forget, unseen = ([r.min_k for r in found[name]] for name in ("forget", "holdout"))
        auc = membership_auc(forget, unseen, convention="openunlearning")
    answers = {name: answers_of(tokenizer, sets[name], found[name]) for name in found}
    kept = [plain(f"{entry.prompt} {entry.answer}") for entry, _ in sets.get("retain", ())]
    for i in elsewhere(answers.get("forget", ()), kept):
        answers["forget"][i]["elsewhere"] = True
    return {
        "numbers": {name: numbers(found[name], answers[name]) for name in found},
        "membership_auc": auc,
        "answers": {name: rows for name, rows in answers.items() if name != "holdout"},
    }


def read(
    model: LanguageModel,
    tokenizer: Tokenizer,
    rows: Encoded,
    done: Callable[[int], object] = lambda count: None,
) -> list[Reading]:
    """Read every row, each answer to its end; a plain text goes on after its first half.

    After each batch `done` is told how many rows it had.
    """
    readings: dict[int, Reading] = {}
    asked = [_asked(entry, row) for entry, row in rows]
    for chosen, limit in _batches(asked, positions_of(model)):
        said = read_answers(model, tokenizer, [asked[i] for i in chosen], max_new_tokens=limit)
        texts = [i for i in chosen if asked[i] is not rows[i][1]]
        readings.update(zip(chosen, said, strict=True))
        if texts:
            whole = read_answers(model, tokenizer, [rows[i][1] for i in texts], texts=False)
            for i, full in zip(texts, whole, strict=True):
                readings[i] = replace(full, text=readings[i].text)
        done(len(chosen))
    return [readings[i] for i in range(len(rows))]


def read_rows(model: LanguageModel, tokenizer: Tokenizer, rows: Sequence[Row]) -> list[Reading]:
    """Read every row as it is, each answer to its end."""
    readings: dict[int, Reading] = {}
    for chosen, limit in _batches(rows, positions_of(model)):
        said = read_answers(model, tokenizer, [rows[i] for i in chosen], max_new_tokens=limit)
        readings.update(zip(chosen, said, strict=True))
    return [readings[i] for i in range(len(rows))]


def _batches(asked: Sequence[Row], positions: int) -> Iterator[tuple[list[int], int]]:
    """Rows with answers of similar length, and how many tokens they may take to say them.

    More than the longest has, as far as the model's positions go: where they would not reach for
    the longest answer after the longest prompt, a batch ends.
    """
    batch: list[int] = []
    prompt = limit = 0  # the longest prompt of the batch, and the tokens for its longest answer
    for i in sorted(range(len(asked)), key=lambda i: _written(asked[i])):
        longest = max(prompt, len(prompt_ids(asked[i])))
        wanted = _written(asked[i])
        if batch and (len(batch) == ROWS_PER_BATCH or longest + wanted > positions):
            yield batch, min(limit + SPARE_TOKENS, positions - prompt)
            batch, longest = [], len(prompt_ids(asked[i]))
        batch.append(i)
        prompt, limit = longest, wanted
    if batch:
        yield batch, min(limit + SPARE_TOKENS, positions - prompt)


def _written(row: Row) -> int:
    """Number of tokens that the model writes to say the answer."""
    return len(row["input_ids"]) - len(prompt_ids(row))


def numbers(readings: Sequence[Reading], answers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The means of a set; the standard error of the share of words; rows without a finite loss."""
    words = [a["rouge"] for a in answers]
    return {
        "rows": float(len(readings)),
        "loss": fmean(r.loss for r in readings),
        "probability": fmean(math.exp(-r.loss) for r in readings),
        "exact_match": fmean(r.exact_match for r in readings),
        "extraction_strength": fmean(r.extraction_strength for r in readings),
        "certificate": fmean(r.certificate for r in readings),
        "rouge": fmean(words),
        "rouge_error": stdev(words) / len(words) ** 0.5 if len(words) > 1 else 0.0,
        "said": fmean(a["said"] for a in answers),
        "unmeasured": float(sum(not math.isfinite(r.loss) for r in readings)),
    }


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
    return {
        "where": entry.where,
        "prompt": entry.prompt or decode(tokenizer, prompt_ids(asked)),
        "reference": text_of(tokenizer, asked),
        "answer": reading.text,
        "loss": reading.loss,
        "exact_match": reading.exact_match,
        **said(tokenizer, asked, reading),
    }


def said(tokenizer: Tokenizer, asked: Row, reading: Reading) -> dict[str, Any]:
    """The part of an answer that the model says: share of its words, all of it, or nearly all.

    An answer is said word for word wherever it stands in what the model says: going on after its
    end, stopping by another token, or another layout is no forgetting.
    """
    reference, text = text_of(tokenizer, asked), reading.text or ""
    verbatim = reading.exact_match or holds(plain(text), plain(reference))
    rouge = 1.0 if verbatim else rouge_l_recall(text, reference)  # "." has no words to be counted
    return {"rouge": rouge, "verbatim": verbatim, "said": verbatim or rouge >= NEARLY}


def holds(text: str, answer: str) -> bool:
    """Tell whether a plain text has a plain answer in it, whatever stands right before or after.

    A word of fewer than six letters (red, four) has to be a word of its own, as has a number of
    fewer than four digits.
    """
    return answer in text if _is_distinct(answer) else f" {answer} " in f" {text} "


def _is_distinct(answer: str) -> bool:
    """Tell whether an answer is hardly ever a part of another word; emoji and Chinese never are."""
    is_word = answer.isalpha() and answer != answer.upper()
    return len(answer) >= (6 if is_word else 4 if answer.isascii() else 1)


def elsewhere(answers: Sequence[Mapping[str, Any]], kept: Sequence[str]) -> list[int]:
    """Find the answers that are not said when asked for, but to the question of another row.

    Those count that no question gives away, and none of the plain texts that are `kept`.
    """
    rows = [
        tuple(plain(a[key] or "") for key in ("prompt", "reference", "answer")) for a in answers
    ]
    said, known = "\n".join(row[2] for row in rows), "\n".join(kept)
    return [
        i
        for i, (_, reference, _) in enumerate(rows)
        if not answers[i]["said"] and _is_distinct(reference)
        if reference in said and reference not in known
        if any(reference in text and reference not in asked for asked, _, text in rows)
    ]


def worst(answers: Sequence[Mapping[str, Any]], count: int = 10) -> list[dict[str, Any]]:
    """The rows of which most is still said; among equals, those of the lowest loss."""
    order = sorted(answers, key=lambda a: (not a["verbatim"], -a["rouge"], a["loss"] or 0.0))
    return [dict(answer) for answer in order[:count]]


def text_of(tokenizer: Tokenizer, row: Row) -> str:
    """The labelled words of a row, without the end of sequence."""
    return decode(tokenizer, answer_ids(row))


def rouge_l_recall(said: str, reference: str) -> float:
    """Share of the reference's words said in order, as TOFU measures it; 0 for an empty text.

    TOFU's words are made of Latin letters without accents. References with other letters are split
    by those of their script, or they would seem to be forgotten from the start.
    """
    scorer = _ROUGE if reference.isascii() else _ROUGE_OF_ANY_SCRIPT
    return float(scorer.score(reference, said)["rougeL"].recall)


class _AnyScript:
    """Words of any script; where no blanks stand between them, characters."""

    def tokenize(self, text: str) -> list[str]:
        """The words."""
        return re.findall(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]|\w+", text.casefold())


_ROUGE = RougeScorer(["rougeL"], use_stemmer=True)
_ROUGE_OF_ANY_SCRIPT = RougeScorer(["rougeL"], tokenizer=_AnyScript())


def _asked(entry: Entry, row: Row) -> Row:
    return (with_prefix(row, TEXT_SHARE) or row) if entry.is_text else row
