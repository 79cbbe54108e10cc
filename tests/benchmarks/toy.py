"""A language model small enough to differentiate by hand, that has memorised two batches."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from benchmarks.methods.pdu import PDUSettings
from benchmarks.methods.relearning_resilient import RelearningResilientSettings
from benchmarks.methods.rmu import RMUSettings
from benchmarks.methods.saul import SAULSettings
from benchmarks.methods.sharp_min_max import SharpMinMaxSettings
from benchmarks.methods.simnpo import SimNPOSettings

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
