"""Knowledge of a set of answers, per row: teacher-forced values and greedy answers."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch_alm.language._encoding import Row, pad_id, prompt_ids
from torch_alm.language._generation import greedy_answers
from torch_alm.language._memorization import extraction_strength, min_k_score
from torch_alm.language._models import LanguageModel, Tokenizer
from torch_alm.language._scoring import answer_scores

TAU = 0.1  # sharpness of the certificate, in probability
SPARE_TOKENS = 8  # beyond the longest answer, so that an answer that goes on is seen to go on


@dataclass(frozen=True)
class Reading:
    """The values of one prompt and its answer under a model."""

    loss: float  # mean negative log-likelihood of the labelled tokens, in nats
    exact_match: bool  # whether greedy decoding reproduces the answer to its end
    certificate: float  # max(phi, 0) of the smallest margin: a lower bound on 1 - exact_match
    extraction_strength: float  # see the function; the end of sequence is left out
    min_k: float  # see `min_k_score`; likewise
    text: str | None = None  # the greedy answer, if it was asked for


def read_answers(
    model: LanguageModel,
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    *,
    texts: bool = True,
    max_new_tokens: int | None = None,
) -> list[Reading]:
    """Read every row; the model's mode and the random state stay.

    Args:
        model: a causal language model of transformers.
        tokenizer: its tokenizer.
        rows: encoded prompts and answers.
        texts: whether to generate.
        max_new_tokens: longest answer; `None` derives it from the longest reference.

    Cost: one forward pass per row, batched, and `greedy_answers`.
    """
    scores = answer_scores(model, rows, pad_id(tokenizer), TAU)
    written: Sequence[str | None] = [None] * len(rows)
    if texts and rows:
        longest = max(len(r["input_ids"]) - len(prompt_ids(r)) for r in rows) + SPARE_TOKENS
        written = greedy_answers(model, tokenizer, rows, scores, max_new_tokens or longest)
    return [
        Reading(
            loss=score.loss,
            exact_match=score.exact_match,
            certificate=max(score.certificate, 0.0),
            extraction_strength=extraction_strength(score.matches[:-1]),
            min_k=min_k_score(score.log_probabilities[:-1]),
            text=text,
        )
        for score, text in zip(scores, written, strict=True)
    ]
