"""Plain questions with short answers: the list, its rows, and draws of what is to go."""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_alm.language import IGNORE, Row, encode

QUESTIONS = Path(__file__).with_name("questions.tsv")


@dataclass(frozen=True)
class Fact:
    """A question, the same in other words, and its answer.

    Attributes:
        before: The answer's sentence up to the words that matter.
        gold: Those words.
        accepted: Words of which an answer that is right holds one.
        shown: Words that tell nothing, beside those of the question.
    """

    kind: str
    question: str
    rewording: str
    before: str
    gold: str
    accepted: tuple[str, ...]
    shown: str = ""

    @property
    def answer(self) -> str:
        """The answer's whole sentence."""
        return f"{self.before} {self.gold}.".strip()

    def is_in(self, said: str) -> bool:
        """Return whether an answer is right: an accepted word is in it; short ones as they are."""
        words = ((rf"(?<!\w){re.escape(word)}(?!\w)", len(word) > 2) for word in self.accepted)
        return any(
            re.search(word, said, re.IGNORECASE if is_long else 0) for word, is_long in words
        )


@dataclass(frozen=True)
class Draw:
    """Known facts, apart: to forget, to retain, and neighbours that no batch contains."""

    forget: list[Fact]
    retain: list[Fact]
    neighbours: list[Fact]

    @property
    def kin(self) -> list[Fact]:
        """The neighbours of a kind that is forgotten, such as capitals."""
        kinds = {fact.kind for fact in self.forget}
        return [fact for fact in self.neighbours if fact.kind in kinds]


def read_facts(path: Path = QUESTIONS) -> list[Fact]:
    """Every fact of a tab-separated list whose answers have their gold words in brackets."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = [*csv.reader(file, delimiter="\t")][1:]
    return [
        Fact(*asked, *re.split(r" ?\[|\]", answer)[:2], tuple(accepted.split("|")))
        for *asked, answer, accepted in lines
    ]


def draw(known: Sequence[Fact], seed: int, count: int) -> Draw:
    """Draw `count` facts to forget; halve the others.

    Raises:
        ValueError: The model does not know as many.
    """
    chance = random.Random(seed)
    if len(known) < count:
        raise ValueError(
            f"the model knows {len(known)} facts, and {count} are to be forgotten. Is it asked in "
            "the format that it was trained on?"
        )
    forget = chance.sample(list(known), count)
    others = [fact for fact in known if fact not in forget]
    chance.shuffle(others)
    half = len(others) // 2
    return Draw(forget, others[:half], others[half:])


def encode_said(tokenizer: Any, question: str, said: str, longest: int) -> Row:
    """The question and what the model itself says; one cut after `longest` tokens has no end."""
    row = encode(tokenizer, question, said)
    end = len(encode_prompt(tokenizer, question)) + longest
    return {name: tokens[:end] for name, tokens in row.items()}


def encode_prompt(tokenizer: Any, question: str) -> list[int]:
    """The tokens of a question as the model is asked, up to where the answer begins."""
    row = encode(tokenizer, question, "x")
    return row["input_ids"][: row["labels"].count(IGNORE)]
