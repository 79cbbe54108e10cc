"""DualOptimizer: two optimizer states over one theta, and a constraint between them.

Source: Algorithm 1 of SAUL (sections 4.1 to 4.3).
"""

import math
import warnings
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm import _gradients as gradients
from torch_alm import _wrapper as wrapper
from torch_alm._gradients import Backward, Evaluation, Register
from torch_alm._passes import evaluate
from torch_alm.constraint import ALMConstraint
from torch_alm.perturb import scaled_step


class Losses(NamedTuple):
    """What `DualOptimizer.backward` saw, detached: at the perturbed points under SAM."""

    retain: Tensor
    forget: Tensor


class Norms(NamedTuple):
    """Gradient norms of both sides before clipping."""

    retain: Tensor
    forget: Tensor


@final
class DualOptimizer(wrapper.Wrapper):
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
    return a pair `(loss, value)`: then `loss` is descended, whatever the sense, and `value` is what
    the constraint sees. `constraint.measure` is never called here.

    Args:
        retain: the optimizer of the retain side, plain or `SAM`.
        forget: the optimizer of the forget side, over the same parameters. Two AdamW decay twice on
            open-gate steps: give this one `weight_decay=0`.
        constraint: an `ALMConstraint`; `None` is Dual AdamW, the forget objective raised with
            weight 1, always on.
        scale: `"gradient"` multiplies the forget gradient by lambda+ before its optimizer, as the
            paper does; under Adam, which ignores constant factors, lambda+ is then almost only a
            gate. `"step"` multiplies the finished step, so that pressure is proportional.
        backward: receives the raw losses of both sides and owns all scaling; overrides that of the
            sides. Settable later as `backward_fn`.

    Raises:
        TypeError: if a side is no optimizer, or one that needs a closure.
        ValueError: if the sides have different parameters, or the sense does not fit the forget
            optimizer, or `scale` is unknown.

    Attributes:
        retain, forget, constraint: the parts, as given.
        skipped: forget steps left out because the forget gradient was not finite.

    Cost per step: 2 forward and 2 backward passes with plain sides, 4 and 4 with SAM on both; two
    extra copies of the gradients; `scale="step"` one copy of the parameters.

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

    def __init__(
        self,
        retain: Optimizer,
        forget: Optimizer,
        constraint: ALMConstraint | None = None,
        *,
        scale: Literal["gradient", "step"] = "gradient",
        backward: Backward | None = None,
    ) -> None:
        """Join two optimizers; see the class."""
        self.retain = wrapper.check_base(retain, "DualOptimizer")
        self.forget = wrapper.check_base(forget, "DualOptimizer")
        self.constraint = constraint
        self.scale = scale
        self.backward_fn = backward
        self.skipped = 0
        self._forget_register: Register | None = None
        self._forget_sign = 0
        self._has_warned = False
        self._check()
        self._adopt()

    def _check(self) -> None:
        if self.scale not in ("gradient", "step"):
            raise ValueError(
                f'DualOptimizer: scale is {self.scale!r}; it is "gradient" (the paper) or "step".'
            )
        retain, forget = (wrapper.parameters(side) for side in (self.retain, self.forget))
        if {*retain} != {*forget}:
            raise ValueError(
                f"DualOptimizer: retain has {len(retain)} parameters and forget {len(forget)}, of "
                f"which {len({*retain} & {*forget})} are the same; the two sides would move "
                "different weights. Did you pass the same parameters to both (a generator is empty "
                "the second time)?"
            )
        self._check_sense()

    def _check_sense(self) -> None:
        sense = ">=" if self.constraint is None else self.constraint.sense
        fitting = {">=": -1, "<=": +1, "==": 0}[sense]
        if isinstance(self.forget, wrapper.ObjectiveOptimizer) and self.forget.sign != fitting:
            side = {-1: "ReverseSAM or a plain optimizer", +1: "SAM or a plain optimizer"}
            raise ValueError(
                f'DualOptimizer: the constraint\'s sense is "{sense}" and the forget side is '
                f"{type(self.forget).__name__}, which would look where the constraint is easiest to "
                f"meet. Did you mean {side.get(fitting, 'a plain optimizer')}?"
            )

    @property
    def _bases(self) -> Mapping[str, Optimizer]:
        return {"retain": self.retain, "forget": self.forget}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of both sides, retain first: the live dictionaries in a new list."""
        return [*self.retain.param_groups, *self.forget.param_groups]

    @property
    def state(self) -> dict[str, Any]:
        """The states of both sides by name, those that have any."""
        return {name: base.state for name, base in self._bases.items() if base.state}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to both sides."""
        params = param_group["params"]
        group = {**param_group, "params": [params] if isinstance(params, Tensor) else list(params)}
        for base in self._bases.values():
            base.add_param_group(dict(group))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear both gradients."""
        super().zero_grad(set_to_none)
        self._forget_register = None

    def backward(
        self, *, retain: wrapper.Objective, forget: wrapper.Objective, weight: float = 1.0
    ) -> Losses:
        """Add both gradients, taken at the same theta; the constraint observes the forget value.

        `.grad` receives the retain side's, a register of our own the forget side's.

        Args:
            retain: the objective that is lowered.
            forget: the measured quantity, or a pair `(loss, value)`; see the class.
            weight: scales the gradients only (1/K when accumulating over K micro-batches); among
                several observations of a step it is the weight of this one.

        Returns:
            Both losses, detached, at the perturbed points under SAM.

        Raises:
            TypeError, ValueError: if an objective returns something else. Gradients, constraint
                and theta are then as before, as they are if an objective itself raises.

        Cost: 1 forward and 1 backward pass per plain side, 2 and 2 per SAM side.
        """
        params = wrapper.parameters(self.retain)
        before = gradients.take(params)
        try:
            retain_grad, retained = self._side(self.retain, params, before, retain, weight)
            register = self._forget_register or gradients.empty(params)
            forget_grad, forgotten = self._side(
                self.forget, params, register, forget, weight, pair=True
            )
            self._keep_sign(forgotten)
        except BaseException:
            gradients.put(params, before)
            raise
        gradients.put(params, retain_grad)
        self._forget_register = forget_grad
        if self.constraint is not None:
            self.constraint.observe(forgotten.value, weight=weight)
        return Losses(retained.loss, forgotten.loss)

    def _side(
        self,
        side: Optimizer,
        params: list[Tensor],
        accumulated: Register,
        objective: wrapper.Objective,
        weight: float,
        *,
        pair: bool = False,
    ) -> tuple[Register, Evaluation]:
        """One side's gradient on top of what it has accumulated, and what its objective saw."""
        gradients.put(params, gradients.copies(accumulated))
        if isinstance(side, wrapper.ObjectiveOptimizer):
            evaluation = side.accumulate(objective, weight, self.backward_fn, pair=pair)
        else:
            evaluation = evaluate(objective, "DualOptimizer.backward", pair=pair)
            backward = self.backward_fn or torch.Tensor.backward
            gradients.differentiate(evaluation.loss, weight, backward)
        return gradients.take(params), evaluation.detached()

    def _keep_sign(self, evaluation: Evaluation) -> None:
        """Whether the register is descended (+1) or climbed (-1), the same for a whole step."""
        lowered = evaluation.paired or (
            self.constraint is not None and self.constraint.sense == "<="
        )
        sign = +1 if lowered else -1
        if self._forget_register is not None and sign != self._forget_sign:
            raise ValueError(
                "DualOptimizer.backward: within one step the forget objective returned a pair "
                "`(loss, value)` once and a single value once; their gradients have opposite signs "
                "and would cancel. Did you mean the same form for every micro-batch?"
            )
        self._forget_sign = sign

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Commit: lambda+; the forget step if lambda+ > 0; the retain step.

        Without a `backward` since the last step it is a plain retain step, warns once and leaves
        lambda alone. A non-finite forget gradient skips the forget step, with a warning.

        Raises:
            TypeError: for a closure, which could not say which side it differentiates.
            RuntimeError: under a GradScaler, which would unscale one side only.
        """
        self._refuse(closure)
        register, self._forget_register = self._forget_register, None
        with wrapper.global_hooks_silenced():
            if register is None:
                self._warn_no_backward()
            else:
                weight = 1.0 if self.constraint is None else _scalar(self.constraint.step())
                if weight != 0 and self._is_finite(register):
                    self._forget_step(register, weight)
            self.retain.step()

    def _forget_step(self, register: Register, weight: float) -> None:
        """theta <- forget(theta, sign * lambda+ * g_f), with the retain gradient kept aside."""
        params = wrapper.parameters(self.retain)
        g_r = gradients.read(params)
        inside, outside = (weight, 1.0) if self.scale == "gradient" else (1.0, weight)
        gradients.scale_(register, self._forget_sign * inside)
        gradients.put(params, register)
        try:
            scaled_step(params, outside, self.forget.step)
        finally:
            gradients.put(params, g_r)

    def _is_finite(self, register: Register) -> bool:
        if math.isfinite(gradients.norm(register).item()):
            return True
        self.skipped += 1
        warnings.warn(
            "DualOptimizer.step: the forget gradient is not finite and would have reached theta; "
            f"the forget step is skipped ({self.skipped} so far). Is the forget loss unbounded?",
            stacklevel=4,
        )
        return False

    def clip_grad_norm_(self, max_norm: float) -> Norms:
        """Clip each side to `max_norm` on its own; returns both norms before clipping.

        `torch.nn.utils.clip_grad_norm_` (and a Trainer's `max_grad_norm`) reaches the retain side
        only. The forget side is clipped before lambda+ multiplies it.
        """
        retain = gradients.read(wrapper.parameters(self.retain))
        return Norms(*(_clip_(r, max_norm) for r in (retain, self._forget_register or [])))

    def _refuse(self, closure: object) -> None:
        if closure is not None:
            raise TypeError(
                "DualOptimizer.step takes no closure: it could not say which side it "
                "differentiates. Did you mean `backward(retain=..., forget=...)` and then `step()`?"
            )
        if self.found_inf is not None:
            raise RuntimeError(
                "DualOptimizer.step was called by a GradScaler, which unscales the retain gradient "
                "only; the forget gradient would keep its loss scale. Did you mean bfloat16 "
                "autocast, which needs no scaler?"
            )

    def _warn_no_backward(self) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            "DualOptimizer.step() without a backward since the last step is a plain "
            f"{type(self.retain).__name__} step; the constraint is left alone. Did you call "
            "`backward(retain=..., forget=...)` first?",
            stacklevel=4,
        )
        if isinstance(self.retain, wrapper.Wrapper):
            self.retain._has_warned = True  # SAM has nothing to add to this

    def _state_dict(self) -> dict[str, Any]:
        constraint = None if self.constraint is None else self.constraint.state_dict()
        sides = {name: base.state_dict() for name, base in self._bases.items()}
        return {**sides, "constraint": constraint}

    def _load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._check_state(state_dict)
        if self.constraint is not None:
            self.constraint.load_state_dict(state_dict["constraint"])
        for name, base in self._bases.items():
            base.load_state_dict(state_dict[name])

    def _check_state(self, state_dict: dict[str, Any]) -> None:
        """Find out before anything is loaded that the state is of another optimizer."""
        expected = {*self._bases, "constraint"}
        if {*state_dict} != expected:
            raise ValueError(
                f"DualOptimizer.load_state_dict found the keys {sorted(state_dict)} and needs "
                f"{sorted(expected)}; one side's moments would be lost. Is it the checkpoint of a "
                "single optimizer?"
            )
        if (state_dict["constraint"] is None) != (self.constraint is None):
            raise ValueError(
                "DualOptimizer.load_state_dict: only one of the checkpoint and this optimizer has "
                "a constraint; the multiplier would be lost. Was it saved by Dual AdamW?"
            )
        for name, base in self._bases.items():
            wrapper.check_groups(base, state_dict[name], f"DualOptimizer.load_state_dict: {name}")

    def __repr__(self) -> str:
        return (
            f"DualOptimizer(scale={self.scale!r}, constraint={self.constraint!r},\n"
            f"retain={self.retain!r},\nforget={self.forget!r})"
        )


def _scalar(weight: float | Tensor) -> float:
    if isinstance(weight, Tensor):
        raise ValueError(
            f"DualOptimizer.step: the constraint has {weight.numel()} multipliers and the forget "
            "side one gradient, so no single weight is right. Did you mean a scalar measure, or "
            "`constraint(...)` inside the retain objective of one optimizer?"
        )
    return weight


def _clip_(register: Register, max_norm: float) -> Tensor:
    norm = gradients.norm(register)
    factor = max_norm / (norm.item() + 1e-6)
    if factor < 1:
        gradients.scale_(register, factor)
    return norm
