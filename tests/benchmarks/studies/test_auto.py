"""The rule for mu, and the study that compares it."""

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("scipy", reason="the optima are SciPy's")

from benchmarks.studies.auto.choose import Budget, Knapsack, Portfolio
from benchmarks.studies.auto.classify import GroupRecall, NeymanPearson, Recall
from benchmarks.studies.auto.engine import Cell, Fleet, Part, run
from benchmarks.studies.auto.fit import L1, Ball, Physics
from benchmarks.studies.auto.optimum import optimum
from benchmarks.studies.auto.policies import MaximumEntropy, Rate
from benchmarks.studies.auto.problem import Problem, seeded
from benchmarks.studies.auto.rule import AutoRate, sums
from benchmarks.studies.auto.settings import SETTINGS
from benchmarks.studies.auto.ways import Auto, Fixed
from tests.benchmarks.studies.plain_loop import path


def thetas(problem: Problem, cell: Cell, ways: list[Any], length: int = 130) -> Tensor:
    """What each way's copies are after so many steps."""
    fleet, generator = Fleet(problem, [cell], len(ways), torch.float64), seeded(0)
    begun = [(way, Part(fleet, first, 1)) for first, way in enumerate(ways)]
    for way, part in begun:
        way.begin(part)
    for _ in range(length):
        fleet.step(begun, generator)
    return fleet.theta().detach()


@pytest.mark.parametrize("setting", ["momentum", "adam", "rmsprop"])
@pytest.mark.parametrize("kind", [Portfolio, NeymanPearson])
def test_a_copy_goes_where_it_would_go_alone(kind: type[Problem], setting: str) -> None:
    found = thetas(kind(), Cell(setting), [Auto(), Fixed([0.5]), Auto()])
    expected = path(kind(), setting)[-1]
    torch.testing.assert_close(found[0], expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[2], expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(found[1], expected, rtol=1e-3)


@pytest.mark.parametrize("setting", ["sgd", "momentum", "adamw", "rmsprop"])
@pytest.mark.parametrize("kind", [Ball, GroupRecall, MaximumEntropy])
def test_units_of_measure_do_not_move_theta(
    kind: type[Problem], setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Powers of two change no digit; an optimizer's eps is the one number that has a unit."""
    made = SETTINGS[setting]

    def without_eps(theta: Tensor, rate: float) -> torch.optim.Optimizer:
        optimizer = made.make(theta, rate)
        for group in optimizer.param_groups:
            if "eps" in group:
                group["eps"] = 1e-40
        return optimizer

    monkeypatch.setitem(SETTINGS, setting, made._replace(make=without_eps))
    plain, other = (
        thetas(kind(), cell, [Auto()]) for cell in (Cell(setting), Cell(setting, 2.0**9, 2.0**-11))
    )
    assert not torch.allclose(plain[0], kind().start)
    torch.testing.assert_close(plain, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("setting", ["sgd", "adam_fast", "rmsprop"])
def test_a_constraint_without_a_gradient_at_the_start_is_met_all_the_same(setting: str) -> None:
    """At theta = 0 the residual's square has no slope: nothing is known, and nothing blows up."""
    problem = Physics()
    assert (
        torch.autograd.functional.jacobian(
            lambda x: problem.measure(x, problem.data), problem.start
        )
        .eq(0)
        .all()
    )
    found = run(problem, optimum(problem), [Cell(setting)], {"auto": (Auto(), 1)}, length=600)
    assert found["auto"].isfinite().all()
    assert found["auto"][0, 0, 0] < 0.5


def test_an_objective_without_a_gradient_at_the_start_is_left_all_the_same() -> None:
    """An even die has the most entropy: only the constraint can set theta in motion."""
    for setting, length in (("sgd", 400), ("adam", 1200)):  # Adam's eps is all it knows of units
        theta = thetas(MaximumEntropy(), Cell(setting), [Auto()], length)[0]
        mean = MaximumEntropy().measure(theta, MaximumEntropy().data)
        assert abs(float(mean) - 6.5) < 1.0  # it was 2.0


def test_a_rule_that_was_saved_goes_on_as_if_it_had_not_been() -> None:
    def drive(rule: AutoRate, ticks: range) -> list[float]:
        seen = []
        for t in ticks:
            c = torch.tensor(1.0 - 0.01 * t, dtype=torch.float64)
            seen.append(float(rule.see(c)))
            if rule.wants_gradient:
                a = torch.ones(3, dtype=torch.float64)
                found = sums(a, (2.0 + 0.1 * t) * a, rule.weight)
                rule.calibrate(found, found.a * 0.1)
            rule.advance()
        return seen

    whole, part = AutoRate(), AutoRate()
    assert drive(whole, range(50)) == drive(part, range(50))
    other = AutoRate()
    other.load(part.state())
    expected = drive(whole, range(50, 120))
    assert drive(other, range(50, 120)) == expected
    assert len(set(expected)) > 50


def test_the_rate_problem_ends_where_water_filling_does() -> None:
    """Each source gets the same distortion, or its own variance where that is less."""
    problem = Rate()
    variance = problem.data[0]
    low, high = 0.0, float(variance.max())
    for _ in range(100):  # the water level at which four nats are spent
        level = (low + high) / 2
        rate = 0.5 * torch.log(variance / variance.clamp(max=level)).sum()
        low, high = (low, level) if rate < 4 else (level, high)
    expected = float(variance.clamp(max=level).sum())
    assert optimum(problem).value == pytest.approx(expected, rel=1e-4)


def test_the_lasso_ends_where_projected_descent_does() -> None:
    problem = L1()
    x, y = problem.data
    theta, step = problem.start.clone(), 0.05
    for _ in range(3000):
        theta = theta - step * 2 * x.T @ (x @ theta - y) / len(y)
        size, _ = theta.abs().sort(descending=True)
        excess = (size.cumsum(0) - 5.0) / torch.arange(1, 31)
        if theta.abs().sum() > 5.0:
            cut = excess[size > excess][-1]
            theta = theta.sign() * (theta.abs() - cut).clamp(min=0)
    expected = float(problem.objective(theta, problem.data))
    assert optimum(problem).value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", [Recall, Budget, Knapsack])
def test_the_free_optimum_breaks_the_constraint(kind: type[Problem]) -> None:
    """Otherwise a problem would say nothing about multipliers."""
    problem = kind()
    theta = problem.start.clone().requires_grad_()
    optimizer = torch.optim.Adam([theta], lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        problem.objective(theta, problem.data).backward()
        optimizer.step()
    assert problem.violation(problem.measure(theta.detach(), problem.data)).max() > 0


def test_the_page_is_written_from_the_rows() -> None:
    pytest.importorskip("cooper", reason="compares with cooper-optim, which is not installed")
    from benchmarks.studies.auto.compare import Comparison
    from benchmarks.studies.auto.table import page

    comparison = Comparison([Ball], 40)
    assert list(comparison.run("main")) == ["ball"]
    assert [row["problem"] for row in comparison.rows] == ["ball"] * len(SETTINGS)
    text = page(comparison.rows)
    assert "0 of 7" in text and "| main | ball | sgd |" in text
    has_peer = importlib.util.find_spec("humancompatible") is not None
    assert ("humancompatible-train" in text) == has_peer
