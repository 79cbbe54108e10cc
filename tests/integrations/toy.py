"""A small next-token model in float64, rows for it, and Trainer arguments for a CPU."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import TrainerCallback, TrainingArguments
from transformers.modeling_outputs import CausalLMOutput

from torch_alm import ALMConstraint
from torch_alm.integrations.transformers import PairedCollator, PairedDataset
from torch_alm.measures import token_nll

VOCABULARY, PAD = 11, 0


class Toy(nn.Module):
    """Predicts a token from the one before. `loss` and `logits`, as transformers models give."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 6)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(6, VOCABULARY)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        logits = self.head(torch.tanh(self.dropout(self.embedding(input_ids))))
        if labels is None:
            return CausalLMOutput(logits=logits)
        how = "mean" if num_items_in_batch is None else "sum"
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction=how)
        items = 1 if num_items_in_batch is None else num_items_in_batch
        return CausalLMOutput(loss=loss / items, logits=logits)


def toy(dropout: float = 0.0) -> Toy:
    torch.manual_seed(0)
    return Toy(dropout).double()


class Tokens:
    """All that a collator asks of a tokenizer."""

    pad_token_id: int | None = PAD
    eos_token_id: int | None = 1
    name_or_path = "toy"


def rows(count: int, seed: int) -> list[dict[str, list[int]]]:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(1, VOCABULARY, (count, 6), generator=generator).tolist()
    lengths = torch.randint(3, 7, (count,), generator=generator).tolist()
    return [
        {"input_ids": row[:n], "labels": [-100, *row[1:n]]}
        for row, n in zip(drawn, lengths, strict=True)
    ]


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


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


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
