"""Section 3: torch's optimizers in all their implementations, beside the same ones alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer, RMSprop

from benchmarks.studies.accelerator import problem
from benchmarks.studies.accelerator.checks import Absent, Check, Place, Seen, check_equal
from torch_alm import SAM, ALMConstraint, DualOptimizer

Settings = dict[str, Any]
WAYS: list[Settings] = [{"foreach": False}, {"foreach": True}, {"fused": True}]
CAPTURABLE: list[Settings] = [{"capturable": True}, {"capturable": True, "fused": True}]
KINDS: list[tuple[type[Optimizer], Settings, list[Settings]]] = [
    (AdamW, {"lr": 1e-2, "weight_decay": 1e-2}, WAYS + CAPTURABLE),
    (Adam, {"lr": 1e-2, "amsgrad": True}, WAYS + CAPTURABLE),
    (SGD, {"lr": 1e-2, "momentum": 0.9, "nesterov": True}, WAYS),
    (RMSprop, {"lr": 1e-3}, WAYS[:2] + CAPTURABLE[:1]),
    (NAdam, {"lr": 1e-3}, WAYS[:2] + CAPTURABLE[:1]),
]


def checks(place: Place) -> list[Check]:
    """Two for each kind and way; for a look, of two kinds."""
    return list(_checks(KINDS[:3:2] if place.quick else KINDS))


def _checks(kinds: list[tuple[type[Optimizer], Settings, list[Settings]]]) -> Iterator[Check]:
    for kind, common, ways in kinds:
        for way in ways:
            settings = ", ".join(f"{key}={value}" for key, value in way.items())
            name, make = f"{kind.__name__}({settings})", partial(made, kind, {**common, **way})
            by_hand = partial(problem.equals_oracle, make=make, dtype=torch.float64, atol=1e-11)
            yield Check(f"{name}: SAUL is Algorithm 1 over it", by_hand)
            told = f"{name}: with rho 0 and a closed gate it is alone"
            yield Check(told, partial(alone, make=make))


def made(kind: type[Optimizer], settings: Settings, params: list[Tensor]) -> Optimizer:
    """The optimizer.

    Raises:
        Absent: it takes these settings on an accelerator only.
    """
    if "capturable" in settings and params[0].device.type == "cpu":
        raise Absent("capturable optimizers need CUDA")
    return kind(params, **settings)


def alone(place: Place, make: Callable[[list[Tensor]], Optimizer]) -> Seen:
    """Compare with the optimizer by itself, bit for bit."""
    wrapped, plain = (problem.network(place, torch.float32) for _ in range(2))
    params = list(wrapped.parameters())
    met = ALMConstraint(None, alpha=-1e9, mu=1.0)
    dual = DualOptimizer(SAM(make(params), rho=0.0), make(params), met)
    base = make(list(plain.parameters()))
    for number in range(problem.STEPS):
        retain, forget = problem.losses(wrapped, place, number, torch.float32)
        dual.backward(retain=retain, forget=forget)
        dual.step()
        dual.zero_grad()
        problem.losses(plain, place, number, torch.float32)[0]().backward()
        base.step()
        base.zero_grad()
    check_equal(params, list(plain.parameters()), "theta")
    return {}
