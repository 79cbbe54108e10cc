"""The best step: the lowest objective among the steps that met a constraint, or a group."""

import io
import math

import pytest
import torch

from tests.core.distributed.ranks import Ranks
from torch_alm import ALMConstraint, ConstraintGroup
from torch_alm.integrations.transformers import Best, BestStep


def constraint(**given: object) -> ALMConstraint:
    return ALMConstraint(None, **{"alpha": 1.0, "mu": 0.5, **given})


def step(c: ALMConstraint, best: BestStep, value: object, objective: object) -> bool:
    c.observe(value)
    c.step()
    return best.update(objective, c.metrics())


def test_the_best_step_is_the_lowest_objective_among_those_that_met() -> None:
    c, best = constraint(tolerance=0.1), BestStep()
    steps = [
        (0.0, 1.0, False),  # not met
        (1.5, 3.0, True),
        (0.95, 2.0, True),  # within the tolerance
        (2.0, 2.5, False),  # not better
        (0.5, 0.5, False),  # not met
        (2.0, math.nan, False),
        (2.0, -math.inf, False),
        (3.0, 1.5, True),
        (4.0, 1.5, False),  # as good: the first of them stays
    ]
    found = [step(c, best, value, torch.tensor(objective)) for value, objective, _ in steps]
    assert found == [expected for *_, expected in steps]
    assert best.best is not None and best.best[:2] == (8, 1.5)
    assert best.best.metrics["value"] == 3.0 and best.best.metrics["status"] == "released"


@pytest.mark.parametrize("objective", [math.nan, math.inf, -math.inf])
def test_an_objective_that_is_not_finite_is_never_the_best_not_even_the_first(
    objective: float,
) -> None:
    best = BestStep()
    assert not step(constraint(), best, 2.0, objective) and best.best is None


def test_a_step_that_one_of_a_group_did_not_measure_is_never_the_best() -> None:
    cheap, dear, best = constraint(), constraint(), BestStep()
    group, found = ConstraintGroup({"cheap": cheap, "dear": dear}), []
    for number, value in enumerate((0.0, 2.0, 2.0, 2.0, 2.0, 2.0), 1):
        cheap.observe(2.0)
        cheap.step()
        if number % 2:  # violated first, met later; in between nobody looks
            dear.observe(value)
            dear.step()
        found.append(best.update(1.0 / number, group.metrics()))
    assert found == [False, False, True, False, True, False]


def test_what_was_best_for_another_alpha_is_forgotten() -> None:
    c, best = constraint(), BestStep()
    assert step(c, best, 1.5, 1.0)
    c.alpha = 2.0
    assert not step(c, best, 1.5, 0.1) and best.best is None
    assert step(c, best, 2.5, 5.0)


def test_every_entry_has_to_meet_for_the_best_step() -> None:
    c, best = constraint(alpha=torch.ones(2)), BestStep()
    found = [step(c, best, torch.tensor(row), 1.0) for row in ([2.0, 0.0], [2.0, 2.0])]
    assert found == [False, True]


def test_the_best_step_of_a_group_meets_all() -> None:
    group, best = ConstraintGroup({"a": constraint(), "b": constraint(sense="<=")}), BestStep()
    found = []
    for a, b, objective in ((0.0, 2.0, 1.0), (2.0, 1.0, 4.0), (2.0, 2.0, 2.0), (1.0, 0.5, 3.0)):
        group.observe({"a": a, "b": b})
        group.step()
        found.append(best.update(objective, group.metrics()))
    assert found == [False, True, False, True]
    assert best.best == Best(4, 3.0, group.metrics())


def test_a_resumed_run_remembers_the_best_step() -> None:
    c, best, resumed = constraint(), BestStep(), BestStep()
    resumed.load_state_dict(best.state_dict())
    assert resumed.best is None
    step(c, best, 1.5, 2.0)
    buffer = io.BytesIO()
    torch.save(best.state_dict(), buffer)
    buffer.seek(0)
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    assert resumed.best == best.best is not None
    for objective, expected in ((2.0, False), (1.0, True)):
        assert step(c, resumed, 1.5, objective) is expected


def test_a_step_that_did_not_measure_is_never_the_best() -> None:
    """Nobody knows whether it met: the metrics are those of an earlier step."""
    c, best, resumed = constraint(), BestStep(), BestStep()
    assert step(c, best, 2.0, 5.0)
    resumed.load_state_dict(best.state_dict())
    for each in (best, resumed):
        assert not each.update(1.0, c.metrics())
    assert step(c, best, 2.0, 4.0)


def on_rank(rank: int) -> list[tuple[int, float]]:
    saved: list[tuple[int, float]] = []
    c, best = constraint(), BestStep()
    for objective in ([3.0, 1.0, 5.0], [3.0, 4.0, 0.5])[rank]:
        if step(c, best, 2.0, torch.tensor(objective)):
            assert best.best is not None
            saved.append(best.best[:2])
    return saved


def test_of_several_ranks_all_find_the_step_of_the_mean_objective(ranks: Ranks) -> None:
    assert ranks(on_rank) == [[(1, 3.0), (2, 2.5)]] * 2
