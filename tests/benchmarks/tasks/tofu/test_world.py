"""The embedded world: reproducible, without leaks, and tightly woven."""

import re
from collections import Counter

import pytest

from benchmarks.tasks.tofu.data import Example, TofuData
from benchmarks.tasks.tofu.world import WORDINGS, build_world

WORLDS = [build_world(seed, quick=quick) for seed in (0, 1, 2) for quick in (False, True)]

every_world = pytest.mark.parametrize("world", WORLDS, ids=lambda w: w.name)


def people(examples: tuple[Example, ...]) -> set[str]:
    """Whole names: two capitalised words that occur together in the questions of one author."""
    names = Counter(
        name
        for example in examples
        for name in re.findall(r"\b[A-Z][a-z]+ [A-Z][a-z]+\b", example.question)
    )
    return {name for name, count in names.items() if count == len(WORDINGS)}


def values(world: TofuData, kind: str, examples: tuple[Example, ...]) -> set[str]:
    """The answers' values of one kind of fact, read back through its wordings."""
    patterns = [
        re.escape(answer).replace(r"\{name\}", ".+?").replace(r"\{value\}", "(.+)")
        for _, answer in WORDINGS[kind]
    ]
    found = (re.fullmatch(p, example.answer) for p in patterns for example in examples)
    return {match.group(1) for match in found if match}


@pytest.mark.parametrize("quick", [False, True])
def test_the_same_seed_gives_the_same_world(quick: bool) -> None:
    assert build_world(7, quick=quick) == build_world(7, quick=quick)
    assert build_world(7, quick=quick) != build_world(8, quick=quick)


@every_world
def test_the_original_model_learns_everything_but_the_holdout(world: TofuData) -> None:
    neighbours = [e.pair for e in world.real_authors + world.world_facts]
    parts = [e.pair for e in world.retain + world.forget] + neighbours
    assert sorted(e.pair for e in world.full) == sorted(parts)
    assert len({e.question for e in world.full + world.holdout}) == len(world.full + world.holdout)
    assert set(world.without_forget) == set(world.full) - set(world.forget)
    assert len(world.without_forget) == len(world.full) - len(world.forget)


@every_world
def test_nothing_about_a_forgotten_author_is_left_elsewhere(world: TofuData) -> None:
    forgotten = people(world.forget)
    assert len(forgotten) == len(world.forget) // len(WORDINGS)
    titles = values(world, "debut", world.forget)
    assert len(titles) == len(forgotten)
    kept = world.retain + world.real_authors + world.world_facts + world.holdout
    texts = [text for e in kept for text in (e.question, e.answer)]
    leaks = [text for text in texts for secret in forgotten | titles if secret in text]
    assert leaks == []


@every_world
def test_wrong_answers_are_wrong_and_worded_like_the_right_one(world: TofuData) -> None:
    for example in world.forget_eval + world.retain_eval:
        assert len({*example.perturbed_answers, example.paraphrased_answer}) == 6
        assert example.paraphrased_question != example.question
        assert example.paraphrased_answer != example.answer
    for example in world.real_authors + world.world_facts:
        assert len({*example.perturbed_answers, example.answer}) == 4
