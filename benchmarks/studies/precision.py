"""The share of a SAM perturbation, and of the change of gradient, that a dtype keeps.

    python -m benchmarks.studies.precision [--model PATH] [--like 7e9] [--rho 0.01 0.1] [--quick]

A model that memorised the embedded world (or any causal language model), a batch of its answers,
and theta + delta once in float64 and once in every way to hold it. Entries move as far as in a
model of `--like` weights with radius `--rho`: small models have larger moves. *stored* is the
cosine between grad L(theta + delta) - grad L(theta) and its float64 counterpart, both
differentiated in float64 at the point the weights held; *computed* differentiates in the precision
of the way, too. Ways that move a part of the weights are compared on that part.

Under autocast every product rounds the weights to bfloat16. Weights that have trained in float32
lie anywhere between two such numbers, and a small move carries its share of them over; weights
copied from a bfloat16 checkpoint lie exactly on them, and none crosses.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from benchmarks.engine.options import script_parser
from benchmarks.report import tables
from benchmarks.report.results import parsed, write_record
from benchmarks.studies.machine import machine
from benchmarks.tasks.tofu.batches import encode_all
from benchmarks.tasks.tofu.models import load_or_train
from benchmarks.tasks.tofu.world import build_world
from torch_alm import perturbed
from torch_alm.language import collate, pad_id
from torch_alm.measures import token_nll

Named = dict[str, nn.Parameter]
Chosen = Callable[[str], bool]
Precision = Callable[[], AbstractContextManager[Any]]


def autocast() -> AbstractContextManager[Any]:
    """bfloat16 products of float32 weights."""
    return torch.autocast("cpu", torch.bfloat16)


def adapters(model: nn.Module) -> nn.Module:
    """Put a LoRA adapter on every linear layer of the model, not at its start."""
    torch.manual_seed(0)
    config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(model, config)


class Way(NamedTuple):
    """A way to keep weights: `wide` ones in float32, those `moving` perturbed.

    `trained` weights are anywhere; others start at what bfloat16 can hold.
    """

    name: str
    wide: Chosen = lambda _: False
    moving: Chosen = lambda _: True
    rounding: Any = "nearest"
    precision: Precision = nullcontext
    prepare: Callable[[nn.Module], nn.Module] = lambda model: model
    trained: bool = False


def of(part: str) -> Chosen:
    """The weights whose names have this part; all of them have the empty one."""
    return lambda name: part in name


every, of_mlp, of_norms, of_lora = map(of, ("", "down_proj", "norm", "lora_"))
WAYS = (
    Way("bfloat16 weights"),
    Way("bfloat16 weights, stochastic rounding", rounding="stochastic"),
    Way("float32 weights, bfloat16 autocast", every, precision=autocast, trained=True),
    Way("float32 copies of bfloat16 weights, autocast", every, precision=autocast),
    Way("float32 down_proj only, autocast", of_mlp, of_mlp, precision=autocast, trained=True),
    Way("float32 copies of down_proj only, autocast", of_mlp, of_mlp, precision=autocast),
    Way("bfloat16 down_proj only", moving=of_mlp),
    Way("float32 norm weights only, autocast", of_norms, of_norms, precision=autocast),
    Way("bfloat16 norm weights only", moving=of_norms),
    Way("float32 LoRA on bfloat16, autocast", of_lora, of_lora, "nearest", autocast, adapters),
)


def exactly(model: nn.Module, way: Way) -> nn.Module:
    """The weights a way starts from, in float64."""
    model = copy.deepcopy(model)
    for name, p in model.named_parameters():
        if not (way.trained and way.wide(name)):
            p.data = p.data.bfloat16()
    return way.prepare(model.double()).train(False)


def held(model: nn.Module, way: Way) -> nn.Module:
    """The model as the way holds it."""
    copied = copy.deepcopy(model)
    for name, p in copied.named_parameters():
        p.data = p.data.to(torch.float32 if way.wide(name) else torch.bfloat16)
    return copied


def differentiated(model: nn.Module, batch: dict[str, Tensor], precision: Precision) -> None:
    for p in model.parameters():
        p.grad = None
        p.requires_grad_(True)
    with precision():
        loss = token_nll(model, batch)
    loss.backward()


def moving(model: nn.Module, way: Way) -> Named:
    return {name: p for name, p in model.named_parameters() if way.moving(name)}


def row(tensors: Iterable[Tensor]) -> Tensor:
    """All entries in float64."""
    return torch.cat([t.detach().double().reshape(-1) for t in tensors])


def gradients(named: Named) -> Tensor:
    return row(torch.zeros_like(p) if p.grad is None else p.grad for p in named.values())


class Change(NamedTuple):
    """Delta and the change of the gradient, as one way keeps them."""

    delta: Tensor
    stored: Tensor
    computed: Tensor


def change(
    copied: nn.Module, truth: nn.Module, batch: dict[str, Tensor], way: Way, rho: float
) -> Change:
    """delta and grad L(theta + delta) - grad L(theta) as `copied` holds and computes them."""
    mine, its = moving(copied, way), moving(truth, way)
    differentiated(truth, batch, nullcontext)
    clean = gradients(its)
    for p, exact in zip(mine.values(), its.values(), strict=True):
        p.grad = None if exact.grad is None else exact.grad.to(p.dtype)
    origin = row(mine.values())
    directions = [p.grad for p in mine.values()]
    differentiated(copied, batch, way.precision)
    computed = -gradients(mine)
    for p, direction in zip(mine.values(), directions, strict=True):
        p.grad = direction
    with perturbed(mine.values(), rho, rounding=way.rounding):
        delta = row(mine.values()) - origin
        stored = stored_gradient(mine, its, truth, batch) - clean
        differentiated(copied, batch, way.precision)
        computed += gradients(mine)
    return Change(delta, stored, computed)


def stored_gradient(mine: Named, its: Named, truth: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The float64 gradient at the point that `mine` stands at; `truth` returns to where it was."""
    before = [p.detach().clone() for p in its.values()]
    put(its, mine.values())
    differentiated(truth, batch, nullcontext)
    found = gradients(its)
    put(its, before)
    return found


@torch.no_grad()
def put(named: Named, values: Iterable[Tensor]) -> None:
    for p, value in zip(named.values(), values, strict=True):
        p.copy_(value)


def measured(model: nn.Module, batch: dict[str, Tensor], way: Way, rho: float) -> dict[str, Any]:
    """One row of the table; `rho` is the radius of all weights, of a part it is its share."""
    exact = exactly(model, way)
    named = moving(exact, way)
    part = sum(p.numel() for p in named.values())
    radius = rho * math.sqrt(part / sum(p.numel() for p in model.parameters()))
    ideal = way._replace(rounding="nearest", precision=nullcontext)
    goal = change(copy.deepcopy(exact), exact, batch, ideal, radius)
    mine = change(held(exact, way), exact, batch, way, radius)
    return {
        "way": way.name,
        "weights": part,
        "length": (mine.delta.norm() / goal.delta.norm()).item(),
        "delta": cosine(mine.delta, goal.delta),
        "stored": cosine(mine.stored, goal.stored),
        "computed": cosine(mine.computed, goal.computed),
    }


def cosine(a: Tensor, b: Tensor) -> float | None:
    """None where nothing moved."""
    if a.norm() == 0 or b.norm() == 0:
        return None
    return (a @ b / a.norm() / b.norm()).item()


def markdown(content: dict[str, Any]) -> str:
    columns = ["rho", "way", "weights", "length", "delta", "stored", "computed"]
    rows = ([cell(found[name]) for name in columns] for found in content["rows"])
    return (
        "# Precision\n\n"
        "Written by `python -m benchmarks.studies.precision`; numbers in `precision.json`.\n\n"
        f"{content['what']}\n\n{tables.markdown(columns, rows, '---')}\n"
    )


def cell(value: float | str | None) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "none" if value is None else str(value)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(None, __doc__)
    parser.add_argument("--model", metavar="PATH", help="a causal LM to look at instead")
    parser.add_argument("--like", type=float, default=7e9, help="size of the model to stand for")
    parser.add_argument("--rho", type=float, nargs="+", default=[0.01, 0.1], help="radii there")
    parser.add_argument("--quick", action="store_true", help="toy sizes, to see it run")
    parser.add_argument("--cache", type=Path, help="where trained models are kept")
    return parsed(parser, arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    data = build_world(quick=options.quick)
    model, tokenizer = load_or_train(data, options.model, options.cache, progress=False)
    batch = collate(encode_all(tokenizer, data.forget)[:8], pad_id(tokenizer))
    weights = sum(p.numel() for p in model.parameters())
    rows: list[dict[str, Any]] = []
    for rho in options.rho:
        for way in WAYS:
            share = rho * math.sqrt(weights / options.like)
            rows.append({"rho": rho, **measured(model, batch, way, share)})
            print(rows[-1], flush=True)
    what = (
        f"A model of {weights:,} weights that knows the batch by heart; entries move as with rho "
        f"in a model of {options.like:.2g} weights."
    )
    content = {"what": what, "machine": machine(), "rows": rows}
    write_record(options.output, "precision", content, markdown)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
