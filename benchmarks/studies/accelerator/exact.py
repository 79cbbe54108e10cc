"""Section 1: Algorithm 1 by hand, what is at the edges, and bits that return."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from benchmarks.studies.accelerator import oracle, problem
from benchmarks.studies.accelerator.checks import Check, Place, Seen, check, check_equal
from torch_alm import SAM, ALMConstraint, DualOptimizer, perturbed

ULP = 2.0**-7  # the distance between neighbours in bfloat16, over a number's power of two


def checks(_: Place) -> list[Check]:
    """All of them; each takes a moment."""
    by_hand = partial(problem.equals_oracle, make=problem.adamw)
    wide = [
        Check(f"SAUL is Algorithm 1, {name}", partial(by_hand, dtype=dtype, atol=atol))
        for name, dtype, atol in (
            ("float64", torch.float64, 1e-12),
            ("float32", torch.float32, 2e-5),
        )
    ]
    kinds: list[tuple[torch.dtype, Any]] = [
        (torch.float32, "nearest"),
        (torch.bfloat16, "nearest"),
        (torch.bfloat16, "stochastic"),
    ]
    return [
        *wide,
        *(
            Check(f"{told}, {str(d)[6:]} {r}", partial(run, dtype=d, rounding=r))
            for told, run in (("theta returns", returns), ("where theta goes", goes))
            for d, r in kinds
        ),
        Check("SAM in bfloat16 is a base step with the gradient there", narrow_step),
        Check("a zero gradient moves nothing", partial(nothing_moves, entry=0.0)),
        Check("a NaN gradient moves nothing", partial(nothing_moves, entry=float("nan"))),
        Check("a NaN on the forget side reaches no weight", nan_is_skipped),
        Check("empty and frozen parameters", empty_and_frozen),
    ]


def weights(place: Place, dtype: torch.dtype) -> list[nn.Parameter]:
    """Parameters with gradients; one of them is no whole number of blocks."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(64, 33), (1,), (129,)] if place.quick else [(1024, 1025), (1,), (300_001,)]
    found = []
    for shape in shapes:
        p = nn.Parameter(torch.randn(shape, generator=generator).to(place.device, dtype))
        p.grad = torch.randn(shape, generator=generator).to(place.device, dtype)
        found.append(p)
    return found


def returns(place: Place, dtype: torch.dtype, rounding: Any) -> Seen:
    """Bit for bit, into the same memory, also after an exception and with ASAM's metric."""
    params = weights(place, dtype)
    directions = [p.grad for p in params]
    before = [p.detach().clone() for p in params]
    homes = [p.data_ptr() for p in params]
    moved = 0
    for adaptive in (False, True):
        for p, g in zip(params, directions, strict=True):
            p.grad = g
        with (
            suppress(ZeroDivisionError),
            perturbed(params, 1.0, adaptive=adaptive, rounding=rounding),
        ):
            pairs = zip(params, before, strict=True)
            moved += sum(int((p != origin).sum()) for p, origin in pairs)
            raise ZeroDivisionError
        check_equal(params, before, "theta after the block")
    check([p.data_ptr() for p in params] == homes, "theta is in other memory than before")
    check(moved > 0, "nothing moved, so nothing was shown")
    return {"entries that moved": moved}


def goes(place: Place, dtype: torch.dtype, rounding: Any) -> Seen:
    """theta + delta in float64, and how far from it theta is, in units of the last place."""
    params = weights(place, dtype)
    theta, g = ([t.detach().double() for t in ts] for ts in (params, [p.grad for p in params]))
    start, meant = (
        torch.cat([t.flatten() for t in ts]) for ts in (theta, oracle.moved(theta, g, 1.0))
    )
    with perturbed(params, 1.0, rounding=rounding):
        there = torch.cat([p.detach().double().flatten() for p in params])
    ulp = 2.0**-23 if dtype is torch.float32 else ULP
    unit = ulp * 2.0 ** torch.maximum(start.abs(), meant.abs()).log2().floor()
    errors = (there - meant) / unit
    worst, mean = float(errors.abs().max()), float(errors.mean().abs())
    bound = 1.001 if rounding == "stochastic" else 0.501 if dtype is torch.bfloat16 else 2.0
    check(worst <= bound, f"{worst:.3f} units of the last place from theta + delta, not {bound}")
    check(mean <= 5 / meant.numel() ** 0.5, f"biased by {mean:.3g} units of the last place")
    return {"worst, in last places": worst, "mean": mean}


def narrow_step(place: Place) -> Seen:
    """Compare with a step by hand, bit for bit, with the point itself taken from `perturbed`."""
    mine, its = (problem.network(place, torch.bfloat16) for _ in range(2))
    loss, again = (problem.losses(net, place, 0, torch.bfloat16)[0] for net in (mine, its))
    points: list[list[Tensor]] = []

    def recording() -> Tensor:
        points.append([p.detach().clone() for p in mine.parameters()])
        return loss()

    optimizer = SAM(AdamW(mine.parameters(), lr=1e-2), rho=0.5)
    optimizer.backward(recording)
    optimizer.step()
    theta = list(its.parameters())
    oracle.put(theta, points[1])
    g, _ = oracle.gradient(again, theta)
    oracle.put(theta, points[0])
    oracle.step(AdamW(theta, lr=1e-2), theta, g)
    check_equal(list(mine.parameters()), theta, "theta after the step")
    apart = zip(*points, strict=True)
    return {"entries that moved": sum(int((a != b).sum()) for a, b in apart)}


def nothing_moves(place: Place, entry: float) -> Seen:
    """theta stays, entry by entry."""
    params = weights(place, torch.float32)
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.full_like(p, entry)
    with perturbed(params, 1.0) as perturbation:
        check_equal(params, before, "theta inside the block")
    check(perturbation.moved == 0, f"{perturbation.moved} entries are said to have moved")
    return {"entries said to move": 0}


def nan_is_skipped(place: Place) -> Seen:
    """The forget step is left out with a warning, the retain step is taken."""
    p = nn.Parameter(torch.ones(3, device=place.device))
    constraint = ALMConstraint(None, alpha=5.0, mu=1.0, multiplier=1.0)
    optimizer = DualOptimizer(SGD([p], lr=0.1), SGD([p], lr=0.1), constraint)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer.backward(
            retain=lambda: p.sum(), forget=lambda: ((p * float("nan")).sum(), p.detach().sum())
        )
        optimizer.step()
    check_equal([p], [torch.full_like(p, 1.0) - 0.1], "theta after the retain step alone")
    check(optimizer.skipped == 1, f"skipped is {optimizer.skipped}, not 1")
    return {}


def empty_and_frozen(place: Place) -> Seen:
    """Neither stands in the way of the others."""
    make: Callable[..., Tensor] = partial(torch.ones, device=place.device)
    used, empty, frozen = nn.Parameter(make(3)), nn.Parameter(make(0)), nn.Parameter(make(2))
    frozen.requires_grad_(False)
    optimizer = SAM(SGD([used, empty, frozen], lr=0.1), rho=0.3)
    optimizer.backward(lambda: used.square().sum() + empty.sum() + frozen.sum())
    optimizer.step()
    point = 1 + 0.3 / 3**0.5
    expected = [make(3) - 0.2 * point, make(0), make(2)]
    check_equal([frozen], expected[2:], "what is frozen")
    check((used - expected[0]).abs().max() < 1e-6, "the parameter beside them is elsewhere")
    return {}
