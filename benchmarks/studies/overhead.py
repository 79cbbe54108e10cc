"""The cost of a step beside one of Dual AdamW: operations, counted.

    python -m benchmarks.studies.overhead

They are those of matrix products, forward and backward; their ratios hold for any size.
"""

from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.report.tables import markdown
from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM

OPEN, CLOSED = 1e3, -1e9  # thresholds that no step reaches, and that release at once
STEPS = 24  # a multiple of every rhythm below


class Kind(NamedTuple):
    """A kind of step by its name in the table; with SAM on both sides, with a constraint.

    `last`, `probe_every` and `every` are those of `backward`, `DualOptimizer` and `SAM`. `opened`
    is a share of the steps, the first ones, with the gate open whatever alpha is.
    """

    name: str
    sam: bool = False
    alpha: float | None = None
    last: bool = False
    probe_every: int = 1
    every: int = 1
    opened: float = 0.0

    def optimizer(self, params: list[Tensor]) -> DualOptimizer:
        """Two AdamW over the same weights, decay on one side."""
        retain: Optimizer = AdamW(params, lr=1e-5)
        forget: Optimizer = AdamW(params, lr=1e-5, weight_decay=0.0)
        if self.sam:
            retain = SAM(retain, rho=1e-2, every=self.every)
            forget = ReverseSAM(forget, rho=1e-2, every=self.every)
        bounded = self.alpha is not None
        constraint = ALMConstraint(None, self.alpha, 1e-3, multiplier=0.0) if bounded else None
        return DualOptimizer(retain, forget, constraint, probe_every=self.probe_every)


KINDS = (
    Kind("Dual AdamW"),
    Kind("Dual AdamW + ALM, gate closed, last=True", alpha=CLOSED, last=True),
    Kind("SAUL, gate open", sam=True, alpha=OPEN),
    Kind("SAUL, gate closed", sam=True, alpha=CLOSED),
    Kind("SAUL, gate closed, last=True", sam=True, alpha=CLOSED, last=True),
    Kind("SAUL, released, probe_every=8", sam=True, alpha=CLOSED, last=True, probe_every=8),
    Kind("SAUL, open in a fifth of the steps, probe_every=8", True, CLOSED, True, 8, 1, 0.2),
    Kind("SAUL, gate open, SAM(every=3)", sam=True, alpha=OPEN, every=3),
)


def llama(width: int, layers: int, words: int = 256) -> LlamaForCausalLM:
    """A Llama without pretrained weights, whose products are all counted."""
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 16 * 16,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        vocab_size=words,
        use_cache=False,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config)


class Training:
    """Steps of one kind on one model and batch."""

    def __init__(self, model: Any, kind: Kind, ids: Tensor) -> None:
        self.model, self.kind, self.ids, self.taken = model, kind, ids, 0
        self.optimizer = kind.optimizer(list(model.parameters()))

    def loss(self) -> Tensor:
        return self.model(input_ids=self.ids, labels=self.ids).loss

    def step(self) -> None:
        """One step; the first ones of a round have an open gate where the kind says so."""
        kind, constraint = self.kind, self.optimizer.constraint
        if kind.opened and isinstance(constraint, ALMConstraint):
            constraint.alpha = OPEN if self.taken % STEPS < kind.opened * STEPS else CLOSED
        self.taken += 1
        self.optimizer.backward(retain=self.loss, forget=self.loss, last=kind.last)
        self.optimizer.step()
        self.optimizer.zero_grad()


def operations(kind: Kind, steps: int = STEPS) -> float:
    """The mean number of operations of a step; `steps` are a multiple of its rhythm."""
    training = Training(llama(16, 1), kind, torch.zeros(2, 8, dtype=torch.long))
    for _ in range(steps):  # lambda at rest, and all moments made
        training.step()
    with FlopCounterMode(display=False) as counter:
        for _ in range(steps):
            training.step()
    return counter.get_total_flops() / steps


def main() -> None:
    """Count, and print a table."""
    counted = pd.Series({kind.name: operations(kind) for kind in KINDS})
    found = pd.DataFrame({"operations": (counted / counted.iloc[0]).map("{:.2f}".format)})
    print(markdown(found.rename_axis("step")))


if __name__ == "__main__":
    main()
