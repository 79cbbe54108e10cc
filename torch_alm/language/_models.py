"""Types of models and tokenizers, and checks of any model that is asked something."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from torch import nn

from torch_alm.measures._answers import require_causal

LanguageModel: TypeAlias = Any
"""A causal language model of transformers: a module with `generate` and `generation_config`."""

Tokenizer: TypeAlias = Any
"""A tokenizer of transformers: callable, with `eos_token_id` and maybe a `chat_template`."""


def require_asked(model: LanguageModel) -> None:
    """Raise for a model that cannot generate: not causal, or without its head."""
    require_causal(model)
    if model.get_output_embeddings() is None:
        raise ValueError(
            f"{type(model).__name__} has no output layer, so no token has a probability. Was it "
            "loaded without its head (AutoModel for AutoModelForCausalLM)?"
        )


def positions(model: LanguageModel) -> int:
    """Return the most tokens of a model with learned positions (GPT-2, OPT), else no limit."""
    known: int | None = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    words = model.get_input_embeddings()
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not words]
    if known is not None and any(0 <= m.num_embeddings - known <= 2 for m in tables):
        return known
    return sys.maxsize


@contextmanager
def keep_modes(model: nn.Module, *, evaluate: bool = False) -> Iterator[None]:
    """Restore every module's own mode on exit; with `evaluate` the block is in evaluation mode."""
    modes = [(module, module.training) for module in model.modules()]
    if evaluate:
        model.eval()
    try:
        yield
    finally:
        for module, is_training in modes:
            if module.training != is_training:  # by its own method: some merge weights there
                module.train(is_training)
