"""Steps of wrapped optimizers, as the calls they are made of."""

# pyright: reportPrivateUsage=false
# What torch's own `Optimizer.profile_hook_step` does around a step, but for the global hooks.

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.autograd.profiler import record_function
from torch.optim import Optimizer

from torch_alm._guards import Call
from torch_alm._optim.wrapper import Wrapper, nested


class Taking(partial[object]):
    """The call that takes a step, so that one can tell whether it came to that."""


@dataclass
class _Step:
    """A step in progress: the arguments that hooks see, and may replace."""

    optimizer: Optimizer
    function: Callable[..., object]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def before(self, hook: Callable[..., Any]) -> None:
        self.arguments = hook(self.optimizer, *self.arguments) or self.arguments

    def after(self, hook: Callable[..., Any]) -> None:
        hook(self.optimizer, *self.arguments)

    def update(self) -> None:
        args, kwargs = self.arguments
        self.function(*args, **kwargs)


def step_of(optimizer: Optimizer) -> list[Call]:
    """List the calls of one step with the optimizer's own hooks, without the global ones.

    Those run once per step of the outermost optimizer, which torch sees to. Here they are left out
    by not going through them: torch's list of them belongs to all threads.
    """
    patched, step = vars(optimizer).get("step"), type(optimizer).step
    if patched is not None and not _is_tracked(patched, step):
        return [Taking(optimizer.step)]  # somebody else's, with hooks and all
    function: Any = getattr(step, "__wrapped__", step) if hasattr(step, "hooked") else step
    label = f"Optimizer.step#{type(optimizer).__name__}.step"
    one = _Step(optimizer, record_function(label)(function), ((optimizer,), {}))
    return [
        *([] if patched is None else [partial(setattr, optimizer, "_opt_called", True)]),
        *(partial(one.before, hook) for hook in optimizer._optimizer_step_pre_hooks.values()),
        *(optimizer._update() if isinstance(optimizer, Wrapper) else [Taking(one.update)]),
        optimizer._optimizer_step_code,  # where profilers look
        *(partial(one.after, hook) for hook in optimizer._optimizer_step_post_hooks.values()),
    ]


def _is_tracked(patched: object, step: object) -> bool:
    """Tell whether a scheduler's patch is all there is: its mark is copied by whoever wraps it."""
    is_of_class = getattr(patched, "__wrapped__", None) is step
    return is_of_class and getattr(patched, "_wrapped_by_lr_sched", False)


def count_as_called(optimizer: Optimizer) -> None:
    """Take a step that leaves this optimizer alone for one of its steps: its schedulers go on."""
    for each in nested(optimizer):
        each._opt_called = True  # type: ignore[attr-defined]
