"""A training loop as a constraint sees it: optimizer steps, and gradients before them.

The gradient of the measure is `autograd.grad`'s; what the loss made of the penalty is read from a
zero that is added to it, whose gradient is that factor.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from torch_alm._constraint.observations import is_distributed, over_ranks
from torch_alm._optim.gradients import is_sharded, parameters
from torch_alm._optim.wrapper import follow, unfollow

Gradient: TypeAlias = Mapping[Tensor, Tensor]

SQUARES = ("max_exp_avg_sq", "exp_avg_sq", "square_avg", "sum")  # in an optimizer's state
SCALES = 1 / 1024, 256.0  # a factor beyond is a loss scale, not a mean over micro-batches
TINY = 1e-38  # added to a divisor that may be 0
ALIKE, LOOKS = 8, 60  # norms in a row that are equal, early in a run: clipped


class Member(Protocol):
    """A constraint, as its hooks know it."""

    @property
    def observed(self) -> int: ...

    def step(self) -> object: ...

    def discard(self) -> None: ...


class Attachment:
    """A constraint's hooks on an optimizer; `remove()` takes them off."""

    def __init__(self, optimizer: Optimizer, member: Member, loop: "Loop | None") -> None:
        """Step the member after each step taken; show its loop the gradients before."""
        self._member, self._loop = member, loop
        self._optimizers = down_to_hooks(optimizer)
        for each in self._optimizers:
            follow(each, self)
        stepping = self._optimizers[-1]
        if loop is not None:
            loop.optimizer = stepping
        self._handles = [
            stepping.register_step_pre_hook(self._before_step),
            stepping.register_step_post_hook(self._after_step),
        ]

    def remove(self) -> None:
        """Take all hooks off."""
        for handle in self._handles:
            handle.remove()
        for each in self._optimizers:
            unfollow(each, self)

    def step_was_skipped(self) -> None:
        """Drop what was observed: a wrapper has left this optimizer's step out."""
        self._member.discard()

    def _before_step(self, optimizer: Optimizer, *_: object) -> None:
        if self._loop is not None:
            self._loop.read(optimizer)

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        found_inf = getattr(optimizer, "found_inf", None)  # which a GradScaler lends a fused one
        if isinstance(found_inf, Tensor) and found_inf.item() != 0:
            self.step_was_skipped()
        elif self._member.observed:
            self._member.step()


class Attachments(list[Attachment]):
    """The attachments of several constraints; `remove()` takes all off."""

    def remove(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take all hooks off."""
        for each in self:
            each.remove()


def down_to_hooks(optimizer: object) -> list[Optimizer]:
    """List the optimizer and those inside it, down to the first whose step runs hooks.

    A shell such as accelerate's is an `Optimizer` by its class alone: it was never initialised as
    one, and hands each step that is really taken on to its attribute `optimizer`.

    Raises:
        TypeError: if there is none.
    """
    found: Any = optimizer
    chain: list[Optimizer] = []
    while isinstance(found, Optimizer):
        chain.append(found)
        if "_optimizer_step_post_hooks" in vars(found):
            return chain
        found = vars(found).get("optimizer")
    raise TypeError(
        f"ALMConstraint.attach takes a torch.optim.Optimizer and found {type(optimizer).__name__}, "
        "which has no hooks for its steps. Did you mean the optimizer inside it?"
    )


class Response(NamedTuple):
    """The response of one step: G, <a, the step along a>, e |a|, |r| and |g|; see `auto.py`."""

    gain: float
    full: float
    norm: float
    rest: float
    total: float


class Loop:
    """The gradients of one step, between a penalty in the loss and the optimizer's step.

    Attributes:
        optimizer: the one that is attached to.
        found: what the step's gradients say, once they are known.
    """

    def __init__(self) -> None:
        self.optimizer: Optimizer | None = None
        self._norms: list[tuple[float, float]] = []
        self._looks = 0
        self.begin()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Let a copy begin anew: its parameters are others."""
        return Loop, ()

    def begin(self) -> None:
        """Begin a step, or begin it again."""
        self.found: Response | None = None
        self._factors: list[Tensor] = []
        self._a: dict[Tensor, Tensor] = {}
        self._acting: dict[Tensor, Tensor] = {}
        self.is_spoiled = False

    def watch(self, penalty: Tensor, c: Tensor, weight: float) -> Tensor:
        """Take grad c, which has this weight in the penalty; return one whose way can be seen."""
        if self.optimizer is None:
            return penalty
        params = [p for p in parameters(self.optimizer) if p.requires_grad]
        if any(is_sharded(p) or p.is_complex() for p in params):
            _refuse("found sharded parameters (FSDP2), of which each rank sees a part, or complex")
        if not c.requires_grad:
            self.is_spoiled = True
            return penalty
        found = torch.autograd.grad(c, params, retain_graph=True, allow_unused=True)
        for p, a in zip(params, found, strict=True):
            if a is not None:  # pyright: ignore[reportUnnecessaryComparison]
                self._a[p] = self._a.get(p, 0.0) + a.to_dense()
                self._acting[p] = self._acting.get(p, 0.0) + weight * a.to_dense()
        self._factors.append(torch.zeros_like(penalty, requires_grad=True))
        return penalty + self._factors[-1]

    @torch.no_grad()
    def read(self, optimizer: Optimizer) -> None:
        """Compare with what the optimizer is about to use."""
        if not self._a or self.is_spoiled:
            return
        count, kept = len(self._factors), self._factor(optimizer)
        mine, acting = self._over_ranks(self._a), self._over_ranks(self._acting)
        params = [p for p in parameters(optimizer) if p.grad is not None]
        a = {p: mine[p] / count for p in params if p in mine}
        acted = {p: acting[p] * (kept / count) for p in a}
        g = {p: p.grad for p in params if p.grad is not None}
        rest = {p: x - acted[p] if p in acted else x for p, x in g.items()}
        self.found = response(optimizer, a, rest, g, g, kept)
        if any(x.any() for x in acted.values()):
            self._check_clipping(self.found.total, float(sum(x.sum() for x in g.values())))

    def _factor(self, optimizer: Optimizer) -> float:
        """Return what the loss multiplied the penalty by, over all micro-batches."""
        if any(x.grad is None for x in self._factors):
            _refuse(
                "found a penalty that no `backward()` has passed: its gradient, if any, was added "
                "by hand"
            )
        kept = sum(float(x.grad) for x in self._factors if x.grad is not None)
        if vars(optimizer).get("grad_scale") is not None or not SCALES[0] < kept < SCALES[1]:
            _refuse(f"found a loss scale (GradScaler): the penalty was multiplied by {kept:g}")
        return kept

    def _over_ranks(self, mine: Gradient) -> dict[Tensor, Tensor]:
        """Average, as the engine does with `.grad`; nothing reduces what `autograd.grad` finds."""
        if not is_distributed():
            return dict(mine)
        assert self.optimizer is not None
        params = [p for p in parameters(self.optimizer) if p.requires_grad]
        ranks = dist.get_world_size()
        return {p: over_ranks(mine.get(p, torch.zeros_like(p))) / ranks for p in params}

    def _check_clipping(self, norm: float, total: float) -> None:
        """Refuse pushed gradients whose norm stays where it is while their entries' sum moves."""
        self._looks += 1
        self._norms = [*self._norms, (norm, total)][-ALIKE:]
        is_still = all(abs(each - norm) <= 1e-5 * norm for each, _ in self._norms)
        moves = any(abs(each - total) > 1e-3 * norm for _, each in self._norms)
        if ALIKE <= self._looks <= LOOKS and is_still and moves:
            _refuse(f"found gradients clipped to a norm of {norm:g}, penalty and all")


def response(
    optimizer: Optimizer,
    a: Gradient,
    rest: Gradient,
    g: Gradient,
    stepped: Gradient,
    kept: float = 1.0,
) -> Response:
    """Sum up over parameters what the optimizer's step along each of these would do.

    An adaptive step divides by sqrt(v), which vanishes with the gradient where objective and
    penalty cancel; what either of them would be alone, |r_i| and rho |a_i|, does not.

    Args:
        optimizer: whose step is about to be taken.
        a: grad c.
        rest: what is in `g` beside the penalty's gradient.
        g: the sum of both.
        stepped: what this optimizer steps on: `g`, or its part of it.
        kept: e.

    Cost: a few tensors as large as the largest parameter; a device synchronisation.
    """
    norm, others, total = (_norm(each.values()) for each in (a, rest, g))
    balance = others / norm if norm else 0.0
    gain = full = 0.0
    every = [(p, group) for group in optimizer.param_groups for p in group["params"]]
    for p, group in every:
        if p not in a:
            continue
        x, state = _flat(a[p]), optimizer.state.get(p, {})
        rate, root = preconditioner(group, state, _flat(stepped[p]))
        _, first = preconditioner(group, state, x)
        least = torch.maximum(abs(_flat(rest[p])) if p in rest else 0 * x, balance * abs(x))
        by = 1.0 if root is None else root + least + TINY
        alone = 1.0 if first is None else first + TINY
        gain += float((x * x / by).sum()) * rate
        full += float((x * x / alone).sum()) * rate
    return Response(kept * gain, full, kept * norm, others, total)


def preconditioner(
    group: Mapping[str, Any], state: Mapping[str, Any], g: Tensor
) -> tuple[float, Tensor | None]:
    """Return the rate of a step and what divides it entry by entry, None for lr times the gradient.

    An adaptive optimizer that has not stepped yet, or whose v is unknown, is one of signs: its
    first step is about lr in every entry.

    Raises:
        ValueError: if the group has no lr.
    """
    if group.get("lr") is None:
        raise ValueError(
            'mu="auto" reads from lr what a step will do, and a parameter group of the optimizer '
            f"has {'lr=None' if 'lr' in group else 'no lr'}. Did you mean a fixed one (Adafactor: "
            "`relative_step=False`), or a number for mu?"
        )
    taken = float(state.get("step", 0))
    rate = float(group["lr"]) / (1 + taken * group.get("lr_decay", 0.0))
    eps = group.get("eps") or 0.0
    eps = 0.0 if isinstance(eps, (tuple, list)) else float(eps)  # Adafactor's are of other things
    square = next((state[n] for n in SQUARES if isinstance(state.get(n), Tensor)), None)
    if square is not None and type(square) is not Tensor:
        _refuse(f"found moments that are {type(square).__name__}s, such as those of 8 bits")
    if square is not None and square.numel() == g.numel():
        is_biased = "betas" in group and taken > 0
        unbias = 1 - float(group["betas"][1]) ** taken if is_biased else 1.0
        return rate, (_flat(square) / unbias).sqrt() + eps
    if group.get("eps") or "betas" in group:
        return rate, abs(g) + eps
    return rate / (1 - group.get("momentum", 0.0)), None


def _flat(tensor: Tensor) -> Tensor:
    """Make a dense row in float64, where the device knows it: squares do not underflow."""
    wide = torch.float32 if tensor.device.type == "mps" else torch.float64
    return tensor.detach().to_dense().reshape(-1).to(wide)


def _norm(tensors: Iterable[Tensor]) -> float:
    return sum(float(_flat(x).square().sum()) for x in tensors) ** 0.5


def _refuse(found: str) -> NoReturn:
    raise RuntimeError(
        f'ALMConstraint: mu="auto" {found}; mu would be wrong by an unknown factor. Did you mean '
        "a number, such as mu=0.1?"
    )


def refuse_values() -> NoReturn:
    """Raise for a mu that nothing was ever found from."""
    _refuse(
        "needs the constraint's gradient and found values only, one that reaches no parameter of "
        "the optimizer, or one in the closure of its step (add `constraint(...)` to the loss, "
        "`attach(optimizer)` before the loop)"
    )
