"""mu="auto" between two optimizers over one theta: what their next steps will do to c."""

# pyright: reportPrivateUsage=false

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from torch_alm._constraint.base import ConstraintBase
from torch_alm._constraint.observations import is_distributed, over_ranks
from torch_alm._constraint.response import one_weight, sides
from torch_alm._optim import gradients
from torch_alm._optim.gradients import Register, parameters


def needs_gradient(constraint: ConstraintBase | None) -> bool:
    """Tell whether this step's forget gradient is needed, whatever its weight will be."""
    return constraint is None or constraint._wants_gradient


class Begun(NamedTuple):
    """Two steps that are about to be taken.

    Attributes:
        retain: the retain side, whose gradients are in `.grad`.
        forget: the forget side.
        register: its gradients.
        sign: +1 if it descends them, -1 if it climbs.
        times: how many times grad c is in the register, on this rank.
    """

    retain: Optimizer
    forget: Optimizer
    register: Register
    sign: int
    times: float | Tensor

    @torch.no_grad()
    def foretell(self, constraint: ConstraintBase, scale: str) -> Callable[[float], float]:
        """Tell a constraint that finds its mu what this step says; return how to aim a weight.

        Of a finished forget step the share is made that, with the retain step, ends the violation:
        `aim.py`. None is made if the weight is 0.
        """
        if not constraint._observed:  # its `step()` says so
            return float
        params = parameters(self.retain)
        both = list(zip(params, self.register, gradients.read(params), strict=True))
        f = {p: g for p, g, _ in both if g is not None}
        r = {p: g for p, _, g in both if g is not None}
        if scale == "gradient":
            if f and constraint._wants_gradient:
                weight = constraint._coming_weight()
                found = one_weight(self.forget, r, f, self.sign, weight)
                constraint._probe.take(found._replace(gain=found.gain / self._share()))
            return float
        steps = sides(self.retain, self.forget, r, f, self.sign) if f else None
        if steps:
            total = self._share()
            steps = steps._replace(gain=steps.gain / total, drift=steps.drift / total)
        if steps and constraint._wants_gradient:
            constraint._probe.take(steps.response)
        auto = constraint._state.auto
        if auto is None or constraint.sense == "==":
            return float
        return partial(auto.aim, steps)

    def _share(self) -> float:
        """Return how many times grad c the register is: a sum over micro-batches, clipped.

        Cost: a synchronisation if it was clipped or scaled on a device, a reduction if there are
        ranks.
        """
        total = float(self.times)
        if is_distributed():
            total = float(over_ranks(torch.tensor(total, dtype=torch.float64)))
            total /= dist.get_world_size()
        return total or 1.0  # all of it was clipped away: the register is 0
