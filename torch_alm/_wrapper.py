"""What it means to be an optimizer around an optimizer: to own nothing.

`param_groups`, `state` and `defaults` are those of the wrapped optimizers, so that schedulers,
checkpoints and trainers find one truth wherever they look.
"""

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm import _gradients as gradients
from torch_alm import _interrupts as interrupts
from torch_alm import _skips as skips
from torch_alm._gradients import Backward, Evaluation
from torch_alm._interrupts import Call

Objective = Callable[[], Any]
T = TypeVar("T")


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
        skips.promise(nested(self))

    @property
    @abstractmethod
    def _bases(self) -> Mapping[str, Optimizer]:
        """The wrapped optimizers by name; the first one is the face shown to the world."""

    @property
    def _face(self) -> Optimizer:
        return next(iter(self._bases.values()))

    @staticmethod
    def _count_as_called(optimizer: Optimizer) -> None:
        """A step that leaves this optimizer alone is one of its steps: its schedulers go on."""
        optimizer._opt_called = True  # type: ignore[attr-defined]
        if isinstance(optimizer, Wrapper):
            for base in optimizer._bases.values():
                Wrapper._count_as_called(base)

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
        """The calls of `step`, without hooks, for whoever makes them."""

    @abstractmethod
    def _state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def _load_state_dict(self, state_dict: dict[str, Any]) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        """The checkpoint, through the hooks registered here."""
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
        """Whether a backward has run whose gradients `step` has not used yet."""

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
        skips.promise(nested(self))


class ObjectiveOptimizer(Wrapper):
    """A wrapper that takes gradients of objectives at a point of its own choosing.

    `sign` is +1 if the objective is higher there, -1 if it is lower.
    """

    sign: ClassVar[int]
    base: Optimizer
    _scratch: dict[Tensor, Tensor]

    def share_memory(self, other: "ObjectiveOptimizer") -> None:
        """Keep copies of theta where another one does that never perturbs at the same time."""
        self._scratch = other._scratch

    @abstractmethod
    def accumulate(
        self,
        objective: Objective,
        weight: float,
        backward: Backward | None,
        *,
        pair: bool = False,
        wanted: Callable[[Evaluation], bool] | None = None,
    ) -> Evaluation:
        """`.grad += weight * gradient` at that point, if wanted; the objective's numbers there."""


def _enter(base: Optimizer, mode: str) -> None:
    """torch's optimizers have no modes; those that have them name them as modules do."""
    method = getattr(base, mode, None)
    if callable(method):
        method()


def _owned(entry: object) -> object:
    """A copy of a checkpoint; what refuses to be copied is handed on, as torch itself does."""
    if isinstance(entry, dict):
        return {key: _owned(value) for key, value in entry.items()}
    try:
        return copy.deepcopy(entry)
    except NotImplementedError:  # tensor classes without `clone`, such as quantised moments
        return [_owned(value) for value in entry] if isinstance(entry, list) else entry


def check_base(base: object, owner: str) -> Optimizer:
    """The optimizer to wrap, or a `TypeError` that says what was found."""
    if inspect.isclass(base):
        raise TypeError(
            f"{owner} wraps an optimizer and found the class {base.__name__}, which has no "
            f"parameters yet. Did you mean `{owner}({base.__name__}(params, lr=...))`?"
        )
    _refuse_sharding_engine(base, owner)  # before the next: not all of its classes are optimizers
    if not isinstance(base, Optimizer):
        raise TypeError(
            f"{owner} wraps a torch.optim.Optimizer and found {type(base).__name__}, whose step "
            f"would never be taken. Did you mean `{owner}(AdamW(params, lr=...))`?"
        )
    closure = inspect.signature(base.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{owner} steps its base once per step, and {type(base).__name__} evaluates a closure "
            "several times, at points that were never perturbed. Did you mean SGD or AdamW?"
        )
    return base


def _refuse_sharding_engine(base: object, owner: str) -> None:
    """DeepSpeed's optimizers own the gradients: `.grad` is empty where others have theirs."""
    names = {f"{kind.__module__}.{kind.__name__}".lower() for kind in type(base).__mro__}
    if any("deepspeed" in name for name in names):
        raise TypeError(
            f"{owner} found {type(base).__name__}: DeepSpeed keeps gradients in partitions of its "
            "own and steps inside its engine, so both sides' gradients would end in one sum. Did "
            "you mean the constraint inside the loss, `engine.backward(retain + constraint(model, "
            "forget))` and `constraint.step()` after `engine.step()`, or FSDP2 with torch's "
            "optimizers?"
        )


def innermost(optimizer: Optimizer) -> Optimizer:
    """The optimizer that has the state, whose `step` needs no perturbed gradient."""
    while isinstance(optimizer, ObjectiveOptimizer):
        optimizer = optimizer.base
    return optimizer


def parameters(optimizer: Optimizer) -> list[Tensor]:
    """All parameters of an optimizer, in order, each once."""
    return list(dict.fromkeys(p for group in optimizer.param_groups for p in group["params"]))


def nested(optimizer: Optimizer) -> Iterator[Optimizer]:
    """This optimizer and all that it wraps."""
    yield optimizer
    if isinstance(optimizer, Wrapper):
        for base in optimizer._bases.values():  # pyright: ignore[reportPrivateUsage]
            yield from nested(base)


def is_scaled(wrapper: Wrapper) -> bool:
    """Whether a GradScaler is calling."""
    return "found_inf" in vars(wrapper)


def leave_scaler(wrapper: Wrapper) -> None:
    """Drop what a GradScaler lent; it takes it back itself only after a step that returned."""
    del wrapper.grad_scale, wrapper.found_inf


def refuse_closure_under_scaler(wrapper: Wrapper, closure: object, owner: str) -> None:
    """A scaler unscales before the step; a closure would bring scaled gradients after it."""
    if closure is not None and is_scaled(wrapper):
        leave_scaler(wrapper)
        raise RuntimeError(
            f"{owner}.step(closure) was called by a GradScaler: the gradients that the closure "
            "computes would be stepped on while still multiplied by the loss scale. Did you mean "
            f"`{owner}.backward(objective)` with `backward=lambda loss: scaler.scale(loss)"
            ".backward()`, and then `scaler.step(optimizer)`?"
        )


def found_finite(wrapper: Wrapper) -> bool:
    """Whether the GradScaler that is calling found all gradients finite.

    If they are not, the step is skipped, and announced as such.
    """
    if float(wrapper.found_inf) == 0:  # a plain 0 where no parameter has a gradient
        return True
    skips.announce(nested(wrapper))
    return False


def commit(wrapper: Wrapper, calls: list[Call], result: T) -> T:
    """Make the calls of a step, and return the result; Ctrl-C waits for its post-hooks as well."""
    try:
        if is_scaled(wrapper):
            _run_unscaled(wrapper, calls)
        else:
            interrupts.run(calls)
        return result
    except KeyboardInterrupt:
        if not calls:
            run_post_hooks(wrapper)
        raise


def run_post_hooks(wrapper: Wrapper) -> None:
    """Do what torch leaves out after a step that ends with an interrupt, though it was taken."""
    for hook in wrapper._optimizer_step_post_hooks.values():  # pyright: ignore[reportPrivateUsage]
        hook(wrapper, (wrapper,), {})


@torch.no_grad()
def _run_unscaled(wrapper: Wrapper, calls: list[Call]) -> None:
    """Make the calls without the loss scale that a GradScaler left in `.grad`.

    If one of them fails, the gradients are as they were and the scaler has its loan back: it clears
    both itself only after a step that returned.
    """
    params = parameters(wrapper)
    scaled = gradients.read(params)
    calls.insert(0, partial(gradients.put, params, _unscaled(scaled, wrapper.grad_scale)))
    try:
        interrupts.run(calls)
    except BaseException:
        if calls:
            gradients.put(params, scaled)
        leave_scaler(wrapper)
        raise


def _unscaled(register: gradients.Register, scale: Tensor | None) -> gradients.Register:
    if scale is None:  # after the user's own `unscale_`
        return register
    return [None if g is None else g / scale.to(g.device) for g in register]
