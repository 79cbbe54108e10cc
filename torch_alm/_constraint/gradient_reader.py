"""The gradients of a training step, as a constraint in its loss sees them.

The gradient of the measure is `autograd.grad`'s; what the loss made of the penalty is read from a
zero that is added to it, whose gradient is that factor.
"""

import warnings
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torch_alm._constraint.observations import is_distributed, sum_over_ranks
from torch_alm._optim.gradients import is_sharded, parameters
from torch_alm._optim.objective import find_outside, walk
from torch_alm._optim.steps import Gradient, Response, inner, refuse, response


class GradientReader:
    """The gradients of one step, between a penalty in the loss and the optimizer's step.

    Attributes:
        optimizer: the one that is attached to.
        found: what the step's gradients say, once they are known.
    """

    def __init__(self) -> None:
        self.optimizer: Optimizer | None = None
        self._has_read, self._arrived = False, list[tuple[Tensor, Tensor]]()
        self.begin()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Let a copy begin anew: its parameters are others."""
        return GradientReader, ()

    def begin(self) -> None:
        """Begin a step, or begin it again."""
        self.found: Response | None = None
        self._factors: list[tuple[Tensor, float]] = []
        self._a: dict[Tensor, Tensor] = {}

    def attach(self, optimizer: Optimizer) -> RemovableHandle:
        """Read what this optimizer is about to use."""
        self.optimizer = optimizer
        smallest = min(parameters(optimizer), key=lambda p: (not p.requires_grad, p.numel()))
        if smallest.requires_grad and not is_distributed():  # engines reduce what arrives
            smallest.register_post_accumulate_grad_hook(self._keep)
        return optimizer.register_step_pre_hook(self.read)

    def watch(self, penalty: Tensor, c: Tensor, weight: float) -> Tensor:
        """Take grad c, which has this weight in the penalty; return one whose way can be seen."""
        if self.optimizer is None or not c.requires_grad:
            return penalty
        params = [p for p in parameters(self.optimizer) if p.requires_grad]
        if any(is_sharded(p) or p.is_complex() for p in params):
            refuse("found sharded parameters (FSDP2), of which each rank sees a part, or complex")
        if not self._has_read:
            _check_graph(c, params)
        found = torch.autograd.grad(c, params, retain_graph=True, allow_unused=True)
        for p, a in zip(params, found, strict=True):
            if a is not None:  # pyright: ignore[reportUnnecessaryComparison]
                self._a[p] = self._a.get(p, 0.0) + a.to_dense()
        self._factors.append((torch.zeros_like(penalty, requires_grad=True), weight))
        return penalty + self._factors[-1][0]

    @torch.no_grad()
    def read(self, optimizer: Optimizer, *_: object) -> None:
        """Compare with what the optimizer is about to use."""
        if not self._a:
            return
        found, count = [zero.grad for zero, _ in self._factors], len(self._factors)
        if any(each is None for each in found):
            refuse("found a penalty, added by hand if at all, that no `backward()` has passed")
        kept = sum(float(each) for each in found if each is not None)  # e, over micro-batches
        pull = kept * sum(weight for _, weight in self._factors) / count
        sums = _average_over_ranks(optimizer, self._a)
        g = {p: p.grad for p in parameters(optimizer) if p.grad is not None}
        a = {p: sums[p] / count for p in g if p in sums}
        rest = {p: x - pull * a[p] if p in a else x for p, x in g.items()}
        if inner(rest, rest) <= max(torch.finfo(x.dtype).eps for x in g.values()) * inner(g, g):
            rest = {}  # rounding of the difference, and no price
        gain, balance, is_plain = response(optimizer, a, rest, g)
        self.found = kept * gain, balance / kept, is_plain
        self._check_arrived(optimizer)
        self._has_read = True

    def _keep(self, p: Tensor) -> None:
        self._arrived = [(p, p.grad.to_dense().clone())]  # pyright: ignore[reportOptionalMemberAccess]

    def _check_arrived(self, optimizer: Optimizer) -> None:
        """Refuse gradients that are others than `backward()` left; later in a run, warn."""
        now = [(p.grad.to_dense(), then) for p, then in self._arrived if p.grad is not None]
        if vars(optimizer).get("grad_scale") is None and all(torch.equal(*pair) for pair in now):
            return
        try:
            refuse("found gradients that a loss scale (GradScaler) or clipping changed")
        except RuntimeError as error:
            if not self._has_read:
                raise
            warnings.warn(str(error), stacklevel=5)


def _average_over_ranks(optimizer: Optimizer, mine: Gradient) -> Gradient:
    """Average, as the engine does with `.grad`; nothing reduces what `autograd.grad` finds."""
    if not is_distributed():
        return mine
    params = [p for p in parameters(optimizer) if p.requires_grad]
    ranks = dist.get_world_size()
    return {p: sum_over_ranks(mine.get(p, torch.zeros_like(p))) / ranks for p in params}


def _check_graph(c: Tensor, params: list[Tensor]) -> None:
    """Refuse a measure whose gradient goes where nothing of it is seen."""
    if any(type(node).__name__ == "CheckpointFunctionBackward" for node in walk(c)):
        refuse("found checkpoint(use_reentrant=True), which hides gradients (False does not)")
    leaves = find_outside(walk(c), params)
    if others := sum(isinstance(leaf, torch.nn.Parameter) for leaf in leaves):
        steps = "another optimizer, or none, steps (freeze those that none does)"
        refuse(f"found {others} weights behind the measure that {steps}")


def refuse_values() -> NoReturn:
    """Raise for a mu that nothing was ever found from."""
    refuse(
        "needs the constraint's gradient and found values only, or one that reaches no parameter "
        "of the optimizer (`constraint(...)` in the loss, `attach(optimizer)` before the loop)"
    )
