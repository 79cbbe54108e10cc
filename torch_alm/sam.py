"""SAM and ReverseSAM: gradients at the least and the most forgiving nearby point.

Source: SAUL (section 4.2 and the procedure Grad_SAM of Algorithm 1); Foret et al. 2021.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, SupportsIndex, TypeAlias, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm._guards import Call, T, eager, held, running
from torch_alm._optim import gradients, leftover, matching, scaler
from torch_alm._optim.checks import check_base
from torch_alm._optim.gradients import Backward, Kept, Register, parameters
from torch_alm._optim.moves import Excursion, Memory, check_radius, radii_of
from torch_alm._optim.objective import (
    Ask,
    Evaluation,
    Objective,
    ObjectiveOptimizer,
    Run,
    placed,
    replaying,
)
from torch_alm._optim.realised import Perturbation, Realised, warn_swallowed
from torch_alm._optim.rounding import DROPPED, Rounding, check_rounding
from torch_alm._optim.settings import Setting, count
from torch_alm._optim.steps import step_of

Closure: TypeAlias = Callable[[], Tensor | float]


class _PerturbedOptimizer(ObjectiveOptimizer):
    """The code of SAM and ReverseSAM; they differ in `sign` alone."""

    rho = Setting(check_radius)
    eps = Setting(check_radius)
    rounding: Setting[Rounding] = Setting(check_rounding)
    every: Setting[int] = Setting(count)

    def __init__(
        self,
        base: Optimizer,
        rho: float = 0.05,
        *,
        eps: float = 1e-12,
        adaptive: bool = False,
        every: SupportsIndex = 1,
        backward: Backward = torch.Tensor.backward,
        replay_rng: bool = True,
        first_pass: Callable[[], AbstractContextManager[object]] = nullcontext,
        rounding: Rounding = "nearest",
        diagnose: bool = False,
    ) -> None:
        self.base = check_base(base, type(self).__name__)
        self.rho, self.eps = rho, eps
        self.adaptive = adaptive
        self.every = every
        self.backward_fn = backward
        self.replay_rng = replay_rng
        self.first_pass = first_pass
        self.rounding = rounding
        self.diagnose = diagnose
        self.perturbation: Perturbation | None = None
        self._has_diagnosed = False
        self._has_perturbed_gradient = False
        self._direction: Kept = {}
        self.uses = 0  # of that direction
        self._scratch: Memory = {}
        self._adopt()

    @contextmanager
    def perturbed(self) -> Iterator[Perturbation]:
        """Perturb theta along `.grad` inside the block, as `torch_alm.perturbed` does.

        What the block leaves in `.grad` is the gradient that `step()` then uses.
        """
        excursion = self._excursion(parameters(self))
        try:
            try:
                self.perturbation = excursion.go()
                if self.perturbation.realised:
                    self._warn_swallowed(self.perturbation.realised, stacklevel=4)
                yield self.perturbation
            finally:
                excursion.back()
        finally:
            excursion.back()  # an interrupt may have cut the first one short
        self._has_perturbed_gradient = True

    def _excursion(self, params: list[Tensor]) -> Excursion:
        """Prepare the way to theta + delta; look, once, how much of it narrow weights hold."""
        # `"rho"` in a group is a radius, unless it is a setting of the base (Adadelta has one).
        found = params if "rho" in self.base.defaults else self.base.param_groups
        radii = radii_of(found, self.rho, self.sign)
        is_new = not self._has_diagnosed and self.rho > 0
        diagnose = self.diagnose or (is_new and any(p.dtype in DROPPED for p in params))
        return Excursion(radii, self.eps, self.adaptive, self.rounding, diagnose, self._scratch)

    @eager
    def backward(self, objective: Objective, *, weight: float = 1.0) -> Tensor:
        r"""`.grad += weight * grad L(theta + delta)`; returns L(theta + delta), detached.

        Args:
            objective: a function of no arguments that runs the forward pass and returns the scalar
                loss, unscaled, attached to its graph. It runs twice: at theta, to find delta, and
                at theta + delta. A constraint called inside it observes the second run only.
            weight: scales the gradient only (1/K when accumulating over K micro-batches).

        Raises:
            TypeError: if the objective returns no tensor.
            ValueError: if what it returns is not a scalar or has no graph. `.grad` and theta are
                then as before, as they are if the objective itself raises or Ctrl-C stops it.

        Cost: 2 forward and 2 backward passes; a copy of the parameters and one of the gradients.
        """
        return self.accumulate(objective, weight, None).loss

    def accumulate(
        self,
        objective: Objective,
        weight: float,
        backward: Backward | None,
        *,
        pair: bool = False,
        wanted: Ask | None = None,
        ahead: Ask | None = None,
    ) -> Evaluation:
        """`backward`, for optimizers built on this one: with any backward, pairs, and decisions."""
        params = parameters(self)
        name, differentiate = f"{type(self).__name__}.backward", backward or self.backward_fn
        run = Run(objective, name, params, differentiate, pair, wanted, ahead, self.sign)
        replay = replaying(params) if self.replay_rng else []
        excursion = self._excursion(params)
        accumulated: Register | None = None
        try:
            with held():
                accumulated = gradients.take(params)
            with placed(f"{name}, in the first pass, at theta"):
                clean = self._aim(params, partial(run, counts=False))
            if clean is not None and run.is_over:
                with held():
                    gradients.put(params, accumulated)
                return clean  # which is all
            with placed(f"{name}, in the second pass; theta is back"):
                self.perturbation = excursion.go()
                if self.perturbation.realised:
                    self._warn_swallowed(self.perturbation.realised, stacklevel=5)
                # Before the second backward: engines may reduce while they differentiate.
                gradients.put(params, gradients.copies(accumulated))
                for call in replay:
                    call()
                evaluation = run(weight)
            excursion.back()
            self._has_perturbed_gradient, self.uses = True, self.uses + 1
            return evaluation if clean is None else evaluation._replace(clean=clean.value)
        except BaseException:
            with held():
                excursion.back()
                if accumulated is not None:
                    gradients.put(params, accumulated)
            raise

    def _aim(self, params: list[Tensor], find: Callable[[], T]) -> T | None:
        """Leave the direction of delta in `.grad`: a pass at theta finds it, or it is the last."""
        if self._direction and 0 < self.uses < self.every:  # with 0, what it was for has failed
            moving = [p for p in params if p.requires_grad]
            gradients.put(moving, [self._direction.get(p) for p in moving])
            return None
        self._direction, self.uses = {}, 0  # before the pass, which needs its memory
        with self.first_pass():
            found = find()
        if self.every > 1:
            self._direction = gradients.kept(params)
        return found

    def renew(self) -> None:
        """Let the next backward pass find delta, and forget the one before (see `every`)."""
        self._direction = {}

    @eager
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Closure | None = None
    ) -> Tensor | float | None:
        """Commit: one step of the base optimizer with the gradient in `.grad`.

        Args:
            closure: as in `torch.optim`, clears the gradients, computes the loss and its gradients
                and returns the loss. It runs at theta, to find delta, and at theta + delta.

        Returns:
            What the closure returned first; `None` without one.

        Warns:
            UserWarning: once, if no gradient was taken at a perturbed point since the last step;
                the step is then a plain one of the base optimizer.

        Cost: one base step; with a closure also 2 forward and 2 backward passes. Ctrl-C waits.
        """
        scaler.refuse_closure(self, closure, type(self).__name__)
        loss = None if closure is None else self._run_closure(closure)
        if scaler.is_scaled(self) and not scaler.found_finite(self):
            self.renew()  # a delta found at that scale may have overflowed, too
            return loss
        return scaler.commit(self, self._update(), loss)

    def _update(self) -> list[Call]:
        if not self._has_perturbed_gradient:
            self._warn_plain_step()
        consumed = partial(setattr, self, "_has_perturbed_gradient", False)
        return [*step_of(self.base), consumed]

    @torch.enable_grad()
    def _run_closure(self, closure: Closure) -> Tensor | float:
        params, losses = parameters(self), list[Tensor | float]()
        replay = replaying(params) if self.replay_rng else []
        with running(counts=False), leftover.noticed(params, type(self).__name__):
            self._aim(params, lambda: losses.append(closure()))
        with self.perturbed():
            for call in replay:
                call()
            losses.append(closure())
        self.uses += 1
        return losses[0]

    def _warn_swallowed(self, realised: Realised, *, stacklevel: int) -> None:
        if not self._has_diagnosed and realised.share == realised.share:
            self._has_diagnosed = True
            warn_swallowed(realised, type(self).__name__, self.rho, stacklevel=stacklevel + 1)

    def _warn_plain_step(self) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        name = type(self).__name__
        warnings.warn(
            f"{name}.step() with a gradient taken at theta is a plain {type(self.base).__name__} "
            "step. Did you call `backward(objective)` first?",
            stacklevel=6,
        )

    def _state_dict(self) -> dict[str, Any]:
        return self.base.state_dict()

    def _load_state_dict(self, state_dict: dict[str, Any]) -> None:
        matching.check(self.base, state_dict, f"{type(self).__name__}.load_state_dict: it")
        self.base.load_state_dict(state_dict)
        self.renew()

    def _awaits_step(self) -> bool:
        return self._has_perturbed_gradient

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rho={self.rho}, eps={self.eps}, base={self.base!r})"


@final
class SAM(_PerturbedOptimizer):
    r"""Sharpness-aware minimisation around any optimizer.

    `backward(objective)` takes the gradient where the objective is *worst* nearby,

        g = grad L(theta),  delta = rho * g / (||g||_2 + eps),  .grad += grad L(theta + delta),

    and `step()` lets the base optimizer descend along it. Norms are joint over all parameters, in
    float32 or wider. theta returns bit for bit. A zero or non-finite g gives no perturbation.

    SAM owns nothing: parameter groups, state and checkpoints are the base optimizer's. A group's
    `"rho"` takes the place of `rho`; with 0 the group stays where it is and does not count in the
    norm. Where the base has a `rho` of its own (Adadelta), that is none of ours, and `rho` holds
    for all groups.

    Args:
        base: the optimizer that steps, such as `AdamW(params, lr=1e-5)`.
        rho: radius of the ball, in the units of theta. At least 0; with 0, SAM is its base.
        eps: added to the norm.
        adaptive: radius in units of each weight (ASAM, Kwon et al. 2021).
        every: find delta in every `every`-th backward only; in between its direction holds, also
            in a later step. If none was found (a gradient of 0 or nan), those steps are plain.
        backward: receives the raw loss and owns all scaling, for instance
            `lambda loss: accelerator.backward(loss / k)`. Settable later as `backward_fn`.
        replay_rng: run the second pass with the random state of the first (the same dropout).
        first_pass: makes a context for the pass that only finds delta. Over several ranks delta
            follows the gradient of all of them; with `first_pass=model.no_sync` (DDP) it follows
            each rank's own, and the step has one reduction less.
        rounding: "stochastic" for pure bfloat16 weights, where delta is mostly shorter than the
            distance between two neighbouring numbers and nearest rounding drops it.
        diagnose: have `perturbation.realised` tell how much of delta the weights' dtype held.

    Attributes:
        perturbation: the latest one: norm of g, entries moved, what was realised.
        uses: of its direction so far, see `every`.

    Warns:
        UserWarning: once, if bfloat16 or float16 weights hold less than half of the first delta.

    Raises:
        TypeError: if `base` is not an optimizer, is one that needs a closure (LBFGS), is itself a
            `SAM`, or has parameters that FSDP1 or DeepSpeed have sharded (FSDP2 is welcome).
        ValueError: if `rho` or `eps` is negative or not finite.

    Cost per step: 2 forward and 2 backward passes; one extra copy of the parameters. On a CPU the
    memory of that copy is kept between steps. With `every=k` 1 + 1/k of each pass, and one copy of
    the gradients, which no checkpoint holds: a resumed run finds delta anew.

    Source: SAUL, section 4.2 (the retain side); Foret et al. 2021; for `every`, LookSAM (Liu et al.
    2022), which reuses a part of the gradient instead of delta.

    Example:
        >>> theta = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = SAM(torch.optim.SGD([theta], lr=0.1), rho=1.0)
        >>> optimizer.backward(lambda: theta.square().sum())  # at theta + delta
        tensor(36.)
        >>> optimizer.step()
        >>> theta.detach()
        tensor([2.2800, 3.0400])
    """

    sign = +1


@final
class ReverseSAM(_PerturbedOptimizer):
    r"""SAM towards *lower* values of the objective you pass.

    `backward(objective)` takes the gradient at the most forgiving point nearby,

        g = grad F(theta),  delta = -rho * g / (||g||_2 + eps),  .grad += grad F(theta + delta).

    It is meant for objectives that are raised (a constraint F >= alpha): what still holds where F
    is lowest holds in the whole ball. `step()` lets the base optimizer descend along `.grad`, so to
    raise F, negate `.grad` first or let `DualOptimizer` do it.

    Arguments, errors and cost are those of `SAM`.

    Source: SAUL, section 4.2 (the forget side).

    Example:
        >>> theta = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = ReverseSAM(torch.optim.SGD([theta], lr=0.1), rho=1.0)
        >>> optimizer.backward(lambda: theta.square().sum())
        tensor(16.)
    """

    sign = -1
