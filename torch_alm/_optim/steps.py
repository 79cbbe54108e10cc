"""Steps of wrapped optimizers: whether one is taken, with which weight, and as which calls."""

# pyright: reportPrivateUsage=false
# What torch's own `Optimizer.profile_hook_step` does around a step, but for the global hooks.

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.autograd.profiler import record_function
from torch.optim import Optimizer

from torch_alm._guards import Call
from torch_alm._optim.objective import ObjectiveOptimizer
from torch_alm._optim.wrapper import Wrapper, nested

if TYPE_CHECKING:
    from torch_alm.constraint import ALMConstraint


class Gate:
    """lambda+ of one step, decided once; and whether a released constraint is worth measuring.

    Args:
        probe_every: while the gate is closed and lambda is 0, the forget side is measured on every
            `probe_every`-th step only.

    Attributes:
        idle: steps since the released constraint was measured; `None` while it is not released.
        measures: whether this step measures, in all of its micro-batches.
        is_decided: whether this step can take no further measurement.
    """

    def __init__(self, probe_every: int) -> None:
        """Start unreleased."""
        self.probe_every = probe_every
        self.idle: int | None = None
        self.begin()

    def begin(self) -> None:
        """Begin a step, or begin it again."""
        self.measures = self.idle is None or self.idle + 1 >= self.probe_every
        self.is_decided = False

    def commit(self, constraint: "ALMConstraint | None") -> float:
        """Return the step's weight, and end the step."""
        weight = 1.0 if constraint is None else 0.0
        if not self.measures:
            self.idle, weight = (self.idle or 0) + 1, 0.0
        elif constraint is not None:
            weight = scalar(constraint.step())
            self.idle = 0 if weight == 0 and scalar(constraint.multiplier) == 0 else None
        self.begin()
        return weight

    def state(self) -> dict[str, Any]:
        """Collect what a resumed run needs; nothing where every step measures."""
        return {} if self.probe_every == 1 else {"idle": self.idle}

    def load(self, state: dict[str, Any]) -> None:
        """Restore `state()`; a checkpoint without it measures at once."""
        self.idle = state.get("idle")
        self.begin()


def scalar(weight: float | Tensor) -> float:
    """Return the one multiplier, or raise a `ValueError`."""
    if isinstance(weight, Tensor):
        raise ValueError(
            f"DualOptimizer.step: the constraint has {weight.numel()} multipliers and the forget "
            "side one gradient, so no single weight is right. Did you mean a scalar measure, or "
            "`constraint(...)` inside the retain objective of one optimizer?"
        )
    return weight


def check_sense(constraint: "ALMConstraint | None", forget: Optimizer) -> None:
    """Raise if the forget side looks where the constraint is easiest to meet."""
    sense = ">=" if constraint is None else constraint.sense
    fitting = {">=": -1, "<=": +1, "==": 0}[sense]
    if isinstance(forget, ObjectiveOptimizer) and forget.sign != fitting:
        side = {-1: "ReverseSAM or a plain optimizer", +1: "SAM or a plain optimizer"}
        raise ValueError(
            f'DualOptimizer: the constraint\'s sense is "{sense}" and the forget side is '
            f"{type(forget).__name__}, which would look where the constraint is easiest "
            f"to meet. Did you mean {side.get(fitting, 'a plain optimizer')}?"
        )


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
