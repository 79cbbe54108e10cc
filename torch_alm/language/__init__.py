"""Language models as they are taught, asked and attacked.

Models and tokenizers are passed in, so that torch is all this package imports. Rows are what
`encode` makes: `{"input_ids", "labels"}`, labels -100 where nothing is learned.
"""

from torch_alm.language._attacks import (
    linear_weights,
    quantized,
    relearned,
    restored,
    round_weights,
    with_prefix,
)
from torch_alm.language._encoding import (
    ASKED,
    IGNORE,
    Batch,
    Row,
    answer_ids,
    check_eos,
    collate,
    encode,
    encode_completion,
    encode_messages,
    encode_text,
    pad_id,
    pairs,
    prompt_ids,
)
from torch_alm.language._formats import Format, Message
from torch_alm.language._generation import (
    Reading,
    continuations,
    decode,
    generate,
    greedy_answers,
    read_answers,
)
from torch_alm.language._memorization import (
    Convention,
    exact_memorization,
    extraction_strength,
    membership_auc,
    min_k_plus_plus_score,
    min_k_score,
    openunlearning_extraction_strength,
)
from torch_alm.language._models import LanguageModel, Tokenizer
from torch_alm.language._records import Record, read_records, read_text, record_of
from torch_alm.language._scoring import AnswerScores, answer_scores, losses
from torch_alm.language._telling import in_own_words, telling_rows, telling_words

__all__ = [
    "ASKED", "IGNORE", "AnswerScores", "Batch", "Convention", "Format",
    "LanguageModel", "Message", "Reading", "Record", "Row", "Tokenizer", "answer_ids",
    "answer_scores", "check_eos", "collate", "continuations", "decode", "encode",
    "encode_completion", "encode_messages", "encode_text", "exact_memorization",
    "extraction_strength", "generate", "greedy_answers", "in_own_words", "linear_weights", "losses",
    "membership_auc", "min_k_plus_plus_score", "min_k_score",
    "openunlearning_extraction_strength", "pad_id", "pairs", "prompt_ids", "quantized",
    "read_answers", "read_records", "read_text", "record_of", "relearned", "restored",
    "round_weights", "telling_rows", "telling_words", "with_prefix",
]  # fmt: skip
