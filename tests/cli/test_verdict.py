"""The verdict as a function of what was seen: red stays red when more is said."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from torch_alm.cli.goal import Goal
from torch_alm.cli.verdict import CODES, Evidence, Kept, evidence_of, judge

KEPT = Kept(loss=0.1, words=0.99, exact=0.98)
LOSS = Goal("loss", 4.0, "--alpha")
RATE = Goal("rate", 0.95, "--certify")
GONE = Evidence(LOSS, 4.5, 220, 0, 0, 0.2, 0, before=KEPT, after=KEPT)

VALUES = (0.3, 3.9, 4.0, 9.0, math.nan)
SAID = (0, 1, 2, 3, 20, 220)
WORDS = (0.0, 0.5, 0.51, 0.9, 1.0, math.nan)
AFTER = (KEPT, Kept(0.2, 0.95, 0.9), Kept(0.1, 0.99, 0.31), Kept(0.1, 0.5, 0.98),
         Kept(2.0, 0.99, 0.98), Kept(math.nan, 0.0, 0.0))  # fmt: skip


def grid() -> list[Evidence]:
    """Every mixture of good and bad numbers, for few rows and for many."""
    mixed = itertools.product(
        VALUES, (1, 99, 100, 220, 1000), SAID, WORDS, (0, 1), AFTER, (True, False), (None, 1.0)
    )
    return [
        Evidence(LOSS, value, rows, said, 0, words, lost, KEPT, after, most, known)
        for value, rows, said, words, lost, after, known, most in mixed
        if said <= rows
    ]


GRID = grid()
RANK = {"not met": 0, "met at a cost": 1, "met": 2}


def test_nothing_is_green_that_is_still_said_unmeasured_unknown_or_below_the_level() -> None:
    outcomes = {"met": 0, "met at a cost": 0, "not met": 0}
    for seen in GRID:
        found = judge(seen)
        outcomes[found.outcome] += 1
        is_gone = (
            seen.value >= 4
            and 100 * seen.said <= seen.rows
            and seen.words <= 0.5
            and seen.unmeasured == 0
            and seen.known_before
        )
        assert (found.outcome != "not met") == is_gone
        assert bool(found.missed) != is_gone
    assert all(outcomes.values()), "each outcome has to occur"


@pytest.mark.parametrize(
    ("name", "worse"),
    [
        ("said", (1, 3, 50)),
        ("words", (0.3, 0.6, 1.0, math.nan)),
        ("value", (4.0, 1.0, 0.0, math.nan)),
        ("unmeasured", (1, 5)),
        ("known_before", (False,)),
        ("after", AFTER[1:]),
    ],
)
def test_what_is_worse_is_never_judged_better(name: str, worse: tuple[Any, ...]) -> None:
    order = (getattr(GONE, name), *worse)
    for before, after in itertools.pairwise(order):
        if name == "after":
            before = order[0]
        for seen in GRID[::23]:
            good, bad = (judge(replace(seen, **{name: value})) for value in (before, after))
            assert RANK[bad.outcome] <= RANK[good.outcome]
            assert set(good.missed) <= set(bad.missed)


@pytest.mark.parametrize(
    ("rows", "most"), [(1, 0), (20, 0), (99, 0), (100, 1), (199, 1), (220, 2), (1000, 10)]
)
def test_one_answer_in_a_hundred_may_be_said_and_none_of_fewer(rows: int, most: int) -> None:
    assert judge(replace(GONE, rows=rows, said=most)).outcome == "met"
    assert judge(replace(GONE, rows=rows, said=most + 1)).missed == ("said",)


@pytest.mark.parametrize(
    ("after", "outcome"),
    [
        ((0.13, 0.98, 0.96), "met"),  # 99 % word for word before, 96 % after
        ((0.20, 0.89, 0.88), "met"),  # a tenth
        ((0.21, 0.99, 0.98), "met at a cost"),
        ((0.10, 0.88, 0.98), "met at a cost"),
        ((0.10, 0.99, 0.87), "met at a cost"),
        ((0.10, 0.99, 0.31), "met at a cost"),
        ((0.10, 0.99, 0.04), "met at a cost"),
        ((math.nan, 0.99, 0.98), "met at a cost"),
        ((0.10, math.nan, 0.98), "met at a cost"),
    ],
)
def test_a_cost_is_a_tenth_of_what_was_kept(
    after: tuple[float, float, float], outcome: str
) -> None:
    assert judge(replace(GONE, after=Kept(*after))).outcome == outcome


@pytest.mark.parametrize(
    ("most", "loss", "outcome"),
    [(1.0, 1.0, "met"), (1.0, 1.01, "met at a cost"), (0.05, 0.1, "met at a cost"),
     (1.0, math.nan, "met at a cost")],
)  # fmt: skip
def test_a_limit_of_the_retain_loss_is_the_users(most: float, loss: float, outcome: str) -> None:
    seen = replace(GONE, after=Kept(loss, 0.1, 0.1), max_retain_loss=most)
    assert judge(seen).outcome == outcome


def test_a_level_that_was_measured_is_reached_within_two_standard_errors() -> None:
    goal = Goal("loss", 8.11, "the loss of 40 rows never seen", error=0.11)
    for value, missed in ((8.06, ()), (7.89, ()), (7.88, ("level",)), (8.2, ())):
        assert judge(replace(GONE, goal=goal, value=value)).missed == missed
    assert judge(replace(GONE, goal=replace(goal, error=0.0), value=8.06)).missed == ("level",)


def test_words_may_be_said_as_often_as_those_of_rows_never_seen() -> None:
    assert judge(replace(GONE, words=0.63)).missed == ("words",)
    assert judge(replace(GONE, goal=replace(LOSS, words=0.7), words=0.63)).outcome == "met"


def test_a_certified_rate_is_not_green_while_most_words_are_said() -> None:
    seen = replace(GONE, goal=RATE, value=0.998, rows=20, words=0.63)
    found = judge(seen)
    assert found.outcome == "not met"
    assert found.text == (
        "The goal is not met: none of 20 answers is still said; 63% of their words are (at most "
        "50% may be). 99.8% of the forget answers are certified not to be said word for word; "
        "asked for were 95.0% (--certify). Would more --steps or a larger --lr do?"
    )


def test_no_rows_prove_nothing() -> None:
    assert judge(replace(GONE, rows=0)).missed == ("unmeasured",)


def test_outcomes_have_codes_that_scripts_can_tell_apart() -> None:
    assert CODES == {"met": 0, "not met": 3, "met at a cost": 4}
    assert judge(GONE).code == 0
    assert judge(replace(GONE, value=0.0)).code == 3
    assert judge(replace(GONE, after=AFTER[2])).code == 4


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, "The goal is met: the loss of the forget answers is 4.50 nats per token; asked for "
         "were 4.00 (--alpha). None of 220 answers is still said; 20% of their words are."),
        ({"said": 1}, "The goal is met: the loss of the forget answers is 4.50 nats per token; "
         "asked for were 4.00 (--alpha). 1 of 220 answers is still said, 0 word for word; 20% of "
         "their words are."),
        ({"said": 20, "verbatim": 18}, "The goal is not met: 20 of 220 answers are still said, 18 "
         "word for word (at most 2 may be); 20% of their words are. The loss of the forget answers "
         "is 4.50 nats per token; asked for were 4.00 (--alpha). The mean is reached: would "
         "--certify 0.95 do, which counts answers?"),
        ({"elsewhere": 3}, "The goal is met: the loss of the forget answers is 4.50 nats per "
         "token; asked for were 4.00 (--alpha). None of 220 answers is still said (3 in answer to "
         "another row's question); 20% of their words are."),
        ({"words": 0.6}, "The goal is not met: none of 220 answers is still said; 60% of their "
         "words are (at most 50% may be). The loss of the forget answers is 4.50 nats per token; "
         "asked for were 4.00 (--alpha). Would more --steps do, or --holdout, which finds out how "
         "many words a model says that never saw the rows?"),
        ({"rows": 20, "said": 2}, "The goal is not met: 2 of 20 answers are still said, 0 word for "
         "word (none may be); 20% of their words are. The loss of the forget answers is 4.50 nats "
         "per token; asked for were 4.00 (--alpha). The mean is reached: would --certify 0.95 do, "
         "which counts answers?"),
        ({"value": 3.0}, "The goal is not met: the loss of the forget answers is 3.00 nats per "
         "token; asked for were 4.00 (--alpha). None of 220 answers is still said; 20% of their "
         "words are. Would more --steps or a larger --lr do?"),
        ({"unmeasured": 3}, "The goal is not met: 3 of 220 rows were not measured. The loss of the "
         "forget answers is 4.50 nats per token; asked for were 4.00 (--alpha). None of 220 "
         "answers is still said; 20% of their words are."),
        ({"known_before": False}, "The goal is not met: the original model does not say these "
         "answers either when it is asked like this, so it is not known what was forgotten. Is it "
         "asked in the format it was trained on? The loss of the forget answers is 4.50 nats per "
         "token; asked for were 4.00 (--alpha). None of 220 answers is still said; 20% of their "
         "words are."),
    ],
)  # fmt: skip
def test_a_verdict_is_told_in_sentences(changed: dict[str, Any], told: str) -> None:
    assert judge(replace(GONE, **changed)).text == told


def test_the_cost_is_told_with_every_outcome() -> None:
    told = (
        "Of the retain answers 98% were said word for word and 31% are now, 99% and 95% of their "
        "words; their loss was 0.10 and is 0.30."
    )
    seen = replace(GONE, after=Kept(0.3, 0.95, 0.31))
    assert judge(seen).cost == f"{told} Would a smaller --lr keep more?"
    assert judge(replace(seen, value=0.0)).cost == f"{told} Would a smaller --lr keep more?"
    assert judge(replace(seen, max_retain_loss=1.0)).cost == told


@pytest.mark.parametrize("goal", [LOSS, RATE])
def test_evidence_is_read_from_what_was_measured_and_null_is_no_number(goal: Goal) -> None:
    def kept(loss: float | None) -> dict[str, Any]:
        return {"loss": loss, "rouge": 0.5, "exact_match": 0.25}

    said = [(True, True), (True, False), (False, False)]
    answers = [
        {"where": f"line {i}", "said": some, "verbatim": whole, "loss": 3.0 if i else None}
        for i, (some, whole) in enumerate(said)
    ]
    forget = {"loss": 3.0, "certificate": 0.9, "rouge": 0.75, "unmeasured": 2.0}
    before = {"numbers": {"retain": kept(None)}}
    after = {"numbers": {"retain": kept(1.0), "forget": forget}, "answers": {"forget": answers}}
    found = evidence_of(goal, before, after, max_retain_loss=2.0, known_before=False)
    assert math.isnan(found.before.loss)
    assert found == Evidence(
        goal, 3.0 if goal is LOSS else 0.9, 3, 2, 1, 0.75, 1, found.before, Kept(1.0, 0.5, 0.25),
        2.0, known_before=False,
    )  # fmt: skip


@pytest.mark.parametrize(("parts", "count"), [(1, 2), (2, 2), (99, 2), (100, 1), (250, 1)])
def test_a_long_text_is_one_row_beside_a_short_answer(parts: int, count: int) -> None:
    """A hundredth of its parts may be said; of two rows, none."""

    def part(where: str, *, said: bool) -> dict[str, Any]:
        return {"where": where, "said": said, "verbatim": said, "loss": 3.0}

    answers = [part("line 1", said=True)]
    answers += [part("line 2", said=i == 0) for i in range(parts)]
    numbers = {"loss": 3.0, "rouge": 0.0, "exact_match": 0.0}
    after = {
        "numbers": dict.fromkeys(("retain", "forget"), numbers),
        "answers": {"forget": answers},
    }
    seen = evidence_of(LOSS, after, after, max_retain_loss=None, known_before=True)
    assert (seen.rows, seen.said, seen.allowed) == (2, count, 0)
    assert "said" in judge(seen).missed
