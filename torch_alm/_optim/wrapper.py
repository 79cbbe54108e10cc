"""Wrap optimizers and own nothing.

`param_groups`, `state` and `defaults` are those of the wrapped optimizers, so that schedulers,
checkpoints and trainers find one truth wherever they look.
"""

# pyright: reportPrivateUsage=false

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from torch_alm._guards import Call
from torch_alm._optim import gradients
from torch_alm._optim.gradients import parameters


class Wrapper(Optimizer, ABC):
    """A `torch.optim.Optimizer` around others.

    Step hooks registered on the wrapper run once around its `step`, those of a wrapped optimizer
    once around its own; global hooks run once per step of the outermost.
    """

    # Lets `torch.amp.GradScaler` hand its scale over, for the time of a step, instead of stepping
    # blindly. It reads `grad_scale` before it sets it: there must be none on the class.
    _step_supports_amp_scaling: bool = True
    grad_scale: Tensor | None
    found_inf: Tensor
    _has_warned: bool = False

    def _adopt(self) -> None:
        """Become an `Optimizer` without the part of its constructor that owns parameters."""
        missing = "differentiable" not in self.defaults
        Optimizer.__setstate__(self, {})
        if missing:  # meant for an optimizer with defaults of its own
            del self.defaults["differentiable"]

    @property
    @abstractmethod
    def _bases(self) -> Mapping[str, Optimizer]:
        """The wrapped optimizers by name; the first one is the face shown to the world."""

    @property
    def _face(self) -> Optimizer:
        return next(iter(self._bases.values()))

    @property
    def defaults(self) -> dict[str, Any]:
        """Default hyper-parameters, those of the wrapped optimizer."""
        return self._face.defaults

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all parameters."""
        self._face.zero_grad(set_to_none)

    def train(self) -> None:
        """Put those wrapped optimizers that have modes (schedule-free ones) into the training mode.

        The last one first: both sides of a `DualOptimizer` move the same weights, and what `eval`
        did last has to be undone first.
        """
        for base in [*self._bases.values()][::-1]:
            _enter(base, "train")

    def eval(self) -> None:
        """Put those wrapped optimizers that have modes into that of evaluation."""
        for base in self._bases.values():
            _enter(base, "eval")

    @abstractmethod
    def _update(self) -> list[Call]:
        """List the calls of `step`, without hooks, for whoever makes them."""

    @abstractmethod
    def _state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def _load_state_dict(self, state_dict: dict[str, Any]) -> None: ...

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
        """Restore a checkpoint, sharing no memory with it (but tensors that cannot be copied)."""
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            replaced = before(self, state_dict)
            state_dict = state_dict if replaced is None else replaced
        self._load_state_dict(cast("dict[str, Any]", _owned(state_dict)))
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    @abstractmethod
    def _awaits_step(self) -> bool:
        """Tell whether a backward has run whose gradients `step` has not used yet."""

    def __getstate__(self) -> dict[str, Any]:
        """Everything but hooks and a scheduler's patch of `step`, as torch's optimizers do.

        Between backward and step that is the gradients, too: torch's copies of a parameter have
        none, and the next step would take what is kept here without its other half.
        """
        dropped = ("step", "_scratch")
        kept = {
            name: value
            for name, value in self.__dict__.items()
            if name not in dropped and not name.endswith("_hooks")
        }
        return (
            {**kept, "gradients": gradients.read(parameters(self))} if self._awaits_step() else kept
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore what `__getstate__` kept, with empty hooks."""
        attributes = dict(state)
        register = attributes.pop("gradients", None)
        super().__setstate__(attributes)
        if register is not None:
            gradients.put(parameters(self), register)


def nested(optimizer: Optimizer) -> Iterator[Optimizer]:
    """Walk through an optimizer and all that it wraps."""
    yield optimizer
    if isinstance(optimizer, Wrapper):
        for base in optimizer._bases.values():
            yield from nested(base)


def _enter(base: Optimizer, mode: str) -> None:
    """Call `train` or `eval` where there is one: torch's optimizers have no modes."""
    method = getattr(base, mode, None)
    if callable(method):
        method()


def _owned(entry: object) -> object:
    """Copy a checkpoint; what refuses to be copied is handed on, as torch itself does."""
    if isinstance(entry, dict):
        return {key: _owned(value) for key, value in entry.items()}
    try:
        return copy.deepcopy(entry)
    except NotImplementedError:  # tensor classes without `clone`, such as quantised moments
        return [_owned(value) for value in entry] if isinstance(entry, list) else entry
