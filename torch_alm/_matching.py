"""Whether a checkpoint belongs to an optimizer: asked before anything is loaded.

torch matches moments to parameters by position and looks at nothing else.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def check(base: Optimizer, state_dict: Mapping[str, Any], owner: str) -> None:
    """Raise a `ValueError` if the groups, names or shapes of a checkpoint are not those of `base`.

    Args:
        base: the optimizer that would load it.
        state_dict: the checkpoint.
        owner: the call to name in errors, and the part of the checkpoint that is looked at.
    """
    _check_groups(base, state_dict, owner)
    _check_names(base, state_dict, owner)
    for index, p in _numbered(base, state_dict):
        _check_shapes(p, base.state.get(p, {}), state_dict["state"].get(index, {}), owner)


def _check_groups(base: Optimizer, state_dict: Mapping[str, Any], owner: str) -> None:
    if not {"param_groups", "state"} <= {*state_dict}:
        raise ValueError(
            f"{owner} has no param_groups or no state but {sorted(map(str, state_dict))}; nothing "
            "could be matched to parameters. Is it an optimizer's state_dict?"
        )
    saved = [len(group["params"]) for group in state_dict["param_groups"]]
    here = [len(group["params"]) for group in base.param_groups]
    if saved != here:
        raise ValueError(
            f"{owner} has groups of {saved} parameters and this optimizer {here}; moments would be "
            "given to other weights. Is it the checkpoint of another model?"
        )


def _check_names(base: Optimizer, state_dict: Mapping[str, Any], owner: str) -> None:
    for saved, here in zip(state_dict["param_groups"], base.param_groups, strict=True):
        pairs = zip(saved.get("param_names", ()), here.get("param_names", ()), strict=False)
        for theirs, ours in pairs:
            if theirs != ours:
                raise ValueError(
                    f'{owner} has a parameter "{theirs}" where this optimizer has "{ours}"; its '
                    "moments would be given to the wrong weights. Is it the checkpoint of another "
                    "model, or are the parameters in another order?"
                )


def _numbered(base: Optimizer, state_dict: Mapping[str, Any]) -> Iterator[tuple[Any, Tensor]]:
    """The checkpoint's number of each parameter, and the parameter."""
    for saved, here in zip(state_dict["param_groups"], base.param_groups, strict=True):
        yield from zip(saved["params"], here["params"], strict=True)


def _check_shapes(p: Tensor, here: Mapping[str, Any], saved: Mapping[str, Any], owner: str) -> None:
    for name, moment in saved.items():
        if isinstance(moment, Tensor) and not _fits(moment, p, here.get(name)):
            raise ValueError(
                f"{owner} has a {name} of shape {tuple(moment.shape)} for a parameter of shape "
                f"{tuple(p.shape)}; the next step would fail or mix up weights. Is it the "
                "checkpoint of another model?"
            )


def _fits(moment: Tensor, p: Tensor, here: object) -> bool:
    """As the one there is; else of the parameter's shape, or 1 where it is factored (Adafactor).

    Vectors are not judged by the parameter: quantised optimizers keep their scales in them.
    """
    if isinstance(here, Tensor):
        return moment.shape == here.shape
    if moment.ndim != p.ndim or p.ndim < 2:
        return True
    return all(a in (b, 1) for a, b in zip(moment.shape, p.shape, strict=True))
