"""The examples of the gallery end at optima that are found without this library."""

import inspect
from collections.abc import Callable, Sequence
from itertools import combinations
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize

from benchmarks.studies.constrained import (
    budget,
    equality,
    fairness,
    gallery,
    policy,
    recall,
    several,
    sparsity,
)

Array = np.ndarray[Any, np.dtype[np.float64]]
Function = Callable[[Array], Any]
Outcome = tuple[float, dict[str, float]]  # the objective, and multipliers where they are known


def arrays(*tensors: torch.Tensor) -> list[Array]:
    return [t.double().numpy() for t in tensors]


def sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-z))


def slsqp(objective: Function, start: Array, inequalities: Sequence[Function]) -> float:
    """The least objective where every inequality is at least 0."""
    sides = [{"type": "ineq", "fun": side} for side in inequalities]
    settings = {"maxiter": 1000, "ftol": 1e-12}
    found = minimize(objective, start, constraints=sides, method="SLSQP", options=settings)
    assert found.success, found.message
    return found.fun


class Classifier:
    """The logistic model of two examples, in NumPy."""

    def __init__(self) -> None:
        self.x, self.label, group = arrays(*fairness.data())
        self.inside = group > 0.5

    def score(self, w: Array) -> Array:
        return self.x @ w[:-1] + w[-1]

    def loss(self, w: Array) -> float:
        return (np.logaddexp(0, self.score(w)) - self.label * self.score(w)).mean()

    def gap(self, w: Array) -> float:
        found = sigmoid(self.score(w))
        return found[self.inside].mean() - found[~self.inside].mean()

    def recall(self, w: Array) -> float:
        return (sigmoid(self.score(w)) * self.label).sum() / self.label.sum()


def best_fairness() -> Outcome:
    model = Classifier()
    sides = [lambda w: 0.05 - model.gap(w), lambda w: 0.05 + model.gap(w)]
    return slsqp(model.loss, np.zeros(6), sides), {}


def best_recall() -> Outcome:
    healthy, faulty = arrays(*recall.data())

    def loss(w: Array) -> float:
        return np.logaddexp(0, healthy @ w[:-1] + w[-1]).mean()

    return slsqp(loss, np.zeros(5), [lambda w: sigmoid(faulty @ w[:-1] + w[-1]).mean() - 0.9]), {}


def best_budget() -> Outcome:
    """n is proportional to the root of weight / hours: d(weight/n)/dn = -lambda hours."""
    weight, hours = arrays(*budget.data())
    spread = np.sqrt(weight * hours).sum()
    return spread**2 / 30_000, {"hours": (spread / 30_000) ** 2}


def best_sparsity() -> Outcome:
    """The best of all 495 ways to keep four of twelve inputs, by least squares."""
    x, y = arrays(*sparsity.data())
    kept = (x[:, list(some)] for some in combinations(range(12), 4))
    return min(np.linalg.lstsq(some, y)[1].item() for some in kept) / len(y), {}


def best_policy() -> Outcome:
    """p is proportional to reference exp(reward / lambda)."""
    reward, reference = arrays(*policy.data())

    def tilted(multiplier: float) -> Array:
        p = np.exp(reference + reward / multiplier)
        return p / p.sum()

    def excess(multiplier: float) -> float:
        p = tilted(multiplier)
        return p @ (np.log(p) - reference) - 0.1

    multiplier = brentq(excess, 0.5, 1e3)
    return -tilted(multiplier) @ reward, {"KL": multiplier}


def best_several() -> Outcome:
    model = Classifier()
    sides = [
        lambda w: 0.05 - model.gap(w),
        lambda w: 0.05 + model.gap(w),
        lambda w: model.recall(w) - 0.75,
        lambda w: 2.0 - w[:-1] @ w[:-1],
    ]
    return slsqp(model.loss, np.zeros(6), sides), {}


def best_equality() -> Outcome:
    """p is proportional to exp(multiplier k); the die of Jaynes."""
    faces = np.arange(1, 7)

    def tilted(multiplier: float) -> Array:
        p = np.exp(multiplier * faces)
        return p / p.sum()

    multiplier = brentq(lambda m: tilted(m) @ faces - 4.5, 0.0, 2.0)
    p = tilted(multiplier)
    return p @ np.log(p), {"mean": multiplier}


BEST = {
    "fairness": best_fairness,
    "recall": best_recall,
    "budget": best_budget,
    "sparsity": best_sparsity,
    "policy": best_policy,
    "several": best_several,
    "equality": best_equality,
}


def test_every_example_has_an_optimum() -> None:
    assert list(BEST) == list(gallery.EXAMPLES)


@pytest.mark.parametrize("name", BEST)
def test_it_ends_at_the_optimum(name: str) -> None:
    objective, multipliers = BEST[name]()
    trace = gallery.trained(name)
    near = 2e-2 if name == "sparsity" else 5e-4  # the gates of a sigmoid are never quite shut
    assert trace.objective[-1] == pytest.approx(objective, rel=near)
    for which, constraint in trace.constraints.items():
        assert trace.measured[which][-1] == pytest.approx(constraint.alpha, rel=1e-3), which
    for which, multiplier in multipliers.items():
        assert trace.multiplier[which][-1] == pytest.approx(multiplier, rel=5e-3)


@pytest.mark.parametrize("name", BEST)
def test_without_the_constraint_it_would_end_elsewhere(name: str) -> None:
    """Each constraint binds: its multiplier is not 0."""
    trace = gallery.trained(name)
    assert all(multipliers[-1] != 0 for multipliers in trace.multiplier.values())


@pytest.mark.parametrize(
    "module",
    [fairness, recall, budget, sparsity, policy, several, equality],
    ids=lambda module: module.__name__,
)
def test_an_example_is_short_and_fits_a_page(module: ModuleType) -> None:
    lines = inspect.getsource(module).splitlines()
    assert len(inspect.getsource(module.train).splitlines()) <= 40
    assert max(map(len, lines)) <= 80


def test_the_table_names_what_was_asked_for() -> None:
    table = gallery.table()
    assert "| fairness | gap <= 0.05 | 0.05" in table
    assert "| recall | recall >= 0.9 | 0.9" in table or "| recall | recall >= 0.9 | 0.89" in table
    assert "| equality | mean == 4.5 | 4." in table
