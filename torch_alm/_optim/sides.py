"""Two optimizers over one theta as the world sees them: groups, states and checkpoints."""

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, SupportsIndex

from torch import Tensor
from torch.optim import Optimizer

from torch_alm._guards import held
from torch_alm._optim import checks, gradients, scaler
from torch_alm._optim.gate import Cadence, Gate, check_sense
from torch_alm._optim.gradients import Kept, parameters
from torch_alm._optim.objective import Evaluation, ObjectiveOptimizer, innermost
from torch_alm._optim.wrapper import Wrapper

if TYPE_CHECKING:
    from torch_alm.constraint import ALMConstraint


class Norms(NamedTuple):
    """Gradient norms of both sides before clipping."""

    retain: Tensor
    forget: Tensor


class Sides(Wrapper):
    """A retain side, a forget side, the constraint between them, and what they keep."""

    reshard: Callable[[], object] | None

    def __init__(
        self, retain: Optimizer, forget: Optimizer, constraint: "ALMConstraint | None", gate: Gate
    ) -> None:
        self.retain = checks.check_base(retain, "DualOptimizer", (ObjectiveOptimizer,))
        self.forget = checks.check_base(forget, "DualOptimizer", (ObjectiveOptimizer,))
        checks.check_parameters(self.retain, self.forget)
        check_sense(constraint, self.forget)
        self.constraint = constraint
        self.skipped = 0
        self._skips = False
        self._gate = gate
        self._forget_register: Kept | None = None
        self._forget_sign = 0
        self._is_aside = False  # while `.grad` is the forget side's
        self._times: float | Tensor = 0.0  # how many times the gradient is in that register
        self._share_memory()
        self._adopt()

    def _share_memory(self) -> None:
        """Keep one copy of theta for both sides: they perturb one after the other."""
        sides = [s for s in self._bases.values() if isinstance(s, ObjectiveOptimizer)]
        for side in sides:
            side.share_memory(sides[0])

    @property
    def probe_every(self) -> Cadence:
        """The cadence of a released constraint's measurements; it may be assigned."""
        return self._gate.probe_every

    @probe_every.setter
    def probe_every(self, value: SupportsIndex | Literal["auto"]) -> None:
        self._gate.probe_every = checks.cadence(value)

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
        for base in {innermost(base): None for base in self._bases.values()}:
            base.add_param_group(dict(group))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear both gradients, and what the constraint observed while they were taken."""
        with held():  # one side's alone would be added to the next step's
            super().zero_grad(set_to_none)
            if self._forget_register is not None:
                self._drop_forget()

    def _drop_forget(self) -> None:
        self._forget_register = None
        if self.constraint is not None:
            self.constraint.discard()

    def clip_grad_norm_(self, max_norm: float) -> Norms:
        """Clip each side to `max_norm` on its own; returns both norms before clipping.

        `torch.nn.utils.clip_grad_norm_` (and a Trainer's `max_grad_norm`) reaches the retain side
        only. The forget side is clipped before lambda+ multiplies it.
        """
        retain = gradients.read(parameters(self.retain))
        sides = (retain, [*(self._forget_register or {}).values()])
        norms = Norms(*(gradients.clip_(register, max_norm) for register in sides))
        self._times = self._times * (max_norm / (norms.forget + 1e-6)).clamp(max=1.0)
        return norms

    def _asked(self, is_wanted: Callable[[Tensor], bool], evaluation: Evaluation) -> bool:
        """Tell whether a forward's backward is wanted; if not, let go what it would have needed."""
        if is_wanted(evaluation.value.detach()):
            return True
        if self.reshard is not None:
            self.reshard()
        return False

    def _warn_skipped(self) -> None:
        """Warn after the step, so that a warning that is an error finds it whole."""
        self.skipped += 1
        warnings.warn(
            "DualOptimizer.step: the forget gradient is not finite, or is not once lambda+ "
            "multiplies it, and would have reached theta; the forget step is skipped "
            f"({self.skipped} so far). Is the forget loss unbounded, or mu too large?",
            stacklevel=6,
        )

    def _refuse_another(self) -> NoReturn:
        raise RuntimeError(
            "DualOptimizer.backward after `backward(last=True)`: lambda+ of this step is "
            "decided, and the forget gradient may have been skipped. Did you mean `last=True` "
            "for the last micro-batch only, or `zero_grad()` after a step that was dropped?"
        )

    def _refuse_mixed_forms(self) -> NoReturn:
        raise ValueError(
            "DualOptimizer.backward: within one step the forget objective returned a pair "
            "`(loss, value)` once and a single value once; their gradients have opposite signs "
            "and would cancel. Did you mean the same form for every micro-batch?"
        )

    def _refuse(self, closure: object) -> None:
        if closure is not None:
            raise TypeError(
                "DualOptimizer.step takes no closure: it could not say which side it "
                "differentiates. Did you mean `backward(retain=..., forget=...)` and then `step()`?"
            )
        if scaler.is_scaled(self):
            scaler.leave_scaler(self)
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
        if isinstance(self.retain, Wrapper):
            self.retain._has_warned = True  # SAM has nothing to add to this

    def control_state_dict(self) -> dict[str, Any]:
        """Collect all but the states of the two sides: the constraint's, the gate's, the count."""
        constraint = None if self.constraint is None else self.constraint.state_dict()
        other = {"gate": self._gate.state(), "skipped": self.skipped}
        return {"constraint": constraint, **{key: found for key, found in other.items() if found}}

    def load_control_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore `control_state_dict()`; a step that was begun is dropped on the forget side."""
        checks.check_control(state_dict, self.constraint is not None)
        if self.constraint is not None:
            self.constraint.load_state_dict(state_dict["constraint"])
        self._gate.load(state_dict.get("gate", {}))
        for side in self._bases.values():
            if isinstance(side, ObjectiveOptimizer):
                side.renew()  # a delta found along another way
        self._forget_register = None  # nobody could step on it: its measurement is dropped, too
        self.skipped = state_dict.get("skipped", 0)

    def _state_dict(self) -> dict[str, Any]:
        sides = {name: base.state_dict() for name, base in self._bases.items()}
        return {**sides, **self.control_state_dict()}

    def _load_state_dict(self, state_dict: dict[str, Any]) -> None:
        checks.check_state(state_dict, self._bases, self.constraint is not None)
        self.load_control_state_dict(state_dict)
        for name, base in self._bases.items():
            base.load_state_dict(state_dict[name])

    def _awaits_step(self) -> bool:
        return self._forget_register is not None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied optimizer."""
        super().__setstate__(state)
        self._share_memory()
