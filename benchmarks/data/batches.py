"""From questions and answers to token batches: encode, collate, pair.

A batch is the mapping a transformers model takes; labels are -100 where nothing is learned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.data.tofu import Example
from torch_alm.language import IGNORE, Batch, Row, check_eos, collate, encode, pad_id, pairs

__all__ = [
    "IGNORE",
    "Batch",
    "Row",
    "check_eos",
    "collate",
    "encode",
    "encode_all",
    "pad_id",
    "pairs",
]


def encode_all(tokenizer: Any, examples: Iterable[Example], max_length: int = 512) -> list[Row]:
    """`encode` for the question and answer of each example."""
    return [encode(tokenizer, e.question, e.answer, max_length) for e in examples]
