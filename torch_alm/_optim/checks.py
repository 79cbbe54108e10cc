"""Checks of what an optimizer is built from and loaded with, before anything happens."""

import inspect
import sys
from collections.abc import Mapping
from typing import Any, Literal

from torch.optim import Optimizer

from torch_alm._optim import matching
from torch_alm._optim.gradients import parameters
from torch_alm._optim.settings import count
from torch_alm._optim.wrapper import Wrapper


def check_base(base: object, owner: str, inside: tuple[type, ...] = ()) -> Optimizer:
    """Return the optimizer to wrap, or raise a `TypeError` that says what was found."""
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
    _refuse_flat_parameters(base, owner)
    if isinstance(base, Wrapper) and not isinstance(base, inside):
        raise TypeError(
            f"{owner} found {type(base).__name__} inside: it would be stepped and never asked "
            "for a gradient, so that its radius or its constraint would be ignored. Did you mean "
            f"the optimizer in it, `{owner}(AdamW(params, lr=...))`?"
        )
    closure = inspect.signature(base.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{owner} steps its base once per step, and {type(base).__name__} evaluates a closure "
            "several times, at points that were never perturbed. Did you mean SGD or AdamW?"
        )
    return base


def _refuse_sharding_engine(base: object, owner: str) -> None:
    """Raise for DeepSpeed's optimizers: they own the gradients, and `.grad` stays empty."""
    names = {f"{kind.__module__}.{kind.__name__}".lower() for kind in type(base).__mro__}
    if any("deepspeed" in name for name in names):
        raise TypeError(
            f"{owner} found {type(base).__name__}: DeepSpeed keeps gradients in partitions of its "
            "own and steps inside its engine, so both sides' gradients would end in one sum. Did "
            "you mean the constraint inside the loss, `engine.backward(retain + constraint(model, "
            "forget))` and `constraint.step()` after `engine.step()`, or FSDP2 with torch's "
            "optimizers?"
        )


def _refuse_flat_parameters(base: Optimizer, owner: str) -> None:
    """Raise for parameters that FSDP1 has flattened: which part a rank has, they do not tell."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp._common_utils")
    if fsdp is not None and any(map(fsdp._is_fsdp_flattened, parameters(base))):
        raise TypeError(
            f"{owner} found parameters of FullyShardedDataParallel (FSDP1), of which each rank has "
            "a part and cannot tell which: norms and gates would be those of the part. Did you "
            "mean `fully_shard` (FSDP2) or DistributedDataParallel?"
        )


def scale(value: Any, name: str) -> Literal["gradient", "step"]:  # noqa: ANN401
    """Return one of the two words, or raise a `ValueError`."""
    if value not in ("gradient", "step"):
        raise ValueError(f'{name} is {value!r}; it is "gradient" (the paper) or "step".')
    return value


def cadence(value: Any) -> int | Literal["auto"]:  # noqa: ANN401
    """Convert to a whole number of steps, at least 1, or "auto"; else raise a `ValueError`."""
    return "auto" if value == "auto" else count(value, "DualOptimizer: probe_every")


def check_parameters(retain: Optimizer, forget: Optimizer) -> None:
    """Raise if the two sides would move different weights."""
    first, second = (parameters(side) for side in (retain, forget))
    if {*first} != {*second}:
        raise ValueError(
            f"DualOptimizer: retain has {len(first)} parameters and forget {len(second)}, of "
            f"which {len({*first} & {*second})} are the same; the two sides would move "
            "different weights. Did you pass the same parameters to both (a generator is empty "
            "the second time)?"
        )


def check_state(
    state_dict: Mapping[str, Any], sides: Mapping[str, Optimizer], has_constraint: bool
) -> None:
    """Raise, before anything is loaded, for the state of another optimizer."""
    expected = {*sides, "constraint"}
    if {*state_dict} - {"gate", "skipped"} != expected:
        raise ValueError(
            f"DualOptimizer.load_state_dict found the keys {sorted(state_dict)} and needs "
            f"{sorted(expected)}; one side's moments would be lost. Is it the checkpoint of a "
            "single optimizer?"
        )
    check_control(state_dict, has_constraint)
    for name, base in sides.items():
        matching.check(base, state_dict[name], f"DualOptimizer.load_state_dict: {name}")


def check_control(state_dict: Mapping[str, Any], has_constraint: bool) -> None:
    """Raise if a multiplier would be lost or is missing."""
    if (state_dict["constraint"] is not None) != has_constraint:
        raise ValueError(
            "DualOptimizer.load_state_dict: only one of the checkpoint and this optimizer has "
            "a constraint; the multiplier would be lost. Was it saved by Dual AdamW?"
        )
