"""Trainers of the toy model: pairs, a constraint, and arguments for a CPU."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import TrainerCallback, TrainingArguments

from tests.models import PAD, VOCABULARY, Tokens, Toy, rows, toy, values
from torch_alm import ALMConstraint
from torch_alm.integrations.transformers import PairedCollator, PairedDataset
from torch_alm.measures import token_nll

__all__ = ["PAD", "VOCABULARY", "Tokens", "Toy", "rows", "toy", "values"]


def pairs(forget: int = 10) -> PairedDataset:
    return PairedDataset(rows(forget, 1), rows(23, 2), seed=5)


def constraint(**settings: Any) -> ALMConstraint:
    """Met after some steps of the runs below, and not before."""
    return ALMConstraint(token_nll, **{"alpha": 2.9, "mu": 1.0, **settings})


def arguments(folder: Path | str, **settings: Any) -> TrainingArguments:
    """Batches of 2: 5 micro-batches an epoch, so that with 2 per step the last step has one."""
    given: dict[str, Any] = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 4,
        "learning_rate": 0.05,
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(output_dir=str(folder), **{**given, **settings})


def trainer(kind: Any, folder: Path | str, model: nn.Module | None = None, **given: Any) -> Any:
    """A trainer of this kind; what is not given is the toy's. `args` are those that differ."""
    settings = {"data_collator": PairedCollator(Tokens()), "train_dataset": pairs(), **given}
    args = arguments(folder, **settings.pop("args", {}))
    return kind(toy() if model is None else model, args, **settings)


def recording(kind: Any) -> Any:
    """A trainer of this kind that keeps the micro-batches of each step."""

    class Recording(kind):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.steps: list[list[Any]] = [[]]
            super().__init__(*args, **kwargs)

        def training_step(self, model: nn.Module, inputs: Any, *args: Any) -> Tensor:
            self.steps[-1].append(inputs)
            loss = super().training_step(model, inputs, *args)
            if self.accelerator.sync_gradients:
                self.steps.append([])
            return loss

    return Recording


class Logs(TrainerCallback):
    """The logs that TensorBoard and Weights & Biases get to see."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
        self.seen.append(dict(logs))
