"""Models, encoded rows and batches, as all benchmarks of language models have them."""

from __future__ import annotations

import argparse
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.engine.benchmark import Benchmark
from benchmarks.engine.memory import announce
from benchmarks.engine.model_setup import set_up
from benchmarks.engine.options import Options
from benchmarks.methods import Settings
from benchmarks.methods.method import Batch
from benchmarks.methods.sharing import copy_trainable
from torch_alm.language import Row, collate, pad_id, pairs

SOURCES = ("data", "model", "retrained", "base", "replay", "prose", "retain", "mmlu")
"""Options that name files; a name on the hub is none."""


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

    longest: int = 512
    """Tokens of the longest row."""

    def sources(self) -> dict[str, Path]:
        found = {name: getattr(self.given, name, None) for name in SOURCES}
        return {name: Path(path) for name, path in found.items() if path is not None}

    @abstractmethod
    def load(self, key: str) -> tuple[Any, Any]:
        """The reference model `key` and its tokenizer, loaded or trained."""

    @abstractmethod
    def encode(self) -> tuple[list[Row], list[Row]]:
        """The rows to forget and the rows to retain, with `self.tokenizer`."""

    def prepare(self) -> None:
        for key in self.references:
            model, self.tokenizer = self.load(key)
            self.models[key] = set_up(model, self.options.model_setup)
        self.forget, self.retain = self.encode()

    def announce(self, settings: Mapping[str, Settings]) -> None:
        if self.given.model is not None:
            how, limit = self.options.model_setup, self.options.memory_limit
            announce(self.given.model, how, settings, self.longest, limit)

    def reference(self, key: str) -> nn.Module:
        """A copy on the device; what is not trained is there once, whatever the number of copies.

        The model itself stays where it was loaded, apart from what it shares.
        """
        return copy_trainable(self.models[key]).to(self.device)

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
