"""Steps that a `torch.amp.GradScaler` calls, with its scale still in the gradients."""

# pyright: reportPrivateUsage=false

from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from torch_alm import _guards as guards
from torch_alm import _skips as skips
from torch_alm._guards import Call
from torch_alm._optim import gradients
from torch_alm._optim.gradients import parameters
from torch_alm._optim.wrapper import Wrapper, nested

T = TypeVar("T")


def is_scaled(wrapper: Wrapper) -> bool:
    """Tell whether a GradScaler is calling."""
    return "found_inf" in vars(wrapper)


def leave_scaler(wrapper: Wrapper) -> None:
    """Drop what a GradScaler lent; it takes it back itself only after a step that returned."""
    del wrapper.grad_scale, wrapper.found_inf


def refuse_closure(wrapper: Wrapper, closure: object, owner: str) -> None:
    """Raise for a closure: a scaler unscales before the step, and this would bring scaled ones."""
    if closure is not None and is_scaled(wrapper):
        leave_scaler(wrapper)
        raise RuntimeError(
            f"{owner}.step(closure) was called by a GradScaler: the gradients that the closure "
            "computes would be stepped on while still multiplied by the loss scale. Did you mean "
            f"`{owner}.backward(objective)` with `backward=lambda loss: scaler.scale(loss)"
            ".backward()`, and then `scaler.step(optimizer)`?"
        )


def found_finite(wrapper: Wrapper) -> bool:
    """Tell whether the GradScaler that is calling found all gradients finite.

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
            guards.run(calls)
        return result
    except KeyboardInterrupt:
        if not calls:
            run_post_hooks(wrapper)
        raise


def run_post_hooks(wrapper: Wrapper) -> None:
    """Do what torch leaves out after a step that ends with an interrupt, though it was taken."""
    for hook in wrapper._optimizer_step_post_hooks.values():
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
        guards.run(calls)
    except BaseException:
        if calls:
            gradients.put(params, scaled)
        leave_scaler(wrapper)
        raise


def _unscaled(register: gradients.Register, scale: Tensor | None) -> gradients.Register:
    if scale is None:  # after the user's own `unscale_`
        return register
    return [None if g is None else g / scale.to(g.device) for g in register]
