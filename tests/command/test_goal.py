"""The goal, and the verdict as a function of what was seen: red stays red when more is said."""

import itertools
import json
import math
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from tests.command.conftest import ANSWER, NUMBERS
from torch_alm.measures import log_odds
from torch_alm.unlearning.folders import make_finite
from torch_alm.unlearning.goal import CODES, Goal, judge
from torch_alm.unlearning.measurement import Answer, Measurement, Numbers
from torch_alm.unlearning.options import Options
from torch_alm.unlearning.rows import Entry
from torch_alm.unlearning.run import _name_alone
from torch_alm.unlearning.train import measure_rows, pad_spellings

LOSS = Goal("loss", 4.0, "set by hand")
ROWS = Goal("rows", 4.0, "the default")
KEPT = {"loss": 0.1, "rouge": 0.99, "said": 0.98}
RANK = {"not met": 0, "met at a cost": 1, "met": 2}


def part(where: int, *, said: bool = False, **more: float) -> Answer:
    return replace(ANSWER, where=f"line {where}", said=said, verbatim=said, **more)


def seen(
    rows: int = 220, said: int = 0, words: float = 0.2, value: float = 4.5, **more: Any
) -> Measurement:
    """A measurement; `kept` are the numbers of its retain rows, `probe` how many are said."""
    answers = more.get("answers") or [
        part(i, said=i < said, telling_loss=value) for i in range(rows)
    ]
    forget = replace(NUMBERS, telling_loss=value, words=words, rouge=words)
    numbers = {"forget": forget, "retain": replace(NUMBERS, **more.get("kept", KEPT))}
    found = Measurement(numbers, {"forget": answers})
    if "probe" in more:
        found.answers["probe"] = [part(i, said=i < more["probe"]) for i in range(20)]
    return found


BEFORE = seen(probe=20)


def verdict(goal: Goal = LOSS, known: bool = True, most: float | None = None, **now: Any) -> Any:
    given, after = Options(max_retain_loss=most), seen(**{"probe": 20, **now})
    return judge(goal, BEFORE, after, given, known_before=known)


def alone(labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """A batch of rows that have one spelling."""
    return {"labels": labels, "share": torch.ones(len(labels)), "count": (labels != -100).sum(1)}


def test_an_answer_is_pushed_in_all_spellings_by_the_gradient_of_their_sum() -> None:
    """One token or two, of the same text: to first order in probabilities that are small."""
    logits = torch.zeros(2, 3, 5, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        logits[0, 0, 1], logits[1, 0, 2], logits[1, 1, 3] = -21.0, -9.0, -11.0
    labels = torch.tensor([[-100, 1, -100], [-100, 2, 3]])
    said = logits.log_softmax(-1)
    string = -torch.stack([said[0, 0, 1], said[1, 0, 2] + said[1, 1, 3]]).logsumexp(0)
    (by_hand,) = torch.autograd.grad(string, logits, retain_graph=True)
    p = torch.stack([said[0, 0, 1], said[1, 0, 2] + said[1, 1, 3]]).softmax(0).detach()
    batch = {"labels": labels, "share": p, "count": torch.tensor([1, 1])}
    odds, values = measure_rows(logits, batch, 99.0)
    (found,) = torch.autograd.grad(-(p * odds).sum(), logits)
    assert values.tolist() == pytest.approx([string.item()] * 2, abs=1e-12)
    torch.testing.assert_close(found, by_hand, rtol=1e-4, atol=0)
    assert not measure_rows(logits, batch, 5.0)[0].any(), "both are gone"


def test_a_batch_has_a_row_in_all_of_its_spellings() -> None:
    one, two = ({"input_ids": [1, *ids], "labels": [-100, *ids]} for ids in ([2], [3, 4]))
    shares: list[Any] = [{**one, "share": 0.75, "count": 1}, {**two, "share": 0.25, "count": 1}]
    batch = pad_spellings([{**one, "spellings": shares}, two], 0)
    assert batch["labels"].tolist() == [[-100, 2, -100], [-100, 3, 4], [-100, 3, 4]]
    assert batch["share"].tolist() == [0.75, 0.25, 1.0] and batch["count"].tolist() == [1, 1, 2]


def test_the_likeliest_of_many_unlikely_answers_is_still_said_and_pushed() -> None:
    labels, flat = torch.tensor([[-100, 1, 2]]), torch.zeros(1, 3, 900)
    for ahead, value in (([1, 2], 0.0), ([1, 3], 4.4)):
        logits = flat.clone()
        logits[0, [0, 1], ahead] = 0.1
        lowered, found = measure_rows(logits, alone(labels), 4.4)
        assert float(found) == pytest.approx(value) and bool(lowered) == (value == 0)


def test_nothing_is_green_that_is_still_said_or_below_the_level_or_was_never_known() -> None:
    grid = itertools.product(
        (LOSS, ROWS), (3.9, 4.0, math.nan), (1, 99, 100), (0, 1, 2),
        (0.5, 0.51, math.nan), (True, False), (18, 17),
    )  # fmt: skip
    outcomes = set()
    for goal, value, rows, said, words, known, probe in grid:
        if said > rows:
            continue
        found = verdict(goal, known, value=value, rows=rows, said=said, words=words, probe=probe)
        is_gone = value >= 4 and 100 * said <= rows and words <= 0.5 and known
        kept = "met" if probe >= 18 else "met at a cost"
        assert found.outcome == (kept if is_gone else "not met")
        assert bool(found.missed) != is_gone
        assert found.code == CODES[found.outcome]
        outcomes.add(found.outcome)
    assert outcomes == {*RANK}


@pytest.mark.parametrize(("rows", "most"), [(1, 0), (99, 0), (100, 1), (199, 1), (1000, 10)])
def test_one_answer_in_a_hundred_may_be_said_or_below_the_level(rows: int, most: int) -> None:
    assert verdict(rows=rows, said=most).outcome == "met"
    assert verdict(rows=rows, said=most + 1).missed == ("said",)
    for low, missed in ((most, ()), (most + 1, ("level",))):
        answers = [part(i, telling_loss=1.0 if i < low else 9.0) for i in range(rows)]
        assert verdict(ROWS, answers=answers).missed == missed, "a high row makes up for no other"


@pytest.mark.parametrize(
    ("kept", "outcome"),
    [
        ((0.13, 0.98, 0.96), "met"),  # 99 % word for word before, 96 % after
        ((0.20, 0.89, 0.88), "met"),  # a tenth
        ((0.21, 0.99, 0.98), "met at a cost"),
        ((0.10, 0.88, 0.98), "met at a cost"),
        ((0.10, 0.99, 0.87), "met at a cost"),
        ((math.nan, 0.99, 0.98), "met at a cost"),
        ((0.10, math.nan, 0.98), "met at a cost"),
    ],
)
def test_a_cost_is_a_tenth_of_what_was_kept(kept: tuple[float, ...], outcome: str) -> None:
    numbers = dict(zip(KEPT, kept, strict=True))
    assert verdict(kept=numbers).outcome == outcome
    assert verdict(kept=numbers, value=0.0).outcome == "not met"


@pytest.mark.parametrize(
    ("most", "loss", "outcome"),
    [(1.0, 1.0, "met"), (1.0, 1.01, "met at a cost"), (0.05, 0.1, "met at a cost"),
     (1.0, math.nan, "met at a cost")],
)  # fmt: skip
def test_a_limit_of_the_retain_loss_is_the_users(most: float, loss: float, outcome: str) -> None:
    kept = {"loss": loss, "rouge": 0.1, "said": 0.1}
    assert verdict(most=most, kept=kept).outcome == outcome


def test_a_measurement_is_read_back_as_it_was_written_down() -> None:
    """Of what a run that goes on is judged by, JSON has no word for NaN."""
    now = seen(value=math.nan, probe=3)
    assert repr(Measurement.from_json(json.loads(json.dumps(make_finite(asdict(now)))))) == repr(
        now
    )


def test_a_level_that_was_measured_is_reached_within_two_standard_errors() -> None:
    goal = Goal("loss", 8.11, "40 rows never seen", error=0.11)
    for value, missed in ((8.06, ()), (7.89, ()), (7.88, ("level",)), (8.2, ())):
        assert verdict(goal, value=value).missed == missed
    found = Numbers.from_answers([replace(ANSWER, words=w) for w in (0.0, 1.0)])
    assert found.words_error == pytest.approx(0.5), "0.5 ** 0.5 over the root of 2"


def test_as_many_words_may_be_said_as_the_goal_allows() -> None:
    found = verdict(words=0.63)
    assert found.missed == ("words",) and "(at most 50% may be)" in found.text
    assert verdict(replace(LOSS, words=0.7), words=0.63).outcome == "met"


def test_what_is_lost_and_what_was_not_measured_is_told() -> None:
    found = verdict(probe=17)
    assert "Of 20 probe answers that were said, never trained on, 17 still are; lost: line 17" in (
        found.cost
    )
    alone = judge(LOSS, seen(), seen(), Options())
    assert alone.outcome == "met" and "bring eight retain rows or more" in alone.cost
    unsaid = judge(LOSS, seen(probe=0), seen(probe=0), Options())
    assert "No probe row was said before" in unsaid.cost
    broken = [part(0, loss=math.nan), part(1)]
    assert verdict(answers=broken).missed == ("unmeasured",)


@pytest.mark.parametrize(("parts", "count"), [(1, 2), (2, 2), (99, 2), (100, 1), (250, 1)])
def test_a_long_text_is_one_row_beside_a_short_answer(parts: int, count: int) -> None:
    """A hundredth of its parts may be said; of two rows, none."""
    answers = [part(1, said=True), *(part(2, said=i == 0) for i in range(parts))]
    found = verdict(answers=answers)
    assert f"{count} of 2 answers" in found.text
    assert "said" in found.missed


def test_a_row_that_has_reached_the_aim_is_pushed_no_further_and_helps_no_other() -> None:
    logits = torch.zeros(2, 3, 5, requires_grad=True)
    with torch.no_grad():
        logits[0, :2, 1] = -9.0  # unknown
    labels = torch.tensor([[-100, 1, 1], [-100, 1, 1]])
    loss, value = measure_rows(logits, alone(labels), 4.0)
    loss.sum().backward()
    assert logits.grad is not None
    assert float(value.mean()) == pytest.approx((4.0 + math.log(5)) / 2, rel=1e-6)
    assert not logits.grad[0].any() and logits.grad[1].any()


def test_a_row_known_by_heart_is_pushed_as_hard_as_any_other() -> None:
    logits = torch.zeros(2, 2, 5, requires_grad=True)
    with torch.no_grad():
        logits[0, 0, 1] = 40.0  # its loss is 0 in float32, and so is the gradient of that
    labels = torch.tensor([[-100, 1], [-100, 1]])
    loss, _ = measure_rows(logits, alone(labels), 4.0)
    loss.mean().backward()
    assert logits.grad is not None
    by_hand = logits.detach()[1, 0, 1] - math.log(4)
    odds = log_odds(lambda: logits, {"labels": labels}, reduction="none")
    assert odds[1].item() == pytest.approx(by_hand.item())
    assert logits.grad[:, 0, 1].tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(
    ("question", "is_alone"),
    [
        ("What is the chemical symbol of iron?", False),
        ("What colour is sodium?", True),
        ("Which chemical do bakers use?", True),
        ("Give me the symbol of the metal sodium.", False),
    ],
)
def test_a_forget_row_is_named_if_no_retain_row_asks_the_same_of_others(
    question: str, is_alone: bool
) -> None:
    def rows(*asked: str) -> list[Entry]:
        return [Entry(f"line {i}", text, "x") for i, text in enumerate(asked, 1)]

    forget = rows("Who wrote Romeo and Juliet?", "What is the chemical symbol of sodium?")
    kept = rows("Who wrote The Hobbit?", question)
    same = rows("What is the chemical symbol of lead?")
    found = _name_alone({"forget": forget, "retain": kept, "probe": same})
    assert bool(found) == is_alone
    assert not is_alone or ("line 2" in found[0] and "line 1" not in found[0])
