"""SAM and ReverseSAM: gradients at the least and the most forgiving nearby point.

Source: SAUL (section 4.2 and the procedure Grad_SAM of Algorithm 1); Foret et al. 2021.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, SupportsIndex, TypeAlias, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm._optim import gradients
from torch_alm._optim.gradients import Backward, Register, parameters
from torch_alm._optim.objective import (
    Ask,
    Evaluation,
    Objective,
    Passes,
    eager,
    make_replay,
    mark_running,
)
from torch_alm._optim.rounding import Rounding, check_rounding
from torch_alm._optim.wrapper import (
    Wrapper,
    check_base,
    check_count,
    check_descends,
    check_groups,
    check_radius,
    check_sizes,
)
from torch_alm.perturb import Direction, Excursion, Memory, Perturbation, radii_of

Closure: TypeAlias = Callable[[], Tensor | float]


class SharpnessAware(Wrapper):
    """The code of SAM and ReverseSAM; they differ in `sign` alone."""

    _sign: ClassVar[int]

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
    ) -> None:
        name = type(self).__name__
        self.base = check_base(base, name)
        self.rho, self.eps = check_radius(rho, f"{name}: rho"), check_radius(eps, f"{name}: eps")
        self.adaptive = adaptive
        self.every = check_count(every, f"{name}: every")
        self.backward_fn = backward
        self.replay_rng = replay_rng
        self.first_pass = first_pass
        self.rounding: Rounding = check_rounding(rounding, f"{name}: rounding")
        self.perturbation: Perturbation | None = None
        self.direction = Direction()  # that is kept, see `every`
        self._has_looked = False  # whether narrow weights hold delta
        self._has_perturbed_gradient = False
        self.memory = Memory()
        self._check()
        self._adopt()

    @eager
    def backward(self, objective: Objective, *, weight: float = 1.0) -> Tensor:
        r"""`.grad += weight * grad L(theta + delta)`; returns L(theta + delta), detached.

        Args:
            objective: runs the forward pass and returns the scalar loss, unscaled, with its graph.
                It runs at theta, to find delta, and at theta + delta, where constraints observe.
            weight: scales the gradient only (1/K when accumulating over K micro-batches).

        Raises:
            TypeError: if the objective returns no tensor.
            ValueError: if what it returns is not a scalar, has no graph or was computed before, or
                the weight is negative or not finite.
            RuntimeError: if an optimizer steps inside the backward pass. theta and `.grad` are as
                before, but for what that has done, as they are if the objective itself raises.

        Cost: 2 forward and 2 backward passes; a copy of the parameters and one of the gradients.
        """
        if gradients.group_signature(self.base) != self._checked:
            self._check()
        params, owner = parameters(self.base), f"{type(self).__name__}.backward"
        passes = Passes(objective, weight, self.backward_fn, params, owner)
        so_far = gradients.take(params)
        try:
            return self._accumulate(passes, so_far).loss
        except BaseException:
            gradients.put(params, so_far)
            raise

    def _accumulate(
        self, passes: Passes, so_far: Register, wanted: Ask | None = None
    ) -> Evaluation:
        """`.grad`, empty before, = so_far + weight * grad L(theta + delta): Grad_SAM."""
        # theta + delta, delta = sign rho g / (||g|| + eps), g = grad L(theta)
        with self._nearby(passes.params, partial(passes.find_direction, self._sign)):
            # .grad = so_far + weight grad L(theta + delta)
            return passes.accumulate(so_far, wanted)

    @contextmanager
    def _nearby(self, params: list[Tensor], first_pass: Callable[[], object]) -> Iterator[None]:
        """Put theta at theta + delta, of a pass at theta or the one before; it is kept on success.

        Random numbers inside are those of the first pass.
        """
        replay = make_replay(params) if self.replay_rng else lambda: None
        direction = self.direction
        if direction.g and direction.served < self.every:
            kept = [direction.g.get(p) if p.requires_grad else None for p in params]
            gradients.put(params, kept)
        else:
            with self.first_pass():
                first_pass()
            found = gradients.copy_all(gradients.read(params)) if self.every > 1 else []
            direction = Direction(dict(zip(params, found, strict=False)))
        with self.perturbed():
            replay()
            yield
        served = direction.served + 1
        self.direction = Direction(direction.g if served < self.every else {}, served)

    @contextmanager
    def perturbed(self) -> Iterator[Perturbation]:
        """Perturb theta along `.grad` inside the block, as `torch_alm.perturbed` does.

        What the block leaves in `.grad` is the gradient that `step()` then uses.
        """
        # `"rho"` in a group is a radius, unless it is a setting of the base (Adadelta has one).
        has_own = "rho" in self.base.defaults
        groups = parameters(self.base) if has_own else self.base.param_groups
        radii = radii_of(groups, self.rho, self._sign)
        how = self.eps, self.adaptive, self.rounding, self.memory, not self._has_looked
        with Excursion(radii, *how) as self.perturbation:
            if self.perturbation.realised is not None:
                self._warn_swallowed(self.perturbation.realised)
            yield self.perturbation
        self._has_perturbed_gradient = True

    @eager
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Closure | None = None
    ) -> Tensor | float | None:
        """Commit: one step of the base optimizer with the gradient in `.grad`.

        A closure, as in `torch.optim`, runs at theta, to find delta, and at theta + delta; what it
        returned first is returned. Without a gradient of a perturbed point the step is a plain one
        of the base, and warns once.
        """
        if "found_inf" in vars(self) and not self._unscale(closure):  # lent by a GradScaler
            return None
        loss = None if closure is None else self._run_closure(closure)
        if not self._has_perturbed_gradient:
            self._warn_plain_step("a gradient taken at theta")
        elif self.perturbation is not None and self.perturbation.is_lost:
            self.direction = Direction()
            self._warn_plain_step("a first gradient that is not finite, so that delta was 0,")
        self.base.step()
        self._has_perturbed_gradient = False
        return loss

    @torch.enable_grad()
    def _run_closure(self, closure: Closure) -> Tensor | float:
        if gradients.group_signature(self.base) != self._checked:
            self._check()
        losses = list[Tensor | float]()

        def first_pass() -> None:
            with mark_running(counts=False):
                losses.append(closure())

        with self._nearby(parameters(self.base), first_pass):
            losses.append(closure())
        return losses[0]

    @torch.no_grad()
    def _unscale(self, closure: Closure | None) -> bool:
        """Take a GradScaler's scale out of `.grad`; return whether it found all of it finite."""
        if closure is not None:
            del self.grad_scale, self.found_inf  # it takes them back from steps that return only
            name = type(self).__name__
            raise RuntimeError(
                f"{name}.step(closure) was called by a GradScaler: the closure's gradients would "
                f"keep the loss scale. Did you mean `{name}.backward(objective)` with `backward="
                "lambda loss: scaler.scale(loss).backward()`, and then `scaler.step(optimizer)`?"
            )
        if float(self.found_inf) != 0:
            self.direction = Direction()  # a delta found at that scale may have overflowed, too
            return False
        if self.grad_scale is not None:  # it is `None` after the user's own `unscale_`
            gradients.scale_(gradients.read(parameters(self.base)), 1 / self.grad_scale)
        return True

    def _warn_swallowed(self, realised: float) -> None:
        """Warn, once, if less than half of the intended perturbation took place."""
        self._has_looked = True
        if realised < 0.5:
            warnings.warn(
                f"{type(self).__name__}: the weights' dtype swallows the perturbation. "
                f"{realised:.1%} of rho = {self.rho} was moved in the intended direction. Did you "
                'mean float32 weights under bfloat16 autocast, or `rounding="stochastic"`?',
                stacklevel=9,
            )

    def _warn_plain_step(self, found: str) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        name = type(self).__name__
        warnings.warn(
            f"{name}.step() with {found} is a plain {type(self.base).__name__} step. Did you call "
            "`backward(objective)` first, with a loss that is finite (and a scale that fits)?",
            stacklevel=5,
        )

    def _check(self) -> None:
        check_groups(self.base, type(self).__name__)
        if self._sign > 0:
            check_descends(self.base, type(self).__name__)
        super()._check()

    @property
    def _bases(self) -> Mapping[str, Optimizer]:
        return {"base": self.base}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The base optimizer's groups: the same list, not a copy."""
        return self.base.param_groups

    @property
    def state(self) -> defaultdict[Tensor, Any]:
        """The base optimizer's state."""
        return self.base.state

    def _state_dict(self) -> dict[str, Any]:
        return self.base.state_dict()

    def _load_state_dict(self, state_dict: dict[str, Any]) -> None:
        check_sizes(self.base, state_dict, f"{type(self).__name__}.load_state_dict")
        self.base.load_state_dict(state_dict)
        self.direction = Direction()

    def _awaits_step(self) -> bool:
        return self._has_perturbed_gradient

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rho={self.rho}, eps={self.eps}, base={self.base!r})"


@final
class SAM(SharpnessAware):
    r"""Sharpness-aware minimisation around any optimizer.

    `backward(objective)` takes the gradient where the objective is *worst* nearby,

        g = grad L(theta),  delta = rho * g / (||g||_2 + eps),  .grad += grad L(theta + delta),

    and `step()` lets the base optimizer descend along it. The norm is joint over all parameters,
    in float32 or wider; theta returns bit for bit. SAM owns nothing: groups, state and checkpoints
    are the base's. A group's `"rho"` takes the place of `rho`, if the base has none of its own.

    Args:
        base: the optimizer that steps, such as `AdamW(params, lr=1e-5)`.
        rho: radius of the ball, in the units of theta. At least 0; with 0, SAM is its base.
        eps: added to the norm.
        adaptive: radius in units of each weight (ASAM, Kwon et al. 2021).
        every: find delta in every `every`-th backward only; in between its direction holds. A
            checkpoint has none: the first backward after one finds it anew.
        backward: receives the raw loss and owns all scaling, for instance
            `lambda loss: accelerator.backward(loss / k)`. Settable later as `backward_fn`.
        replay_rng: run the second pass with the random state of the first (the same dropout), of
            torch's, Python's and NumPy's global generators; others, and loaders, go on.
        first_pass: makes a context for the pass that only finds delta, such as `model.no_sync`.
        rounding: "stochastic" for pure bfloat16 weights, which drop most of a short delta.

    Attributes:
        perturbation: the latest one: `norm` of g, and what narrow weights held of delta.

    Warns:
        UserWarning: once, if bfloat16 or float16 weights hold less than half of the first delta, or
            a step is a plain one (on a CPU also where the first gradient is not finite).

    Raises:
        TypeError: if `base` is not an optimizer, needs a closure (LBFGS), is itself a `SAM`, steps
            inside backward, or has parameters that FSDP1 has sharded (FSDP2 is welcome).
        ValueError: if `rho` or `eps` is negative or not finite, parameters share memory, or the
            base of `SAM` has `maximize=True`.

    Cost per step: 2 forward and 2 backward passes (1 + 1/k with `every=k`, and a copy of the
    gradients); one extra copy of the parameters.

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

    _sign = +1


@final
class ReverseSAM(SharpnessAware):
    r"""SAM towards *lower* values of the objective you pass.

    `backward(objective)` takes the gradient at the most forgiving point nearby,

        g = grad F(theta),  delta = -rho * g / (||g||_2 + eps),  .grad += grad F(theta + delta).

    It is meant for objectives that are raised (a constraint F >= alpha): what holds where F is
    lowest holds in the whole ball. `step()` descends along `.grad`: to raise F, negate it first or
    let `DualOptimizer` do it. Arguments, errors and cost are those of `SAM`.

    Source: SAUL, section 4.2 (the forget side).
    """

    _sign = -1
