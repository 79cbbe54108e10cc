"""Every filter with every order of rules is the controller of `controller_oracle.py`."""

import copy
import io
import itertools
import math
import pickle
import random
import warnings
from typing import Any

import pytest
import torch

from tests.core.controller_oracle import Controller, Entry
from torch_alm import ALMConstraint
from torch_alm.filters import EMA, Filter, Mean
from torch_alm.rules import Cap, Hold, Leak, PenaltyGrowth, Rule, WarmUp

ALPHA, MU, FIRST, STEPS = 1.0, 0.3, 0.25, 60
FILTERS: list[tuple[Any, ...] | None] = [None, ("mean", 3, 0.0), ("mean", 4, 0.7), ("ema", 0.8)]
RULES: list[tuple[Any, ...]] = [
    ("warm up", 7),
    ("hold", 0.7),
    ("leak", 0.3, 2),
    ("cap", 1.5),
    ("growth", 1.2, 2.0),
]
CHOSEN = [[], *([rule] for rule in RULES), RULES, RULES[::-1], [RULES[2], RULES[1], RULES[3]]]
SENSES = (">=", "<=", "==")
MADE: dict[str, Any] = {"warm up": WarmUp, "hold": Hold, "leak": Leak, "cap": Cap}
MADE |= {"mean": Mean, "ema": EMA, "growth": PenaltyGrowth}


def both(size: int, sense: Any, every: int, filtered: Any, words: Any) -> tuple[Any, Any]:
    """The library's and the oracle's."""
    words = [rule for rule in words if sense != "==" or rule[0] != "leak"]
    each: Filter | None = None if filtered is None else MADE[filtered[0]](*filtered[1:])
    rules: list[Rule] = [MADE[name](*numbers) for name, *numbers in words]
    alpha = torch.full((size,), ALPHA) if size else ALPHA
    how: dict[str, Any] = {"sense": sense, "every": every, "tolerance": 0.1, "multiplier": FIRST}
    ours = ALMConstraint(None, alpha, MU, **how, filter=each, rules=rules)
    entries = [Entry(FIRST) for _ in range(size or 1)]
    return ours, Controller(entries, ALPHA, MU, sense, every, 0.1, filtered, words)


def measured(noise: random.Random, step: int, size: int, sense: str) -> list[float | None]:
    """Met for a while, then violated; now and then one entry, or all of it, is missing."""
    drift = ALPHA + (-1.5 if sense == "<=" else 1.5) * math.sin(step / 9)
    values: list[float | None] = [drift + noise.gauss(0.0, 0.5) for _ in range(size or 1)]
    if noise.random() < (0.5 if size else 0.1):
        values[noise.randrange(len(values))] = None
    return values


def follow(ours: ALMConstraint, oracle: Controller, size: int) -> list[float]:
    """The weights of a run, each compared."""
    noise, found = random.Random(size), list[float]()
    for step in range(STEPS):
        values = measured(noise, step, size, oracle.sense)
        row = [math.nan if value is None else value for value in values]
        ours.observe(torch.tensor(row, dtype=torch.float64) if size else row[0])
        weights = torch.as_tensor(ours.step(), dtype=torch.float64).reshape(-1).tolist()
        assert weights == pytest.approx(oracle.step(values), rel=0, abs=1e-12)
        stored = torch.as_tensor(ours.multiplier, dtype=torch.float64).reshape(-1).tolist()
        assert stored == pytest.approx([e.multiplier for e in oracle.entries], rel=0, abs=1e-12)
        assert ours.mu == pytest.approx(oracle.mu, rel=0, abs=1e-12)
        found += weights
    return found


@pytest.mark.parametrize("words", CHOSEN, ids=str)
@pytest.mark.parametrize("filtered", FILTERS, ids=str)
def test_any_filter_with_any_rules_is_the_controller_by_hand(filtered: Any, words: Any) -> None:
    for (size, every), sense in itertools.product(((0, 1), (2, 3)), SENSES):
        ours, oracle = both(size, sense, every, filtered, words)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "ALMConstraint.step: 1")
            found = follow(ours, oracle, size)
        assert len({*found}) > STEPS / 4, "a run that does not move shows nothing"
        assert sense == "==" or 0.0 in found, "the gate closes and opens"


@pytest.mark.parametrize("size", [0, 2])
def test_without_a_filter_all_is_equal_to_the_last_bit(size: int) -> None:
    """No sum and no root is needed: every operation is the one of the formula."""
    for sense, every, words in itertools.product(SENSES, (1, 3), ([], RULES, RULES[::-1])):
        ours, oracle = both(size, sense, every, None, words)
        noise = random.Random(1)
        for step in range(STEPS):
            values = measured(noise, step, size, sense)
            if None in values:
                continue
            ours.observe(torch.tensor(values, dtype=torch.float64) if size else values[0])
            weights = torch.as_tensor(ours.step(), dtype=torch.float64).reshape(-1).tolist()
            assert weights == oracle.step(values) and ours.mu == oracle.mu


def resumed(ours: ALMConstraint, alpha: Any) -> ALMConstraint:
    """Another one with this state, and settings of its own but for those that may be assigned."""
    given: dict[str, Any] = {"sense": ours.sense, "every": ours.every, "filter": ours.filter}
    given |= {"rules": ours.rules, "tolerance": ours.tolerance}
    other = ALMConstraint(None, alpha, 9.0, **given)
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    other.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    return pickle.loads(pickle.dumps(copy.deepcopy(other)))


@pytest.mark.parametrize(
    ("seed", "sense", "filtered"),
    [(seed, *each) for seed, each in enumerate(itertools.product(SENSES, FILTERS))],
    ids=str,
)
def test_what_is_assigned_in_mid_run_holds_from_there_on(
    sense: Any, filtered: Any, seed: int
) -> None:
    """alpha, mu, lambda, `every` change; a copy that resumes is the run that never stopped."""
    draw = random.Random(seed)
    words = draw.sample(RULES, k=draw.randint(0, 5))
    (ours, oracle), (whole, _) = (both(3, sense, 2, filtered, words) for _ in range(2))
    for step in range(40):
        if step % 4 == 3:
            assert str(ours.state_dict()) == str(whole.state_dict())
            by, mu, every = draw.uniform(-0.5, 0.5), draw.choice([0.1, 0.5]), draw.randint(1, 4)
            oracle.assign(by=by, mu=mu, every=every, multiplier=0.2 * every)
            whole.alpha = alpha = torch.full((3,), oracle.alpha, dtype=torch.float64)
            ours = resumed(ours, alpha)
            for c in (ours, whole):
                c.mu, c.every, c.multiplier = mu, every, [0.2 * every] * 3
        index = [draw.randrange(3) for _ in range(3)]
        values = [draw.gauss(1.0, 0.7) for _ in index]
        weight = draw.choice([0.5, 2.0])
        for c in (ours, whole):
            c.observe(values, index=index, weight=weight)
        of = [[v for i, v in zip(index, values, strict=True) if i == k] for k in range(3)]
        expected = oracle.step([sum(each) / len(each) if each else None for each in of])
        looked = ours.preview()
        assert torch.equal(looked, ours.step()) and torch.equal(looked, whole.step())
        assert looked.tolist() == pytest.approx(expected, rel=0, abs=1e-12)
        stored = ours.multiplier.tolist()
        assert stored == pytest.approx([e.multiplier for e in oracle.entries], rel=0, abs=1e-12)
        assert ours.mu == pytest.approx(oracle.mu, rel=0, abs=1e-12)
