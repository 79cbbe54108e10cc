"""Refusals and warnings of a `DualOptimizer`."""

# pyright: reportPrivateUsage=false

import warnings
from typing import NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from torch_alm._constraint import numbers
from torch_alm._optim.gradients import parameters
from torch_alm._optim.rounding import DROPPED
from torch_alm._optim.wrapper import Wrapper, find_stateful
from torch_alm.constraint import ALMConstraint
from torch_alm.sam import SharpnessAware


def check_sides(retain: Optimizer, forget: Optimizer) -> None:
    """Raise if they are one optimizer, would move different weights, or the wrong way."""
    if isinstance(retain, SharpnessAware) and retain._sign < 0:
        raise ValueError(
            "DualOptimizer: the retain side is ReverseSAM, which would move to where the retain "
            "loss is lowest. Did you mean `retain=SAM(...)`, and ReverseSAM for the forget side?"
        )
    if find_stateful(retain) is find_stateful(forget):
        raise ValueError(
            "DualOptimizer: retain and forget are one optimizer, whose moments would mix both "
            "gradients. Did you mean a second one over the same parameters?"
        )
    first, second = (parameters(side) for side in (retain, forget))
    if {*first} != {*second}:
        raise ValueError(
            f"DualOptimizer: retain has {len(first)} parameters and forget {len(second)}, of "
            f"which {len({*first} & {*second})} are the same; the two sides would move different "
            "weights. Did you pass the same parameters to both (a generator is empty the second "
            "time)?"
        )


def check_constraint(constraint: object, forget: Optimizer, scale: str) -> None:
    """Raise if it is none, or not for this scale, or the forget side helps it to be met."""
    if constraint is not None and not isinstance(constraint, ALMConstraint):
        raise TypeError(
            f"DualOptimizer: the constraint is {type(constraint).__name__}, which has no one "
            "multiplier to weigh the forget gradient with. Did you mean one `ALMConstraint`? (A "
            "group acts in the loss: `retain=lambda: loss() + group(...)`.)"
        )
    size = 1 if constraint is None else numbers.shape(constraint.multiplier).numel()
    if size > 1:
        raise ValueError(
            f"DualOptimizer: the constraint has {size} multipliers, and one weighs the forget "
            "gradient. Did you mean one number for alpha? (A vector acts in the loss: "
            "`retain=lambda: loss() + constraint(...)`.)"
        )
    if constraint is not None and scale == "step" and "auto" in constraint.state_dict():
        raise ValueError(
            'DualOptimizer: mu="auto" finds what a gradient is multiplied by, and scale="step" '
            "multiplies a finished step. Did you mean a number, such as mu=0.1?"
        )
    sense = ">=" if constraint is None else constraint.sense
    fitting = {">=": -1, "<=": +1, "==": 0}[sense]
    if isinstance(forget, SharpnessAware) and forget._sign != fitting:
        side = {-1: "ReverseSAM or a plain optimizer", +1: "SAM or a plain optimizer"}
        raise ValueError(
            f'DualOptimizer: the constraint\'s sense is "{sense}" and the forget side is '
            f"{type(forget).__name__}, which would move to where the constraint is easiest "
            f"to meet. Did you mean {side.get(fitting, 'a plain optimizer')}?"
        )


def refuse_step(optimizer: Wrapper, closure: object) -> NoReturn:
    """Raise for a closure or, having taken back what it lent, for a GradScaler."""
    if closure is not None:
        raise TypeError(
            "DualOptimizer.step takes no closure: it could not say which side it "
            "differentiates. Did you mean `backward(retain=..., forget=...)` and then `step()`?"
        )
    del optimizer.grad_scale, optimizer.found_inf
    raise RuntimeError(
        "DualOptimizer.step was called by a GradScaler, which unscales the retain gradient "
        "only; the forget gradient would keep its loss scale. Did you mean bfloat16 autocast, "
        "which needs no scaler?"
    )


def refuse_signs() -> NoReturn:
    """Raise for forget gradients of one step that have opposite signs."""
    raise ValueError(
        "DualOptimizer.backward: within one step the forget objective returned a pair "
        "`(loss, value)` once and a single value once, whose gradients have opposite "
        "signs. Did you mean the same form for every micro-batch?"
    )


def refuse_observed() -> NoReturn:
    """Raise for an objective that measures the constraint itself."""
    raise ValueError(
        "DualOptimizer.backward: an objective called the constraint, which the optimizer does: "
        "lambda+ would act twice, or on its own penalty. Did you mean `forget=lambda: "
        "measure(model, batch)`?"
    )


def warn_swallowed(theta: list[Tensor], start: list[Tensor]) -> bool:
    """Warn if narrow weights hold nothing of a multiplied step; return whether any is narrow."""
    is_narrow = any(t.dtype in DROPPED for t in theta)
    if is_narrow and all(map(torch.equal, theta, start)):
        warnings.warn(
            'DualOptimizer.step: the weights\' dtype swallows the forget step (scale="step"). '
            "Did you mean float32 weights under bfloat16 autocast, or a higher rate?",
            stacklevel=7,
        )
    return is_narrow


def warn_skipped(count: int) -> None:
    """Warn after the step, so that a warning that is an error finds it whole."""
    warnings.warn(
        "DualOptimizer.step: the forget gradient is not finite, or is not once lambda+ "
        "multiplies it, and would have reached theta; the forget step is skipped "
        f"({count} so far). Is the forget loss unbounded, or mu too large?",
        stacklevel=6,
    )


def warn_no_backward(retain: Optimizer) -> None:
    """Warn of a step that has no forget gradient."""
    warnings.warn(
        "DualOptimizer.step() without a backward since the last step is a plain "
        f"{type(retain).__name__} step; the constraint is left alone. Did you call "
        "`backward(retain=..., forget=...)` first?",
        stacklevel=7,
    )
    if isinstance(retain, Wrapper):
        retain._has_warned = True  # SAM has nothing to add to this
