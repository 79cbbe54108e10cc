"""Rows in the words of the model: forget rows, and those that a check probes."""

import re
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from torch_alm.language import Row, answer_ids, in_own_words, string_nll
from torch_alm.language._encoding import prompt_ids
from torch_alm.language._strings import StringScores
from torch_alm.language._telling import LONGEST, label_words, names_in
from torch_alm.language._wording import normalise
from torch_alm.unlearning.goal import Goal
from torch_alm.unlearning.loading import Setup, in_words, words_of
from torch_alm.unlearning.measurement import Answer
from torch_alm.unlearning.model import positions_of
from torch_alm.unlearning.rows import Entry

BARE = 4  # most words of an answer that is said without the sentence around it


class ForgetRows:
    """The rows to forget, and their copies in the model's words and with the bare name.

    A row is found by what leads up to it: asked for a capital, a model begins "The capital is" or
    "It is called", and knows the rest behind either. Texts and long answers stand once.

    Args:
        loaded: model and rows.
        answers: what the model says before the first step, for each row.
        bare: see `bare_rows`.

    Attributes:
        rows: those of the file, behind them the second ones, which `reword` exchanges in place, and
            the bare ones.
        pushed: the same in the tokens in which each is likeliest, which training lowers.
        stays: askings in a row that each row of the file was said in.
    """

    def __init__(self, loaded: Setup, answers: Sequence[Answer], bare: Sequence[Row]) -> None:
        self.loaded = loaded
        own, places = loaded.telling_rows("forget"), _short_places(loaded)
        self.second = {place: len(own) + i for i, place in enumerate(places)}
        self.rows = [*own, *(own[place] for place in places), *bare]
        self.pushed, self.stays = list[Any](self.rows), [0] * len(own)
        self.reword(answers)
        self.stays = [0] * len(own)

    def reword(self, answers: Sequence[Answer]) -> bool:
        """Put rows in the words in which they are said now; return whether one is new."""
        before = list(self.rows)
        words = words_of(self.loaded.sets["forget"])
        self.stays = [answer.said * (n + 1) for answer, n in zip(answers, self.stays, strict=True)]
        given = self.loaded.rows("forget")
        for place, second in self.second.items():
            row = _reword(self.loaded, given[place], answers[place], words[place])
            if row is not None and row != self.rows[second]:
                self.rows[second] = self.pushed[second] = row
        return self.rows != before

    def spell(self, places: Sequence[int], scores: Sequence[StringScores], aim: float) -> None:
        """Push the rows at these places that are below the aim, or said, in their likeliest tokens.

        They have the spellings that carry 99 % of their probability, at most four of them. A row
        that is gone in the tokens of the tokenizer would be pushed no further.
        """
        for place, score in zip(places, scores, strict=True):
            if score.loss < aim or score.exact_match:
                count = len(score.usual.log_probabilities)
                rows = [{**row, "share": share, "count": count} for share, row in score.spellings]
                self.pushed[place] = {**score.row, "spellings": rows}

    def list_said(self, times: int) -> list[str]:
        """Return the rows that were said in so many askings in a row, or more."""
        rows = zip(self.loaded.sets["forget"], self.stays, strict=True)
        return [f"{entry.where} ({n} times)" for (entry, _), n in rows if n >= times]


def bare_rows(loaded: Setup, goal: Goal) -> list[Row]:
    """Return the rows with the bare name as answer, none if their mean is beyond the goal.

    Asked in other words, a base model says the name at once. A chat model says a sentence.
    """
    pairs = loaded.sets["forget"]
    words, places = words_of(pairs), _short_places(loaded)
    found = [_bare_row(loaded, pairs[place][0], words[place]) for place in places]
    rows = [row for row in found if row is not None]
    is_known = rows and fmean(string_nll(loaded.model, loaded.tokenizer, rows)) < goal.alpha
    return rows if is_known else []


def _bare_row(loaded: Setup, entry: Entry, words: frozenset[str]) -> Row | None:
    """Return the row with its telling words alone as answer, if they are few."""
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
    """Return a row per answer: in the model's words if it is said, else as in the set."""
    rows, found = loaded.rows(name), loaded.sets.get(name, [])
    parts = zip(rows, loaded.telling_rows(name), words_of(found), answers, strict=False)
    return [_reword(loaded, row, answer, words) or own for row, own, words, answer in parts]


def _reword(loaded: Setup, row: Row, answer: Answer, words: frozenset[str]) -> Row | None:
    """Return the row in the tokens that the model says, if it says it and they fit."""
    said = in_own_words(loaded.tokenizer, prompt_ids(row), answer.tokens, words)
    most = min(loaded.given.max_length, positions_of(loaded.model))
    return said if answer.said and said and len(said["labels"]) <= most else None


def _short_places(loaded: Setup) -> list[int]:
    """Return the places of rows with telling words that are neither texts nor long."""
    rows = loaded.sets["forget"]
    parts = Counter(id(entry) for entry, _ in rows)
    return [
        place
        for place, ((entry, row), words) in enumerate(zip(rows, words_of(rows), strict=True))
        if words and parts[id(entry)] == 1 and len(answer_ids(row)) <= LONGEST
    ]
