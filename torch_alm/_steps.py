"""A step of a wrapped optimizer, as calls that somebody else makes one after the other."""

# pyright: reportPrivateUsage=false
# What torch's own `Optimizer.profile_hook_step` does around a step, but for the global hooks.

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.autograd.profiler import record_function
from torch.optim import Optimizer

from torch_alm._interrupts import Call
from torch_alm._wrapper import Wrapper


class _Step:
    """A step in progress: the arguments that hooks see, and may replace."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((optimizer,), {})
        step = type(optimizer).step
        function: Any = getattr(step, "__wrapped__", step) if hasattr(step, "hooked") else step
        label = f"Optimizer.step#{type(optimizer).__name__}.step"
        self._function: Callable[..., object] = record_function(label)(function)

    def before(self, hook: Callable[..., Any]) -> None:
        self.arguments = hook(self.optimizer, *self.arguments) or self.arguments

    def after(self, hook: Callable[..., Any]) -> None:
        hook(self.optimizer, *self.arguments)

    def update(self) -> None:
        args, kwargs = self.arguments
        self._function(*args, **kwargs)


class Taking(partial[object]):
    """The call that takes a step, so that one can tell whether it came to that."""


def _is_tracked(patched: object, optimizer: Optimizer) -> bool:
    """Whether a scheduler's patch is all there is: its mark is copied by whoever wraps it."""
    of_class = getattr(patched, "__wrapped__", None) is type(optimizer).step
    return of_class and getattr(patched, "_wrapped_by_lr_sched", False)


def step_of(optimizer: Optimizer) -> list[Call]:
    """One step with the optimizer's own hooks, without the global ones.

    Those run once per step of the outermost optimizer, which torch sees to. Here they are left out
    by not going through them: torch's list of them belongs to all threads.
    """
    patched = vars(optimizer).get("step")
    is_tracked = _is_tracked(patched, optimizer)
    if patched is not None and not is_tracked:
        return [Taking(optimizer.step)]  # somebody else's, with hooks and all
    step = _Step(optimizer)
    return [
        *([partial(setattr, optimizer, "_opt_called", True)] if is_tracked else []),
        *(partial(step.before, hook) for hook in optimizer._optimizer_step_pre_hooks.values()),
        *(optimizer._update() if isinstance(optimizer, Wrapper) else [Taking(step.update)]),
        optimizer._optimizer_step_code,  # where profilers look
        *(partial(step.after, hook) for hook in optimizer._optimizer_step_post_hooks.values()),
    ]
