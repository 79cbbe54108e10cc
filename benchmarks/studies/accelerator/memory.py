"""Section 8: what a step takes at most, against what is counted before a run."""

from __future__ import annotations

import gc
import math
import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks import methods
from benchmarks.engine.counters import Memory
from benchmarks.engine.memory import GB, SPARE, counted, device_memory
from benchmarks.engine.model_setup import ModelSetup, set_up
from benchmarks.methods import Settings
from benchmarks.studies.accelerator.checks import Absent, Check, Place, Seen, check
from benchmarks.studies.memory import Case

SETUPS = {
    "float32": ModelSetup(),
    "bfloat16, recomputed": ModelSetup(
        dtype="bfloat16", trained_dtype="bfloat16", checkpointing=True
    ),
    "LoRA": ModelSetup(lora=8, dtype="bfloat16"),
}
METHODS = ("single_adamw", "dual_adamw+alm", "npo", "saul")
WITHIN = (0.85, 1.15)
"""Measured over counted bytes: an allocator rounds, a kernel needs memory to work in."""

WIDE = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12}
WIDE |= {"num_attention_heads": 12, "num_key_value_heads": 12, "vocab_size": 32_000}
TOY = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
TOY |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64}


def checks(place: Place) -> list[Check]:
    """Methods and ways of holding a hundred million weights; a few thousand for a look."""
    config = LlamaConfig(**(TOY if place.quick else WIDE), use_cache=False)
    keys, ways = (METHODS[-1:], ["float32"]) if place.quick else (METHODS, list(SETUPS))
    given = Settings(alpha=1.0, batch_size=4), (4, 16 if place.quick else 256)
    cases = [Case(way, math.inf, SETUPS[way], key, *given) for way in ways for key in keys]
    measure = partial(measured, config=config)
    return [Check(f"{methods.label(c.key)}, {c.what}", partial(measure, case=c)) for c in cases]


def measured(place: Place, config: Any, case: Case) -> Seen:
    """Peaks of two steps: measured on the device, counted without it.

    Raises:
        Absent: the device has not as much as is counted.
    """
    if case.how.lora:
        place.need_package("peft", "an adapter")
    count = counted(config, case.how, case.key, case.settings, case.tokens)
    room = device_memory()
    if place.is_cuda and count.peak > SPARE * room:
        raise Absent(f"{count.peak / GB:.0f} GB are counted, and {room / GB:.0f} are here")
    peak = peak_of(place, config, case)
    seen = {"measured GB": peak / GB, "counted GB": count.peak / GB, "ratio": peak / count.peak}
    low, high = WITHIN
    check(low <= seen["ratio"] <= high, f"measured {seen['ratio']:.2f} times what is counted")
    return seen


def peak_of(place: Place, config: Any, case: Case) -> int:
    """Bytes at most during two steps on random weights."""
    gc.collect()
    torch.manual_seed(0)
    with warnings.catch_warnings(), Memory() as memory:
        warnings.simplefilter("ignore")  # of what peft and transformers think of random weights
        with torch.device(place.device):
            model = AutoModelForCausalLM.from_config(config)
        method = methods.build(case.key, set_up(model, case.how).train(), case.settings)
        memory.restart()
    if not place.is_cuda:
        return host_peak(memory, method, batch(place, case.tokens))
    torch.cuda.reset_peak_memory_stats(place.device)
    for _ in range(2):
        method.step(*batch(place, case.tokens))
    peak = torch.cuda.max_memory_allocated(place.device)
    del model, method
    gc.collect()
    torch.cuda.empty_cache()
    return peak


def host_peak(memory: Memory, method: Any, both: tuple[Any, Any]) -> int:
    """A CPU keeps no account of tensors: they are watched as they are made."""
    with warnings.catch_warnings(), memory:
        warnings.simplefilter("ignore")
        for _ in range(2):
            method.step(*both)
    return memory.peak


def batch(place: Place, tokens: tuple[int, int]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Make one batch for both sides."""
    names = ("input_ids", "attention_mask", "labels")
    found = {name: torch.ones(tokens, dtype=torch.long, device=place.device) for name in names}
    return found, found
