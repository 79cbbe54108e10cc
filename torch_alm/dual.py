"""DualOptimizer: two optimizer states over one theta, and a constraint between them.

Source: Algorithm 1 of SAUL (sections 4.1 to 4.3).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, SupportsIndex, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm import _guards as guards
from torch_alm._constraint.between import Begun, needs_gradient
from torch_alm._guards import Call, eager, held
from torch_alm._optim import checks, gradients, scaler
from torch_alm._optim.blend import Blend
from torch_alm._optim.gate import Gate, check_sense
from torch_alm._optim.gradients import Backward, Register, parameters
from torch_alm._optim.objective import Ask, Evaluation, Objective, ObjectiveOptimizer, Run, placed
from torch_alm._optim.settings import Setting
from torch_alm._optim.sides import Sides
from torch_alm._optim.steps import Taking, count_as_called, step_of
from torch_alm.constraint import ALMConstraint


class Losses(NamedTuple):
    """Both losses of `DualOptimizer.backward`, detached: at the perturbed points under SAM.

    `forget` is `nan` in a step that does not measure (`probe_every`).
    """

    retain: Tensor
    forget: Tensor


@final
class DualOptimizer(Sides):
    r"""Retain and forget with a state each, the forget side gated by a constraint (SAUL).

    `backward` takes both gradients at the same theta. `step` is the rest of Algorithm 1:

        c = alpha - F,   lambda+ = [lambda + mu c]_+
        if lambda+ > 0:  theta <- forget(theta, -lambda+ grad F)
        theta <- retain(theta, grad L_r);   lambda <- lambda+

    With `SAM` and `ReverseSAM` as the sides, both gradients and F are those at the perturbed
    points, and this is SAUL. When lambda+ = 0 the forget optimizer is not touched: neither its
    moments nor its step count nor its weight decay.

    The forget objective *is* the measured quantity: it is raised for a constraint `">="` (with
    `ReverseSAM` or a plain optimizer) and lowered for `"<="` (with `SAM` or a plain one). It may
    return a pair `(loss, value)`: then `loss` is descended, whatever the sense, under SAM of either
    kind at the point nearby where it is highest; `value` is what the constraint sees there.
    `constraint.measure` is never called here.

    Args:
        retain: the optimizer of the retain side, plain or `SAM`.
        forget: the optimizer of the forget side, over the same parameters. Two AdamW decay twice on
            open-gate steps: give this one `weight_decay=0`.
        constraint: an `ALMConstraint`; `None` is Dual AdamW, the forget objective raised with
            weight 1, always on.
        scale: `"gradient"` multiplies the forget gradient by lambda+ before its optimizer, as the
            paper does; under Adam, which ignores constant factors, lambda+ is then almost only a
            gate. `"step"` multiplies the finished step, so that pressure is proportional; with
            `mu="auto"` lambda+ says whether, and a foretold share of the step brings c to 0.
        backward: receives the raw losses of both sides and owns all scaling; overrides that of the
            sides. Settable later as `backward_fn`.
        probe_every: while the gate is closed and lambda is 0, measure the forget objective on every
            `probe_every`-th step only; 1 is Algorithm 1. With `"auto"` half of the way to the
            earliest violation, as the measure moved of late, and after 16 steps at most: one that
            comes more than twice as fast is seen up to 15 steps late; another alpha, lambda or
            constraint, or a larger rho, at once. Under SAM, in steps of one micro-batch and without
            a filter, its forward at theta tells first whether the rest could find the gate open.
            Windows and cadences of the constraint count measured steps.
        reshard: called after a forget forward whose backward is skipped (`backward(last=True)`).
            FSDP2 needs it, or goes on with stale weights: let it call `reshard()` on every
            `FSDPModule`. Without it nothing is skipped for sharded parameters.

    Raises:
        TypeError: if a side is no optimizer, one that needs a closure, itself a `DualOptimizer`, or
            has parameters that FSDP1 or DeepSpeed have sharded (FSDP2 is welcome).
        ValueError: if the sides have different parameters, or the sense does not fit the forget
            optimizer, `scale` is unknown, or `probe_every` below 1.

    Attributes:
        retain: the retain side, as given.
        forget: the forget side, as given.
        constraint: the constraint, as given.
        skipped: forget steps left out because what would have reached theta was not finite.

    Cost per step: 2 forward and 2 backward passes with plain sides, 4 and 4 with SAM on both. While
    the gate is closed `backward(last=True)` takes 1 backward pass less, and a step that does not
    measure is one of the retain side, with a forward of the other at most. Memory for both
    gradients; one copy of the parameters with SAM, one with `scale="step"`. On an accelerator one
    synchronisation, the constraint's, two while a forecast gate is closed; with `last=True` and an
    open gate also a wait for the norm of the forget gradient. `mu="auto"` with `scale="step"` takes
    another (three where `fused` or `capturable` count steps), and the time of three steps of AdamW.

    Source: SAUL, Algorithm 1.

    Example:
        >>> from torch.optim import SGD
        >>> theta = torch.nn.Parameter(torch.tensor([0.0]))
        >>> optimizer = DualOptimizer(
        ...     retain=SGD([theta], lr=0.1),
        ...     forget=SGD([theta], lr=0.1),
        ...     constraint=ALMConstraint(None, alpha=1.0, mu=1.0),
        ... )
        >>> for _ in range(200):  # min theta^2 subject to theta >= 1
        ...     losses = optimizer.backward(
        ...         retain=lambda: theta.square().sum(), forget=lambda: theta.sum()
        ...     )
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> round(theta.item(), 3), round(optimizer.constraint.multiplier, 3)
        (1.0, 2.0)
    """

    scale = Setting(checks.scale)

    def __init__(
        self,
        retain: Optimizer,
        forget: Optimizer,
        constraint: ALMConstraint | None = None,
        *,
        scale: Literal["gradient", "step"] = "gradient",
        backward: Backward | None = None,
        probe_every: SupportsIndex | Literal["auto"] = "auto",
        reshard: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(retain, forget, constraint, Gate(checks.cadence(probe_every)))
        self.scale = scale
        self.backward_fn = backward
        self.reshard = reshard

    @eager
    def backward(
        self,
        *,
        retain: Objective,
        forget: Objective,
        weight: float = 1.0,
        last: bool = False,
    ) -> Losses:
        """Add both gradients, taken at the same theta; the constraint observes the forget value.

        `.grad` receives the retain side's, a register of our own the forget side's.

        Args:
            retain: the objective that is lowered.
            forget: the measured quantity, or a pair `(loss, value)`; see the class.
            weight: scales the gradients only (1/K when accumulating over K micro-batches); among
                several observations of a step it is the weight of this one.
            last: promise that `step()` comes next. lambda+ is then decided once the forget value is
                known; if the gate will be closed the backward pass behind it is skipped.

        Returns:
            Both losses, detached, at the perturbed points under SAM.

        Raises:
            TypeError, ValueError: if an objective returns something else, or the constraint's sense
                no longer fits the forget side. All is as before then, as if an objective raises.
            RuntimeError: after a `backward(last=True)` of the same step; or if gradients do not
                arrive, as under FSDP2 without gradient sync.

        Cost: 1 forward and 1 backward pass per plain side, 2 and 2 per SAM side.
        """
        so_far = self._forget_register
        if so_far is not None and self._gate.is_decided:
            self._refuse_another()
        check_sense(self.constraint, self.forget)  # which may be set at any time
        params = parameters(self.retain)
        undo = guards.remember(*filter(None, (self.constraint, self._gate)))
        sides = [s for s in (self.retain, self.forget) if isinstance(s, ObjectiveOptimizer)]
        uses = [side.uses for side in sides]
        before: Register | None = None
        try:
            if so_far is None:  # all micro-batches of a step measure, or none
                self._gate.begin(self.constraint, weight, self.forget, last=last)
                self._times = 0.0
            with held():
                before = gradients.take(params)
            with placed("DualOptimizer.backward, on the retain side"):
                g_r, retained = self._side(self.retain, params, before, retain, weight)
            register = [(so_far or {}).get(p) for p in params]
            self._gate.is_decided, self._gate.batches = last, self._gate.batches + 1
            if self._gate.measures:
                self._is_aside = True
                with placed("DualOptimizer.backward, on the forget side"):
                    register, forgotten = self._forget(params, register, forget, weight)
            else:
                forgotten = torch.full_like(retained.loss, math.nan)
            if not self._gate.measures and isinstance(self.forget, ObjectiveOptimizer):
                self.forget.renew()  # a delta of before the pause
            with held():
                self._is_aside = False
                gradients.put(params, g_r)
                self._forget_register = dict(zip(params, register, strict=True))
            return Losses(retained.loss, forgotten)
        except BaseException:
            with held():
                self._is_aside = False
                if before is not None:
                    gradients.put(params, before)
                self._forget_register = so_far
                for side, count in zip(sides, uses, strict=True):
                    side.uses = count
                undo()
            raise

    def _forget(
        self, params: list[Tensor], register: Register, objective: Objective, weight: float
    ) -> tuple[Register, Tensor]:
        """Take the forget side's gradient and loss; the constraint observes its value."""
        # A forward without a backward does harm to shards: they stay gathered.
        may_skip = self.reshard is not None or not any(map(gradients.is_sharded, params))
        gate, constraint, asks = self._gate, self.constraint, dict[str, Ask]()
        may_skip = may_skip and (gate.is_decided or gate.looks)
        if constraint is not None and may_skip and not needs_gradient(constraint):
            asks["ahead"] = partial(self._asked, partial(gate.goes_on, constraint))
            if gate.is_decided:
                asks["wanted"] = partial(self._asked, partial(gate.opens, constraint, weight))
        given = self.forget, params, register, objective, weight
        g_f, seen = self._side(*given, pair=True, **asks)
        if not gate.measures:
            return g_f, torch.full_like(seen.loss, math.nan)
        gate.clean = seen.clean
        self._keep_sign(seen)
        if constraint is not None and "wanted" not in asks:
            constraint.observe(seen.value, weight=weight)
        self._times = self._times + seen.times
        return g_f, seen.loss

    def _side(
        self,
        side: Optimizer,
        params: list[Tensor],
        accumulated: Register,
        objective: Objective,
        weight: float,
        *,
        pair: bool = False,
        **asks: Ask,
    ) -> tuple[Register, Evaluation]:
        """Add one side's gradient to what it has accumulated; and what its objective saw."""
        if isinstance(side, ObjectiveOptimizer):  # which copies what it adds to
            if self.retain is self.forget:
                side.renew()  # the delta that it may reuse is the other objective's
            gradients.put(params, accumulated)
            found = side.accumulate(objective, weight, self.backward_fn, pair=pair, **asks)
        else:
            gradients.put(params, gradients.copies(accumulated))
            backward = self.backward_fn or torch.Tensor.backward
            wanted = asks.get("wanted")
            found = Run(objective, "DualOptimizer.backward", params, backward, pair, wanted)(weight)
        return gradients.take(params), found

    def _keep_sign(self, evaluation: Evaluation) -> None:
        """Descend the register (+1) or climb it (-1), in one direction for a whole step."""
        sense = None if self.constraint is None else self.constraint.sense
        sign = +1 if evaluation.paired or sense == "<=" else -1
        if self._forget_register is not None and sign != self._forget_sign:
            self._refuse_mixed_forms()
        self._forget_sign = sign

    @eager
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Commit: lambda+; the forget step if lambda+ > 0; the retain step.

        Without a `backward` since the last step it is a plain retain step, warns once and leaves
        lambda alone. A forget gradient that is not finite, also once lambda+ multiplies it, skips
        the forget step, with a warning; so does, with `scale="step"`, a multiple of its move that
        would make a weight infinite (its moments have moved then).

        Ctrl-C waits until the step is whole; what fails before one side's step is through leaves
        lambda as it was. If the forget side's step fails, its gradient is lost.

        Raises:
            TypeError: for a closure, which could not say which side it differentiates.
            RuntimeError: under a GradScaler, which would unscale one side only.
        """
        if closure is not None or "found_inf" in vars(self):  # which a GradScaler lends
            self._refuse(closure)
        undo = guards.remember(*filter(None, (self.constraint, self._gate)))
        calls, steps, kept = list[Call](), list[Call](), [self._forget_register]
        params = parameters(self.retain)
        g_r = gradients.read(params)
        try:
            # The first call lets go of the gradient that is about to be multiplied by lambda+.
            calls += [kept.clear, *self._update()]
            steps += [call for call in calls if isinstance(call, Taking)]
            guards.run(calls)
            if self._skips:
                self._warn_skipped()
        except BaseException as error:
            gradients.put(params, g_r)
            if steps and not calls and isinstance(error, KeyboardInterrupt):
                scaler.run_post_hooks(self)
            elif all(step in calls for step in steps):
                undo()
                if kept:
                    self._forget_register = kept[0]
                else:
                    self._drop_forget()
            raise

    def _update(self) -> list[Call]:
        """lambda+; the forget step if the gate is open; the retain step."""
        so_far, self._forget_register = self._forget_register, None
        register = [(so_far or {}).get(p) for p in parameters(self.retain)]
        self._skips, weight, norm = False, 0.0, gradients.coming_norm(register)
        if so_far is not None:
            begun = Begun(self.retain, self.forget, register, self._forget_sign, self._times)
            foretell = partial(begun.foretell, scale=self.scale)
            weight = self._gate.commit(self.constraint, foretell)
        else:
            self._warn_no_backward()
        inside, outside = (weight, 1.0) if self.scale == "gradient" else (1.0, weight)
        if weight != 0 and gradients.stays_finite(register, norm(), inside):
            return [*self._forget_step(register, inside, outside), *step_of(self.retain)]
        self._skips = weight != 0
        return [partial(count_as_called, self.forget), *step_of(self.retain)]

    def _forget_step(self, register: Register, inside: float, outside: float) -> list[Call]:
        """theta <- forget(theta, sign * lambda+ * g_f), the retain gradient kept aside.

        With another `outside` than 1 theta makes that multiple of the step, if it is finite.
        """
        params, step = parameters(self.retain), step_of(self.forget)
        if outside != 1.0:
            moved = [p for p, g in zip(params, register, strict=True) if g is not None]
            blend = Blend(moved, outside)
            step += [*blend.calls(), lambda: setattr(self, "_skips", blend.is_refused)]
        return [
            *gradients.scaling(register, self._forget_sign * inside),
            partial(gradients.put, params, register),
            *step,
            partial(gradients.put, params, gradients.read(params)),
        ]

    def __repr__(self) -> str:
        return (
            f"DualOptimizer(scale={self.scale!r}, constraint={self.constraint!r},\n"
            f"retain={self.retain!r},\nforget={self.forget!r})"
        )
