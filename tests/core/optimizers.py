"""Every optimizer of torch and of pytorch_optimizer that a plain loop can step, by name.

`REPRESENTATIVES` has one for each way in which they keep what they know. All the others are run by
hand: `python -m tests.core.resuming`.
"""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer

Make = Callable[[nn.Module], Optimizer]

CLOSURE = "steps with a closure only"
SHARPNESS = "perturbs weights itself"
HESSIAN = "differentiates gradients, which are put in place here without a graph"
ENGINE = "is driven by calls of its own, not by `step`"

# What no plain loop can step, or no wrapper can hold.
SKIPPED = {
    "torch.LBFGS": CLOSURE,
    "torch.SparseAdam": "takes sparse gradients only",
    "pytorch_optimizer.AdaHessian": HESSIAN,
    "pytorch_optimizer.SophiaH": HESSIAN,
    "pytorch_optimizer.AliG": CLOSURE,
    "pytorch_optimizer.BSAM": SHARPNESS,
    "pytorch_optimizer.FriendlySAM": SHARPNESS,
    "pytorch_optimizer.GSAM": SHARPNESS,
    "pytorch_optimizer.LookSAM": SHARPNESS,
    "pytorch_optimizer.SAM": SHARPNESS,
    "pytorch_optimizer.WSAM": SHARPNESS,
    "pytorch_optimizer.AdaLOMO": ENGINE,
    "pytorch_optimizer.LOMO": ENGINE,
    "pytorch_optimizer.PCGrad": ENGINE,
    "pytorch_optimizer.DeMo": "needs ranks and einops",
    "pytorch_optimizer.DistributedMuon": "needs ranks",
    "pytorch_optimizer.SafeFP16Optimizer": "steps a float32 copy of float16 weights",
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
Arguments = Callable[[nn.Module], tuple[Any, dict[str, Any]]]
MUON: Arguments = lambda net: (two_kinds(net), {"lr": 0.01})  # noqa: E731
RANKED: Arguments = lambda net: (ranked(net), {"lr": 0.01})  # noqa: E731
AROUND: Arguments = lambda net: (AdamW(net.parameters(), lr=0.01), {})  # noqa: E731
SPECIAL: dict[str, Arguments] = {
    "torch.Muon": lambda net: (matrices(net), {"lr": 0.01}),
    **{
        f"pytorch_optimizer.{name}": MUON
        for name in ("Muon", "AdaMuon", "AdaGO", "NorMuon", "MuonClip")
    },
    "pytorch_optimizer.GaLore": RANKED,
    "pytorch_optimizer.Fira": RANKED,
    "pytorch_optimizer.Conda": lambda net: (
        net.parameters(),
        {"lr": 0.01, "update_proj_gap": 2},
    ),
    "pytorch_optimizer.Alice": lambda net: (
        net.parameters(),
        {"lr": 0.01, "rank": 2, "leading_basis": 1, "update_interval": 2},
    ),
    "pytorch_optimizer.AdamMini": lambda net: (net, {"lr": 0.01}),
    "pytorch_optimizer.Lookahead": lambda net: (AdamW(net.parameters(), lr=0.01), {"k": 2}),
    "pytorch_optimizer.OrthoGrad": AROUND,
    "pytorch_optimizer.TRAC": AROUND,
    "pytorch_optimizer.ScheduleFreeWrapper": AROUND,
    "pytorch_optimizer.Ranger21": lambda net: (
        net.parameters(),
        {"lr": 0.01, "num_iterations": 8},
    ),
    # by default it moves weights below 0.002 only, of which so small a model has none
    "pytorch_optimizer.SaRA": lambda net: (net.parameters(), {"lr": 0.01, "threshold": 0.3}),
    "pytorch_optimizer.SpectralSphere": lambda net: (matrices(net), {"lr": 0.01}),
}

REPRESENTATIVES = {
    "pytorch_optimizer.AdaBelief": "its step count is a setting of the group",
    "pytorch_optimizer.AdaShift": "lists of tensors",
    "pytorch_optimizer.Alice": "projected moments, and random numbers drawn while stepping",
    "pytorch_optimizer.GaLore": "projected moments, and an object beside them",
    "pytorch_optimizer.LoRARite": "moments of the shape of others",
    "pytorch_optimizer.Lookahead": "a checkpoint in a format of its own, around another one",
    "pytorch_optimizer.Muon": "groups of two kinds",
    "pytorch_optimizer.Prodigy": "what it learns of all parameters together",
    "pytorch_optimizer.ScheduleFreeAdamW": "two modes",
    "pytorch_optimizer.Shampoo": "matrices as long as each side of a parameter",
    "pytorch_optimizer.SOAP": "a first step that moves nothing",
    "pytorch_optimizer.TRAC": "hooks around another one",
}


def names() -> list[str]:
    """All that are installed, torch's first."""
    found = []
    for library, module in (("torch", "torch.optim"), ("pytorch_optimizer", "pytorch_optimizer")):
        try:
            content = vars(import_module(module))
        except ModuleNotFoundError:
            continue
        found += [
            f"{library}.{name}"
            for name, kind in sorted(content.items())
            if inspect.isclass(kind)
            and issubclass(kind, Optimizer)
            and kind is not Optimizer
            and kind.__module__.startswith(module)
        ]
    return found


def make(name: str, net: nn.Module) -> Optimizer:
    """The optimizer of that name, over that model."""
    library, kind = name.split(".")
    module = "torch.optim" if library == "torch" else library
    build = getattr(import_module(module), kind)
    default = {"lr": 0.01} if "lr" in inspect.signature(build).parameters else {}
    params, settings = SPECIAL.get(name, lambda net: (net.parameters(), default))(net)
    optimizer = build(params, **settings)
    if kind == "ScheduleFreeWrapper":  # the one of its kind that does not begin in this mode
        optimizer.train()
    return optimizer
