"""The base of TOFU, MUSE and WMDP: models, rows and batches."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from benchmarks.engine.models import make_trainable
from benchmarks.engine.options import Options
from benchmarks.engine.presets import Presets
from benchmarks.methods import Settings
from benchmarks.methods.method import Batch
from benchmarks.methods.sharing import copy_trainable
from benchmarks.report.page import Layout
from benchmarks.report.results import Row as ResultRow
from torch_alm.language import Row, collate, pad_id

T = TypeVar("T")


class Evaluation(NamedTuple):
    """The evaluation of a model: numbers for its row in the table, and a row per question."""

    numbers: dict[str, float | None]
    rows: list[ResultRow]


class Benchmark(ABC):
    """A model to unlearn from, rows to forget and rows to retain.

    Args:
        options: The checked command line.
        data: The task; its `name` and `split` name the results, the split picks the presets.
    """

    layout: Layout
    """Names of its numbers where they are shown."""

    presets: Presets
    """The settings of every method on it."""

    losses: str = "tokens"
    """The losses that its methods lower and raise."""

    references: tuple[str, ...] = ("original", "retrained")
    """Models to compare with; there is no retrained one of a model from elsewhere."""

    tokenizer: Any

    def __init__(self, options: Options, data: Any) -> None:
        self.options, self.data, self.split = options, data, data.split
        if options.model is not None and getattr(options, "retrained", None) is None:
            self.references = ("original",)
        self.models: dict[str, nn.Module] = {}
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.forget: list[Row] = []
        self.retain: list[Row] = []

    @abstractmethod
    def load(self, key: str) -> tuple[Any, Any]:
        """Load or train the reference model `key`; return it and its tokenizer."""

    @abstractmethod
    def encode(self) -> tuple[list[Row], list[Row]]:
        """Encode the rows to forget and the rows to retain with `self.tokenizer`."""

    @abstractmethod
    def evaluate(self, model: nn.Module) -> Evaluation:
        """Measure a model without changing it."""

    def prepare(self) -> None:
        """Load or train the models; errors of bad input are raised here or before."""
        for key in self.references:
            model, self.tokenizer = self.load(key)
            self.models[key] = make_trainable(model, self.options)
        self.forget, self.retain = self.encode()

    def copy_reference(self, key: str) -> nn.Module:
        """Return a copy of the model on the device; copies share the parameters not trained."""
        return copy_trainable(self.models[key]).to(self.device)

    def batches(self, settings: Settings, seed: int) -> Iterator[tuple[Batch, Batch]]:
        """Yield the (retain, forget) batches of a run, on the model's device."""
        drawn = pairs(self.forget, self.retain, settings.batch_size, settings.epochs, seed)
        for retain, forget in drawn:
            yield self.collate_rows(retain), self.collate_rows(forget)

    def collate_rows(self, rows: list[Row]) -> Batch:
        """Collate rows into one batch on the model's device."""
        batch = collate(rows, pad_id(self.tokenizer))
        return {name: tensor.to(self.device) for name, tensor in batch.items()}

    def steps_per_epoch(self, settings: Settings) -> int:
        """Return the number of batches in one pass over the forget set."""
        return -(-len(self.forget) // settings.batch_size)

    def resolve_settings(self, settings: Settings) -> Settings:
        """Replace words that only this benchmark knows by numbers."""
        return settings


def pairs(
    forget: Sequence[T], retain: Sequence[T], batch_size: int, epochs: int, seed: int
) -> Iterator[tuple[list[T], list[T]]]:
    """Yield pairs of lists to collate, (retain, forget), of at most `batch_size` items each.

    Every epoch visits each forget item once, in a new order; with each one comes a retain item
    drawn uniformly with replacement. The same seed gives the same pairs.

    Raises:
        ValueError: nothing to forget, or nothing to retain.
    """
    if not forget or not retain:
        empty = "retain" if forget else "forget"
        raise ValueError(f"pairs: the {empty} set is empty; no step could be taken. Was it loaded?")
    random = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(forget), generator=random)
        for chosen in order.split(batch_size):
            drawn = torch.randint(len(retain), chosen.shape, generator=random)
            yield [retain[i] for i in drawn.tolist()], [forget[i] for i in chosen.tolist()]
