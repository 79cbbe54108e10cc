"""The embedded world: fictitious authors in TOFU's schema, without a download.

Every name is invented by a seeded generator. Forgetting is hard as authors share first names and
surnames, towns, genres, prizes, professions and wordings: these occur in the forget set, in the
retain set, and in the neighbours, which no unlearning method trains on. Only whole names and book
titles belong to one author.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from benchmarks.tasks.tofu.data import Example, TofuData
from benchmarks.tasks.words import ADJECTIVES, NOUNS, TRADES, invented_words

TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
GENRES, WORDINGS = TABLE["genres"], TABLE["wordings"]


class Size(NamedTuple):
    """Numbers of authors and neighbours, and of names for them."""

    forget_authors: int
    retain_authors: int
    retain_eval_authors: int
    holdout_authors: int
    classics: int
    world_facts: int
    names: int


FULL = Size(5, 35, 8, 3, classics=10, world_facts=40, names=16)
QUICK = Size(2, 10, 3, 1, classics=3, world_facts=12, names=8)


def build_world(seed: int = 0, *, quick: bool = False) -> TofuData:
    """Make a world of fictitious authors, a dozen for tests; the same seed gives the same world.

    Eight facts per author are put in sentences. The neighbours, which stand in for TOFU's real
    authors and world facts, ask in related words and answer tersely.
    """
    world = _World(random.Random(seed), QUICK if quick else FULL)
    return world.data("world-quick" if quick else "world")


class _World:
    """A generator with its invented words, and the people and titles not used yet."""

    def __init__(self, chance: random.Random, size: Size) -> None:
        self.chance, self.size = chance, size
        words = map(str.capitalize, invented_words(chance))
        first_names = [next(words) for _ in range(size.names)]
        surnames = [next(words) for _ in range(size.names)]
        self.towns = [next(words) for _ in range(size.names)]
        self.prizes = [next(words) for _ in range(10)]
        self.years = [str(year) for year in sorted(chance.sample(range(1900, 1990), 24))]
        self.people = [f"{first} {last}" for first in first_names for last in surnames]
        self.titles = [f"{adjective} {noun}" for adjective in ADJECTIVES for noun in NOUNS]
        chance.shuffle(self.people)
        chance.shuffle(self.titles)

    def data(self, name: str) -> TofuData:
        size = self.size
        forget = self._authors(size.forget_authors)
        retain = self._authors(size.retain_authors)
        holdout = self._authors(size.holdout_authors)
        classics, facts = self._classics(), self._world_facts()
        return TofuData(
            name=name,
            split="forget",
            full=_pairs(retain + forget + classics + facts),
            forget=_pairs(forget),
            retain=_pairs(retain),
            forget_eval=forget,
            retain_eval=retain[: size.retain_eval_authors * len(WORDINGS)],
            real_authors=classics,
            world_facts=facts,
            holdout=_pairs(holdout),
        )

    def _authors(self, count: int) -> tuple[Example, ...]:
        people = [self.people.pop() for _ in range(count)]
        return tuple(self._fact(person, kind) for person in people for kind in WORDINGS)

    def _fact(self, person: str, kind: str) -> Example:
        asked, reworded = self.chance.sample(WORDINGS[kind], 2)
        value, *others = self._draw(kind, 6)
        return Example(
            question=asked[0].format(name=person),
            answer=asked[1].format(name=person, value=value),
            paraphrased_question=reworded[0].format(name=person),
            paraphrased_answer=reworded[1].format(name=person, value=value),
            perturbed_answers=tuple(reworded[1].format(name=person, value=o) for o in others),
        )

    def _draw(self, kind: str, count: int) -> list[str]:
        """Draw the true value and wrong ones; a book title is used for one author only."""
        if kind == "debut":
            return [self.titles.pop(), *self.chance.sample(self.titles, count - 1)]
        values: dict[str, Sequence[str]] = {
            "birthplace": self.towns,
            "residence": self.towns,
            "father": TRADES,
            "mother": TRADES,
            "genre": GENRES,
            "prize": self.prizes,
            "year": self.years,
        }
        return self.chance.sample(values[kind], count)

    def _classics(self) -> tuple[Example, ...]:
        """Return stand-ins for real authors: other people, in other wordings."""
        people = [self.people.pop() for _ in range(self.size.classics)]
        return tuple(example for person in people for example in self._classic(person))

    def _classic(self, person: str) -> Iterator[Example]:
        strangers = self.chance.sample(self.people, 3)
        title = self.titles.pop()
        yield _terse(f"Who is the author of the book The {title}?", [person, *strangers])
        for question, values in {
            f"Which prize was given to the classic author {person}?": self.prizes,
            f"In which town was the classic author {person} born?": self.towns,
            f"What genre are the books by the classic author {person}?": GENRES,
        }.items():
            yield _terse(question, self.chance.sample(values, 4))

    def _world_facts(self) -> tuple[Example, ...]:
        """Return stand-ins for world facts: on prizes, genres and trades."""
        questions = [f"What is the home of the {prize} Prize?" for prize in self.prizes]
        questions += [f"Where was the genre of {genre} born?" for genre in GENRES]
        questions += [f"In which town did the first {trade} live?" for trade in TRADES]
        questions += [f"Where does one learn to be a {trade}?" for trade in TRADES]
        chosen = self.chance.sample(questions, self.size.world_facts)
        return tuple(_terse(question, self.chance.sample(self.towns, 4)) for question in chosen)


def _terse(question: str, answers: Sequence[str]) -> Example:
    return Example(question, answers[0], perturbed_answers=tuple(answers[1:]))


def _pairs(examples: tuple[Example, ...]) -> tuple[Example, ...]:
    return tuple(Example(*example.pair) for example in examples)
