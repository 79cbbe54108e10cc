"""The gradient of a constraint in one optimizer step: its own, and what the penalty made of it.

`torch.autograd.grad` finds it, which no engine reduces over ranks: that is done here. For sharded
parameters it finds nothing; a backward pass of its own does, which the engine reduces. What lies
between the penalty and the optimizer (a mean over micro-batches, a loss scale, clipping) is seen
from both ends: the gradient that arrives at the penalty, and `.grad` as the backward pass left it
next to `.grad` as it is stepped on.
"""

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torch_alm._constraint import checks
from torch_alm._constraint.auto import Response
from torch_alm._constraint.foretold import exact, flat
from torch_alm._constraint.observations import is_distributed, over_ranks
from torch_alm._constraint.response import loss_scale, pulls, response
from torch_alm._optim import gradients
from torch_alm._optim.gradients import is_sharded, parameters, some
from torch_alm._optim.shards import reduced
from torch_alm._optim.wrapper import innermost

ENTRIES = 1 << 16  # of one parameter, in which a factor on the penalty's way is read


class Look:
    """A hook that moves from one parameter to another, until `remove()` takes it off for good."""

    def __init__(self) -> None:
        self._handle: RemovableHandle | None = None
        self._is_removed = False

    def move(self, handle: RemovableHandle) -> None:
        """Take the hook off where it was; this one has its place."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = handle
        if self._is_removed:
            handle.remove()

    def remove(self) -> None:
        """Take it off."""
        self._is_removed = True
        if self._handle is not None:
            self._handle.remove()


class Probe:
    """A step's gradients, as far as they are known before it is taken.

    Attributes:
        has_seen: whether any step's response was ever read.
        is_blind: whether a measurement of this step had no gradient at all, as a constant one.
        blind: how many steps had one.
    """

    def __init__(self) -> None:
        self._optimizer: Callable[[], Optimizer | None] = lambda: None
        self._outer: Callable[[], Optimizer | None] = lambda: None
        self._leaf: Callable[[], Tensor | None] = lambda: None
        self._look = Look()
        self._pass = -1  # the backward pass of the latest gradient
        self.has_seen, self.blind = False, 0
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
        self.found, self.is_blind = None, False

    def follow(self, optimizer: Optimizer) -> list[Look]:
        """Read this optimizer's steps from now on; return the hooks."""
        self._optimizer = weakref.ref(_penalised_side(optimizer))
        self._outer = weakref.ref(optimizer)
        leaves = [p for p in parameters(optimizer) if p.is_leaf and p.requires_grad]
        if not leaves:
            return []
        self._look = Look()
        self._look_at(min(leaves, key=torch.numel))
        return [self._look]

    def _look_at(self, leaf: Tensor) -> None:
        """See what arrives at this parameter, and no longer at the one before."""
        me = weakref.ref(self)
        self._leaf, self._left = weakref.ref(leaf), None

        def after(p: Tensor) -> None:
            probe = me()
            if probe is not None:
                probe.see(p)

        self._look.move(leaf.register_post_accumulate_grad_hook(after))

    def see(self, leaf: Tensor) -> None:
        """Note what a backward pass has left in one `.grad`, if it went through the penalty.

        A forget side's pass leaves its gradient there for a moment only.
        """
        if self._share and leaf.grad is not None and not _is_aside(self._outer()):
            self._left = _seen(leaf.grad)

    def watch(self, penalty: Tensor, c: Tensor, weight: float) -> None:
        """Take grad c; when the penalty's backward comes, it counts."""
        params = self._parameters()
        if not (params and penalty.requires_grad):
            return
        if not c.requires_grad:
            found, self.is_blind = dict[Tensor, Tensor](), True
        else:
            found = _swept(c, params) if any(map(is_sharded, params)) else _found(c, params)
        leaf = self._leaf()
        if found and (leaf is None or leaf not in found or _is_hidden(found[leaf])):
            self._look_at(_shown(found))
        penalty.register_hook(lambda share: self._arrived(float(share), found, weight))

    def _parameters(self) -> Sequence[Tensor]:
        """List those to differentiate by."""
        optimizer = self._optimizer()
        params = [] if optimizer is None else parameters(optimizer)
        return [p for p in params if p.requires_grad]

    def _arrived(self, share: float, a: dict[Tensor, Tensor], weight: float) -> None:
        """Add up what reaches `.grad`, afresh where a backward pass starts from nothing.

        Raises:
            RuntimeError: in the closure of a step whose gradient has been read already.
        """
        now = torch._C._current_graph_task_id()  # pyright: ignore[reportPrivateUsage]
        before, self._pass = self._pass, now
        if self._pass != before and self._a and self._is_fresh():
            self.begin()
        if self.found is not None:
            checks.refuse_values()
        self._share += share
        for sums, factor in ((self._a, share), (self._acting, share * weight)):
            for p, g in a.items():
                sums[p] = sums[p].add(g, alpha=factor) if p in sums else g * factor

    def _is_fresh(self) -> bool:
        """Tell whether the gradients of the passes before have been cleared.

        Zeros tell it only where something was left: a closed gate leaves zeros.
        """
        if self._left is not None and not self._left.any():
            return all(p.grad is None for p in self._a)
        return all(map(_is_cleared, self._a))

    @torch.no_grad()
    def read(self, optimizer: Optimizer) -> None:
        """Find the response of the step that is about to be taken, if its gradient was seen."""
        if not self._average():
            return
        kept = self._kept()
        optimizer = _penalised_side(optimizer)
        seen = pulls(optimizer, self._a, self._acting, self._share, kept or 1.0)
        if seen:
            found = response(seen)
            acts = 1.0 if kept is None else abs(self._share) * kept / loss_scale(optimizer)
            self.take(found._replace(gain=acts * found.gain, norm=acts * found.norm))

    def take(self, found: Response) -> None:
        """Keep what the coming step says, until it is taken."""
        self.found, self.has_seen = found, True

    def _kept(self) -> float | None:
        """Tell what clipping or a loss scale has multiplied `.grad` by since the backward pass.

        None if that is not known.
        """
        leaf = self._leaf()
        if leaf is None or leaf.grad is None:
            return None
        now = _seen(leaf.grad)
        before = torch.zeros_like(now) if self._left is None else self._left
        products = torch.stack([before @ now, before @ before])
        found = reduced(products, leaf) if is_sharded(leaf) else products
        kept = float(found[0]) / max(float(found[1]), 1e-300)
        return kept if math.isfinite(kept) and kept > 0 else None

    def _average(self) -> bool:
        """Average over ranks, as the measurements are; tell whether there is anything."""
        if not is_distributed():
            return self._share != 0 and bool(self._a)
        params, leaf, ranks = self._parameters(), self._leaf(), dist.get_world_size()
        at = next((float(i) for i, p in enumerate(params) if p is leaf), -1.0)
        sums = torch.tensor([self._share, bool(self._a), at, at * at], dtype=torch.float64)
        shares, reached, index, square = over_ranks(sums).tolist()
        self._share = shares / ranks
        if self._share == 0 or not reached:
            return False
        for p in params:
            if not is_sharded(p):  # which the engine has averaged
                self._a[p] = over_ranks(self._a.get(p, torch.zeros_like(p))) / ranks
                self._acting[p] = over_ranks(self._acting.get(p, torch.zeros_like(p))) / ranks
        if ranks * square != index * index:  # they look at different ones: the scale is unknown
            self._left = None
        elif leaf is not None and not is_sharded(leaf):
            none = torch.zeros_like(_seen(leaf))
            self._left = over_ranks(none if self._left is None else self._left) / ranks
        return True


def _penalised_side(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that steps on the loss: of two sides, the one that retains."""
    side = vars(optimizer).get("retain")
    return innermost(side) if isinstance(side, Optimizer) else optimizer


def _seen(gradient: Tensor) -> Tensor:
    """Copy enough entries to meet some of the rows of an embedding that a batch has used."""
    return exact(some(flat(gradient), ENTRIES))


def _is_hidden(a: Tensor) -> bool:
    """Tell whether nothing would be seen there; ranks look at the same parameter, whatever is."""
    return not is_distributed() and not bool(_seen(a).any())


def _shown(found: dict[Tensor, Tensor]) -> Tensor:
    """Choose the smallest parameter that something is seen of, as of one side of a new LoRA."""
    order = sorted(found, key=torch.numel)
    return next((p for p in order if not _is_hidden(found[p])), order[0])


def _is_aside(optimizer: Optimizer | None) -> bool:
    """Tell whether `.grad` is lent to a forget side."""
    return optimizer is not None and vars(optimizer).get("_is_aside", False)


def _is_cleared(p: Tensor) -> bool:
    """Tell whether `.grad` is none or zero; a shard of nothing could not tell zero."""
    if p.grad is None:
        return True
    return not is_sharded(p) and not p.grad.is_sparse and not some(flat(p.grad), ENTRIES).any()


def _found(c: Tensor, params: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    """Differentiate, and leave `.grad` alone.

    Raises:
        RuntimeError: if `torch.compile` has given the graph's memory away.
    """
    try:
        a = torch.autograd.grad(c, params, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        if "donated" not in str(error):
            raise
        raise RuntimeError(
            "ALMConstraint: mu='auto' differentiates the measure apart from the loss, and "
            "`torch.compile` lets the first backward pass use up its memory. Did you mean "
            "`torch._functorch.config.donated_buffer = False`, or a number for mu?"
        ) from error
    return _there(params, a)


def _swept(c: Tensor, params: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    """Take what a backward pass leaves in `.grad`, and put back what was there.

    Raises:
        RuntimeError: if it leaves nothing.
    """
    before = gradients.take(params)
    try:
        backward = partial(Tensor.backward, retain_graph=True)
        gradients.differentiate(c, 1.0, backward, params, "ALMConstraint, mu='auto'")
        return _there(params, gradients.take(params))
    finally:
        gradients.put(params, before)


def _there(params: Sequence[Tensor], found: Sequence[Tensor | None]) -> dict[Tensor, Tensor]:
    """Leave out the parameters that there is no gradient for."""
    return {p: g.detach() for p, g in zip(params, found, strict=True) if g is not None}
