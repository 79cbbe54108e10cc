"""Errors and warnings of a constraint in words: each names what was found, and the fix."""

from collections.abc import Mapping
from typing import Any, NoReturn

from torch import Size

LOADING = "ALMConstraint.load_state_dict"
PILE = 100  # measurements without a step, from which on `step` was forgotten
FEW, MOVES = 10, 3  # measurements, with moves of weights between them: a loop that forgot it


def refuse_nothing(verb: str) -> NoReturn:
    """Raise for a step without a measurement."""
    raise RuntimeError(
        f"ALMConstraint.{verb}() found no measurement since the last step; the multiplier would "
        "have no violation to follow. Did you call `constraint(...)`, `observe(value)` or "
        "`DualOptimizer.backward` first? (Under `torch.no_grad()` only `observe` takes a "
        "measurement; after `attach` the optimizer steps it.)"
    )


def describe_nonfinite(bad: int, then: str) -> str:
    """Return a sentence for measurements of a step, or its update, that are not finite."""
    return (
        f"ALMConstraint.step: {bad} measurement(s) or update(s) of this step are not finite; "
        f"{then}. Is the loss unbounded, or mu too large?"
    )


DETACHED = (
    "ALMConstraint: the measure returned a tensor without a gradient, and the weight is not 0: the "
    "penalty pushes nothing, and lambda grows for nothing. Was it detached, or are all parameters "
    "frozen? (For a count: `observe(value)`, and `weight = step()`.)"
)
UNSTEPPED = (
    "ALMConstraint: {} measurements wait for a step, and lambda is still what it was. Did you "
    "mean `constraint.step()` after each `optimizer.step()`, or `constraint.attach(optimizer)` "
    "before the loop? (A copy, or one that was loaded, is attached to nothing.)"
)
UNMEASURED = (
    "ALMConstraint: two steps of the optimizer it is attached to have measured nothing, so lambda "
    "stays. Did you mean to add `constraint(...)` to the loss? (Under `torch.no_grad()` only "
    "`observe` takes a measurement.)"
)
UNMOVED = (
    "ALMConstraint: no parameter of the optimizer it is attached to has a gradient; lambda would "
    "grow for nothing. Did you mean that of the measured model, not of a copy?"
)


def check_checkpoint(found: Mapping[str, Any], mine: Mapping[str, Any], where: str = "") -> None:
    """Raise `ValueError` if an entry would be lost, or belongs to another constraint."""
    if {*found} != {*mine}:
        raise ValueError(
            f"{LOADING} found the entries {sorted(map(str, found))}{where} and needs "
            f"{sorted(mine)} ('auto' is there with mu=\"auto\"). Is it the checkpoint of another "
            "constraint?"
        )
    for name, entry in mine.items():
        if isinstance(entry, Mapping):
            check_checkpoint(found[name], entry, f" in {name!r}")
    if not where and found["sense"] != mine["sense"]:
        raise ValueError(
            f"{LOADING}: the checkpoint's sense is \"{found['sense']}\" and this one's "
            f'"{mine["sense"]}"; the multiplier would push the wrong way. Is it another constraint?'
        )


def refuse_shape(found: Size, mine: Size) -> NoReturn:
    """Raise for a checkpoint of another number of multipliers."""
    raise ValueError(
        f"{LOADING}: the checkpoint has multipliers of shape {tuple(found)} and this constraint "
        f"{tuple(mine)}. Is it another constraint?"
    )


def refuse_index() -> NoReturn:
    """Raise for an index beside a mu that is found."""
    raise ValueError(
        'ALMConstraint: mu="auto" takes no index: it looks at one entry in turn, which a batch may '
        "not have. Did you mean a number, such as mu=0.1?"
    )
