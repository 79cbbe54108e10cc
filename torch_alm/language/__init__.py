"""Rows for language models, what the models answer, and how much of it is right.

Models and tokenizers are passed in, so that torch is all this package imports. A row is
what `encode` returns: `{"input_ids", "labels"}`, labels -100 where nothing is learned.
"""

from torch_alm.language._encoding import (
    IGNORE,
    Batch,
    Row,
    answer_ids,
    collate,
    encode,
    encode_completion,
    encode_messages,
    encode_text,
    pad_id,
)
from torch_alm.language._formats import Format
from torch_alm.language._generation import continuations, generate, greedy_answers
from torch_alm.language._records import Record, read_records, record_of
from torch_alm.language._scoring import AnswerScores, answer_scores, extraction_strength, losses
from torch_alm.language._strings import string_nll
from torch_alm.language._telling import in_own_words, telling_rows, telling_words

__all__ = [
    "IGNORE", "AnswerScores", "Batch", "Format", "Record", "Row", "answer_ids", "answer_scores",
    "collate", "continuations", "encode", "encode_completion", "encode_messages",
    "encode_text", "extraction_strength", "generate", "greedy_answers", "in_own_words", "losses",
    "pad_id", "read_records", "record_of", "string_nll", "telling_rows", "telling_words",
]  # fmt: skip
