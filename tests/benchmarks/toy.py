"""A language model small enough to differentiate by hand, and a benchmark over it."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.engine.benchmark import Benchmark, Evaluation
from benchmarks.engine.options import Options
from benchmarks.methods import Settings
from benchmarks.methods.pdu import PDUSettings
from benchmarks.methods.relearning_resilient import RelearningResilientSettings
from benchmarks.methods.rmu import RMUSettings
from benchmarks.methods.saul import SAULSettings
from benchmarks.methods.sharp_min_max import SharpMinMaxSettings
from benchmarks.methods.simnpo import SimNPOSettings
from benchmarks.tasks.tofu.task import Tofu

VOCABULARY = 11
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Everything(
    SAULSettings,
    SharpMinMaxSettings,
    RelearningResilientSettings,
    SimNPOSettings,
    PDUSettings,
    RMUSettings,
):
    """The settings of all methods: each reads those that it knows."""


class Toy(nn.Module):
    """Embedding, running mean, one hidden layer: causal, float64, no dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 12)
        self.hidden = nn.Linear(12, 24)
        self.out = nn.Linear(24, VOCABULARY)
        self.double()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        seen = self.embed(input_ids) * attention_mask.unsqueeze(-1)
        weights = torch.arange(1, input_ids.shape[1] + 1, dtype=torch.float64)
        return SimpleNamespace(
            logits=self.out(torch.tanh(self.hidden(seen.cumsum(1) * weights.rsqrt()[:, None])))
        )


def batch(seed: int, rows: int = 4, length: int = 6) -> Batch:
    """Token rows with a prompt of two tokens; the last row's answer is one token shorter."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (rows, length), generator=generator)
    labels = ids.clone()
    labels[:, :2] = -100
    labels[-1, -1] = -100
    mask = torch.ones_like(ids)
    mask[-1, -1] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


RETAIN, FORGET = batch(1), batch(2)


def ce(model: nn.Module, data: Batch) -> Tensor:
    """Mean over examples of mean token cross-entropy, by hand."""
    return (sequence_sums(model, data) / (data["labels"] != -100).sum(1)).mean()


def sequence_sums(model: nn.Module, data: Batch) -> Tensor:
    """Summed answer cross-entropy of each example, by hand: logits t predict the label at t + 1."""
    said = model(data["input_ids"], data["attention_mask"]).logits[:, :-1].log_softmax(-1)
    labels = data["labels"][:, 1:]
    of_label = said.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return -(of_label * (labels != -100)).sum(1)


def memorised(seed: int = 0, steps: int = 150) -> Toy:
    """A model that knows both batches."""
    torch.manual_seed(seed)
    model = Toy()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(steps):
        optimizer.zero_grad()
        (ce(model, RETAIN) + ce(model, FORGET)).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model


def flat(model: nn.Module) -> Tensor:
    """All weights as one vector, a copy."""
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


class ToyBenchmark(Benchmark):
    """Forget one batch, keep others; utility is the probability of what is kept."""

    layout = Tofu.layout
    presets = Tofu.presets

    def __init__(self, options: Options) -> None:
        super().__init__(options, SimpleNamespace(name="toy", split="forget01"))
        self.evaluated = self.prepared = 0

    def load(self, key: str) -> tuple[Any, Any]:
        raise NotImplementedError

    def encode(self) -> Any:
        raise NotImplementedError

    def prepare(self) -> None:
        self.prepared += 1
        self.models = {"original": memorised(0, 60), "retrained": memorised(1, 60)}

    def copy_reference(self, key: str) -> nn.Module:
        return copy.deepcopy(self.models[key])

    def batches(self, settings: Settings, seed: int) -> Iterator[tuple[Batch, Batch]]:
        for step in range(settings.epochs * self.steps_per_epoch(settings)):
            yield batch(1 + (seed + step) % 3), FORGET

    def steps_per_epoch(self, settings: Settings) -> int:
        return 2

    def evaluate(self, model: nn.Module) -> Evaluation:
        self.evaluated += 1
        forget = math.exp(-ce(model, FORGET).item())
        numbers = {
            "forget_loss": ce(model, FORGET).item(),
            "forget_probability": forget,
            "forget_rouge": forget,
            "model_utility": math.exp(-ce(model, batch(1)).item()),
        }
        row = {"subset": "forget", "index": 0, "question": "q", "reference": "r"}
        return Evaluation(numbers, [{**row, "generation": "r", "rouge": 1.0}])


def options(output: Path, **changes: Any) -> Options:
    """A checked command line for the toy."""
    return Options(**{"output": output, "control": False, "epochs": "3", "lr": "0.02", **changes})
