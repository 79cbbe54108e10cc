"""Tokens of a text, without what a tokenizer adds behind it."""

from typing import Any


def token_ids(tokenizer: Any, text: str, *, bos: bool = True) -> list[int]:
    """Encode a text with the tokens that the tokenizer puts first, or without them if not `bos`.

    An EOS (`add_eos_token`) is left out: behind it a model expects that nothing follows.
    """
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return [*first_ids(tokenizer), *ids] if bos else ids


def first_ids(tokenizer: Any) -> list[int]:
    """Return the tokens that a tokenizer puts before any text, such as BOS."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    starts = range(len(whole) - len(plain) + 1)
    return whole[: next(at for at in starts if whole[at : at + len(plain)] == plain)]
