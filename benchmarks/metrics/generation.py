"""Greedy answers of a model: left padded batches, KV cache, cut at the end of sequence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from benchmarks.data.batches import check_eos, pad_id


def generate(
    model: Any,
    tokenizer: Any,
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
        prompts: token ids of everything that precedes the answer.
        ends: tokens that end an answer, beyond the tokenizer's and the model's own.
        max_new_tokens: where to stop a row that does not end by itself.

    Raises:
        ValueError: the tokenizer has no end-of-sequence token.
    """
    check_eos(tokenizer)
    answers = [""] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    config = _greedy(model, tokenizer, ends, max_new_tokens)
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        continuations = _continue(model, [prompts[i] for i in rows], config)
        for i, ids in zip(rows, continuations, strict=True):
            answers[i] = decode(tokenizer, ids)
    return answers


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of an answer as it is compared: without special tokens, stripped."""
    return tokenizer.decode(ids, skip_special_tokens=True).strip()


def _greedy(
    model: Any, tokenizer: Any, ends: Collection[int], max_new_tokens: int
) -> GenerationConfig:
    """Plain greedy search, whatever sampling or penalties the model ships with."""
    own = model.generation_config.eos_token_id
    own = [] if own is None else [own] if isinstance(own, int) else list(own)
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        temperature=1.0,
        top_p=1.0,
        repetition_penalty=1.0,
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted({tokenizer.eos_token_id, *own, *ends}),
        pad_token_id=pad_id(tokenizer),
        use_cache=True,
    )


@torch.no_grad()
def _continue(
    model: Any, prompts: Sequence[Sequence[int]], config: GenerationConfig
) -> list[list[int]]:
    """New token ids of each row, cut before the first end-of-sequence token."""
    width = max(len(prompt) for prompt in prompts)
    padding = [width - len(prompt) for prompt in prompts]
    ids = [[config.pad_token_id] * n + list(p) for n, p in zip(padding, prompts, strict=True)]
    mask = [[0] * n + [1] * (width - n) for n in padding]
    was_training = model.training
    model.eval()
    try:
        output = model.generate(
            input_ids=torch.tensor(ids, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            generation_config=config,
        )
    finally:
        model.train(was_training)
    return [_until(config.eos_token_id, row) for row in output[:, width:].tolist()]


def _until(ends: Collection[int], ids: list[int]) -> list[int]:
    return ids[: next((i for i, token in enumerate(ids) if token in ends), len(ids))]
