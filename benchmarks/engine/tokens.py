"""Tokens of a text, without what a tokenizer adds behind it."""

from typing import Any


def token_ids(tokenizer: Any, text: str, *, bos: bool = True) -> list[int]:
    """The tokens of a text behind those that the tokenizer puts first.

    What it would put last (`add_eos_token`) is left out: a model asked behind it has already been
    told that nothing follows. Without `bos` they begin with the text itself.
    """
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return [*first_ids(tokenizer), *ids] if bos else ids


def first_ids(tokenizer: Any) -> list[int]:
    """The tokens that a tokenizer puts before any text, such as BOS."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    starts = range(len(whole) - len(plain) + 1)
    return whole[: next(at for at in starts if whole[at : at + len(plain)] == plain)]
