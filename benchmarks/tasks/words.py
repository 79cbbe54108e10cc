"""Words that the embedded worlds share, and a generator of invented names."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

TRADES = (
    "glassblower", "midwife", "cartographer", "baker", "tailor", "clockmaker", "ferryman", "notary",
    "blacksmith", "botanist", "surgeon", "weaver", "miller", "violinist", "stonemason", "beekeeper",
)  # fmt: skip
ADJECTIVES = (
    "Amber", "Silent", "Broken", "Hidden", "Golden", "Winter", "Crimson", "Distant", "Hollow",
    "Patient", "Restless", "Sleeping", "Borrowed", "Paper", "Salt", "Velvet", "Wandering", "Iron",
    "Second", "Lonely",
)  # fmt: skip
NOUNS = (
    "Harbour", "Lantern", "Orchard", "Mirror", "Bridge", "Feather", "Garden", "Tower", "Letter",
    "Compass", "River", "Candle", "Shadow", "Island", "Clock", "Window", "Forest", "Crown",
    "Meadow", "Station",
)  # fmt: skip


ONSETS = ("b", "d", "f", "k", "l", "m", "n", "r", "s", "t", "v", "z", "br", "dr", "st")


def invented_words(
    chance: random.Random, onsets: Sequence[str] = ONSETS, ends: Sequence[str] = ("", *"lnrs")
) -> Iterator[str]:
    """Words of two or three syllables, never the same twice."""
    seen = set[str]()
    while True:
        syllables = (chance.choice(onsets) + chance.choice("aeiou") for _ in range(3))
        word = "".join(list(syllables)[: chance.choice((2, 3))]) + chance.choice(ends)
        if word not in seen:
            seen.add(word)
            yield word
