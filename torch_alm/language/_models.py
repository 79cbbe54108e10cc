"""Names for models and tokenizers, and what holds for every model that is asked something."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from torch import nn

LanguageModel: TypeAlias = Any
"""A causal language model of transformers: a module with `generate` and `generation_config`."""

Tokenizer: TypeAlias = Any
"""A tokenizer of transformers: callable, with `eos_token_id` and maybe a `chat_template`."""


def require_causal(owner: str, model: LanguageModel) -> None:
    """Refuse a model whose logits at t are not of token t + 1.

    Raises:
        TypeError: it has an encoder and a decoder, or fills in masked words.
    """
    config, kinds = getattr(model, "config", None), [type(m).__name__ for m in model.modules()]
    masked = any(name.endswith("ForMaskedLM") for name in kinds)
    encoder = any(vars(m).get("is_decoder") is False for m in model.modules())  # BERT's layers
    if masked or encoder or getattr(config, "is_encoder_decoder", False) is True:
        raise TypeError(
            f"{owner}: {kinds[0]} is no causal language model, so its logits at t do not predict "
            "token t + 1, and every value would be of another quantity. Did you mean a model for "
            "causal language modelling (AutoModelForCausalLM)?"
        )


def positions(model: LanguageModel) -> int:
    """How many tokens a model with learned positions takes (GPT-2, OPT); others take any number."""
    known: int | None = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    words = model.get_input_embeddings()
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not words]
    if known is not None and any(0 <= m.num_embeddings - known <= 2 for m in tables):
        return known
    return sys.maxsize


@contextmanager
def modes_kept(model: nn.Module, *, evaluate: bool = False) -> Iterator[None]:
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
