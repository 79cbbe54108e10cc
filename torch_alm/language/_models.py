"""Names for models and tokenizers, and what holds for every model that is asked something."""

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
    """Refuse a model that cannot be asked: not causal, or without its head."""
    require_causal(model)
    if model.get_output_embeddings() is None:
        raise ValueError(
            f"{type(model).__name__} has no output layer, so no token has a probability. Was it "
            "loaded without its head (AutoModel for AutoModelForCausalLM)?"
        )


def positions(model: LanguageModel) -> int:
    """The tokens that a model with learned positions takes (GPT-2, OPT); others take any number."""
    known: int | None = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    words = model.get_input_embeddings()
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not words]
    if known is not None and any(0 <= m.num_embeddings - known <= 2 for m in tables):
        return known
    return sys.maxsize


@contextmanager
def keep_modes(model: nn.Module, *, evaluate: bool = False) -> Iterator[None]:
    """Return every module to its own mode; inside, they may all be evaluated."""
    modes = [(module, module.training) for module in model.modules()]
    if evaluate:
        model.eval()
    try:
        yield
    finally:
        for module, is_training in modes:
            if module.training != is_training:  # by its own function: some merge weights in it
                module.train(is_training)
