"""The rule for mu, and the study that compares it."""

import importlib.util
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("scipy", reason="the optima are SciPy's")

from benchmarks.studies.auto.choose import Budget, Knapsack, Portfolio
from benchmarks.studies.auto.classify import (
    GroupRecall,
    InactiveBatches,
    NeymanPearson,
    Recall,
)
from benchmarks.studies.auto.engine import Cell, Fleet, Part, run
from benchmarks.studies.auto.fit import L1, Ball, Physics
from benchmarks.studies.auto.optimum import multiplier, optimum
from benchmarks.studies.auto.policies import MaximumEntropy, Rate
from benchmarks.studies.auto.problem import Problem, seeded
from benchmarks.studies.auto.settings import SETTINGS, Setting
from benchmarks.studies.auto.table import diverged
from benchmarks.studies.auto.ways import Auto, Fixed
from tests.benchmarks.studies.plain_loop import path


def thetas(problem: Problem, cells: list[Cell], ways: list[Any], length: int = 130) -> Tensor:
    """Each cell's copies after so many steps, one per way."""
    fleet = Fleet(problem, cells, len(ways), torch.float64)
    begun = [(way, Part(fleet, first, 1)) for first, way in enumerate(ways)]
    for way, part in begun:
        way.begin(part)
    for data in islice(problem.draws(seeded(0)), length):
        fleet.step(begun, data)
    return fleet.theta().detach()


@pytest.mark.parametrize("kind", [Portfolio, NeymanPearson])
def test_a_cell_goes_where_it_would_go_alone(kind: type[Problem]) -> None:
    settings = ["momentum", "adam", "rmsprop"]
    found = thetas(kind(), [Cell(setting) for setting in settings], [Auto()])
    expected = torch.stack([path(kind(), setting)[-1] for setting in settings])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_copy_with_a_fixed_mu_goes_where_it_would_go_alone() -> None:
    found = thetas(NeymanPearson(), [Cell("adam")], [Fixed([0.5]), Fixed([0.1])])
    for mine, mu in zip(found, (0.5, 0.1), strict=True):
        torch.testing.assert_close(
            mine[None], thetas(NeymanPearson(), [Cell("adam")], [Fixed([mu])])
        )
    assert not torch.allclose(*found, rtol=1e-3)


def without_eps(made: Setting) -> Setting:
    """Build the setting's optimizers without the one number of theirs that has a unit."""

    def make(theta: Tensor, rate: float) -> torch.optim.Optimizer:
        optimizer = made.make(theta, rate)
        for group in optimizer.param_groups:
            if "eps" in group:
                group["eps"] = 1e-40
        return optimizer

    return made._replace(make=make)


@pytest.mark.parametrize("kind", [Ball, GroupRecall, MaximumEntropy])
def test_units_of_measure_do_not_move_theta(
    kind: type[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Powers of two change no digit."""
    names = ["sgd", "momentum", "adamw", "rmsprop"]
    for name in names:
        monkeypatch.setitem(SETTINGS, name, without_eps(SETTINGS[name]))
    cells = [cell for name in names for cell in (Cell(name), Cell(name, 2.0**9, 2.0**-11))]
    found = thetas(kind(), cells, [Auto()])
    for plain, other in zip(found[::2], found[1::2], strict=True):
        assert not torch.allclose(plain, kind().start)
        torch.testing.assert_close(plain, other, rtol=1e-11, atol=1e-11)


def test_a_constraint_without_a_gradient_at_the_start_is_met_all_the_same() -> None:
    """At theta = 0 the residual's square has no slope: nothing is known, and nothing blows up."""
    problem = Physics()
    slope = torch.autograd.functional.jacobian(
        lambda x: problem.measure(x, problem.data), problem.start
    )
    assert slope.eq(0).all()
    cells = [Cell(setting) for setting in ("sgd", "adam_fast", "rmsprop")]
    found = run(problem, optimum(problem), cells, {"auto": (Auto(), 1)}, length=600)
    assert found["auto"].isfinite().all()
    assert (found["auto"][:, 0, 0] < 0.5).all()


def test_an_objective_without_a_gradient_at_the_start_is_left_all_the_same() -> None:
    """An even die has the most entropy: only the constraint can set theta in motion."""
    for setting, length in (("sgd", 400), ("adam", 1200)):  # Adam's eps is all it knows of units
        theta = thetas(MaximumEntropy(), [Cell(setting)], [Auto()], length)[0]
        mean = MaximumEntropy().measure(theta, MaximumEntropy().data)
        assert abs(float(mean) - 6.5) < 1.0  # it was 2.0


def test_a_shuffled_epoch_holds_every_row_once_and_a_stream_does_not() -> None:
    problem, generator = Recall(), seeded(0)
    problem.batch = 70
    problem.data = (*problem.data[:2], torch.arange(500))
    for _ in range(2):
        epoch = [data[2] for data in islice(problem.draws(generator), 7)]
        assert [len(rows) for rows in epoch] == [70] * 7
        assert torch.cat(epoch).unique().numel() == 490
    stream = [data[2] for data in islice(problem.fresh(generator), 7)]
    assert 250 < torch.cat(stream).unique().numel() < 350  # 500 (1 - 1/e^0.98)


def test_the_multiplier_of_the_optimum_leaves_no_slope() -> None:
    problem = Portfolio()
    theta = optimum(problem).theta
    found = multiplier(problem, theta)
    assert found[0] > 0 and found[1] == 0  # it is spread enough anyway
    theta.requires_grad_()
    down = problem.objective(theta, problem.data)
    (down + found @ problem.violation(problem.measure(theta, problem.data))).backward()
    assert theta.grad.norm() < 1e-4 * torch.func.grad(problem.objective)(theta, problem.data).norm()


def test_a_constraint_that_does_not_bind_has_no_multiplier() -> None:
    problem = InactiveBatches()
    assert multiplier(problem, optimum(problem).theta) == 0


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


def test_a_stopped_comparison_goes_on_and_its_page_is_written_from_the_rows(tmp_path: Path) -> None:
    pytest.importorskip("cooper", reason="compares with cooper-optim, which is not installed")
    from benchmarks.studies.auto.compare import Comparison, joined
    from benchmarks.studies.auto.table import page

    def rows() -> list[dict[str, Any]]:
        comparison = Comparison([Ball], 40, tmp_path)
        both = [comparison.run("main", side) for side in ("rule", "others")]
        return joined([row for side in both for found in side for row in found])

    found = rows()
    assert [row["problem"] for row in found] == ["ball"] * len(SETTINGS)
    text = page(found)
    assert "0 of 7" in text and "| main | ball | sgd |" in text
    has_peer = importlib.util.find_spec("humancompatible") is not None
    assert ("humancompatible-train" in text) == has_peer
    (kept,) = tmp_path.glob("main-rule-*")
    kept.write_text(kept.read_text().replace('"momentum"', '"kept"'))
    assert [row["setting"] for row in rows() if "auto" in row["ways"]][1] == "kept"


def test_a_cell_that_ends_worse_than_it_began_has_diverged() -> None:
    ends = [[0.2, -0.5], [1.5, 0.0], [0.0, 1.5], [None, 0.0]]
    rows = [{"ways": {"auto": [pair]}} for pair in ends]
    assert diverged(rows) == rows[1:]
