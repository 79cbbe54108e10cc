"""Step by step the same as cooper, where both claim the same algorithm."""

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from torch_alm import ALMConstraint

cooper = pytest.importorskip("cooper", reason="compares with cooper-optim, which is not installed")

STEPS, LR, MU, ALPHA = 60, 0.05, 0.4, 1.0


def objective(x: Tensor) -> Tensor:
    return (x - torch.tensor([0.5, -1.0], dtype=torch.float64)).square().sum()


def measured(x: Tensor, at: int) -> Tensor:
    """A measure whose constraint is violated, met with slack, and violated again."""
    shift = 2.0 if 20 <= at < 40 else 0.0
    return x[0] + 0.5 * x[1] ** 2 + shift


def start() -> Tensor:
    return torch.tensor([0.1, 0.2], dtype=torch.float64, requires_grad=True)


class TheirProblem(cooper.ConstrainedMinimizationProblem):
    """The problem for cooper; the sign and the dual step are turned by hand."""

    def __init__(self, formulation: type, penalty: float | None, equality: bool) -> None:
        super().__init__()
        kind = cooper.ConstraintType.EQUALITY if equality else cooper.ConstraintType.INEQUALITY
        extra = {}
        if penalty is not None:
            coefficient = torch.tensor(penalty, dtype=torch.float64)
            extra["penalty_coefficient"] = cooper.penalty_coefficients.DensePenaltyCoefficient(
                init=coefficient
            )
        self.price = cooper.Constraint(
            constraint_type=kind,
            formulation_type=formulation,
            multiplier=cooper.multipliers.DenseMultiplier(num_constraints=1, dtype=torch.float64),
            **extra,
        )

    def compute_cmp_state(self, x: Tensor, at: int) -> cooper.CMPState:
        violation = (ALPHA - measured(x, at)).reshape(1)
        state = cooper.ConstraintState(violation=violation)
        return cooper.CMPState(loss=objective(x), observed_constraints={self.price: state})


def theirs(dual_first: bool, equality: bool) -> list[list[float]]:
    x = start()
    formulations = cooper.formulations
    if dual_first:
        problem = TheirProblem(formulations.Lagrangian, None, equality)
        kind = cooper.optim.AlternatingDualPrimalOptimizer
    else:
        problem = TheirProblem(formulations.AugmentedLagrangian, MU, equality)
        kind = cooper.optim.SimultaneousOptimizer
    optimizer = kind(
        problem,
        primal_optimizers=SGD([x], lr=LR),
        dual_optimizers=SGD(problem.dual_parameters(), lr=MU, maximize=True),
    )
    path = []
    for at in range(STEPS):
        optimizer.roll(compute_cmp_state_kwargs={"x": x, "at": at})
        path.append([*x.tolist(), problem.price.multiplier.weight.item()])
    return path


def ours(equality: bool) -> list[list[float]]:
    x = start()
    c = ALMConstraint(measured, alpha=ALPHA, mu=MU, sense="==" if equality else ">=")
    sgd = SGD([x], lr=LR)
    path = []
    for at in range(STEPS):
        sgd.zero_grad()
        (objective(x) + c(x, at)).backward()
        sgd.step()
        c.step()
        path.append([*x.tolist(), c.multiplier])
    return path


@pytest.mark.parametrize("equality", [False, True], ids=[">=", "=="])
@pytest.mark.parametrize("dual_first", [True, False], ids=["dual first", "augmented, at once"])
def test_the_same_path_as_cooper(dual_first: bool, equality: bool) -> None:
    path, expected = ours(equality), theirs(dual_first, equality)
    for mine, their in zip(path, expected, strict=True):
        assert mine == pytest.approx(their, abs=1e-12)
    multipliers = [point[-1] for point in path]
    assert max(multipliers) > 0.1 and (equality or 0.0 in multipliers), "the gate closes and opens"
