"""Wrap optimizers and own nothing.

`param_groups`, `state` and `defaults` are those of the wrapped optimizers, so that schedulers,
checkpoints and trainers find one truth wherever they look.
"""

# pyright: reportPrivateUsage=false

import copy
import inspect
import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from torch_alm._optim import gradients
from torch_alm._optim.gradients import parameters


class Wrapper(Optimizer):
    """A `torch.optim.Optimizer` around others.

    Step hooks registered on the wrapper run once around its `step`, those of a wrapped optimizer
    once around its own; torch's global hooks run around both.
    """

    # Lets `torch.amp.GradScaler` hand its scale over, for the time of a step, instead of stepping
    # blindly. It reads `grad_scale` before it sets it: there must be none on the class.
    _step_supports_amp_scaling: bool = True
    grad_scale: Tensor | None
    found_inf: Tensor
    _has_warned: bool = False
    _checked: list[tuple[Any, ...]]

    def _adopt(self) -> None:
        """Become an `Optimizer` without the part of its constructor that owns parameters."""
        missing = "differentiable" not in self.defaults
        Optimizer.__setstate__(self, {})
        if missing:  # meant for an optimizer with defaults of its own
            self.defaults.pop("differentiable", None)

    @property
    def _bases(self) -> Mapping[str, Optimizer]:
        """The wrapped optimizers by name; the first one is the face shown to the world."""
        raise NotImplementedError

    @property
    def _first_base(self) -> Optimizer:
        return next(iter(self._bases.values()))

    @property
    def defaults(self) -> dict[str, Any]:
        """Default hyper-parameters, those of the wrapped optimizer."""
        return self._first_base.defaults

    def _check(self) -> None:
        """Raise if what is wrapped cannot be stepped here; remember its groups."""
        self._checked = gradients.group_signature(*map(find_stateful, self._bases.values()))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to each wrapped optimizer; its `"rho"`, if any, is its own radius."""
        params = param_group["params"]
        group = {**param_group, "params": [params] if isinstance(params, Tensor) else list(params)}
        for base in self._bases.values():
            base.add_param_group(dict(group))
        self._check()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all parameters."""
        if not set_to_none:
            self._first_base.zero_grad(set_to_none=False)
        else:
            gradients.clear(parameters(self._first_base))

    def train(self) -> None:
        """Put wrapped optimizers with modes (schedule-free ones) into training, the last first."""
        for base in [*self._bases.values()][::-1]:
            getattr(base, "train", lambda: None)()

    def eval(self) -> None:
        """Put wrapped optimizers with modes into evaluation."""
        for base in self._bases.values():
            getattr(base, "eval", lambda: None)()

    def _awaits_step(self) -> bool:
        """Return whether a backward has run whose gradients `step` has not used yet."""
        raise NotImplementedError

    def _state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def _load_state_dict(self, state_dict: dict[str, Any]) -> None:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Collect the checkpoint, through the hooks registered here."""
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        state_dict = self._state_dict()
        for after in self._optimizer_state_dict_post_hooks.values():
            replaced = after(self, state_dict)
            state_dict = state_dict if replaced is None else replaced
        return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a checkpoint, sharing no memory with it."""
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            replaced = before(self, state_dict)
            state_dict = state_dict if replaced is None else replaced
        with suppress(NotImplementedError):  # tensors without `clone` are shared, as in torch
            state_dict = copy.deepcopy(state_dict)
        self._load_state_dict(state_dict)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but hooks and a scheduler's patch of `step`, as torch's optimizers do.

        Between backward and step that is the gradients, too, which torch's copies do not have.
        """
        kept = {name: value for name, value in vars(self).items() if not name.endswith("_hooks")}
        kept.pop("step", None)
        if self._awaits_step():
            kept["gradients"] = gradients.read(parameters(self))
        return kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore what `__getstate__` kept, with empty hooks."""
        attributes = dict(state)
        register = attributes.pop("gradients", None)
        super().__setstate__(attributes)
        if register is not None:
            gradients.put(parameters(self), register)


def find_stateful(optimizer: Optimizer) -> Optimizer:
    """Find the optimizer that has the state, whose `step` needs no perturbed gradient."""
    return find_stateful(optimizer._first_base) if isinstance(optimizer, Wrapper) else optimizer


def mark_called(optimizer: Optimizer) -> None:
    """Take a step that leaves this optimizer alone for one of its steps: its schedulers go on."""
    optimizer._opt_called = True  # type: ignore[attr-defined]
    for base in optimizer._bases.values() if isinstance(optimizer, Wrapper) else ():
        mark_called(base)


def check_base(base: object, owner: str, inside: tuple[type, ...] = ()) -> Optimizer:
    """Return the optimizer to wrap, or raise a `TypeError` that says what was found."""
    if not isinstance(base, Optimizer):
        found = f"the class {base.__name__}" if inspect.isclass(base) else type(base).__name__
        raise TypeError(
            f"{owner} wraps a torch.optim.Optimizer and found {found}, whose step would never be "
            f"taken. Did you mean `{owner}(AdamW(params, lr=...), ...)`?"
        )
    if isinstance(base, Wrapper) and not isinstance(base, inside):
        raise TypeError(
            f"{owner} found {type(base).__name__} inside: its radius or its constraint would be "
            f"ignored. Did you mean the optimizer in it, `{owner}(AdamW(params, lr=...))`?"
        )
    closure = inspect.signature(base.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{owner} steps its base once per step, and {type(base).__name__} evaluates a closure "
            "several times, at points that were never perturbed. Did you mean SGD or AdamW?"
        )
    check_groups(base, owner)
    return base


def check_groups(base: Optimizer, owner: str) -> None:
    """Raise if the groups of an optimizer hold what `owner` could not move, or not rightly."""
    params, fsdp = parameters(base), cast("Any", sys.modules.get(FSDP1))
    if fsdp is not None and any(map(fsdp._is_fsdp_flattened, params)):
        raise TypeError(
            f"{owner} found parameters of FullyShardedDataParallel (FSDP1): norms and gates would "
            "be those of each rank's part. Did you mean `fully_shard` (FSDP2) or "
            "DistributedDataParallel?"
        )
    gradients.check_weights(params, owner)
    if params and not any(p.requires_grad for p in params):
        raise TypeError(
            f"{owner} found {type(base).__name__}, none of whose parameters takes a gradient. Does "
            "it stand for optimizers that step inside backward (layerwise GaLore, LOMO), which "
            "would step in every pass? Did you mean a plain one, or to unfreeze them first?"
        )


def check_descends(base: Optimizer, owner: str) -> None:
    """Raise a `ValueError` if an optimizer climbs what it is given."""
    if any(group.get("maximize") for group in base.param_groups):
        raise ValueError(
            f"{owner} found {type(base).__name__} with maximize=True, which would go the wrong "
            "way. Did you mean `maximize=False`, and the loss with its sign?"
        )


FSDP1 = "torch.distributed.fsdp._common_utils"


def check_sizes(base: Optimizer, state_dict: Mapping[str, Any], owner: str) -> None:
    """Raise before moments are given to other weights: torch matches them by position."""
    saved = [len(group["params"]) for group in state_dict.get("param_groups", ())]
    here = [len(group["params"]) for group in base.state_dict().get("param_groups", ())]
    if saved != here:
        raise ValueError(
            f"{owner}: groups of {saved} parameters where this optimizer has {here}; moments "
            "would be given to other weights. Is it the checkpoint of another model?"
        )


def check_radius(value: Any, name: str) -> float:  # noqa: ANN401
    """Convert to a finite number, at least 0, or raise an error that names it."""
    try:
        value = value.detach() if isinstance(value, Tensor) else value
        radius = float("" if isinstance(value, str) else value)
    except (TypeError, ValueError, RuntimeError) as error:  # None; several entries
        raise TypeError(
            f"{name} is {value!r}, where one number belongs. Did you mean a float?"
        ) from error
    if not (math.isfinite(radius) and radius >= 0):
        raise ValueError(
            f"{name} is {value!r}, which no ball has as its radius. Did you mean a small number "
            "such as 0.05 (and `ReverseSAM`, or `sign=-1`, to descend)?"
        )
    return radius


def check_count(value: Any, name: str) -> int:  # noqa: ANN401
    """Convert to a whole number, at least 1, or raise a `ValueError` that names it."""
    if not hasattr(value, "__index__") or value.__index__() < 1:
        raise ValueError(
            f"{name} is {value!r}, and counts from 1. Did you mean 1, every time, or 8, every 8th?"
        )
    return value.__index__()
