"""The gradient of a constraint in one optimizer step: its own, and what the penalty made of it.

`torch.autograd.grad` finds it, which no engine reduces over ranks: that is done here. What lies
between the penalty and the optimizer (a mean over micro-batches, a loss scale, clipping) is seen
from both ends: the gradient that arrives at the penalty, and `.grad` as the backward pass left it
next to `.grad` as it is stepped on.
"""

import math
import weakref
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torch_alm._constraint.auto import Response
from torch_alm._constraint.observations import is_distributed
from torch_alm._constraint.response import pulls, response, wide
from torch_alm._optim.gradients import is_sharded, parameters, some


class Probe:
    """A step's gradients, as far as they are known before it is taken.

    Attributes:
        has_seen: whether any step's response was ever read.
    """

    def __init__(self) -> None:
        """Start without an optimizer."""
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._leaf: weakref.ref[Tensor] | None = None
        self.has_seen = False
        self.found: Response | None = None
        self.begin()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Let a copy begin anew: its parameters are others."""
        return Probe, ()

    def begin(self) -> None:
        """Begin a step, or begin it again."""
        self._share = 0.0
        self._a: dict[Tensor, Tensor] = {}
        self._acting: dict[Tensor, Tensor] = {}
        self._left: Tensor | None = None
        self.found = None

    def follow(self, optimizer: Optimizer) -> list[RemovableHandle]:
        """Read this optimizer's steps from now on; return the hooks."""
        self._optimizer = weakref.ref(optimizer)
        leaves = [p for p in parameters(optimizer) if p.is_leaf and p.requires_grad]
        if not leaves:
            return []
        leaf, me = min(leaves, key=torch.numel), weakref.ref(self)
        self._leaf = weakref.ref(leaf)

        def after(p: Tensor) -> None:
            probe = me()
            if probe is not None:
                probe.see(p)

        return [leaf.register_post_accumulate_grad_hook(after)]

    def see(self, leaf: Tensor) -> None:
        """Note what a backward pass has left in one `.grad`, if it went through the penalty."""
        if self._share and leaf.grad is not None:
            self._left = some(wide(leaf.grad))

    def watch(self, penalty: Tensor, c: Tensor, weight: float) -> None:
        """Take grad c; when the penalty's backward comes, it counts."""
        params = self._parameters()
        if not (params and c.requires_grad and penalty.requires_grad):
            return
        a = torch.autograd.grad(c, params, retain_graph=True, allow_unused=True)
        found = {p: g.detach() for p, g in _pairs(params, a)}
        penalty.register_hook(lambda share: self._arrived(float(share), found, weight))

    def _parameters(self) -> Sequence[Tensor]:
        """List those to differentiate by.

        Raises:
            TypeError: if they are sharded.
        """
        optimizer = None if self._optimizer is None else self._optimizer()
        params = [] if optimizer is None else [p for p in parameters(optimizer) if p.requires_grad]
        refuse_shards(params)
        return params

    def _arrived(self, share: float, a: dict[Tensor, Tensor], weight: float) -> None:
        """Add up what reaches `.grad`, afresh where that starts from nothing."""
        leaf = None if self._leaf is None else self._leaf()
        if leaf is not None and leaf.grad is None:
            self.begin()
        self._share += share
        for sums, factor in ((self._a, share), (self._acting, share * weight)):
            for p, g in a.items():
                sums[p] = sums[p].add(g, alpha=factor) if p in sums else g * factor

    @torch.no_grad()
    def read(self, optimizer: Optimizer) -> None:
        """Find the response of the step that is about to be taken, if its gradient was seen."""
        if not self._over_ranks():
            return
        a = {p: g / self._share for p, g in self._a.items()}
        kept = self._kept()
        acting = {p: g * kept for p, g in self._acting.items()}
        lent = vars(optimizer).get("grad_scale")  # by a GradScaler that leaves it to the optimizer
        seen = pulls(optimizer, a, acting, 1.0 if lent is None else float(lent))
        if seen:
            self.take(response(seen))

    def take(self, found: Response) -> None:
        """Keep what the coming step says, until it is taken."""
        self.found, self.has_seen = found, True

    def _kept(self) -> float:
        """Tell what clipping or a loss scale has multiplied `.grad` by since the backward pass."""
        leaf = None if self._leaf is None else self._leaf()
        if leaf is None or leaf.grad is None or self._left is None:
            return 1.0
        before, now = self._left, some(wide(leaf.grad))
        kept = float(before @ now) / max(float(before @ before), 1e-300)
        return kept if math.isfinite(kept) and kept > 0 else 1.0

    def _over_ranks(self) -> bool:
        """Average over ranks, as the measurements are; tell whether there is anything."""
        if not is_distributed():
            return self._share != 0
        share = _summed(torch.tensor([self._share], dtype=torch.float64))
        self._share = float(share)
        if self._share == 0:
            return False
        ranks = dist.get_world_size()
        for p in self._parameters():
            self._a[p] = _summed(self._a.get(p, torch.zeros_like(p)))
            self._acting[p] = _summed(self._acting.get(p, torch.zeros_like(p))) / ranks
        leaf = None if self._leaf is None else self._leaf()
        if leaf is not None:
            none = torch.zeros_like(some(wide(leaf)))
            self._left = _summed(none if self._left is None else self._left) / ranks
        return True


def refuse_shards(params: Iterable[Tensor]) -> None:
    """Raise `TypeError` for parameters of which each rank has a part."""
    if any(map(is_sharded, params)):
        raise TypeError(
            "ALMConstraint: mu='auto' in the loss found sharded parameters (FSDP2 or tensor "
            "parallel), for which `torch.autograd.grad` gives nothing; mu would have stayed 0. Did "
            "you mean a `DualOptimizer`, which has the gradient anyway, a number for mu, or DDP?"
        )


def _pairs(
    params: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> list[tuple[Tensor, Tensor]]:
    """Leave out the parameters that there is no gradient for."""
    return [(p, g) for p, g in zip(params, gradients, strict=True) if g is not None]


def _summed(part: Tensor) -> Tensor:
    """Add up over ranks, in memory of its own and on a device the backend speaks to."""
    device = torch.device("cuda") if dist.get_backend() == "nccl" else part.device
    found = part.detach().to(device, copy=True)
    dist.all_reduce(found)
    return found.to(part.device)
