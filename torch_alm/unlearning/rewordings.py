"""Rows in the words of the model: those to forget a second time, and those that a check probes."""

import re
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from torch_alm.language import Row, answer_ids, losses, pad_id
from torch_alm.language._models import LanguageModel
from torch_alm.language._telling import LONGEST, label_words, lead_up, names_in
from torch_alm.language._wording import normalise
from torch_alm.unlearning.goal import Goal
from torch_alm.unlearning.loading import Setup, in_words, words_of
from torch_alm.unlearning.measurement import Answer
from torch_alm.unlearning.rows import Entry

BARE = 4  # most words of an answer that is said without the sentence around it


class ForgetRows:
    """Rows to forget, each of which may stand in the words of the model, and bare, too.

    A row is found by what leads up to it: asked for a capital, a model begins "The capital is" or
    "It is called", and knows the rest behind either. Texts and long answers stand once.

    Args:
        loaded: model and rows.
        answers: what the model says before the first step, for each row.
        bare: see `bare_rows`.

    Attributes:
        rows: those of the file, behind them the second ones, which `reword` exchanges in place, and
            the bare ones.
    """

    def __init__(self, loaded: Setup, answers: Sequence[Answer], bare: Sequence[Row]) -> None:
        self.loaded = loaded
        own, places = loaded.telling_rows("forget"), _short_places(loaded)
        self.second = {place: len(own) + i for i, place in enumerate(places)}
        self.rows = [*own, *(own[place] for place in places), *bare]
        self.reword(answers)

    def reword(self, answers: Sequence[Answer]) -> bool:
        """Put rows in the words in which they are said now; tell whether one is new."""
        before = list(self.rows)
        words = words_of(self.loaded.sets["forget"])
        for place, second in self.second.items():
            if answers[place].said:
                entry, _ = self.loaded.sets["forget"][place]
                row = _reword(self.loaded, entry, answers[place].answer, words[place])
                self.rows[second] = self.rows[second] if row is None else row
        return self.rows != before


def bare_rows(loaded: Setup, model: LanguageModel, goal: Goal) -> list[Row]:
    """The rows with the name alone for an answer; none if these are, on average, beyond the goal.

    Asked in other words, a base model says the name at once. A chat model says a sentence.
    """
    pairs = loaded.sets["forget"]
    words, places = words_of(pairs), _short_places(loaded) if goal.kind != "rate" else []
    found = [_bare_row(loaded, pairs[place][0], words[place]) for place in places]
    rows = [row for row in found if row is not None]
    is_known = rows and fmean(losses(model, rows, pad_id(loaded.tokenizer))) < goal.alpha
    return rows if is_known else []


def _bare_row(loaded: Setup, entry: Entry, words: frozenset[str]) -> Row | None:
    """The row with its telling words alone for an answer, if they are few."""
    words = words & names_in(entry.answer) or words
    found = [m for m in re.finditer(r"\w+", entry.answer) if normalise(m.group()) in words]
    if not found:
        return None
    text = entry.answer[found[0].start() : found[-1].end()]
    if text == entry.answer.strip(" .") or len(text.split()) > BARE:
        return None
    encoded = in_words(loaded, entry, text)
    return label_words(loaded.tokenizer, encoded[0], words) if encoded else None


def rows_in_own_words(loaded: Setup, name: str, answers: Sequence[Answer]) -> list[Row]:
    """The first rows of a set, one for each answer: in its words if it says them, else scored."""
    found = loaded.sets.get(name, [])
    parts = zip(found, loaded.telling_rows(name), words_of(found), answers, strict=False)
    return [
        (answer.said and _reword(loaded, pair[0], answer.answer, words)) or row
        for pair, row, words, answer in parts
    ]


def _reword(loaded: Setup, entry: Entry, text: str, words: frozenset[str]) -> Row | None:
    """The row with what leads up to its telling words, which alone are labelled."""
    if (led := lead_up(text, words)) is None:
        return None
    rows = in_words(loaded, entry, led[0])
    return label_words(loaded.tokenizer, rows[0], led[1]) if rows else None


def _short_places(loaded: Setup) -> list[int]:
    """The places of the rows that have telling words, and are neither texts nor long."""
    rows = loaded.sets["forget"]
    parts = Counter(id(entry) for entry, _ in rows)
    return [
        place
        for place, ((entry, row), words) in enumerate(zip(rows, words_of(rows), strict=True))
        if words and parts[id(entry)] == 1 and len(answer_ids(row)) <= LONGEST
    ]
