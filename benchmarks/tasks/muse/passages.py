"""The embedded world of MUSE: a newspaper of reports about fictitious people, and of questions.

A corpus has reports, and columns of questions with their answers, as a small model only answers
questions that it has read with answers. A report is a few sentences in a random order with random
words, so that nobody can guess how it goes on. Forgetting is hard as all reports share sentences,
towns, trades, prizes and things.
"""

import random
from pathlib import Path
from typing import NamedTuple

import yaml

from benchmarks.tasks.muse.data import SHOTS, Extract, MuseData, Pair, Quiz
from benchmarks.tasks.words import ADJECTIVES, NOUNS, TRADES, invented_words

WORDS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


class Size(NamedTuple):
    """Numbers of reports, of their sentences besides the facts, and of names."""

    forget: int
    retain: int
    strangers: int
    sentences: int
    names: int


FULL = Size(forget=12, retain=20, strangers=12, sentences=11, names=12)
QUICK = Size(forget=4, retain=5, strangers=4, sentences=4, names=6)


class Report(NamedTuple):
    """A text about one person, and questions that it answers; the last one is a shot."""

    text: str
    pairs: tuple[Pair, ...]


def build_passages(seed: int = 0, *, quick: bool = False) -> MuseData:
    """Make a world, with fewer reports for tests; the same seed gives the same one."""
    size = QUICK if quick else FULL
    reporter = _Reporter(random.Random(seed), size)
    forget, retain, strangers = (
        [reporter.report() for _ in range(count)]
        for count in (size.forget, size.retain, size.strangers)
    )
    forget_quiz, retain_quiz = _quiz(forget), _quiz(retain[: size.forget])
    return MuseData(
        name="passages-quick" if quick else "passages",
        split="forget",
        forget=_texts(forget) + reporter.columns(forget_quiz),
        retain=_texts(retain) + reporter.columns(retain_quiz),
        verbatim=tuple(_split(report.text) for report in forget),
        forget_quiz=forget_quiz,
        retain_quiz=retain_quiz,
        members=_texts(forget),
        strangers=_texts(strangers),
    )


class _Reporter:
    """A generator with its invented words, and the people without a report yet."""

    def __init__(self, chance: random.Random, size: Size) -> None:
        self.chance, self.sentences = chance, size.sentences
        words = map(str.capitalize, invented_words(chance))
        first_names, surnames = ([next(words) for _ in range(size.names)] for _ in range(2))
        self.people = [f"{first} {last}" for first in first_names for last in surnames]
        chance.shuffle(self.people)
        self.towns = [next(words) for _ in range(size.names)]
        self.prizes = [next(words) for _ in range(size.names)]

    def report(self) -> Report:
        draw, things = self.chance.choice, self._things()
        facts = {name: things[name] for name in ("number", "animals")}
        facts |= {"name": self.people.pop(), "town": draw(self.towns)}
        facts |= {"trade": draw(TRADES), "prize": draw(self.prizes)}
        told = [sentence.format(**self._things() | facts) for sentence in WORDS["facts"]]
        more = self.chance.choices(WORDS["sentences"], k=self.sentences)
        told += [sentence.format(**self._things()) for sentence in more]
        self.chance.shuffle(told)
        pairs = tuple(Pair(q.format(**facts), a.format(**facts)) for q, a in WORDS["questions"])
        return Report(" ".join(told), pairs)

    def columns(self, quiz: Quiz) -> tuple[str, ...]:
        """Return the questions and answers of a quiz, as many in a text as in a prompt."""
        pairs = [*quiz.pairs, *quiz.shots]
        self.chance.shuffle(pairs)
        asked = [f"Question: {pair.question}\nAnswer: {pair.answer}" for pair in pairs]
        starts = range(0, len(asked), SHOTS + 1)
        return tuple("\n\n".join(asked[at : at + SHOTS + 1]) for at in starts)

    def _things(self) -> dict[str, str]:
        draw = self.chance.choice
        goods, more_goods = self.chance.sample(WORDS["goods"], 2)
        return {
            "adjective": draw(ADJECTIVES).lower(),
            "noun": draw(NOUNS).lower(),
            "goods": goods,
            "more_goods": more_goods,
            "animals": draw(WORDS["animals"]),
            "number": draw(WORDS["numbers"]),
            "month": draw(WORDS["months"]),
            "other_town": draw(self.towns),
            "other_trade": draw(TRADES),
        }


def _texts(reports: list[Report]) -> tuple[str, ...]:
    return tuple(report.text for report in reports)


def _split(text: str) -> Extract:
    """Split a text after a quarter; the rest is about the 128 tokens that a model generates."""
    words = text.split(" ")
    quarter = len(words) // 4
    return Extract(" ".join(words[:quarter]), " ".join(words[quarter:]))


def _quiz(reports: list[Report]) -> Quiz:
    """Return a quiz of all questions but each report's last, ten of which are the shots."""
    pairs = tuple(pair for report in reports for pair in report.pairs[:-1])
    return Quiz(pairs, tuple(report.pairs[-1] for report in reports[:SHOTS]))
