"""Greedy answers of a model: left padded batches, KV cache, cut at the end of sequence."""

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

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

FEW, MOVED = 4, 0.25  # tokens by which a batch is compared, and how far their scores may move
_BATCHED: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
"""The answer of `_reads_batches` for a model, once it is known."""


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

    Cost, arguments and errors are those of `generate`; once per model, a few tokens more: some
    models (RWKV, BART's decoder, RecurrentGemma) read a prompt in a padded batch otherwise than
    alone, and are asked one by one.
    """
    check_eos(tokenizer)
    written: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    config = _greedy(model, tokenizer, ends, max_new_tokens)
    extremes = [prompts[order[0]], prompts[order[-1]]] if len(order) > 1 else []
    if extremes and not _reads_batches(model, extremes, min(FEW, max_new_tokens)):
        batch_size = 1
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
    output, width = _generated(model, prompts, config)
    ends = config.eos_token_id
    return [[*takewhile(lambda i: i not in ends, row)] for row in output[:, width:].tolist()]


def _generated(
    model: LanguageModel, prompts: Sequence[Sequence[int]], config: GenerationConfig
) -> tuple[Any, int]:
    """The output of `model.generate` for left padded prompts, and how long these are."""
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
    return output, width


@torch.no_grad()
def _reads_batches(model: LanguageModel, prompts: Sequence[Sequence[int]], new_tokens: int) -> bool:
    """Tell whether next tokens have the same scores in a batch as alone, but for rounding.

    That would move them by a hundredth of their spread; what a state or a position that is wrong
    does moves them by about all of it.
    """
    if model not in _BATCHED:
        config = type(model.generation_config)(
            max_new_tokens=new_tokens,
            pad_token_id=0,  # any token will do, masked as it is
            output_scores=True,
            return_dict_in_generate=True,
        )
        both, width = _generated(model, prompts, config)
        differences: list[float] = []
        for row, prompt in enumerate(prompts):
            alone, own = _generated(model, [prompt], config)
            tokens = both.sequences[row, width:], alone.sequences[0, own:]
            for together, apart, *same in zip(both.scores, alone.scores, *tokens, strict=False):
                scores = apart[0].float()
                moved = (together[row].float() - scores).abs().max() / scores.std()
                differences.append(float(moved))
                if same[0] != same[1]:
                    break
        _BATCHED[model] = not any(moved >= MOVED for moved in differences)
    return _BATCHED[model]


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
