"""Checks of what a constraint is given: settings, shapes, checkpoints."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

import torch
from torch import Tensor

from torch_alm._constraint import numbers
from torch_alm._constraint.settings import Filter, Rule

Given: TypeAlias = Mapping[str, Any]
Index: TypeAlias = Tensor | Sequence[int]


class Limit(NamedTuple):
    """The conversion of a setting, a check of it next to the others, and the same in words."""

    convert: Callable[[Any], object]
    holds: Callable[[Given], bool]
    words: str


def converted(given: Given, limits: Mapping[str, Limit]) -> dict[str, Any]:
    """Convert numbers to those of Python or, several in one, to a float64 tensor on the host."""
    return {name: numbers.tried(limits[name].convert, value) for name, value in given.items()}


def check(owner: str, given: Given, limits: Mapping[str, Limit], question: str) -> None:
    """Raise `ValueError` for the first setting that makes no sense, and say what it may be."""
    for name, (_, holds, words) in limits.items():
        if not holds(given):
            raise ValueError(f"{owner}: {name} is {given[name]!r}; it must be {words}. {question}")


def settle(owner: Filter | Rule, **limits: Limit) -> None:
    """Convert and check the fields of a filter or rule."""
    name = type(owner).__name__
    vars(owner).update(converted(vars(owner), limits))
    check(name, vars(owner), limits, f"Did you mean to leave `{name}` out?")


def number(name: str, holds: Callable[[float], bool], words: str) -> Limit:
    """Make the limit of one number."""

    def passes(given: Given) -> bool:
        return isinstance(given[name], float) and holds(given[name])

    return Limit(numbers.single, passes, words)


def count(name: str, least: int) -> Limit:
    """Make the limit of a number of steps."""
    return Limit(
        operator.index,  # 3.0 is none
        lambda given: isinstance(given[name], int) and given[name] >= least,
        f"a number of steps, at least {least}",
    )


def _mu(given: Given) -> bool:
    mu = given["mu"]
    return mu == "auto" if isinstance(mu, str) else isinstance(mu, float) and 0 <= mu < math.inf


def _same(value: object) -> object:
    return value


def _multiplier(given: Given) -> bool:
    multiplier = given["multiplier"]
    return numbers.is_number(multiplier) and (
        given["sense"] == "==" or not numbers.any_of(multiplier < 0)
    )


def _rules(given: Given) -> bool:
    rules = given["rules"]
    return isinstance(rules, tuple) and all(
        isinstance(rule, Rule) and given["sense"] in rule.senses for rule in rules
    )


ORDER = "Are the arguments in the order (measure, alpha, mu)?"
LIMITS: dict[str, Limit] = {
    "alpha": Limit(
        numbers.host, lambda given: numbers.is_number(given["alpha"]), "a finite threshold"
    ),
    "mu": Limit(
        lambda mu: mu if isinstance(mu, str) else numbers.single(mu),
        _mu,
        'at least 0 (0 fixes the multiplier), or "auto"',
    ),
    "sense": Limit(_same, lambda given: given["sense"] in (">=", "<=", "=="), '">=", "<=" or "=="'),
    "multiplier": Limit(numbers.host, _multiplier, 'finite, and at least 0 for ">=" and "<="'),
    "every": count("every", 1),
    "filter": Limit(
        _same,
        lambda given: given["filter"] is None or isinstance(given["filter"], Filter),
        "None or a filter, such as torch_alm.filters.Mean(8)",
    ),
    "rules": Limit(
        tuple,
        _rules,
        "a list of rules, such as [torch_alm.rules.Cap(5.0)], each for this sense (an equality has "
        "no side on which it could be left alone)",
    ),
    "tolerance": number("tolerance", lambda value: 0 <= value < math.inf, "at least 0"),
    "nonfinite": Limit(
        _same, lambda given: given["nonfinite"] in ("skip", "raise"), '"skip" or "raise"'
    ),
}


def check_auto(given: Given) -> None:
    """Raise `ValueError` for what cannot be next to a mu that is found."""
    taken = [n for n, off in (("every", 1), ("filter", None), ("rules", ())) if given[n] != off]
    if taken:
        raise ValueError(
            f"ALMConstraint: mu='auto' found {taken[0]}={given[taken[0]]!r}, and has a cadence, a "
            "mean and a guard against wind-up of its own: they would act twice. Did you mean to "
            f"leave `{taken[0]}` out, or a number for mu?"
        )


def refuse_values() -> NoReturn:
    """Raise for a mu that nothing was ever found from."""
    raise RuntimeError(
        "ALMConstraint.step: mu='auto' needs the constraint's gradient and found values only, a "
        "gradient that reaches no parameter of the optimizer, or one in the closure of its step; "
        "mu would have come from nothing. Did you mean to add `constraint(...)` to the loss, with "
        "`constraint.attach(optimizer)` before the loop and the backward pass before "
        "`optimizer.step()` (not in its closure), or a number for mu?"
    )


def joint(size: torch.Size, given: Given, *, is_open: bool) -> torch.Size:
    """Return the shape of the multipliers, given a new alpha and a new multiplier.

    Raises:
        ValueError: if they do not fit one another, or the shape there is.
    """
    for name in ("alpha", "multiplier"):
        found = numbers.shape(given.get(name, 0.0))
        try:
            both = torch.broadcast_shapes(size, found)
        except RuntimeError:
            both = None
        if both is None or not (is_open or both == size):
            raise ValueError(
                f"ALMConstraint: {name} has shape {tuple(found)} and the multipliers "
                f"{tuple(size)}; there would be no one multiplier per entry. Did you mean one "
                "number, or one per multiplier?"
            )
        size = both
    return size


def shaped(value: object, size: torch.Size) -> Tensor:
    """Return the value in the shape `size`; a single number may have any number of dimensions.

    Raises:
        TypeError: if it is no tensor.
        ValueError: if its shape is another one.
    """
    if not isinstance(value, Tensor):
        raise TypeError(
            f"ALMConstraint: the measure returned {type(value).__name__}, which has no gradient. "
            "Did you mean to return the tensor (not `.item()`)?"
        )
    if value.shape == size:
        return value
    if value.numel() == 1 and size.numel() == 1:
        return value.reshape(size)
    raise ValueError(
        f"ALMConstraint: the measure returned shape {tuple(value.shape)} where {tuple(size)} was "
        "expected; broadcasting would move the wrong multipliers. Did you forget `.mean()`, or an "
        "alpha with one entry per constraint?"
    )


def entries(index: Index, value: Tensor, size: torch.Size) -> Tensor:
    """Return the index as a row of whole numbers on the host, one per entry of `value`.

    Raises:
        ValueError: if there is no vector of multipliers to index, or the index is not of whole
            numbers within it, one per entry of `value`.
    """
    found = torch.as_tensor(index).detach().cpu()
    if len(size) != 1:
        raise ValueError(
            f"ALMConstraint: index needs one multiplier per entry, and the multipliers have shape "
            f"{tuple(size)}. Did you mean an alpha or a multiplier with one entry per example?"
        )
    if found.numel() and (found.dtype == torch.bool or found.is_floating_point()):
        raise ValueError(f"ALMConstraint: index is of {found.dtype}. Did you mean whole numbers?")
    if found.shape != value.shape or found.ndim > 1:
        raise ValueError(
            f"ALMConstraint: index has shape {tuple(found.shape)} and value {tuple(value.shape)}; "
            "values would reach the wrong multipliers. Is there one index per value, in a row?"
        )
    row = found.reshape(-1).long()
    if row.numel() and (int(row.min()) < 0 or int(row.max()) >= size[0]):
        raise ValueError(
            f"ALMConstraint: index goes from {int(row.min())} to {int(row.max())}, and there are "
            f"{size[0]} multipliers, 0 to {size[0] - 1}. Are these positions in a larger data set?"
        )
    return row


LOADING = "ALMConstraint.load_state_dict"


def check_checkpoint(found: Given, mine: Given, size: torch.Size | None) -> None:
    """Raise `ValueError` if anything would be lost or belong to another constraint.

    Args:
        found: the checkpoint.
        mine: a `state_dict` of the constraint that is to load it.
        size: the shape of its multipliers; `None` if that is still open.
    """
    if "multiplier" in found and ("auto" in found) != ("auto" in mine):
        has, needs = ("finds", "has been given one") if "auto" in found else ("was given", "finds")
        raise ValueError(
            f"{LOADING}: the checkpoint's constraint {has} its mu and this one {needs}; what is "
            "remembered of it would be lost or missing. Did you mean the same mu as in the run "
            "that was saved?"
        )
    _check_names(found, mine, "")
    if found["sense"] != mine["sense"]:
        raise ValueError(
            f"{LOADING}: the checkpoint's sense is \"{found['sense']}\" and this one's "
            f'"{mine["sense"]}"; the multiplier would push the wrong way. Is it another constraint?'
        )
    shape = numbers.shape(found["multiplier"])
    if size is not None and shape != size:
        raise ValueError(
            f"{LOADING}: the checkpoint has multipliers of shape {tuple(shape)} and this "
            f"constraint {tuple(size)}. Is it another constraint?"
        )
    if not numbers.is_finite(found["multiplier"]):
        raise ValueError(
            f"{LOADING}: the checkpoint's multiplier is not finite and would stay so. Was it saved "
            "by another library?"
        )


def _check_names(found: Given, mine: Given, where: str) -> None:
    """Compare the entries, and within those that have entries of their own."""
    if {*found} != {*mine}:
        raise ValueError(
            f"{LOADING} found the entries {sorted(map(str, found))}{where} and needs "
            f"{sorted(mine)}. Is it the checkpoint of a constraint?"
        )
    for name, entry in mine.items():
        if isinstance(entry, Mapping):
            _check_names(found[name], entry, f" in {name!r}")
