"""Only what is trained: the upper layers of a model, fed with what the frozen ones return.

What lies below the first trained layer never changes, so its outputs are computed once per row; and
all rows begin with the same words (the template's), which the upper layers read once per batch.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from torch_alm.language import IGNORE, Batch, Row


class UpperLayers(nn.Module):
    """A causal model of transformers from layer `first` on, with the model's own parameters.

    Args:
        model: The whole model, whose decoder is `model.model` with `layers`.
        first: Number of the first layer that is trained.
        common: Tokens with which every row begins.
    """

    def __init__(self, model: Any, first: int, common: Sequence[int]) -> None:
        super().__init__()
        self.end = copy.deepcopy(model, {id(p): p for p in model.parameters()})
        keep_layers(self.end.model, first, None)
        for number, layer in enumerate(self.end.model.layers):
            layer.self_attn.layer_idx = number  # its place in the cache of keys and values
        self.start: Tensor = compute_hidden(lower_layers(model, first), common)

    def forward(self, inputs_embeds: Tensor, logits_to_keep: Tensor) -> Any:
        """Logits, with the common start before every row."""
        common = self.end(inputs_embeds=self.start, use_cache=True, logits_to_keep=1)
        cache = common.past_key_values
        cache.batch_repeat_interleave(len(inputs_embeds))
        return self.end(
            inputs_embeds=inputs_embeds, past_key_values=cache, logits_to_keep=logits_to_keep
        )

    def odds(self, batch: Batch) -> Tensor:
        """Log-odds of the labelled tokens: of a row known by heart they have a gradient, too."""
        chosen, labels = batch["labels"][:, 1:] != IGNORE, batch["labels"][:, 1:]
        logits = self(batch["inputs_embeds"], batch["logits_to_keep"]).logits[:, :-1][chosen]
        loss = nn.functional.cross_entropy(logits.float(), labels[chosen], reduction="none")
        return -(loss + torch.log(-torch.expm1(-loss.clamp(min=1e-6)))).mean()


def lower_layers(model: Any, first: int) -> Any:
    """The decoder below layer `first`, with the model's own parameters."""
    below = copy.deepcopy(model.model, {id(p): p for p in model.parameters()})
    keep_layers(below, 0, first)
    below.norm = nn.Identity()
    return below


def keep_layers(decoder: Any, begin: int, end: int | None) -> None:
    """Leave some layers of a decoder, and the kinds of attention of these alone."""
    decoder.layers = decoder.layers[begin:end]
    kinds = getattr(decoder.config, "layer_types", None)
    decoder.config.num_hidden_layers = len(decoder.layers)
    if kinds:
        decoder.config.layer_types = kinds[begin:end]


@torch.no_grad()
def compute_hidden(below: Any, ids: Sequence[int], cache: Any = None) -> Tensor:
    """Compute what leaves the lower layers, behind what is cached: (1, tokens, width)."""
    tokens = torch.tensor([list(ids)], device=below.device)
    found = below(input_ids=tokens, past_key_values=cache, use_cache=cache is not None)
    return found.last_hidden_state


class CachedRows:
    """Encoded rows as batches for `UpperLayers`; the rest is computed when a row first comes."""

    def __init__(self, model: Any, first: int, common: int) -> None:
        self.below, self.common = lower_layers(model, first), common
        self.known: dict[tuple[int, ...], Tensor] = {}
        self.start: Any = None  # keys and values of the common start

    def batch(self, rows: Sequence[Row]) -> Batch:
        """Right padded, without the common start, with logits from the first label on."""
        states = [self.states(row["input_ids"]) for row in rows]
        labels = [torch.tensor(row["labels"][self.common :]) for row in rows]
        padded = nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=IGNORE)
        begin = int((padded != IGNORE).any(0).nonzero()[0]) - 1  # the position that predicts it
        device = self.below.device
        return {
            "inputs_embeds": nn.utils.rnn.pad_sequence(states, batch_first=True),
            "logits_to_keep": torch.arange(begin, padded.shape[1], device=device),
            "labels": padded[:, begin:].to(device),
        }

    def states(self, ids: Sequence[int]) -> Tensor:
        """Take what enters the first trained layer behind the common start: (tokens, width)."""
        key = tuple(ids)
        if self.start is None:
            self.start = DynamicCache(config=self.below.config)
            compute_hidden(self.below, ids[: self.common], self.start)
        if key not in self.known:
            cache = copy.deepcopy(self.start)
            self.known[key] = compute_hidden(self.below, ids[self.common :], cache)[0]
        return self.known[key]


def common_start(rows: Sequence[Sequence[int]]) -> list[int]:
    """The tokens with which all rows begin."""
    same = takewhile(lambda tokens: len({*tokens}) == 1, zip(*rows, strict=False))
    return [tokens[0] for tokens in same]
