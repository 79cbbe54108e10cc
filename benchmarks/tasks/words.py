"""Words that the embedded worlds share, and a generator of invented names."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

WORDS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
TRADES, ADJECTIVES, NOUNS = WORDS["trades"], WORDS["adjectives"], WORDS["nouns"]
ONSETS = ("b", "d", "f", "k", "l", "m", "n", "r", "s", "t", "v", "z", "br", "dr", "st")


def invented_words(
    chance: random.Random, onsets: Sequence[str] = ONSETS, ends: Sequence[str] = ("", *"lnrs")
) -> Iterator[str]:
    """Yield words of two or three syllables, each once."""
    seen = set[str]()
    while True:
        syllables = (chance.choice(onsets) + chance.choice("aeiou") for _ in range(3))
        word = "".join(list(syllables)[: chance.choice((2, 3))]) + chance.choice(ends)
        if word not in seen:
            seen.add(word)
            yield word
