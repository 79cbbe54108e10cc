"""Encode rows for a model, cut long ones, and find the words that count."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise

from torch_alm.language import (
    IGNORE,
    Format,
    Row,
    answer_ids,
    encode,
    encode_completion,
    encode_messages,
    encode_text,
)
from torch_alm.language._models import LanguageModel, Tokenizer
from torch_alm.language._telling import label_words, telling_rows, telling_words
from torch_alm.unlearning.errors import Refusal
from torch_alm.unlearning.measurement import Measurement
from torch_alm.unlearning.model import Place, check_answers, positions_of
from torch_alm.unlearning.options import Options
from torch_alm.unlearning.rows import Encoded, Entry

DATE = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")  # in a chat template
UNCUT = 2**31  # for `encode`: a row of any length


@dataclass(frozen=True)
class Setup:
    """A model, its tokenizer, the options, and the encoded rows."""

    model: LanguageModel  # or peft's model around it, whose adapters train
    tokenizer: Tokenizer
    place: Place
    given: Options
    sets: Mapping[str, Encoded]  # by the name of their file
    day: datetime = field(default_factory=datetime.now)  # that chat templates write: it stays
    is_divided: bool = False  # whether ranks read a share of the rows each, for all of them

    @property
    def entries(self) -> dict[str, list[Entry]]:
        """The rows as they came, by the name of their file."""
        return {k: [*{id(e): e for e, _ in rows}.values()] for k, rows in self.sets.items()}

    def rows(self, name: str) -> list[Row]:
        """Return the token rows of a set."""
        return [row for _, row in self.sets.get(name, ())]

    def telling_rows(self, name: str) -> list[Row]:
        """Return the token rows of a set, with labels at the telling words alone."""
        return label_telling(self.tokenizer, self.sets.get(name, ()))


def make_setup(
    model: LanguageModel,
    tokenizer: Tokenizer,
    place: Place,
    given: Options,
    found: Mapping[str, Sequence[Entry]],
    name: str = "the model",
    day: datetime | None = None,
) -> Setup:
    """Return the model with encoded rows; raise `Refusal` if it cannot be asked.

    A chat template that writes a date writes that of `day`, or of now.
    """
    empty = Setup(model, tokenizer, place, given, {}, day or datetime.now())
    loaded = with_rows(empty, found)
    check_answers(name, model, loaded.rows("forget")[0])
    return loaded


def with_rows(loaded: Setup, found: Mapping[str, Sequence[Entry]]) -> Setup:
    """Return a copy with the same model and other rows."""
    return replace(loaded, sets={k: encode_rows(loaded, v) for k, v in found.items()})


def encode_rows(loaded: Setup, entries: Iterable[Entry]) -> Encoded:
    """Encode entries, within `max_length` and the model's positions."""
    longest = min(loaded.given.max_length, positions_of(loaded.model))
    return encode_entries(loaded.tokenizer, entries, longest, loaded.given, loaded.day)


def replace_answers(loaded: Setup, measured: Measurement) -> Setup:
    """Return a copy with the forget answers as the model says them, up to a line break."""
    said = {a.where: a.answer.strip() for a in measured.answers["forget"] if a.said}
    rows = [e.with_answer(said[e.where].split("\n")[0]) if said.get(e.where) else e
            for e in loaded.entries["forget"]]  # fmt: skip
    return with_rows(loaded, {**loaded.entries, "forget": rows})


def rows_to_keep(loaded: Setup, measured: Measurement, *, twice: bool) -> list[Row]:
    """Return the rows to train the retain side on, in the model's own words if it says the answer.

    Then there is little to learn from them, and unlisted knowledge moves less. With `twice` each
    row occurs again, labelled at the first token and at the telling words.
    """
    said = {a.where: a for a in measured.answers["retain"]}
    said = {where: a.answer for where, a in said.items() if a.said and not a.verbatim}
    rows, told, pairs = list[Row](), list[Row](), loaded.sets["retain"]
    for (entry, row), words in zip(pairs, words_of(pairs), strict=True):
        own = said.get(entry.where, "").strip().split("\n\n")[0]
        is_short = own and len(own) < 4 * len(entry.answer) + 100
        found = (in_words(loaded, entry, own) if is_short else []) or [row]
        rows += found
        told += [_label_first(loaded.tokenizer, each, words) for each in found if twice]
    return rows + told


def _label_first(tokenizer: Tokenizer, row: Row, words: frozenset[str]) -> Row:
    """Return the row with labels at its first token, where a name could be, and telling words."""
    first = len(row["labels"]) - len(answer_ids(row))
    labels = [*label_words(tokenizer, row, words)["labels"]]
    labels[first] = row["labels"][first]
    return {**row, "labels": labels}


def in_words(loaded: Setup, entry: Entry, answer: str) -> list[Row]:
    """Return the rows of an entry with another answer, none if the template changes it."""
    try:
        return [row for _, row in encode_rows(loaded, [entry.with_answer(answer)])]
    except Refusal:
        return []


def encode_entries(
    tokenizer: Tokenizer,
    entries: Iterable[Entry],
    max_length: int,
    given: Options,
    day: datetime | None = None,
) -> list[tuple[Entry, Row]]:
    """Return every entry with its tokens; a long text, or answer, is several rows.

    A chat template that writes a date writes that of `day`, or of now.
    """
    variables = _fix_date(tokenizer, day or datetime.now())
    form = Format(template=given.template, system=given.system, variables=variables)
    return [(e, row) for e in entries for row in _rows_of(tokenizer, e, max_length, form)]


def _fix_date(tokenizer: Tokenizer, day: datetime) -> dict[str, str]:
    """Return the chat template with that date in place of each call for one, if it has some."""
    text: str = tokenizer.get_chat_template() if tokenizer.chat_template else ""
    dated = DATE.sub(lambda call: json.dumps(day.strftime(call[2])), text)
    return {} if dated == text else {"chat_template": dated}


def _rows_of(tokenizer: Tokenizer, entry: Entry, max_length: int, form: Format) -> list[Row]:
    try:
        if entry.is_text:
            return encode_text(tokenizer, entry.answer, max_length)
        if entry.messages:
            whole = encode_messages(tokenizer, entry.messages, UNCUT, form)
        elif entry.is_literal:
            whole = encode_completion(tokenizer, entry.prompt, entry.answer, UNCUT)
        else:
            whole = encode(tokenizer, entry.prompt, entry.answer, UNCUT, form)
        return cut_windows(whole, max_length)
    except ValueError as error:
        raise Refusal(f"{entry.where}: {error}") from error


def cut_windows(row: Row, max_length: int) -> list[Row]:
    """Return the row, or several that label each of its answer tokens once.

    The first has the prompt. The others begin with as many of the preceding tokens as fit, half a
    row or more. Labels are spread evenly: any model would guess the last token or two.
    """
    whole = len(row["input_ids"])
    if whole <= max_length:
        return [row]
    given = whole - len(answer_ids(row))
    if given >= max_length:
        raise ValueError(
            f"the prompt takes {given} of {max_length} tokens, so that no token of the answer is "
            "left to learn. Is `max_length` too small?"
        )
    return [
        {
            **(row if start == given else {}),
            "input_ids": row["input_ids"][max(0, end - max_length) : end],
            "labels": ([IGNORE] * start + row["labels"][start:end])[max(0, end - max_length) :],
        }
        for start, end in _spans(given, whole, max_length)
    ]


def _spans(given: int, whole: int, max_length: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the labels of each row: even shares of half a row at most."""
    room, half = max_length - given, max_length // 2
    count = max(2, -(-(whole - given) // half))
    if (whole - given) / count > room:  # the prompt leaves less than a share
        yield given, max_length
        given = max_length
        count = -(-(whole - given) // half)
    yield from pairwise([given + (whole - given) * i // count for i in range(count + 1)])


def words_of(encoded: Encoded) -> list[frozenset[str]]:
    """Return the telling words of each row."""
    return telling_words([(entry.prompt, entry.answer) for entry, _ in encoded])


def label_telling(tokenizer: Tokenizer, encoded: Encoded) -> list[Row]:
    """Return rows with labels at telling words alone, if they have any; texts keep all labels."""
    pairs = [(entry.prompt, entry.answer) for entry, _ in encoded]
    return telling_rows(tokenizer, pairs, [row for _, row in encoded])
