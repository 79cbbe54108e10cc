"""DualOptimizer: two optimizer states over one theta, and a constraint between them.

Source: Algorithm 1 of SAUL (sections 4.1 to 4.3).
"""

# pyright: reportPrivateUsage=false

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal, NamedTuple, SupportsIndex, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm._dual import checks
from torch_alm._dual.states import PairedWrapper
from torch_alm._optim import gradients
from torch_alm._optim.gradients import Backward, Register
from torch_alm._optim.objective import Ask, Evaluation, Objective, Passes, eager
from torch_alm._optim.wrapper import mark_called
from torch_alm.constraint import ALMConstraint
from torch_alm.perturb import Direction
from torch_alm.sam import SharpnessAware


class Losses(NamedTuple):
    """Both losses of `DualOptimizer.backward`, detached: at the perturbed points under SAM.

    `forget` is `nan` in a step that does not measure (`probe_every`).
    """

    retain: Tensor
    forget: Tensor


@final
class DualOptimizer(PairedWrapper):
    r"""Retain and forget with a state each, the forget side gated by a constraint (SAUL).

    `backward` takes both gradients at the same theta. `step` is the rest of Algorithm 1:

        c = alpha - F,   lambda+ = [lambda + mu c]_+
        if lambda+ > 0:  theta <- forget(theta, -lambda+ grad F)
        theta <- retain(theta, grad L_r);   lambda <- lambda+

    With `SAM` and `ReverseSAM` as the sides, gradients and F are those at the perturbed points, and
    this is SAUL. When lambda+ = 0 the forget optimizer is not touched.

    The forget objective *is* the measured quantity: raised for a constraint `">="` (with
    `ReverseSAM` or a plain optimizer), lowered for `"<="` (with `SAM` or a plain one). It may
    return a pair `(loss, value)`: then `loss` is descended, under SAM of either kind where it is
    highest nearby, and `value` is what the constraint sees.

    Args:
        retain: the optimizer of the retain side, plain or `SAM`.
        forget: the optimizer of the forget side, over the same parameters. Two AdamW decay twice on
            open-gate steps: give this one `weight_decay=0`.
        constraint: an `ALMConstraint`; `None` is Dual AdamW, the forget objective raised with
            weight 1, always on.
        scale: `"gradient"` multiplies the forget gradient by lambda+ before its optimizer, as the
            paper does (under Adam almost only a gate); `"step"` multiplies the finished step, and
            takes a number for mu.
        backward: receives the raw losses of both sides and owns all scaling; overrides that of the
            sides. Settable later as `backward_fn`.
        probe_every: while the gate is closed and lambda is 0, measure the forget objective on every
            `probe_every`-th step only, at once where alpha, lambda, mu or the constraint is another
            one; 1 is Algorithm 1. Windows and cadences of the constraint count measured steps.
        reshard: called after a forget forward whose backward is skipped (`backward(last=True)`).
            FSDP2 needs it: let it call `reshard()` on every `FSDPModule`. Without it nothing is
            skipped for sharded parameters, which would go on with stale weights.

    Raises:
        TypeError: if a side is no optimizer, needs a closure, or has parameters of FSDP1.
        ValueError: if the sides have different parameters, the sense does not fit the forget
            optimizer, `scale` is unknown, or `probe_every` below 1.

    Attributes:
        skipped: forget steps left out because what would have reached theta was not finite.

    Cost per step: 2 forward and 2 backward passes with plain sides, 4 and 4 with SAM on both, less
    while the gate is closed. Memory for both gradients; one copy of the parameters with SAM, one
    with `scale="step"`. On an accelerator two synchronisations.

    Source: SAUL, Algorithm 1.

    Example:
        >>> theta = torch.nn.Parameter(torch.tensor([0.0]))
        >>> retain, forget = (torch.optim.SGD([theta], lr=0.1) for _ in range(2))
        >>> optimizer = DualOptimizer(retain, forget, ALMConstraint(None, alpha=1.0, mu=1.0))
        >>> for _ in range(200):  # min theta^2 subject to theta >= 1
        ...     losses = optimizer.backward(
        ...         retain=lambda: theta.square().sum(), forget=lambda: theta.sum()
        ...     )
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> round(theta.item(), 3), round(optimizer.constraint.multiplier, 3)
        (1.0, 2.0)
    """

    def __init__(
        self,
        retain: Optimizer,
        forget: Optimizer,
        constraint: ALMConstraint | None = None,
        *,
        scale: Literal["gradient", "step"] = "gradient",
        backward: Backward | None = None,
        probe_every: SupportsIndex = 1,
        reshard: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(retain, forget, probe_every)
        if scale not in ("gradient", "step"):
            raise ValueError(
                f'DualOptimizer: scale is {scale!r}; it is "gradient" (the paper) or "step".'
            )
        self.constraint: ALMConstraint | None = constraint
        self.scale = scale
        self._check_constraint()
        self.backward_fn = backward
        self.reshard = reshard
        for side in self._sharp:  # they perturb one after the other
            side.memory = self._sharp[0].memory

    @eager
    def backward(
        self, *, retain: Objective, forget: Objective, weight: float = 1.0, last: bool = False
    ) -> Losses:
        """Add both gradients, taken at the same theta; the constraint observes the forget value.

        Args:
            retain: the objective that is lowered.
            forget: the measured quantity, or a pair `(loss, value)`; see the class.
            weight: scales the gradients only (1/K when accumulating over K micro-batches); among
                several observations of a step it is the weight of this one.
            last: promise that `step()` comes next. lambda+ is then decided once the forget value is
                known; if the gate will be closed the backward pass behind it is skipped.

        Raises:
            TypeError, ValueError: if an objective returns something else or calls the constraint
                itself, whose sense has to fit. All is as before then, as if an objective raises.
            RuntimeError: after a `backward(last=True)` of the same step; if gradients do not
                arrive (as of another model's loss), or weights move inside a backward pass.
        """
        if (self.constraint, self.scale) != self._fitting:  # they may be set at any time
            self._check_constraint()
        if gradients.group_signature(*self._stateful) != self._checked:
            self._check()
        self._begin()
        params = self._listed
        with self._undo_on_error(params) as g_r:
            g_r, retained = self._gradient(self.retain, params, g_r, retain, weight)
            so_far, forgotten = self._forget_register or {}, retained.loss * math.nan
            g_f = [so_far.get(p) for p in params]  # parameters added meanwhile have nothing
            if self._gate.measures:
                g_f, forgotten = self._measure(params, g_f, forget, weight, last=last)
        gradients.put(params, g_r)
        self._forget_register = dict(zip(params, g_f, strict=True))
        self._gate.is_decided = last
        return Losses(retained.loss, forgotten)

    def _begin(self) -> None:
        """Begin a step, or go on with it: all of its micro-batches measure, or none."""
        if self._forget_register is None:
            self._gate.begin(self.constraint, self.probe_every)
            self._times = 0.0
        if self._gate.is_decided:
            raise RuntimeError(
                "DualOptimizer.backward after `backward(last=True)`: lambda+ of this step is "
                "decided, and the forget gradient may have been skipped. Did you mean `last=True` "
                "for the last micro-batch only, or `zero_grad()` after a step that was dropped?"
            )
        if not self._gate.measures and isinstance(self.forget, SharpnessAware):
            self.forget.direction = Direction()  # a delta of before the pause

    @contextmanager
    def _undo_on_error(self, params: list[Tensor]) -> Iterator[Register]:
        """Take the gradients out; after an exception all is as before."""
        constraint, g_r = self.constraint, gradients.take(params)
        directions = [side.direction for side in self._sharp]
        observed = 0 if constraint is None else constraint.observed
        try:
            yield g_r
            expected = observed + self._gate.measures
            if constraint is not None and constraint.observed > expected:
                checks.refuse_observed()
        except BaseException:
            gradients.put(params, g_r)
            for side, direction in zip(self._sharp, directions, strict=True):
                side.direction = direction
            if constraint is not None:
                constraint.discard(keep=observed)
            raise

    def _gradient(
        self,
        side: Optimizer,
        params: list[Tensor],
        so_far: Register,
        objective: Objective,
        weight: float,
        *,
        pair: bool = False,
        wanted: Ask | None = None,
    ) -> tuple[Register, Evaluation]:
        """g <- g + weight * Grad_SAM(theta, L, rho, mode), or the plain gradient."""
        is_sharp = isinstance(side, SharpnessAware)
        backward = self.backward_fn or (side.backward_fn if is_sharp else Tensor.backward)
        passes = Passes(objective, weight, backward, params, "DualOptimizer.backward", pair=pair)
        accumulate = side._accumulate if is_sharp else Passes.accumulate
        found = accumulate(passes, so_far, wanted)
        return gradients.take(params), found

    def _measure(
        self, params: list[Tensor], g_f: Register, forget: Objective, weight: float, *, last: bool
    ) -> tuple[Register, Tensor]:
        """g_f, and c <- alpha - F(theta + delta), which decides of the `last` if g_f is needed."""
        constraint, wanted = self.constraint, None
        if constraint is not None and last and self._may_skip(params, constraint):
            wanted = partial(self._decide_gate, constraint, weight)
        given = self.forget, params, g_f, forget, weight
        g_f, seen = self._gradient(*given, pair=True, wanted=wanted)
        sign = +1 if seen.paired or self._is_lowered else -1
        if self._forget_register is not None and sign != self._forget_sign:
            checks.refuse_signs()
        self._forget_sign = sign
        self._times = self._times + seen.times
        if constraint is not None and wanted is None:
            constraint.observe(seen.value, weight=weight)
        return g_f, seen.loss

    def _may_skip(self, params: list[Tensor], constraint: ALMConstraint) -> bool:
        # A forward without a backward does harm to shards: they stay gathered.
        is_safe = self.reshard is not None or not any(map(gradients.is_sharded, params))
        return is_safe and not (self._finds_mu and constraint._wants_gradient)

    def _decide_gate(self, constraint: ALMConstraint, weight: float, value: Tensor) -> bool:
        """Take in a step's last value; return whether its gate is open."""
        constraint.observe(value, weight=weight)
        is_open = float(constraint.preview()) != 0
        self._gate.is_skipped = not is_open
        if not is_open and self.reshard is not None:
            self.reshard()
        return is_open

    @eager
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Commit: lambda+; the forget step if lambda+ > 0; the retain step.

        Without a `backward` since the last step it is a plain retain step, warns once and leaves
        lambda alone. A forget gradient that is not finite, also once lambda+ multiplies it, skips
        the forget step, with a warning, and lambda stays; so does, with `scale="step"`, a multiple
        of its move that would make a weight infinite (its moments have moved then).

        Raises:
            TypeError: for a closure, which could not say which side it differentiates.
            RuntimeError: under a GradScaler, which would unscale one side only; where something
                assigned since `backward(last=True)` opens the gate that skipped its gradient.
        """
        if closure is not None or "found_inf" in vars(self):  # which a GradScaler lends
            checks.refuse_step(self, closure)
        weight, g_f = self._update()  # lambda+
        forget = self._forget_step if self.scale == "gradient" else self._multiplied_step
        is_finite = weight == 0 or forget(weight, g_f)
        del g_f  # memory for the next
        self.retain.step()
        if not is_finite:
            if self.constraint:
                self.constraint.multiplier = self._gate.multiplier
            self.skipped += 1
            checks.warn_skipped(self.skipped)

    def _update(self) -> tuple[float, Register]:
        """lambda <- lambda+ = [lambda + mu c]_+, beside the forget gradient it is for."""
        register, self._forget_register = self._forget_register, None
        g_f = [(register or {}).get(p) for p in self._listed]
        constraint, weight = self.constraint if self._gate.measures else None, 0.0
        if register is None:
            if not self._has_warned:
                self._has_warned = True
                checks.warn_no_backward(self.retain)
        else:
            if constraint is not None and self._finds_mu and constraint._wants_gradient:
                self._calibrate(constraint, g_f)
            weight = self._gate.commit(self.constraint)
        if weight == 0:
            mark_called(self.forget)
        return weight, g_f

    def _forget_step(self, weight: float, g_f: Register) -> bool:
        """theta <- forget(theta, sign * lambda+ * g_f), the retain gradient kept aside.

        Returns whether what it steps on is finite; if not, it takes no step.
        """
        gradients.scale_(g_f, self._forget_sign * weight)
        if not math.isfinite(gradients.norm(g_f)):
            mark_called(self.forget)
            return False
        g_r = gradients.read(self._listed)
        gradients.put(self._listed, g_f)
        try:
            self.forget.step()
        finally:
            gradients.put(self._listed, g_r)
        return True

    def _multiplied_step(self, weight: float, g_f: Register) -> bool:
        """theta <- theta + |lambda+| (forget(theta, +-g_f) - theta); return if it is finite."""
        params, times = self._listed, abs(weight)
        moved = [gradients.shard(p) for p, g in zip(params, g_f, strict=True) if g is not None]
        start = [t.clone() for t in moved]
        if not self._forget_step(math.copysign(1.0, weight), g_f):
            return False
        for t, origin in zip(moved, start, strict=True):
            torch.lerp(origin, t, times, out=t)
        if times <= 1 or math.isfinite(gradients.norm(p.detach() for p in params)):
            self._has_moved = self._has_moved or checks.watch_swallowed(moved, start)
            return True
        for t, origin in zip(moved, start, strict=True):
            t.copy_(origin)
        return False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear both gradients, and what the constraint observed while they were taken."""
        if set_to_none:
            gradients.clear(gradients.parameters(self._stateful[0]))
        else:
            super().zero_grad(set_to_none=False)
        if self._forget_register is not None and self.constraint is not None:
            self.constraint.discard()
        self._forget_register = None
