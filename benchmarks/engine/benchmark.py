"""The parts in which TOFU, MUSE and WMDP differ."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.engine.presets import Presets
from benchmarks.methods import Settings
from benchmarks.methods.method import Batch
from benchmarks.report.layout import Layout
from benchmarks.report.results import Row


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of one model.

    Attributes:
        numbers: Every number of the table by name.
        answers: One row per question, for the table of example answers.
    """

    numbers: dict[str, float | None]
    answers: list[Row]


class Benchmark(ABC):
    """The parts in which TOFU, MUSE and WMDP differ."""

    layout: Layout
    """Names of its numbers where they are shown and matched."""

    presets: Presets
    """The settings of every method on it."""

    split: str
    """Row of the presets to use."""

    losses: str = "tokens"
    """The losses that its methods lower and raise, unless the settings say else."""

    references: tuple[str, ...]
    """Models to compare with: `original`, and `retrained` where there is one."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Describe what a result depends on apart from the method: data, model, sizes."""

    def sources(self) -> dict[str, Path]:
        """The files and folders that a result depends on, by the option that names them."""
        return {}

    def announce(self, settings: Mapping[str, Settings]) -> None:
        """Say what the runs will need before anything is loaded.

        Raises:
            ValueError: The device has not that much.
        """
        return

    @abstractmethod
    def prepare(self) -> None:
        """Load or train the models; whatever bad input can break breaks here or before."""

    @abstractmethod
    def reference(self, key: str) -> nn.Module:
        """A fresh copy of a reference model."""

    @abstractmethod
    def batches(self, settings: Settings, seed: int) -> Iterable[tuple[Batch, Batch]]:
        """All (retain, forget) batches of a run, on the model's device."""

    @abstractmethod
    def steps_per_epoch(self, settings: Settings) -> int:
        """Batches in one pass over the forget set."""

    def resolved(self, settings: Settings) -> Settings:
        """Put a number in the place of a word that only this benchmark knows."""
        return settings

    def forget_batches(self, settings: Settings, seed: int) -> Iterable[Batch]:
        """One pass over the forget set."""
        pairs = itertools.islice(self.batches(settings, seed), self.steps_per_epoch(settings))
        return (forget for _, forget in pairs)

    def held_out(self, settings: Settings) -> Iterable[Batch]:
        """Batches of text like the forget set, and as large, that no model was trained on.

        Raises:
            ValueError: There is none.
        """
        raise ValueError(
            f"{type(self).__name__} has no held-out text, so alpha=never_seen cannot be measured. "
            "Did you mean a number?"
        )

    @abstractmethod
    def evaluate(self, model: nn.Module) -> Evaluation:
        """Measure a model; it is left as it was."""

    @abstractmethod
    def quick_eval(self, model: nn.Module) -> dict[str, float | None]:
        """The numbers that are cheap: losses and exact matches on part of the questions."""
