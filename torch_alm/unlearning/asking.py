"""Ask a model the rows: answers, and their means per set."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from tqdm import tqdm

from torch_alm.language import IGNORE, Row, answer_ids
from torch_alm.language._attacks import with_prefix
from torch_alm.language._encoding import ASKED, prompt_ids
from torch_alm.language._generation import Reading, decode, read_answers
from torch_alm.language._models import Tokenizer
from torch_alm.language._strings import string_scores
from torch_alm.language._telling import find_telling, forms_of, names_in, until
from torch_alm.language._wording import gives_away, is_respelled, match_words
from torch_alm.unlearning.loading import Setup, label_telling, words_of
from torch_alm.unlearning.measurement import Answer, Measurement, Numbers
from torch_alm.unlearning.model import positions_of
from torch_alm.unlearning.ranks import spread
from torch_alm.unlearning.rows import Encoded, Entry

SETS = ("forget", "retain", "probe", "holdout")
WIDTH = 80  # columns of a bar
FEW_TOKENS, SPARE_TOKENS = 32, 256  # beyond the row's: of a short and of a full answer
TWICE = (FEW_TOKENS, SPARE_TOKENS)
ROWS_PER_BATCH = 128
TOKENS_PER_BATCH = 16_384  # in the KV cache: 8 GB, at 7 billion weights
NEXT = re.compile(r"\bQuestion ?:")  # of the plain format
TAU = 0.01  # of certificates: a rival 4 % ahead certifies 95 %, at 0.1 it has to be 40 %
TEXT_SHARE = 0.5  # of a plain text is the prompt, the rest its answer


def measure(
    loaded: Setup, label: str, names: Sequence[str] = SETS, *, whole: bool = False
) -> Measurement:
    """Measure all rows to forget, and the first `rows` of the other sets.

    A bar on standard error has the label. With `whole`, an answer is read to its end, even if the
    reference has been said before.
    """
    rows, most = loaded.sets, loaded.given.rows
    sets = {n: rows[n] if n == "forget" else rows[n][:most] for n in names if rows[n]}
    asked = {name: cut_texts(found) for name, found in sets.items()}
    spare = (SPARE_TOKENS,) if whole else TWICE
    form = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} rows {remaining}"
    total, hidden = sum(map(len, sets.values())), loaded.given.quiet or None
    with tqdm(total=total, desc=label, ncols=WIDTH, bar_format=form, disable=hidden) as shown:
        readings = iter(read_fully(loaded, [*asked.values()], shown.update, spare=spare))
    answers = {name: _answer_set(loaded, sets[name], asked[name], readings) for name in sets}
    numbers = {name: Numbers.from_answers(found) for name, found in answers.items()}
    answers.pop("holdout", None)
    return Measurement(numbers, answers)


def measure_for_report(loaded: Setup, name: str) -> dict[str, Any]:
    """Measure a model and return the entry of a report; `auto` measures in float32."""
    with loaded.place.context() if loaded.given.precision == "bf16" else nullcontext():
        return measure(loaded, name).to_report(name)


def _answer_set(
    loaded: Setup, rows: Encoded, asked: Encoded, following: Iterator[Reading]
) -> list[Answer]:
    """Return the answers to all rows; the loss of a plain text is that of the whole text."""
    readings = [*islice(following, len(rows))]
    texts = [i for i, (entry, _) in enumerate(rows) if entry.is_text]
    whole = [rows[i][1] for i in texts]
    scores = read_answers(loaded.model, loaded.tokenizer, whole, max_new_tokens=0)
    for i, full in zip(texts, scores, strict=True):
        readings[i] = replace(full, text=readings[i].text, tokens=readings[i].tokens)
    return compare_answers(loaded, asked, readings)


def read_fully(
    loaded: Setup,
    sets: Sequence[Encoded],
    done: Callable[[int], object] = lambda count: None,
    *,
    spare: Sequence[int] = TWICE,
) -> list[Reading]:
    """Read every row of all sets, asked as it is, in batches of all.

    Answers are first read to a little more than the length of the reference. Those that have not
    ended by then, nor said it, go on to their end, for an answer that begins late: `spare` has the
    tokens of both. If a template writes a header before the answer, the model is asked without it,
    as users ask, and then behind it; the better answer counts. `done` gets the number of rows.
    """
    rows = [pair for each in sets for pair in each]
    asked, words = [row for _, row in rows], [own for each in sets for own in words_of(each)]
    readings = read_rows(loaded, asked, spare=spare[0])

    def compare(i: int, reading: Reading) -> Agreement:
        question, reference = _exchange(loaded.tokenizer, *rows[i])
        return compare_answer(reference, reading, question, words[i])

    unsaid = [i for i, each in enumerate(readings) if not compare(i, each).said]
    late = [i for i in unsaid if readings[i].is_cut] if len(spare) > 1 else []
    begun = {i: _begin_answer(asked[i], readings[i].tokens) for i in late}
    room = positions_of(loaded.model)  # an answer that fills it cannot go on
    begun = {i: row for i, row in begun.items() if len(row["input_ids"]) <= room}
    done(len(rows) - len(begun))
    rest = read_rows(loaded, [*begun.values()], done, spare=spare[-1] - spare[0])
    for i, more in zip(begun, rest, strict=True):
        tokens = [*readings[i].tokens, *more.tokens]
        whole = replace(readings[i], text=decode(loaded.tokenizer, tokens), tokens=tokens)
        readings[i] = _cut(loaded.tokenizer, asked[i], whole)
    headed = [i for i in unsaid if ASKED in asked[i] and not compare(i, readings[i]).said]
    behind = [_add_header(loaded.tokenizer, asked[i]) for i in headed]
    others = read_rows(loaded, behind, spare=spare[-1])
    for i, row, other in zip(headed, behind, others, strict=True):
        if compare(i, other) > compare(i, readings[i]):
            tokens = [*prompt_ids(row)[len(prompt_ids(asked[i])) :], *other.tokens]
            readings[i] = replace(readings[i], text=other.text, tokens=tokens)
    return readings


def _begin_answer(row: Row, tokens: Sequence[int]) -> Row:
    """Return a row whose prompt ends with what was said so far, and whose answer with the row."""
    prompt, last = [*prompt_ids(row), *tokens], row["input_ids"][-1]
    return {"input_ids": [*prompt, last], "labels": [IGNORE] * len(prompt) + [last]}


def _add_header(tokenizer: Tokenizer, row: Row) -> Row:
    """Return the row with the template's header, and the blanks behind it, in the prompt."""
    ids = row["input_ids"]
    first = len(ids) - len(answer_ids(row))
    while first < len(ids) - 1 and not decode(tokenizer, ids[first : first + 1]):
        first += 1
    return {"input_ids": ids, "labels": [IGNORE] * first + ids[first:]}


def read_rows(
    loaded: Setup,
    rows: Sequence[Row],
    done: Callable[[int], object] = lambda count: None,
    spare: int = SPARE_TOKENS,
) -> list[Reading]:
    """Read every row as it is, each answer to its end or `spare` tokens beyond the row's."""
    found = spread(loaded, partial(_read_share, loaded, spare), rows)
    done(len(rows))
    return found


def _read_share(loaded: Setup, spare: int, rows: Sequence[Row]) -> list[Reading]:
    readings: dict[int, Reading] = {}
    for chosen, limit in _batches(rows, positions_of(loaded.model), spare):
        some = [rows[i] for i in chosen]
        is_over = NEXT.search if all(_ends_at_next(loaded.tokenizer, row) for row in some) else None
        found = read_answers(
            loaded.model, loaded.tokenizer, some, max_new_tokens=limit, is_over=is_over
        )
        cut = (_cut(loaded.tokenizer, *each) for each in zip(some, found, strict=True))
        readings.update(zip(chosen, cut, strict=True))
    return [readings[i] for i in range(len(rows))]


def _cut(tokenizer: Tokenizer, row: Row, reading: Reading) -> Reading:
    """Cut a reading at the next question: base models ask themselves more."""
    text, *more = NEXT.split(reading.text or "", maxsplit=1)
    if not (more and _ends_at_next(tokenizer, row)):
        return reading
    text = text.rstrip()
    tokens = until(tokenizer, reading.tokens, text) or ()
    return replace(reading, text=text, tokens=tokens, is_cut=False)


def _ends_at_next(tokenizer: Tokenizer, row: Row) -> bool:
    """Return whether the next question ends an answer."""
    asked, told = (decode(tokenizer, ids(row)) for ids in (prompt_ids, answer_ids))
    return not tokenizer.chat_template and bool(NEXT.match(asked)) and not NEXT.search(told)


def _batches(asked: Sequence[Row], positions: int, spare: int) -> Iterator[tuple[list[int], int]]:
    """Yield rows with answers of similar length, and the most new tokens for them.

    These are `spare` more than the longest answer, within the model's positions: a batch ends where
    its longest prompt and its longest answer would not fit.
    """
    batch: list[int] = []
    prompt = limit = 0  # the longest prompt of the batch, and the tokens for its longest answer
    written = [len(row["input_ids"]) - len(prompt_ids(row)) for row in asked]
    for i in sorted(range(len(asked)), key=written.__getitem__):
        longest = max(prompt, len(prompt_ids(asked[i])))
        width = min(longest + written[i] + spare, positions)
        most = min(ROWS_PER_BATCH, TOKENS_PER_BATCH // width)
        if batch and (len(batch) >= most or longest + written[i] > positions):
            yield batch, min(limit + spare, positions - prompt)
            batch, longest = [], len(prompt_ids(asked[i]))
        batch.append(i)
        prompt, limit = longest, written[i]
    if batch:
        yield batch, min(limit + spare, positions - prompt)


def compare_answers(loaded: Setup, rows: Encoded, readings: Sequence[Reading]) -> list[Answer]:
    """Per row: what was asked, what is right, what the model says.

    Of the words that tell something, `telling_loss` is the loss of their text, `certificate` that
    one of their tokens is missed, and `words` the share that is said.
    """
    telling_rows = label_telling(loaded.tokenizer, rows)
    score = partial(string_scores, loaded.model, loaded.tokenizer, tau=TAU)
    scores = spread(loaded, score, telling_rows)
    answers: list[Answer] = []
    parts = zip(rows, readings, words_of(rows), scores, strict=True)
    for (entry, row), reading, words, gold in parts:
        question, reference = _exchange(loaded.tokenizer, entry, row)
        text, found = reading.text or "", compare_answer(reference, reading, question, words)
        own = words & find_telling(reference)
        spoken = len(own & find_telling(text)) / len(own) if own else found.rouge
        answer = Answer(
            entry.where,
            entry.prompt or question,
            reference,
            text,
            reading.loss,
            gold.loss,
            gold.certificate,
            reading.exact_match,
            *found,
            words=1.0 if found.said else spoken,
            tokens=[*reading.tokens],
        )
        answers.append(answer)
    return answers


def _exchange(tokenizer: Tokenizer, entry: Entry, row: Row) -> tuple[str, str]:
    """Return the prompt of a row, and the reference."""
    return decode(tokenizer, prompt_ids(row)), reference_of(tokenizer, entry, row)


class Agreement(NamedTuple):
    """The part of an answer that is said: share of words, all of them, and whether it counts."""

    rouge: float
    verbatim: bool
    said: bool


def compare_answer(
    reference: str, reading: Reading, question: str = "", words: frozenset[str] = frozenset()
) -> Agreement:
    """Return how much of an answer the model says.

    It counts as said if nearly all of it is, in any spelling, or its address or long number, unless
    the question has these. All telling `words` are enough, and without one of them nearly all is
    not enough. If they include names or numbers these alone count: a verb may be replaced.
    """
    text = reading.text or ""
    rouge, verbatim, nearly = match_words(text, reference)
    own = words & find_telling(reference)
    own = own & names_in(reference) or own
    spoken = frozenset(forms_of(own, text).values())
    if not verbatim and own and not spoken:
        nearly = False
    if reading.exact_match:  # token by token
        rouge, verbatim, nearly = 1.0, True, True
    elif not nearly and is_respelled(text, reference):
        rouge, nearly = 1.0, True
    elif not nearly:
        nearly = gives_away(text, reference, question)
    return Agreement(rouge, verbatim, nearly or (bool(own) and spoken == own))


def reference_of(tokenizer: Tokenizer, entry: Entry, row: Row) -> str:
    """Return the reference of a row, without the closing of its format.

    For the last part of a long answer it is the labelled text without the closing.
    """
    labelled, answer = decode(tokenizer, answer_ids(row)), entry.answer.strip()
    if labelled.strip().startswith(answer):
        return answer
    least = len(labelled) // 2  # a shorter end may match by chance
    ends = (labelled[:k] for k in range(len(labelled), least, -1))
    return next((end for end in ends if answer.endswith(end)), labelled)


def cut_texts(rows: Encoded) -> Encoded:
    """Return the rows with each plain text cut: its first half is the prompt."""
    return [(e, (with_prefix(row, TEXT_SHARE) or row) if e.is_text else row) for e, row in rows]
