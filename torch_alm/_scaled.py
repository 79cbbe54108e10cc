"""A step of which theta makes a multiple."""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor

from torch_alm import _aliases as aliases
from torch_alm import _gradients as gradients
from torch_alm._interrupts import Call


class Blend:
    """theta <- theta + scale * (the move of a step), or theta where that would not be finite.

    It begins where theta is; `calls` are for after the step.

    Args:
        params: those that the step moves.
        scale: the factor.

    Attributes:
        is_refused: whether theta stayed where it was.

    Cost: one copy of the parameters; with a scale beyond [0, 1], where the move grows, one
    synchronisation.
    """

    @torch.no_grad()
    def __init__(self, params: Iterable[Tensor], scale: float) -> None:
        owners = {id(t): (t, p) for p in params for t in [gradients.local(p)]}
        aliases.check([t for t, _ in owners.values()], 'DualOptimizer(scale="step")')
        theta = aliases.apart([t for t, _ in owners.values()])
        self.scale, self.is_refused = scale, False
        self._moves = [(t, t.clone(), owners[id(t)][1]) for t in theta]

    def calls(self) -> list[Call]:
        """Look at where theta would be, then go there or back, one tensor at a time."""
        return [self._look, *(partial(self._put, t, start) for t, start, _ in self._moves)]

    def _look(self) -> None:
        """Over all ranks: a factor up to 1 leads nowhere that the step itself did not."""
        if 0 <= self.scale <= 1:
            return
        beyond: dict[object, list[tuple[Tensor, Tensor]]] = {}
        for t, start, p in self._moves:
            flag = self._target(t, start).isfinite().logical_not().any().float()
            beyond.setdefault(gradients.kind(p), []).append((flag, p))
        counts = [
            gradients.over_shards(torch.stack([flag for flag, _ in group]).sum(), group[0][1])
            for group in beyond.values()
        ]
        self.is_refused = any(count.item() > 0 for count in counts)

    def _put(self, t: Tensor, start: Tensor) -> None:
        t.copy_(start if self.is_refused else self._target(t, start))

    def _target(self, t: Tensor, start: Tensor) -> Tensor:
        return torch.lerp(start, t, self.scale)
