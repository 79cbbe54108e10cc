"""Greedy answers of a model: left padded batches, KV cache, cut at the end of sequence."""

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any, TypeAlias

import torch

from torch_alm.language._encoding import (
    ASKED,
    Row,
    answer_ids,
    check_eos,
    pad_id,
    prompt_ids,
)
from torch_alm.language._formats import end_tokens
from torch_alm.language._modes import modes_kept
from torch_alm.language._scoring import AnswerScores
from torch_alm.language._types import LanguageModel, Tokenizer

GenerationConfig: TypeAlias = Any


def generate(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    *,
    ends: Collection[int] = (),
    max_new_tokens: int = 200,
    batch_size: int = 128,
) -> list[str]:
    """The greedy continuation of each prompt, decoded and stripped, in the order of the prompts.

    Cost: one forward over the prompts and one per new token, per batch; a batch ends when all of
    its rows have ended. Leaves the model's mode and the random state as they were.
    Source: OpenUnlearning's TOFU evaluation (greedy, 200 new tokens, left padding).

    Args:
        model: a causal language model of transformers.
        tokenizer: its tokenizer.
        prompts: token ids of everything that precedes the answer.
        ends: tokens that end an answer, beyond the tokenizer's and the model's own.
        max_new_tokens: where to stop a row that does not end by itself.
        batch_size: prompts at once.

    Raises:
        ValueError: the tokenizer has no end-of-sequence token.
    """
    written = continuations(
        model,
        tokenizer,
        prompts,
        ends=ends,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
    )
    return [decode(tokenizer, ids) for ids in written]


def continuations(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    *,
    ends: Collection[int] = (),
    max_new_tokens: int = 200,
    batch_size: int = 128,
) -> list[list[int]]:
    """The new token ids that `generate` decodes for each prompt, without the one that ends them.

    Cost, arguments and errors are those of `generate`.
    """
    check_eos(tokenizer)
    written: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    config = _greedy(model, tokenizer, ends, max_new_tokens)
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        found = _continue(model, [prompts[i] for i in rows], config)
        for i, ids in zip(rows, found, strict=True):
            written[i] = ids
    return written


def greedy_answers(
    model: LanguageModel,
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    scores: Sequence[AnswerScores],
    max_new_tokens: int = 200,
) -> list[str]:
    """The greedy answer to the prompt of each row, without generating what is already known.

    Where every token of the reference has more than half of the probability, greedy decoding
    returns the reference: the teacher-forced pass has shown it.

    Args:
        model: a causal language model of transformers.
        tokenizer: its tokenizer, with an EOS token.
        rows: encoded prompts and answers.
        scores: `answer_scores` of the same rows.
        max_new_tokens: longest answer.

    Cost: as `generate`, for the rows that are not reproduced with certainty.
    """
    # a row that was cut has no end of its own
    ends = end_tokens(tokenizer).keys() & {row["input_ids"][-1] for row in rows}
    texts = [""] * len(rows)
    unknown: list[int] = []
    for i, (row, score) in enumerate(zip(rows, scores, strict=True)):
        has_header = ASKED in row  # which no score tells of
        if not has_header and row["input_ids"][-1] in ends and _is_certain(score):
            texts[i] = decode(tokenizer, answer_ids(row)[:-1][:max_new_tokens])
        else:
            unknown.append(i)
    prompts = [prompt_ids(rows[i]) for i in unknown]
    written = generate(model, tokenizer, prompts, ends=ends, max_new_tokens=max_new_tokens)
    for i, text in zip(unknown, written, strict=True):
        texts[i] = text
    return texts


def _is_certain(score: AnswerScores) -> bool:
    # 0.51, not 0.5: rounding in batches of another shape must not decide.
    return min(score.log_probabilities) > math.log(0.51)


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of an answer as it is compared: without special tokens, stripped."""
    return tokenizer.decode(ids, skip_special_tokens=True).strip()


def _greedy(
    model: LanguageModel, tokenizer: Tokenizer, ends: Collection[int], max_new_tokens: int
) -> GenerationConfig:
    """Plain greedy search: what transformers does where nothing else is said."""
    own = model.generation_config.eos_token_id
    own = [] if own is None else [own] if isinstance(own, int) else list(own)
    return type(model.generation_config)(
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted({tokenizer.eos_token_id, *own, *ends}),
        pad_token_id=pad_id(tokenizer),
    )


@torch.no_grad()
def _continue(
    model: LanguageModel, prompts: Sequence[Sequence[int]], config: GenerationConfig
) -> list[list[int]]:
    """New token ids of each row, cut before the first end-of-sequence token."""
    width = max(len(prompt) for prompt in prompts)
    padding = [width - len(prompt) for prompt in prompts]
    ids = [[config.pad_token_id] * n + list(p) for n, p in zip(padding, prompts, strict=True)]
    mask = [[0] * n + [1] * (width - n) for n in padding]
    with modes_kept(model, evaluate=True), _only(model, config):
        output = model.generate(
            input_ids=torch.tensor(ids, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            generation_config=config,
        )
    ends = config.eos_token_id
    return [[*takewhile(lambda i: i not in ends, row)] for row in output[:, width:].tolist()]


@contextmanager
def _only(model: LanguageModel, config: GenerationConfig) -> Iterator[None]:
    """Inside, the model has no other settings of generation.

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
