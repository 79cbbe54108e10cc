"""Greedy answers in left padded batches, and readings of prompts and answers."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from itertools import takewhile
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torch_alm.language._encoding import ASKED, Row, answer_ids, check_eos, pad_id, prompt_ids
from torch_alm.language._formats import end_tokens
from torch_alm.language._models import (
    LanguageModel,
    Tokenizer,
    keep_modes,
    positions,
    require_asked,
)
from torch_alm.language._scoring import AnswerScores, answer_scores

GenerationConfig: TypeAlias = Any

CERTAIN = math.log(0.51)  # not 0.5: rounding in batches of another shape must not decide


@dataclass(frozen=True)
class Reading:
    """The values of one prompt and its answer under a model."""

    loss: float  # mean negative log-likelihood of the labelled tokens, in nats
    exact_match: bool  # whether greedy decoding reproduces the answer to its end
    text: str | None = None  # the greedy answer, if it was asked for
    tokens: Sequence[int] = ()  # that it was generated in
    is_cut: bool = False  # whether it ended at the most tokens that were asked for


def continuations(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    *,
    ends: Collection[int] = (),
    max_new_tokens: int = 200,
    batch_size: int = 128,
    is_over: Callable[[str], object] | None = None,
) -> list[list[int]]:
    """Return the greedy continuation of each prompt in token ids, without the end token.

    Models that read a prompt in a padded batch otherwise than alone (those with a state, BART's
    decoder) are asked one by one.

    Args:
        model: a causal language model of transformers; its mode stays, and the random state.
        tokenizer: its tokenizer; `decode` makes text of what is returned.
        prompts: token ids of everything that precedes the answer.
        ends: tokens that end an answer, beyond the tokenizer's and the model's own.
        max_new_tokens: where to stop a row that does not end by itself.
        batch_size: prompts at once.
        is_over: returns, for the text so far, whether a row may end there.

    Raises:
        ValueError: the tokenizer has no end-of-sequence token, a prompt fills the model's
            positions, or the model is not causal.

    Cost: one forward over the prompts and one per new token, per batch; a batch ends when all of
    its rows have ended.

    Source: OpenUnlearning's TOFU evaluation (greedy, 200 new tokens, left padding).
    """
    require_asked(model)
    check_eos(tokenizer)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    fits = all(len(prompt) + max_new_tokens <= positions(model) for prompt in prompts)
    size = batch_size if fits and _reads_batches(model) else 1  # else each has room of its own
    config, written = _settings(model, tokenizer, ends), [list[int]() for _ in prompts]

    def stops(ids: Tensor, *_: object, **__: object) -> Tensor:
        texts = [decode(tokenizer, row) for row in ids[:, width:].tolist()]
        return torch.tensor([bool(is_over and is_over(text)) for text in texts], device=ids.device)

    criteria = [stops] if is_over else None
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        some, width = [prompts[i] for i in rows], len(prompts[rows[-1]])
        found = _continue(model, some, config, max_new_tokens, criteria)
        for i, ids in zip(rows, found, strict=True):
            written[i] = ids
    return written


def generate(
    model: LanguageModel, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], **how: Any
) -> list[str]:
    """Return the greedy continuation of each prompt as text; `how`: see `continuations`."""
    return [decode(tokenizer, ids) for ids in continuations(model, tokenizer, prompts, **how)]


def greedy_answers(
    model: LanguageModel,
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    scores: Sequence[AnswerScores],
    max_new_tokens: int = 200,
    **how: Any,
) -> list[str]:
    """Return the greedy answer to the prompt of each row, given its `answer_scores`.

    Where every token of the reference has more than half of the probability, greedy decoding
    returns the reference, and nothing is generated. `how` goes to `continuations`; cost: that of
    the other rows.
    """
    written = _greedy_tokens(model, tokenizer, rows, scores, max_new_tokens, **how)
    return [decode(tokenizer, ids) for ids in written]


def _greedy_tokens(
    model: LanguageModel,
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    scores: Sequence[AnswerScores],
    max_new_tokens: int,
    **how: Any,
) -> list[list[int]]:
    """The tokens of `greedy_answers`."""
    # a row that was cut has no end of its own
    ends = end_tokens(tokenizer).keys() & {row["input_ids"][-1] for row in rows}
    known = {
        i: answer_ids(row)[:-1][:max_new_tokens]
        for i, (row, score) in enumerate(zip(rows, scores, strict=True))
        if ASKED not in row  # scores do not show a header that the model itself writes
        and row["input_ids"][-1] in ends
        and min(score.log_probabilities) > CERTAIN
    }
    unknown = [i for i in range(len(rows)) if i not in known]
    prompts = [prompt_ids(rows[i]) for i in unknown]
    how |= {"ends": ends, "max_new_tokens": max_new_tokens}
    written = continuations(model, tokenizer, prompts, **how)
    known.update(zip(unknown, written, strict=True))
    return [known[i] for i in range(len(rows))]


def read_answers(
    model: LanguageModel,
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    max_new_tokens: int = 200,
    **how: Any,
) -> list[Reading]:
    """Read every row; the model's mode and the random state stay.

    Args:
        model: a causal language model of transformers.
        tokenizer: its tokenizer.
        rows: encoded prompts and answers.
        max_new_tokens: longest greedy answer; 0 for none.
        **how: of `continuations`.

    Cost: one forward pass per row, batched, and `greedy_answers`.
    """
    scores = answer_scores(model, rows, pad_id(tokenizer), tau=1.0)
    written: Sequence[Sequence[int] | None] = [None] * len(rows)
    if max_new_tokens:
        written = _greedy_tokens(model, tokenizer, rows, scores, max_new_tokens, **how)
    return [
        Reading(
            loss=score.loss,
            exact_match=score.exact_match,
            text=None if ids is None else decode(tokenizer, ids),
            tokens=ids or (),
            is_cut=len(ids or ()) >= max_new_tokens,
        )
        for score, ids in zip(scores, written, strict=True)
    ]


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Decode an answer for comparison: without special tokens, stripped."""
    return tokenizer.decode(ids, skip_special_tokens=True).strip()


def _settings(model: LanguageModel, tokenizer: Tokenizer, ends: Collection[int]) -> dict[str, Any]:
    """Return the settings of plain greedy search."""
    own = model.generation_config.eos_token_id
    own = [] if own is None else [own] if isinstance(own, int) else own
    eos = sorted({tokenizer.eos_token_id, *own, *ends})
    return {"eos_token_id": eos, "pad_token_id": pad_id(tokenizer)}


@torch.no_grad()
def _continue(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    settings: dict[str, Any],
    max_new_tokens: int,
    criteria: list[Callable[..., Tensor]] | None,
) -> list[list[int]]:
    """Return the new token ids of each row, cut before the first end token."""
    width = max(map(len, prompts))
    room = positions(model) - width
    if room < 1:
        raise ValueError(
            f"continuations: a prompt has {width} tokens, and {type(model).__name__} has "
            f"{width + room} positions, so that nothing could be said after it. Is it to be cut?"
        )
    padded = [[settings["pad_token_id"]] * (width - len(ids)) + [*ids] for ids in prompts]
    mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
    config = type(model.generation_config)(max_new_tokens=min(max_new_tokens, room), **settings)
    with keep_modes(model, evaluate=True), _override_config(model, config):
        output: Tensor = model.generate(
            input_ids=torch.tensor(padded, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            generation_config=config,
            stopping_criteria=criteria,
        )
    ends = settings["eos_token_id"]
    return [[*takewhile(lambda i: i not in ends, row)] for row in output[:, width:].tolist()]


def _reads_batches(model: LanguageModel) -> bool:
    """Return whether a padded prompt gives the same logits: its mask counts the positions.

    It does not in BART's decoder, and a state (RWKV) may run through the padding.
    """
    whole = getattr(model, "get_base_model", lambda: model)()  # behind adapters
    counts = "position_ids" in signature(whole.forward).parameters
    return counts and not getattr(whole, "_is_stateful", False)


@contextmanager
def _override_config(model: LanguageModel, config: GenerationConfig) -> Iterator[None]:
    """Replace the model's own settings of generation inside the block.

    transformers fills from the model's own whatever a given configuration leaves at its default:
    sampling up to 4.57, penalties, n-grams not to be repeated and the like to this day.
    """
    holders = [m for m in model.modules() if "generation_config" in vars(m)]
    own = [m.generation_config for m in holders]
    try:
        for m in holders:
            m.generation_config = config
        yield
    finally:
        for m, theirs in zip(holders, own, strict=True):
            m.generation_config = theirs
