"""What the benchmarks of language models share: models, encoded rows, and their batches."""

from __future__ import annotations

import argparse
import copy
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from benchmarks.data.batches import Row, collate, pad_id, pairs
from benchmarks.methods import Settings
from benchmarks.methods.method import Batch
from benchmarks.options import Options
from benchmarks.runner import Benchmark


class LanguageBenchmark(Benchmark):
    """A model to unlearn from, rows to forget and rows to retain.

    Args:
        data: The task; its `split` names the row of the presets.
        given: The parsed command line: names of models and data.
        options: The checked command line.
    """

    def __init__(self, data: Any, given: argparse.Namespace, options: Options) -> None:
        self.data, self.given, self.options = data, given, options
        self.split = data.split
        has_retrained = given.model is None or given.retrained is not None
        self.references = ("original", "retrained") if has_retrained else ("original",)
        self.models: dict[str, nn.Module] = {}
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.forget: list[Row] = []
        self.retain: list[Row] = []

    @abstractmethod
    def load(self, key: str) -> tuple[Any, Any]:
        """The reference model `key` and its tokenizer, loaded or trained."""

    @abstractmethod
    def encode(self) -> tuple[list[Row], list[Row]]:
        """The rows to forget and the rows to retain, with `self.tokenizer`."""

    def prepare(self) -> None:
        for key in self.references:
            model, self.tokenizer = self.load(key)
            self.models[key] = model.to(self.device)
        self.forget, self.retain = self.encode()

    def reference(self, key: str) -> nn.Module:
        return copy.deepcopy(self.models[key])

    def batches(self, settings: Settings, seed: int) -> Iterator[tuple[Batch, Batch]]:
        drawn = pairs(self.forget, self.retain, settings.batch_size, settings.epochs, seed)
        for retain, forget in drawn:
            yield self.collated(retain), self.collated(forget)

    def collated(self, rows: list[Row]) -> Batch:
        """Rows as one batch on the model's device."""
        batch = collate(rows, pad_id(self.tokenizer))
        return {name: tensor.to(self.device) for name, tensor in batch.items()}

    def steps_per_epoch(self, settings: Settings) -> int:
        return -(-len(self.forget) // settings.batch_size)
