"""The steps whose cost is measured: methods, models, and one training of each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from transformers import LlamaConfig, LlamaForCausalLM

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM

OPEN, CLOSED = 1e9, -1e9
FAR = 20.0  # nats: no step of these gets there
SHAPES = {  # hidden, inner, layers, heads, key-value heads, words, tied embeddings
    "1B": (2048, 8192, 16, 32, 8, 128_256, True),
    "3B": (3072, 8192, 28, 24, 8, 128_256, True),
    "7B": (4096, 11_008, 32, 32, 32, 32_000, False),
}
SMALL = (384, 1024, 4, 6, 6, 4096, True)
TINY = (64, 128, 2, 2, 2, 256, True)


class Method(NamedTuple):
    """A way to take a step; `target` bounds its cost, in steps of Dual AdamW."""

    name: str
    sam: bool
    alpha: float | None
    last: bool = False
    probe_every: int = 1
    target: float | None = None
    every: int = 1
    aimed: bool = False

    @property
    def rhythm(self) -> int:
        """Steps after which costs repeat."""
        return max(self.probe_every, self.every)

    def optimizer(self, params: list[Tensor]) -> DualOptimizer:
        sides: list[Optimizer] = [AdamW(params, lr=1e-5), AdamW(params, lr=1e-5, weight_decay=0.0)]
        if self.sam:
            settings: dict[str, Any] = {"rho": 1e-2, "every": self.every}
            sides = [SAM(sides[0], **settings), ReverseSAM(sides[1], **settings)]
        mu, scale = ("auto", "step") if self.aimed else (1e-3, "gradient")
        constraint = None if self.alpha is None else ALMConstraint(None, self.alpha, mu)
        return DualOptimizer(*sides, constraint, scale=scale, probe_every=self.probe_every)


BASELINE = Method("Dual AdamW", sam=False, alpha=None)
METHODS = [
    BASELINE,
    Method("Dual AdamW + ALM, gate closed, last=True", sam=False, alpha=CLOSED, last=True),
    Method("SAUL, gate open", sam=True, alpha=OPEN, target=2.05),
    Method("SAUL, gate open, last=True", sam=True, alpha=OPEN, last=True, target=2.05),
    Method("SAUL, gate closed", sam=True, alpha=CLOSED),
    Method("SAUL, gate closed, last=True", sam=True, alpha=CLOSED, last=True, target=1.70),
    Method("SAUL, gate closed, last=True, probe_every=8", True, CLOSED, True, 8, target=1.10),
    Method("SAUL, gate open, SAM(every=3)", sam=True, alpha=OPEN, every=3, target=1.40),
    Method("Dual AdamW + ALM, aimed", sam=False, alpha=FAR, aimed=True),
    Method("SAUL, aimed", sam=True, alpha=FAR, aimed=True),
]


def llama(shape: tuple[Any, ...]) -> LlamaForCausalLM:
    hidden, inner, layers, heads, kv_heads, words, tied = shape
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=words,
        tie_word_embeddings=tied,
        use_cache=False,
        attn_implementation="eager",  # whose products are all counted
    )
    return LlamaForCausalLM(config)


class Training:
    """Steps of one method on one model and batch."""

    def __init__(self, model: nn.Module, method: Method, ids: Tensor) -> None:
        self.model, self.method, self.ids = model, method, ids
        self.optimizer = method.optimizer(list(model.parameters()))

    def loss(self) -> Tensor:
        kind = self.ids.device.type
        with torch.autocast("cpu" if kind == "meta" else kind, torch.bfloat16):
            return self.model(input_ids=self.ids, labels=self.ids).loss

    def forget(self) -> tuple[Tensor, float | Tensor]:
        loss = -self.loss()
        return loss, 0.0 if loss.is_meta else loss.detach()  # no number comes out of no data

    def step(self) -> None:
        self.optimizer.backward(retain=self.loss, forget=self.forget, last=self.method.last)
        self.optimizer.step()
        self.optimizer.zero_grad()


def trace(training: Training, folder: Path) -> Path:
    """Write what one step does on host and device, for chrome://tracing or Perfetto."""
    folder.mkdir(parents=True, exist_ok=True)
    with torch.profiler.profile() as profile:
        training.step()
    path = folder / f"{re.sub('[^a-z0-9]+', '-', training.method.name.lower())}.json"
    profile.export_chrome_trace(str(path))
    return path
