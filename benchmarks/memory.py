"""How much memory a step takes, counted on tensors without data: no weights, no device needed.

    python benchmarks/memory.py [--output DIR] [--quick]

writes `results/memory.md` and `.json` for a model of 7 billion weights. The benchmark scripts count
in the same way before a run on a pretrained model, and refuse what the device could not hold.

Counted is what tensors occupy at most: weights, gradients, moments, the copy of SAM, the frozen
reference, activations. Not counted: what libraries and the allocator keep for themselves, a few
gigabytes on a GPU, and the evaluation.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import AutoConfig, AutoModelForCausalLM, MistralConfig

from benchmarks import methods
from benchmarks.counters import Answers, Fake, Memory
from benchmarks.holding import Holding, hold
from benchmarks.methods import Settings
from benchmarks.methods.method import OPTIMIZERS
from benchmarks.results import replace, write_json

GB = 1e9
SPARE = 0.95
"""Share of a device that tensors may fill; the rest is the allocator's and the libraries'."""


class Count(NamedTuple):
    """Bytes of a model and of a step."""

    weights: int
    trained: int
    peak: int


def counted(
    config: Any, how: Holding, key: str, settings: Settings, tokens: tuple[int, int]
) -> Count:
    """The memory of two steps of a method, the second of which finds all moments made.

    Args:
        config: Of a causal language model of transformers.
        how: What is trained, and in which numbers.
        key: A method.
        settings: Its settings.
        tokens: Rows and columns of a batch, of either kind.

    Cost: none of the model's: seconds of Python, and no memory to speak of.
    """
    with warnings.catch_warnings(), Fake(), Memory() as memory, Answers():
        warnings.simplefilter("ignore")  # of what has no data
        resident, offloaded = _resident(settings)
        # peft moves its adapters to where they are, which tensors without data refuse
        with mock.patch.object(nn.Module, "to", lambda module, *_, **__: module):
            model: Any = hold(AutoModelForCausalLM.from_config(config), how)
        weights, trained = (sum(p.nbytes for p in ps) for ps in (every(model), learnt(model)))
        with mock.patch.dict(OPTIMIZERS, adamw8bit=Quantised):
            method = methods.build(key, model.train(), resident)
        memory.restart()
        names = ("input_ids", "attention_mask", "labels")
        batch = {name: torch.ones(tokens, dtype=torch.long) for name in names}
        for _ in range(2):
            method.step(batch, batch)
        # the reference that was counted on the device is elsewhere, but for one weight at a time
        elsewhere = weights - largest(model) if offloaded and hasattr(method, "reference") else 0
    return Count(weights, trained, memory.peak - elsewhere)


def _resident(settings: Settings) -> tuple[Settings, bool]:
    """The settings with a number for alpha and the reference on the device; whether it was not."""
    alpha = 1.0 if isinstance(settings.alpha, str) else settings.alpha
    changed = dataclasses.replace(settings, alpha=alpha, reference="resident")
    return changed, settings.reference == "offloaded"


def every(model: nn.Module) -> list[nn.Parameter]:
    """All parameters."""
    return list(model.parameters())


def learnt(model: nn.Module) -> list[nn.Parameter]:
    """Those that are trained."""
    return [p for p in model.parameters() if p.requires_grad]


class Quantised(Optimizer):
    """AdamW's memory with moments of 8 bits and nothing else of it, for counting.

    As in torchao: a byte an entry and moment, a float32 scale for each block of 256, and a table.
    """

    def __init__(self, params: Any, **defaults: Any) -> None:
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Make the moments where there are none."""
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            if p not in self.state:
                self.state[p] = {"exp_avg": self.moment(p), "exp_avg_sq": self.moment(p)}

    def moment(self, p: Tensor) -> list[Tensor]:
        """Codes, scales and the table between them."""
        codes = torch.zeros(p.shape, dtype=torch.uint8)
        return [codes, torch.zeros(-(-p.numel() // 256)), torch.zeros(256)]


def largest(model: nn.Module) -> int:
    """Bytes of the largest parameter: what an offloaded reference has on the device at a time."""
    return max(p.nbytes for p in model.parameters())


# Before a run


def announce(
    name: str,
    how: Holding,
    settings: Mapping[str, Settings],
    longest: int,
    limit: float | None = None,
) -> None:
    """Say what each method will need, and refuse what the device has not.

    Args:
        name: Of the pretrained model; only its configuration is read.
        how: What is trained, and in which numbers.
        settings: Of each method.
        longest: Tokens of the longest rows.
        limit: In gigabytes, in place of what the device has.

    Raises:
        ValueError: A method would not fit.
    """
    config = AutoConfig.from_pretrained(name)
    room = device_memory() if limit is None else limit * GB
    print(f"Memory, counted for {name} ({room / GB:.1f} GB here):", flush=True)
    for key, its in settings.items():
        found = counted(config, how, key, its, (its.batch_size, longest))
        print(f"  {methods.label(key)}: {described(found)}", flush=True)
        if found.peak > SPARE * room:
            raise ValueError(
                f"{methods.label(key)} needs {found.peak / GB:.1f} GB on {name}, and a device of "
                f"{room / GB:.1f} GB would run out of memory. Did you mean --checkpointing, "
                "--dtype bfloat16, --parameters rmu, --lora 16 or a smaller --batch-size? "
                "--memory-limit GB says otherwise."
            )


def described(found: Count) -> str:
    """A count in words."""
    return (
        f"{found.peak / GB:.1f} GB at most, {found.weights / GB:.1f} of weights, of which "
        f"{found.trained / GB:.1f} are trained"
    )


def device_memory() -> float:
    """Bytes of the GPU where there is one, else of this machine."""
    if torch.cuda.is_available():
        return float(torch.cuda.get_device_properties(0).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


# For the record

RMU = Holding("rmu", dtype="bfloat16", checkpointing=True)
LORA = Holding(lora=16, dtype="bfloat16", checkpointing=True)
WHOLE = Holding(dtype="bfloat16", trained_dtype="bfloat16", checkpointing=True)
ON_RMU = Settings(losses="rmu", alpha=1.5e-3, batch_size=4)
EIGHT_BIT = Settings(optimizer="adamw8bit", batch_size=1)
SHORT, LONG = (4, 768), (1, 2048)


class Case(NamedTuple):
    """A line of the table; `card` is what it is to fit on, in GB."""

    what: str
    card: float
    how: Holding
    key: str
    settings: Settings
    tokens: tuple[int, int]


def cases() -> list[Case]:
    """What a 7B model has to be possible with, and what it would take without."""
    on_rmu = ("rmu", "dual_adamw+alm", "sharp_min_max", "relearning_resilient", "blur", "saul")
    found = [Case("WMDP, RMU's parameters", 80, RMU, key, ON_RMU, SHORT) for key in on_rmu]
    found += [
        Case("WMDP, LoRA of rank 16", 80, LORA, key, ON_RMU, SHORT) for key in ("rmu", "saul")
    ]
    found += [
        Case("MUSE, LoRA of rank 16", 80, LORA, key, Settings(batch_size=1), LONG)
        for key in ("dual_adamw+alm", "npo", "saul")
    ]
    offloaded = Settings(
        losses="rmu", optimizer="adamw8bit", alpha=1.5e-3, batch_size=4, reference="offloaded"
    )
    found += [Case("WMDP, all weights, 8-bit moments", 141, WHOLE, "saul", offloaded, SHORT)]
    found += [
        Case("MUSE, all weights, 8-bit moments", 141, WHOLE, key, its, LONG)
        for key, its in {
            "dual_adamw+alm": EIGHT_BIT,
            "npo": Settings(optimizer="adamw8bit", batch_size=1, reference="offloaded"),
            "saul": EIGHT_BIT,
        }.items()
    ]
    plain = Holding(dtype="bfloat16", trained_dtype="bfloat16")
    return [*found, Case("MUSE, all weights, nothing saved", 141, plain, "saul", Settings(), LONG)]


def main(arguments: list[str] | None = None) -> int:
    """Count every case that has no line yet, and write the table after each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two layers, to see it run")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name has this text")
    options = parser.parse_args(arguments)
    config = MistralConfig(num_hidden_layers=2 if options.quick else 32, use_cache=False)
    lines: dict[str, Any] = {}
    for case in (case for case in cases() if options.only in f"{case.what} {case.key}"):
        found = counted(config, case.how, case.key, case.settings, case.tokens)
        line = {
            "what": case.what,
            "method": case.key,
            "tokens": list(case.tokens),
            "card": case.card,
            **found._asdict(),
        }
        lines[f"{case.what}: {case.key}"] = line
        print(f"{case.what}: {methods.label(case.key)}: {described(found)}", flush=True)
    path = options.output / "memory.json"
    earlier = recorded(path)
    write_json(path, {"model": "7 billion weights, the shape of Mistral", "lines": earlier | lines})
    replace(options.output / "memory.md", markdown(list((earlier | lines).values())))
    return 0


def recorded(path: Path) -> dict[str, Any]:
    """The lines of an earlier record."""
    return json.loads(path.read_text())["lines"] if path.exists() else {}


def markdown(lines: list[dict[str, Any]]) -> str:
    """The record as a table."""
    heads = ("What", "Method", "Batch", "Weights", "Trained", "Peak", "Card", "Fits")
    table = [" | ".join(heads), " | ".join("---" for _ in heads)]
    for line in lines:
        numbers = (f"{line[name] / GB:.1f}" for name in ("weights", "trained", "peak"))
        rows, columns = line["tokens"]
        fits = "yes" if line["peak"] <= SPARE * line["card"] * GB else "no"
        cells = (line["what"], methods.label(line["method"]), f"{rows} x {columns}", *numbers)
        table.append(" | ".join((*cells, f"{line['card']:g}", fits)))
    return "\n".join(
        [
            "# Memory of a step of a 7B model\n",
            "Written by `python benchmarks/memory.py`; bytes in `memory.json`. GB, counted on "
            "tensors without data; a card may be filled to 95 %.\n",
            *(f"| {line} |" for line in table),
            "",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
