"""Names for what transformers has no common type for."""

from typing import Any, TypeAlias

LanguageModel: TypeAlias = Any
"""A causal language model of transformers: a module with `generate` and `generation_config`."""

Tokenizer: TypeAlias = Any
"""A tokenizer of transformers: callable, with `eos_token_id` and maybe a `chat_template`."""
