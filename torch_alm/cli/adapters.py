"""LoRA adapters: put into a model, taken up again where it has some, and merged into it."""

import argparse
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torch_alm.cli.loading import Loaded
from torch_alm.language import LanguageModel
from torch_alm.unlearning.adapters import ALL, with_new
from torch_alm.unlearning.models import load_model, quiet, stored_as
from torch_alm.unlearning.refusal import Refusal

RANK = 16


def check_asked(given: argparse.Namespace) -> None:
    """Refuse options of adapters where none are trained."""
    asked = {"--lora-rank": given.lora_rank, "--lora-targets": given.lora_targets}
    asked["--merge"] = given.merge
    first = next((name for name, value in asked.items() if value), None)
    if first is not None and not given.lora:
        raise Refusal(
            f"{first} is about adapters, and without --lora all weights are trained and the whole "
            f"model is saved. Did you mean --lora {first}?"
        )


def with_adapters(settings: Mapping[str, Any], loaded: Loaded) -> LanguageModel:
    """The model with adapters to train: those that it came with, or new ones.

    Adapters on top of adapters would not do: other tools load one of the two and leave out the
    other, and what was forgotten comes back. So the same ones are trained on.

    Raises:
        Refusal: adapters of another kind, rank or place than those asked for; or layers to put
            them on that the model does not have.
    """
    rank, targets = settings["lora_rank"], settings["lora_targets"]
    if loaded.adapters is None:
        return _with_new(loaded.model, rank or RANK, targets or ALL)
    config = loaded.adapters.peft_config["default"]
    names: str | set[str] = config.target_modules
    named = names if isinstance(names, str) else ",".join(sorted(names))
    had = {"--lora-rank": config.r, "--lora-targets": named}
    asked = {"--lora-rank": rank, "--lora-targets": None if targets == ALL else targets}
    for name, value in asked.items():
        if value is not None and value != had[name]:
            raise Refusal(
                f"{name} {value}, and the model holds adapters with {had[name]}, which --lora "
                f"trains on: others on top of them would be left out by most tools, and what is "
                f"forgotten would come back. Did you mean to leave out {name}?"
            )
    return loaded.adapters


def _with_new(model: LanguageModel, rank: int, targets: str) -> LanguageModel:
    names = targets if targets == ALL else targets.split(",")
    if names != ALL:
        _check_targets(model, names)
    _check_rank(model, rank)
    with quiet():
        try:
            return with_new(model, rank, names)
        except ValueError as error:  # layers of a kind that peft has no adapters for
            told = str(error).splitlines()[0]
            raise Refusal(f"--lora-targets {targets}: {told} Did you mean {ALL}?") from error


def _check_rank(model: nn.Module, rank: int) -> None:
    """Refuse adapters that no layer has room for: they would be larger than the weights."""
    most = max((min(p.shape) for p in model.parameters() if p.ndim == 2), default=rank)
    if rank > most:
        raise Refusal(
            f"--lora-rank {rank}: no weight of the model has a rank above {most}, so the adapters "
            f"would be larger than what they adapt, and no better. Did you mean {RANK}?"
        )


def _check_targets(model: nn.Module, names: Iterable[str]) -> None:
    """Refuse names that no layer has; peft would leave them out without a word."""
    layers = [f".{name}" for name, _ in model.named_modules()]
    unknown = [name for name in names if not any(each.endswith(f".{name}") for each in layers)]
    if unknown:
        linear = {
            n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, nn.Linear)
        }
        raise Refusal(
            f"--lora-targets {unknown[0]}: no layer of the model has that name; its linear layers "
            f"are {', '.join(sorted(linear))}. Did you mean some of these, or {ALL}?"
        )


def save_merged(adapted: Any, tokenizer: Any, folder: Path, dtype: torch.dtype) -> None:  # noqa: ANN401
    """Save a plain model: the one below one of peft, with the adapters merged into its weights.

    Merged are the saved adapters with the model they name, as everybody who loads them does: the
    adapted model itself stays as it is.

    Cost: the model below, loaded once more.
    """
    own = folder / "adapters"
    adapted.save_pretrained(own)
    tokenizer.save_pretrained(own)
    merged, _ = load_model(own)
    shutil.rmtree(own)
    with stored_as(merged, dtype):
        merged.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
