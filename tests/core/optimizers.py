"""Every optimizer of torch that a plain loop can step, and some of pytorch_optimizer, by name.

`REPRESENTATIVES` has one for each way in which optimizers keep what they know.
"""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

SKIPPED = {
    "torch.LBFGS": "steps with a closure only",
    "torch.SparseAdam": "takes sparse gradients only",
}


def matrices(net: nn.Module) -> list[nn.Parameter]:
    return [p for p in net.parameters() if p.ndim == 2]


def two_kinds(net: nn.Module) -> list[dict[str, Any]]:
    vectors = [p for p in net.parameters() if p.ndim != 2]
    return [
        {"params": matrices(net), "use_muon": True},
        {"params": vectors, "use_muon": False, "lr": 0.01},
    ]


def ranked(net: nn.Module) -> list[dict[str, Any]]:
    return [
        {
            "params": list(net.parameters()),
            "rank": 2,
            "update_proj_gap": 2,
            "scale": 1.0,
            "projection_type": "std",
        }
    ]


# How each is made that takes more than `params` and `lr`: its arguments.
SPECIAL: dict[str, Callable[[nn.Module], tuple[Any, dict[str, Any]]]] = {
    "torch.Muon": lambda net: (matrices(net), {"lr": 0.01}),
    "pytorch_optimizer.Muon": lambda net: (two_kinds(net), {"lr": 0.01}),
    "pytorch_optimizer.GaLore": lambda net: (ranked(net), {"lr": 0.01}),
    "pytorch_optimizer.Lookahead": lambda net: (AdamW(net.parameters(), lr=0.01), {"k": 2}),
}

SETTINGS: dict[str, Any] = {
    "amsgrad": True,
    "centered": True,
    "decoupled_weight_decay": True,
    "lr_decay": 0.1,
    "maximize": True,
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 0.01,
}

REPRESENTATIVES = {
    "pytorch_optimizer.AdaBelief": "its step count is a setting of the group",
    "pytorch_optimizer.AdaShift": "lists of tensors",
    "pytorch_optimizer.GaLore": "projected moments, and an object beside them",
    "pytorch_optimizer.Lookahead": "a checkpoint in a format of its own, around another one",
    "pytorch_optimizer.Muon": "groups of two kinds",
    "pytorch_optimizer.ScheduleFreeAdamW": "two modes",
    "pytorch_optimizer.Shampoo": "matrices as long as each side of a parameter",
    "pytorch_optimizer.SOAP": "a first step that moves nothing",
}


def of_torch() -> list[str]:
    """Torch's own that a plain loop can step."""
    kinds = [kind for kind in vars(torch.optim).values() if inspect.isclass(kind)]
    found = {f"torch.{kind.__name__}" for kind in kinds if issubclass(kind, Optimizer)}
    return sorted(found - {"torch.Optimizer", *SKIPPED})


def make(name: str, net: nn.Module) -> Optimizer:
    """The optimizer of that name, over that model."""
    library, kind = name.split(".")
    build = getattr(import_module("torch.optim" if library == "torch" else library), kind)
    default = {"lr": 0.01} if "lr" in inspect.signature(build).parameters else {}
    params, settings = SPECIAL.get(name, lambda net: (net.parameters(), default))(net)
    return build(params, **settings)


def variants(name: str) -> list[tuple[str, dict[str, Any]]]:
    """The optimizer as it is made, and with each setting that it knows."""
    library, kind = name.split(".")
    if library != "torch":
        return [(name, {})]
    known = inspect.signature(getattr(torch.optim, kind)).parameters
    more = [{key: value} for key, value in SETTINGS.items() if key in known]
    if "dampening" in known:
        more = [{"momentum": 0.9, **each} for each in (*more, {"dampening": 0.5})]
    return [(name, each) for each in ({}, *more)]
