"""Checks that a checkpoint belongs to an optimizer, before anything is loaded.

torch matches moments to parameters by position and looks at nothing else. What is refused here
would go wrong for certain; a checkpoint that the optimizer can go on with is never refused.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from torch_alm._optim.fresh import fresh_state


def check(base: Optimizer, state_dict: Mapping[str, Any], owner: str) -> None:
    """Raise a `ValueError` if the groups, names or shapes of a checkpoint are not those of `base`.

    The owner names the call, and the part of the checkpoint that is looked at.

    Cost: for moments that have not their parameter's shape (factored, projected, quantised ones),
    a step of a copy of the smallest such parameter of each number of dimensions.
    """
    if not _is_torch_like(state_dict):
        _check_format(base, state_dict, owner)
        return
    _check_groups(base, state_dict, owner)
    _check_names(base, state_dict, owner)
    _check_shapes(base, state_dict, owner)


def _is_torch_like(state_dict: Mapping[str, Any]) -> bool:
    return {"param_groups", "state"} <= {*state_dict}


def _check_format(base: Optimizer, state_dict: Mapping[str, Any], owner: str) -> None:
    """Accept the formats of optimizers around others, which only they can judge."""
    if _is_torch_like(base.state_dict()):
        raise ValueError(
            f"{owner} has no param_groups or no state but {sorted(map(str, state_dict))}; nothing "
            "could be matched to parameters. Is it an optimizer's state_dict?"
        )


def _check_groups(base: Optimizer, state_dict: Mapping[str, Any], owner: str) -> None:
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
            if _unwrapped(theirs) != _unwrapped(ours):
                raise ValueError(
                    f'{owner} has a parameter "{theirs}" where this optimizer has "{ours}"; its '
                    "moments would be given to the wrong weights. Is it the checkpoint of another "
                    "model, or are the parameters in another order?"
                )


def _unwrapped(name: str) -> list[str]:
    """Leave out what `torch.compile`, DDP, FSDP and checkpointed layers put into a name."""
    wrappers = {"_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
    return [part for part in name.split(".") if part not in wrappers]


def _check_shapes(base: Optimizer, state_dict: Mapping[str, Any], owner: str) -> None:
    """Ask the optimizer for shapes that only it can tell: of factored and quantised moments."""
    for p, settings, odd in _smallest(_oddly_shaped(base, state_dict)):
        here = _asked(base, p, settings)
        for name, moment in odd.items():
            if _differs(here.get(name), moment, p):
                raise ValueError(
                    f"{owner} has a {name} of shape {tuple(moment.shape)} for a parameter of shape "
                    f"{tuple(p.shape)}; the next step would fail or mix up weights. Is it the "
                    "checkpoint of another model?"
                )


Odd = tuple[Tensor, Mapping[str, Any], dict[str, Tensor]]


def _oddly_shaped(base: Optimizer, state_dict: Mapping[str, Any]) -> Iterator[Odd]:
    """Find parameters, settings, and those moments that have another shape than their parameter."""
    for saved, here in zip(state_dict["param_groups"], base.param_groups, strict=True):
        settings = {name: value for name, value in saved.items() if name != "params"}
        for index, p in zip(saved["params"], here["params"], strict=True):
            moments = state_dict["state"].get(index, {})
            odd = {
                name: moment
                for name, moment in moments.items()
                if isinstance(moment, Tensor) and moment.ndim > 0 and moment.shape != p.shape
            }
            if odd:
                yield p, settings, odd


def _smallest(found: Iterator[Odd]) -> list[Odd]:
    """Choose the smallest of those with as many dimensions and the same moments: it costs least."""
    chosen: dict[object, Odd] = {}
    for each in found:
        p, _, odd = each
        kind = (p.ndim, *sorted(odd))
        if kind not in chosen or p.numel() < chosen[kind][0].numel():
            chosen[kind] = each
    return [*chosen.values()]


def _asked(base: Optimizer, p: Tensor, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Find the state this optimizer would make; nothing if it cannot be asked."""
    try:
        return fresh_state(base, p, settings)
    except Exception:  # somebody else's code, with a gradient of 0; loading it may well do
        return {}


def _differs(own: object, moment: Tensor, p: Tensor) -> bool:
    """Tell whether another parameter must have made it: here its shape is p's, or 1 where factored.

    Any other shape comes of a rank or a block size, which may change while training.
    """
    if not isinstance(own, Tensor) or own.ndim != p.ndim:
        return False
    follows = all(a in (b, 1) for a, b in zip(own.shape, p.shape, strict=True))
    return follows and own.shape != moment.shape
