"""A step of which theta makes a multiple."""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor

from torch_alm._guards import Call
from torch_alm._optim import aliases, gradients, shards


class Blend:
    """theta <- theta + scale * (the move of a step), or theta where that would not be finite.

    It begins where theta is; `calls` are for after the step that moves these parameters.

    Attributes:
        is_refused: whether theta stayed where it was.

    Cost: one copy of the parameters; with a scale beyond [0, 1], where the move grows, one
    synchronisation.
    """

    @torch.no_grad()
    def __init__(self, params: Iterable[Tensor], scale: float) -> None:
        owners = {id(t): (t, p) for p in params for t in [gradients.local(p)]}
        theta = [t for t, _ in owners.values()]
        if gradients.share_memory(theta):
            aliases.check(theta, 'DualOptimizer(scale="step")')
            theta = aliases.apart(theta)
        self.scale, self.is_refused = scale, False
        self._moves = [(t, t.clone(), owners[id(t)][1]) for t in theta]

    def calls(self) -> list[Call]:
        """List the calls that look at where theta would be, then go there or back, one by one."""
        return [self._look, *(partial(self._put, t, start) for t, start, _ in self._moves)]

    def _look(self) -> None:
        """Refuse, over all ranks; a factor up to 1 leads nowhere that the step itself did not."""
        if 0 <= self.scale <= 1:
            return
        counts: list[Tensor] = []
        for group in gradients.alike(self._moves, lambda move: move[2]):
            flags = [~start.lerp(t, self.scale).isfinite().all() for t, start, _ in group]
            count, like = torch.stack(flags).float().sum(), group[0][2]
            counts.append(shards.reduced(count, like) if gradients.is_sharded(like) else count)
        self.is_refused = any(count.item() > 0 for count in counts)

    def _put(self, t: Tensor, start: Tensor) -> None:
        if self.is_refused:
            t.copy_(start)
        else:
            torch.lerp(start, t, self.scale, out=t)
