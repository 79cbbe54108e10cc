"""The setup of a model that unlearns: what is trained, in which numbers, what is recomputed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from benchmarks.methods.rmu import steered_layer
from torch_alm.unlearning.adapters import with_new

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class ModelSetup:
    r"""Choices that cost or save memory.

    Attributes:
        parameters: Regular expression that the whole name of a trained parameter matches. `all`
            trains everything; `rmu` the down projections of RMU's layer and the two before it,
            `below` all of RMU's layer and those before it.
        lora: Rank of adapters on every linear layer, trained instead; 0 for none.
        dtype: Of the weights that are not trained. With bfloat16 products are taken in it too.
        trained_dtype: Of those that are; bfloat16 swallows small moves.
        checkpointing: Keep activations of a layer's input only and compute the others again.
    """

    parameters: str = "all"
    lora: int = 0
    dtype: str = "float32"
    trained_dtype: str = "float32"
    checkpointing: bool = False

    def __post_init__(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            ValueError: Adapters beside chosen parameters, or a rank below 0.
        """
        if self.lora < 0:
            raise ValueError(f"--lora {self.lora} is no rank. Did you mean {-self.lora}?")
        if self.lora and self.parameters != "all":
            raise ValueError(
                f"--lora {self.lora} with --parameters {self.parameters!r}: either adapters are "
                "trained or parameters are. Did you mean one of the two?"
            )
        try:
            re.compile(self.parameters)
        except re.error as error:
            raise ValueError(
                f"--parameters {self.parameters!r} is no regular expression: {error}. Is a bracket "
                "missing?"
            ) from error


def add_setup_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("memory").add_argument
    trained = "what is trained: a regular expression of whole names, or all, rmu, below"
    add("--parameters", default="all", metavar="REGEX", help=trained)
    add("--lora", type=int, default=0, metavar="RANK", help="train adapters instead")
    add("--dtype", default="float32", choices=DTYPES, help="of the weights that are not trained")
    add("--trained-dtype", default="float32", choices=DTYPES, help="of those that are")
    add("--checkpointing", action="store_true", help="compute activations again in the backward")
    limit = "refuse what is counted to need more than this; default: what the device has"
    add("--memory-limit", type=_size, metavar="GB", help=limit)


def _size(text: str) -> float:
    """Read a number above 0; nothing is larger than none, and the check would never refuse."""
    if not (value := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is no size. Did you mean a number above 0?")
    return value


def model_setup(given: argparse.Namespace) -> ModelSetup:
    return ModelSetup(**{field.name: getattr(given, field.name) for field in fields(ModelSetup)})


def set_up(model: Any, how: ModelSetup) -> Any:
    """The model, ready to train: the parameters chosen, cast, and wrapped as asked.

    Args:
        model: A causal language model of transformers; changed in place.
        how: What is trained, and in which numbers.

    Raises:
        ValueError: No parameter has such a name.
        ImportError: Adapters, and peft is not installed.
    """
    if how.lora:
        model = with_new(model, how.lora)
    else:
        select(model, how.parameters)
    for parameter in model.parameters():
        dtype = how.trained_dtype if parameter.requires_grad else how.dtype
        parameter.data = parameter.data.to(DTYPES[dtype])
    if how.checkpointing:
        model.config.use_cache = False
        # the name is new in transformers 5.20 or so, and the old one warns there
        name = "activation_checkpointing_enable"
        enable = getattr(model, name, None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    if "bfloat16" in (how.dtype, how.trained_dtype):
        model.forward = _Autocast(model.forward)
    return model


class _Autocast:
    """A forward under bfloat16 autocast: weights of both dtypes meet, and products are bfloat16."""

    def __init__(self, forward: Any) -> None:
        self.forward = forward
        self.__wrapped__ = forward  # whose signature transformers reads

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        device = next(self.forward.__self__.parameters()).device.type
        with torch.autocast(device, torch.bfloat16):
            return self.forward(*args, **kwargs)


def select(model: nn.Module, pattern: str) -> None:
    """Leave only some of a model's parameters to train.

    Raises:
        ValueError: No parameter has such a name.
    """
    wanted = re.compile(WORDS[pattern](model) if pattern in WORDS else pattern)
    named = dict(model.named_parameters())
    chosen = {name for name in named if wanted.fullmatch(name)}
    if not chosen:
        raise ValueError(
            f"--parameters {pattern!r} is the name of no parameter of {type(model).__name__}; "
            f"nothing would be trained. Did you mean something like {list(named)[-2:]}?"
        )
    for name, parameter in named.items():
        parameter.requires_grad_(name in chosen)


def _layers(model: nn.Module, back: int | None = None) -> str:
    """The steered layer and those before it, or only so many of them."""
    stack, _, number = steered_layer(model, "auto").rpartition(".")
    first = 0 if back is None else max(0, int(number) - back)
    numbers = "|".join(map(str, range(first, int(number) + 1)))
    return rf"{re.escape(stack)}\.({numbers})"


WORDS: dict[str, Callable[[nn.Module], str]] = {
    "all": lambda _: ".*",
    "rmu": lambda model: rf"{_layers(model, back=2)}\.mlp\.down_proj\.weight",
    "below": lambda model: rf"{_layers(model)}\..*",
}
"""The words of `ModelSetup.parameters` as regular expressions."""
