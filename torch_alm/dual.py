"""DualOptimizer: two optimizer states over one theta, and a constraint between them.

Source: Algorithm 1 of SAUL (sections 4.1 to 4.3).
"""

import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, SupportsIndex, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm import _fitting as fitting
from torch_alm import _gradients as gradients
from torch_alm import _interrupts as interrupts
from torch_alm import _wrapper as wrapper
from torch_alm._eager import eager
from torch_alm._gate import Gate
from torch_alm._gradients import Backward, Evaluation, Register
from torch_alm._interrupts import Call
from torch_alm._passes import Run, placed
from torch_alm._scaled import Blend
from torch_alm._settings import Setting
from torch_alm._steps import Taking, step_of
from torch_alm._undo import remember
from torch_alm.constraint import ALMConstraint


class Losses(NamedTuple):
    """What `DualOptimizer.backward` saw, detached: at the perturbed points under SAM.

    `forget` is `nan` in a step that does not measure (`probe_every`).
    """

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
        probe_every: while the gate is closed and lambda is 0, run and measure the forget objective
            on every `probe_every`-th step only. The constraint's windows and cadences then count
            measured steps.
        reshard: called after a forget forward whose backward is skipped (`backward(last=True)`).
            FSDP2 needs it, or goes on with stale weights: pass a function that calls `reshard()` on
            every `FSDPModule`. Without it nothing is skipped for sharded parameters.

    Raises:
        TypeError: if a side is no optimizer, or one that needs a closure.
        ValueError: if the sides have different parameters, or the sense does not fit the forget
            optimizer, `scale` is unknown, or `probe_every` below 1.

    Attributes:
        retain: the retain side, as given.
        forget: the forget side, as given.
        constraint: the constraint, as given.
        skipped: forget steps left out because what would have reached theta was not finite.

    Cost per step: 2 forward and 2 backward passes with plain sides, 4 and 4 with SAM on both. While
    the gate is closed `backward(last=True)` takes 1 backward pass less, and a step that does not
    measure is one of the retain side alone. Memory for both gradients and, with SAM, one copy of
    the parameters; `scale="step"` one copy of the parameters. On an accelerator one
    synchronisation, the constraint's; with `last=True` and an open gate also a wait for the norm of
    the forget gradient.

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

    scale = Setting(fitting.scale)

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
        self.retain = wrapper.check_base(retain, "DualOptimizer")
        self.forget = wrapper.check_base(forget, "DualOptimizer")
        fitting.check_parameters(self.retain, self.forget)
        fitting.check_sense(constraint, self.forget)
        self.constraint = constraint
        self.scale = scale
        self.backward_fn = backward
        self.reshard = reshard
        self.skipped = self._skipped_now = 0
        self._gate = Gate(fitting.cadence(probe_every))
        self._forget_register: Register | None = None
        self._forget_sign = 0
        self._has_warned = False
        self._share_memory()
        self._adopt()

    def _share_memory(self) -> None:
        """One copy of theta is kept for both sides: they perturb one after the other."""
        sides = [s for s in self._bases.values() if isinstance(s, wrapper.ObjectiveOptimizer)]
        for side in sides:
            side.share_memory(sides[0])

    @property
    def probe_every(self) -> int:
        """The cadence of a released constraint's measurements; it may be assigned."""
        return self._gate.probe_every

    @probe_every.setter
    def probe_every(self, value: SupportsIndex) -> None:
        self._gate.probe_every = fitting.cadence(value)

    @property
    def _bases(self) -> Mapping[str, Optimizer]:
        return {"retain": self.retain, "forget": self.forget}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of both sides, retain first: the live dictionaries in a new list.

        Those of a base that both sides share appear once: schedulers multiply each by its factor.
        """
        groups = [*self.retain.param_groups, *self.forget.param_groups]
        return list({id(group): group for group in groups}.values())

    @property
    def state(self) -> dict[str, Any]:
        """The states of both sides by name, those that have any."""
        return {name: base.state for name, base in self._bases.items() if base.state}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to both sides."""
        params = param_group["params"]
        group = {**param_group, "params": [params] if isinstance(params, Tensor) else list(params)}
        for base in {wrapper.innermost(base): None for base in self._bases.values()}:
            base.add_param_group(dict(group))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear both gradients, and what the constraint observed while they were taken."""
        with interrupts.held():  # one side's alone would be added to the next step's
            super().zero_grad(set_to_none)
            if self._forget_register is not None:
                self._drop_forget()
            self._gate.undo()

    def _drop_forget(self) -> None:
        self._forget_register = None
        if self.constraint is not None:
            self.constraint.discard()

    @eager
    def backward(
        self,
        *,
        retain: wrapper.Objective,
        forget: wrapper.Objective,
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
            last: promise that `step()` comes next. lambda+ is then decided as soon as the forget
                value is known, and if the gate will be closed the backward pass behind it is
                skipped: the same theta, states and lambda for less.

        Returns:
            Both losses, detached, at the perturbed points under SAM.

        Raises:
            TypeError, ValueError: if an objective returns something else, or the constraint's sense
                no longer fits the forget side. Gradients, constraint and theta are then as before,
                as they are if an objective itself raises.
            RuntimeError: after a `backward(last=True)` of the same step; or if gradients do not
                arrive, as under FSDP2 without gradient sync.

        Cost: 1 forward and 1 backward pass per plain side, 2 and 2 per SAM side.
        """
        if self._gate.is_decided():
            raise RuntimeError(
                "DualOptimizer.backward after `backward(last=True)`: lambda+ of this step is "
                "decided, and the forget gradient may have been skipped. Did you mean `last=True` "
                "for the last micro-batch only, or `zero_grad()` after a step that was dropped?"
            )
        fitting.check_sense(self.constraint, self.forget)  # which may be set at any time
        params = wrapper.parameters(self.retain)
        undo, _ = self._remember()
        before: Register | None = None
        try:
            with interrupts.held():
                before = gradients.take(params)
            with placed("DualOptimizer.backward, on the retain side"):
                g_r, retained = self._side(self.retain, params, before, retain, weight)
            register, forgotten = self._forget_so_far(params), None
            if self._gate.measures():
                with placed("DualOptimizer.backward, on the forget side"):
                    register, forgotten = self._forget(params, register, forget, weight, last)
            with interrupts.held():
                gradients.put(params, g_r)
                self._forget_register = register
            unmeasured = torch.full_like(retained.loss, math.nan)
            return Losses(retained.loss, unmeasured if forgotten is None else forgotten)
        except BaseException:
            with interrupts.held():
                if before is not None:
                    gradients.put(params, before)
                undo()
            raise

    def _remember(self) -> tuple[Callable[[], None], list[Register | None]]:
        """The way back to what the constraint, the gate and the register are now, and that one."""
        theirs = remember(*(part for part in (self.constraint, self._gate) if part is not None))
        kept, sign = [self._forget_register], self._forget_sign

        def undo() -> None:
            theirs()
            self._forget_register = kept[0] if kept else None
            self._forget_sign = sign

        return undo, kept

    def _forget(
        self,
        params: list[Tensor],
        register: Register,
        objective: wrapper.Objective,
        weight: float,
        last: bool,
    ) -> tuple[Register, Tensor]:
        """The forget side's gradient and loss; the constraint has observed its value."""
        wanted = partial(self._decide, weight) if last and self._may_skip(params) else None
        g_f, seen = self._side(
            self.forget, params, register, objective, weight, pair=True, wanted=wanted
        )
        self._keep_sign(seen)
        if self.constraint is not None and not self._gate.is_decided():
            self.constraint.observe(seen.value, weight=weight)
        return g_f, seen.loss

    def _may_skip(self, params: list[Tensor]) -> bool:
        """Whether a forward without a backward does no harm."""
        if self.constraint is None:
            return False
        return self.reshard is not None or not any(map(gradients.is_sharded, params))

    def _decide(self, weight: float, evaluation: Evaluation) -> bool:
        """Between the last forward and its backward: is the gate open?"""
        assert self.constraint is not None
        self.constraint.observe(evaluation.value.detach(), weight=weight)
        is_open = self._gate.decide(self.constraint)
        if not is_open and self.reshard is not None:
            self.reshard()
        return is_open

    def _forget_so_far(self, params: list[Tensor]) -> Register:
        """What the forget side has accumulated; groups added meanwhile have nothing yet."""
        found = self._forget_register or []
        return [*found, *gradients.empty(params[len(found) :])]

    def _side(
        self,
        side: Optimizer,
        params: list[Tensor],
        accumulated: Register,
        objective: wrapper.Objective,
        weight: float,
        *,
        pair: bool = False,
        wanted: Callable[[Evaluation], bool] | None = None,
    ) -> tuple[Register, Evaluation]:
        """One side's gradient on top of what it has accumulated, and what its objective saw."""
        if isinstance(side, wrapper.ObjectiveOptimizer):  # which copies what it adds to
            gradients.put(params, accumulated)
            evaluation = side.accumulate(
                objective, weight, self.backward_fn, pair=pair, wanted=wanted
            )
        else:
            gradients.put(params, gradients.copies(accumulated))
            backward = self.backward_fn or torch.Tensor.backward
            run = Run(objective, "DualOptimizer.backward", params, backward, pair, wanted)
            evaluation = run(weight)
        return gradients.take(params), evaluation

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

    @eager
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Commit: lambda+; the forget step if lambda+ > 0; the retain step.

        Without a `backward` since the last step it is a plain retain step, warns once and leaves
        lambda alone. A forget gradient that is not finite, or is not once lambda+ multiplies it,
        skips the forget step, with a warning; so does, with `scale="step"`, a multiple of its move
        that would make a weight infinite (its moments have moved then).

        Ctrl-C waits until the step is whole; anything that fails before one side's step is through
        leaves lambda as it was. If it is the forget side's step that fails, its gradient is lost.

        Raises:
            TypeError: for a closure, which could not say which side it differentiates.
            RuntimeError: under a GradScaler, which would unscale one side only.
        """
        self._refuse(closure)
        undo, kept = self._remember()
        calls, steps = list[Call](), list[Call]()
        params = wrapper.parameters(self.retain)
        g_r = gradients.read(params)
        try:
            # The first call lets go of the gradient that is about to be multiplied by lambda+.
            calls += [kept.clear, *self._update()]
            steps += [call for call in calls if isinstance(call, Taking)]
            interrupts.run(calls)
            self._warn_skipped()
        except BaseException as error:
            gradients.put(params, g_r)
            if steps and not calls and isinstance(error, KeyboardInterrupt):
                wrapper.run_post_hooks(self)
            elif all(step in calls for step in steps):
                undo()
                if not kept:
                    self._drop_forget()
                    self._gate.undo()
            raise

    def _update(self) -> list[Call]:
        """lambda+; the forget step if the gate is open; the retain step."""
        register = self._forget_so_far(wrapper.parameters(self.retain))
        has_run, self._forget_register = self._forget_register is not None, None
        self._skipped_now = 0
        if not has_run:
            self._warn_no_backward()
            return [partial(self._count_as_called, self.forget), *step_of(self.retain)]
        norm = gradients.coming_norm(register)
        weight = self._gate.commit(self.constraint)
        if weight != 0 and self._may_act(register, norm(), weight):
            return [*self._forget_step(register, weight), *step_of(self.retain)]
        return [partial(self._count_as_called, self.forget), *step_of(self.retain)]

    def _may_act(self, register: Register, norm: float, weight: float) -> bool:
        """Whether lambda+ times the forget gradient is finite, as far as it comes to that."""
        factor = weight if self.scale == "gradient" else 1.0
        if gradients.stays_finite(register, norm, factor):
            return True
        self._skipped_now = 1
        return False

    def _forget_step(self, register: Register, weight: float) -> list[Call]:
        """theta <- forget(theta, sign * lambda+ * g_f), with the retain gradient kept aside."""
        params = wrapper.parameters(self.retain)
        inside, outside = (weight, 1.0) if self.scale == "gradient" else (1.0, weight)
        return [
            *gradients.scaling(register, self._forget_sign * inside),
            partial(gradients.put, params, register),
            *self._scaled(step_of(self.forget), params, register, outside),
            partial(gradients.put, params, gradients.read(params)),
        ]

    def _scaled(
        self, step: list[Call], params: list[Tensor], register: Register, scale: float
    ) -> list[Call]:
        """A step of which theta makes a multiple, or none where that would not be finite."""
        if scale == 1.0:
            return step
        blend = Blend([p for p, g in zip(params, register, strict=True) if g is not None], scale)
        noted = partial(self._note_skipped, blend)
        return [*step, *blend.calls(), noted]

    def _note_skipped(self, blend: Blend) -> None:
        self._skipped_now = int(blend.is_refused)

    def _warn_skipped(self) -> None:
        """After the step, so that a warning that is an error finds it whole."""
        if not self._skipped_now:
            return
        self._skipped_now, self.skipped = 0, self.skipped + 1
        warnings.warn(
            "DualOptimizer.step: the forget gradient is not finite, or is not once lambda+ "
            "multiplies it, and would have reached theta; the forget step is skipped "
            f"({self.skipped} so far). Is the forget loss unbounded, or mu too large?",
            stacklevel=6,
        )

    def clip_grad_norm_(self, max_norm: float) -> Norms:
        """Clip each side to `max_norm` on its own; returns both norms before clipping.

        `torch.nn.utils.clip_grad_norm_` (and a Trainer's `max_grad_norm`) reaches the retain side
        only. The forget side is clipped before lambda+ multiplies it.
        """
        retain = gradients.read(wrapper.parameters(self.retain))
        sides = (retain, self._forget_register or [])
        return Norms(*(gradients.clip_(register, max_norm) for register in sides))

    def _refuse(self, closure: object) -> None:
        if closure is not None:
            raise TypeError(
                "DualOptimizer.step takes no closure: it could not say which side it "
                "differentiates. Did you mean `backward(retain=..., forget=...)` and then `step()`?"
            )
        if wrapper.is_scaled(self):
            wrapper.leave_scaler(self)
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
            stacklevel=7,
        )
        if isinstance(self.retain, wrapper.Wrapper):
            self.retain._has_warned = True  # SAM has nothing to add to this

    def control_state_dict(self) -> dict[str, Any]:
        """The constraint's state, the gate's and the count: all but the states of the two sides."""
        constraint = None if self.constraint is None else self.constraint.state_dict()
        other = {"gate": self._gate.state(), "skipped": self.skipped}
        return {"constraint": constraint, **{key: found for key, found in other.items() if found}}

    def load_control_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore `control_state_dict()`; a step that was begun is dropped on the forget side."""
        fitting.check_control(state_dict, self.constraint)
        if self.constraint is not None:
            self.constraint.load_state_dict(state_dict["constraint"])
        self._gate.load(state_dict.get("gate", {}))
        self._forget_register = None  # nobody could step on it: its measurement is dropped, too
        self.skipped = state_dict.get("skipped", 0)

    def _state_dict(self) -> dict[str, Any]:
        sides = {name: base.state_dict() for name, base in self._bases.items()}
        return {**sides, **self.control_state_dict()}

    def _load_state_dict(self, state_dict: dict[str, Any]) -> None:
        fitting.check_state(state_dict, self._bases, self.constraint)
        self.load_control_state_dict(state_dict)
        for name, base in self._bases.items():
            base.load_state_dict(state_dict[name])

    def _awaits_step(self) -> bool:
        return self._forget_register is not None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied optimizer."""
        super().__setstate__(state)
        self._share_memory()

    def __repr__(self) -> str:
        return (
            f"DualOptimizer(scale={self.scale!r}, constraint={self.constraint!r},\n"
            f"retain={self.retain!r},\nforget={self.forget!r})"
        )
