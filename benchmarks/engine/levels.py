"""Words for alpha or a level, and the numbers they stand for with a given model and data.

- `never_seen`: what comparable text that nothing was trained on costs the original model;
- `retrained`: what the forget set costs a model that never saw it, which nobody has in practice;
- `rate:0.95`: the loss that goes with a certified share of failing answers, read off a run of Dual
  AdamW without a controller (loss only: a certificate is a rate already).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import torch
from torch import nn

from benchmarks import methods
from benchmarks.engine.benchmark import Benchmark
from benchmarks.methods import Settings
from benchmarks.methods.forgetting import measure
from benchmarks.methods.method import Batch, forward
from torch_alm.thresholds import level_of, loss_for_rate

CALIBRATION_SEED = 2_000_000
"""Of the batches a rate is calibrated on: neither a search nor a report sees them."""


def resolved(settings: Settings, benchmark: Benchmark) -> Settings:
    """The settings with numbers in place of words, for alpha and for the level it is a share of.

    Raises:
        ValueError: The benchmark has nothing that this word could be read off, or a rate was not
            reached.
    """
    names = ["alpha"] + (["level"] if settings.measure == "level_share" else [])
    words = {name: getattr(settings, name) for name in names}
    found = {n: number(w, settings, benchmark) for n, w in words.items() if isinstance(w, str)}
    return dataclasses.replace(settings, **found)


def number(word: str, settings: Settings, benchmark: Benchmark) -> float:
    """Find what a word stands for: a level of the loss, or for an alpha of the measure itself."""
    looked_at = settings
    if settings.measure == "level_share":
        looked_at = dataclasses.replace(settings, measure="token_nll")
    kind, _, share = word.partition(":")
    if kind == "rate":
        return calibrated(looked_at, benchmark, float(share))
    if kind == "retrained":
        batches = benchmark.forget_batches(settings, CALIBRATION_SEED)
        return level(benchmark.reference("retrained"), batches, looked_at)
    unseen = benchmark.held_out(settings)
    return level(benchmark.reference("original"), unseen, looked_at)


def level(model: nn.Module, batches: Iterable[Batch], settings: Settings) -> float:
    """The mean of the settings' measure over batches."""
    found = measure(settings)
    return level_of(lambda batch: found(*forward(model, batch)), batches).value


def calibrated(settings: Settings, benchmark: Benchmark, share: float) -> float:
    """The forget loss at which the certificate reaches a share, in a run without a controller."""
    if settings.measure != "token_nll":
        raise ValueError(
            f"alpha is rate:{share:g} and the measure {settings.measure}, which is a rate already. "
            f"Did you mean alpha={share:g}?"
        )
    both = [dataclasses.replace(settings, measure=m) for m in ("token_nll", "certificate")]
    measures = [measure(each) for each in both]
    pairs = record(settings, benchmark, lambda *seen: [m(*seen).item() for m in measures])
    losses, rates = zip(*pairs, strict=True)
    return loss_for_rate(losses, rates, share)


def record(
    settings: Settings, benchmark: Benchmark, look: Callable[..., list[float]]
) -> list[list[float]]:
    """Record what `look` finds in logits and labels of each forget batch, before its step."""
    model = benchmark.reference("original").train()
    method = methods.build("dual_adamw", model, settings)
    found = []
    for retain, forget in benchmark.batches(settings, CALIBRATION_SEED):
        with torch.no_grad():
            found.append(look(*forward(model, forget)))
        method.step(retain, forget)
    return found
