"""A pair `(loss, value)` under SAM: the point nearby is the one where its loss is highest."""

from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM

RHO = 1.0


def forget(x: Tensor) -> Tensor:
    """|x|^2, which is 25 at (3, 4), and 16 and 36 at a distance of one from there."""
    return x.square().sum()


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("is_pair", [False, True])
@pytest.mark.parametrize(("sense", "worst"), [(">=", 16.0), ("<=", 36.0)])
def test_a_constraint_is_measured_where_it_is_hardest_to_meet(
    sense: Literal[">=", "<="], worst: float, is_pair: bool, every: int
) -> None:
    """Raise F, or descend a loss that raises it: both at the same point, by the same step."""
    x = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    side = (ReverseSAM if sense == ">=" else SAM)(SGD([x], 0.01), rho=RHO, every=every)
    pressed = ALMConstraint(None, 26.0, 1.0, sense=sense, multiplier=3.0)
    dual = DualOptimizer(SGD([x], 0.0), side, pressed)
    sign = -1 if sense == ">=" else 1
    objective = (lambda: (sign * forget(x), forget(x))) if is_pair else (lambda: forget(x))
    for _ in range(every):
        dual.backward(retain=lambda: x.sum(), forget=objective, weight=1 / every)
    dual.step()
    assert pressed.metrics()["value"] == pytest.approx(worst)
    nearby = torch.tensor([3.0, 4.0], dtype=torch.float64) * (1 + sign * RHO / 5)
    moved = (
        torch.tensor([3.0, 4.0], dtype=torch.float64) - 0.01 * pressed.weight * sign * 2 * nearby
    )
    torch.testing.assert_close(x.detach(), moved)
