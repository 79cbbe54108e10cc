"""Knowledge of the user's rows: numbers per set, and the answers they are the means of."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any, NamedTuple

from torch_alm.cli.files import Encoded, Entry
from torch_alm.cli.saying import bar
from torch_alm.cli.spelling import gives_away, is_respelled
from torch_alm.cli.wording import holds, is_distinct, is_said, plain
from torch_alm.language import (
    ASKED,
    IGNORE,
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

SPARE_TOKENS = 256  # so that an answer that goes on is seen to, and one that begins late is seen
ROWS_PER_BATCH = 128
TOKENS_PER_BATCH = 16_384  # kept in memory while they are written: 8 GB, at 7 billion weights
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

    Where a template writes a header before the answer, the model is asked without it, as its users
    do, and behind it: either may be what it answers with. After each batch `done` is told how many
    rows it had.
    """
    questions = [(entry, as_asked(entry, row)) for entry, row in rows]
    readings = read_asked(model, tokenizer, questions, done)
    texts = [i for i, (_, row) in enumerate(rows) if questions[i][1] is not row]
    for chosen, _ in _batches([rows[i][1] for i in texts], positions_of(model)):
        some = [texts[k] for k in chosen]
        whole = read_answers(model, tokenizer, [rows[i][1] for i in some], texts=False)
        for i, full in zip(some, whole, strict=True):
            readings[i] = replace(full, text=readings[i].text)
    return readings


def read_asked(
    model: LanguageModel,
    tokenizer: Tokenizer,
    rows: Encoded,
    done: Callable[[int], object] = lambda count: None,
) -> list[Reading]:
    """Read every row as it is asked; behind the header of its template, too, if there is one."""
    readings: dict[int, Reading] = {}
    for chosen, limit in _batches([row for _, row in rows], positions_of(model)):
        found = read_answers(model, tokenizer, [rows[i][1] for i in chosen], max_new_tokens=limit)
        readings.update(zip(chosen, found, strict=True))
        headed = [i for i in chosen if ASKED in rows[i][1]]
        behind = read_rows(model, tokenizer, [_headed(tokenizer, rows[i][1]) for i in headed])
        for i, other in zip(headed, behind, strict=True):
            reference = reference_of(tokenizer, *rows[i])
            question = decode(tokenizer, prompt_ids(rows[i][1]))
            either = (readings[i], other)
            more = max(either, key=lambda r: tuple(said(reference, r, question).values()))
            readings[i] = replace(readings[i], text=more.text)
        done(len(chosen))
    return [readings[i] for i in range(len(rows))]


def _headed(tokenizer: Tokenizer, row: Row) -> Row:
    """The row, asked with the header that its template writes, and the blanks behind that."""
    ids = row["input_ids"]
    first = len(ids) - len(answer_ids(row))
    while first < len(ids) - 1 and not decode(tokenizer, ids[first : first + 1]):
        first += 1
    return {"input_ids": ids, "labels": [IGNORE] * first + ids[first:]}


def read_rows(model: LanguageModel, tokenizer: Tokenizer, rows: Sequence[Row]) -> list[Reading]:
    """Read every row as it is, each answer to its end."""
    readings: dict[int, Reading] = {}
    for chosen, limit in _batches(rows, positions_of(model)):
        found = read_answers(model, tokenizer, [rows[i] for i in chosen], max_new_tokens=limit)
        readings.update(zip(chosen, found, strict=True))
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
        width = min(longest + wanted + SPARE_TOKENS, positions)
        most = min(ROWS_PER_BATCH, TOKENS_PER_BATCH // width)
        if batch and (len(batch) >= most or longest + wanted > positions):
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
    question = as_asked(entry, row)
    reference = reference_of(tokenizer, entry, question)
    return {
        "where": entry.where,
        "prompt": entry.prompt or decode(tokenizer, prompt_ids(question)),
        "reference": reference,
        "answer": reading.text,
        "loss": reading.loss,
        "exact_match": reading.exact_match,
        **({"second_half": True} if question is not row else {}),
        **said(reference, reading, decode(tokenizer, prompt_ids(question))),
    }


def said(reference: str, reading: Reading, question: str = "") -> dict[str, Any]:
    """The part of an answer that the model says: share of its words, all of it, or what counts.

    That is nearly all, in any spelling, or its address or long number, unless the question has it.
    """
    text = reading.text or ""
    rouge, verbatim, nearly = is_said(text, reference)
    if reading.exact_match:  # token by token
        rouge, verbatim, nearly = 1.0, True, True
    elif not nearly and is_respelled(text, reference):
        rouge, nearly = 1.0, True
    elif not nearly:
        nearly = gives_away(text, reference, question)
    return {"rouge": rouge, "verbatim": verbatim, "said": nearly}


def reference_of(tokenizer: Tokenizer, entry: Entry, row: Row) -> str:
    """The words to be said for a row: without what its format closes an answer with.

    Of a long answer, that the row has the rest of, what the closing leaves of the row.
    """
    labelled, answer = text_of(tokenizer, row), entry.answer.strip()
    if labelled.strip().startswith(answer):
        return answer
    least = len(labelled) // 2  # less may be there by chance
    ends = (labelled[:k] for k in range(len(labelled), least, -1))
    return next((end for end in ends if answer.endswith(end)), labelled)


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
        if not answers[i]["said"] and is_distinct(reference)
        if holds(said, reference) and not holds(known, reference)
        if any(holds(text, reference) and not holds(asked, reference) for asked, _, text in rows)
    ]


def worst(answers: Sequence[Mapping[str, Any]], count: int = 10) -> list[dict[str, Any]]:
    """The rows of which most is still said; among equals, those of the lowest loss."""
    order = sorted(answers, key=lambda a: (not a["verbatim"], -a["rouge"], a["loss"] or 0.0))
    return [dict(answer) for answer in order[:count]]


def text_of(tokenizer: Tokenizer, row: Row) -> str:
    """The labelled words of a row, without the end of sequence."""
    return decode(tokenizer, answer_ids(row))


def as_asked(entry: Entry, row: Row) -> Row:
    """The row as the model is asked: of a plain text, the first half is given."""
    return (with_prefix(row, TEXT_SHARE) or row) if entry.is_text else row
