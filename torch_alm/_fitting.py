"""Whether the parts of a DualOptimizer fit together, found out before anything happens."""

import operator
from collections.abc import Mapping
from typing import Any, Literal

from torch.optim import Optimizer

from torch_alm import _matching as matching
from torch_alm import _wrapper as wrapper
from torch_alm.constraint import ALMConstraint


def scale(value: Any, name: str) -> Literal["gradient", "step"]:  # noqa: ANN401
    """One of the two words, or a `ValueError`."""
    if value not in ("gradient", "step"):
        raise ValueError(f'{name} is {value!r}; it is "gradient" (the paper) or "step".')
    return value


def cadence(value: Any) -> int:  # noqa: ANN401
    """A whole number of steps, at least 1, or a `ValueError`."""
    try:
        found = operator.index(value)
    except TypeError:  # 2.5, nan or a word
        found = 0
    if found < 1:
        raise ValueError(
            f"DualOptimizer: probe_every is {value!r}; a released constraint would never be "
            "measured again, or not on a whole step. Did you mean 1, every step?"
        )
    return found


def check_parameters(retain: Optimizer, forget: Optimizer) -> None:
    """Raise if the two sides would move different weights."""
    first, second = (wrapper.parameters(side) for side in (retain, forget))
    if {*first} != {*second}:
        raise ValueError(
            f"DualOptimizer: retain has {len(first)} parameters and forget {len(second)}, of "
            f"which {len({*first} & {*second})} are the same; the two sides would move "
            "different weights. Did you pass the same parameters to both (a generator is empty "
            "the second time)?"
        )


def check_sense(constraint: ALMConstraint | None, forget: Optimizer) -> None:
    """Raise if the forget side looks where the constraint is easiest to meet."""
    sense = ">=" if constraint is None else constraint.sense
    fitting = {">=": -1, "<=": +1, "==": 0}[sense]
    if isinstance(forget, wrapper.ObjectiveOptimizer) and forget.sign != fitting:
        side = {-1: "ReverseSAM or a plain optimizer", +1: "SAM or a plain optimizer"}
        raise ValueError(
            f'DualOptimizer: the constraint\'s sense is "{sense}" and the forget side is '
            f"{type(forget).__name__}, which would look where the constraint is easiest "
            f"to meet. Did you mean {side.get(fitting, 'a plain optimizer')}?"
        )


def check_state(
    state_dict: Mapping[str, Any], sides: Mapping[str, Optimizer], constraint: ALMConstraint | None
) -> None:
    """Raise, before anything is loaded, for the state of another optimizer."""
    expected = {*sides, "constraint"}
    if {*state_dict} - {"gate", "skipped"} != expected:
        raise ValueError(
            f"DualOptimizer.load_state_dict found the keys {sorted(state_dict)} and needs "
            f"{sorted(expected)}; one side's moments would be lost. Is it the checkpoint of a "
            "single optimizer?"
        )
    check_control(state_dict, constraint)
    for name, base in sides.items():
        matching.check(base, state_dict[name], f"DualOptimizer.load_state_dict: {name}")


def check_control(state_dict: Mapping[str, Any], constraint: ALMConstraint | None) -> None:
    """Raise if a multiplier would be lost or is missing."""
    if (state_dict["constraint"] is None) != (constraint is None):
        raise ValueError(
            "DualOptimizer.load_state_dict: only one of the checkpoint and this optimizer has "
            "a constraint; the multiplier would be lost. Was it saved by Dual AdamW?"
        )
