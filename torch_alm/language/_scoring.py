"""Teacher-forced values of answers, per row: one forward pass per batch of similar lengths."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch

from torch_alm.language._encoding import IGNORE, Row, collate
from torch_alm.language._models import LanguageModel, keep_modes, positions, require_asked
from torch_alm.measures._answers import Answers, predict_answers, sequence_means
from torch_alm.measures._certificate import margins_of, surrogate
from torch_alm.measures._nll import token_losses

T = TypeVar("T")

LOGITS_PER_BATCH = 2**26  # elements, a quarter of a gigabyte in fp32
ROWS_PER_BATCH = 32  # more rows leave the caches of a CPU and gain little on a GPU


class AnswerScores(NamedTuple):
    """Scores of one answer of n tokens (end of sequence included), from a teacher-forced pass."""

    log_probabilities: list[float]  # of the n labelled tokens, in nats
    matches: list[bool]  # whether the most likely token is the right one
    margins: list[float]  # p(right token) - max p(another token)
    certificate: float  # max_t phi_tau(margin_t): at most 1 for a failure, negative otherwise

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood per token, in nats."""
        return -sum(self.log_probabilities) / len(self.log_probabilities)

    @property
    def exact_match(self) -> bool:
        """True if greedy decoding reproduces the answer and ends; ties and NaN do not count."""
        return all(margin > 0 for margin in self.margins)


def answer_scores(
    model: LanguageModel, rows: Sequence[Row], pad_id: int, tau: float
) -> list[AnswerScores]:
    """Return log-probabilities, matches, margins and the margin certificate of every row.

    Args:
        model: a causal language model of transformers.
        rows: encoded question and answer pairs; the labelled tokens are scored.
        pad_id: fills rows of a batch up to the same length; never attended to.
        tau: sharpness of the certificate, in probability.

    Raises:
        ValueError: a row has no labelled token, or more tokens than the model has positions, or the
            model is not causal.

    Cost: one forward pass per row, batched.

    Source: SAUL, appendix on the margin certificate.
    """
    return in_batches(model, rows, pad_id, lambda answers, _: scores_of(answers, tau))


def scores_of(answers: Answers, tau: float) -> Iterator[AnswerScores]:
    """The scores of each answer of a batch."""
    counts = answers.mask.sum(1).tolist()
    margins = margins_of(answers)
    found = (
        -token_losses(answers)[0][answers.mask],
        answers.logits.argmax(-1) == answers.targets,
        margins,
        surrogate(margins, tau),
    )
    for said, right, margin, phi in zip(*(x.split(counts) for x in found), strict=True):
        yield AnswerScores(said.tolist(), right.tolist(), margin.tolist(), float(phi.max()))


def extraction_strength(matches: Sequence[bool]) -> float:
    """Return the share of the answer that follows once its first part is given, in [0, 1].

    `1 - k / n`, k the length of the shortest prefix after which every teacher-forced greedy token
    is right. `matches`: per answer token, without the end of sequence, whether the most likely
    token is the right one; empty gives 0. Source: Carlini et al. 2021, as in OpenUnlearning.

    >>> extraction_strength([False, True, False, True]), extraction_strength([True, False])
    (0.25, 0.0)
    """
    n = len(matches)
    return next((i for i, right in enumerate(reversed(matches)) if not right), n) / max(n, 1)


def losses(model: LanguageModel, rows: Sequence[Row], pad_id: int) -> list[float]:
    """Return the mean NLL of every row's labelled tokens, in nats; see `answer_scores`."""

    def means(answers: Answers, _: Sequence[int]) -> list[float]:
        return sequence_means(*token_losses(answers)).tolist()

    return in_batches(model, rows, pad_id, means)


@torch.no_grad()
def in_batches(
    model: LanguageModel,
    rows: Sequence[Row],
    pad_id: int,
    kernel: Callable[[Answers, Sequence[int]], Iterable[T]],
) -> list[T]:
    """Apply `kernel(answers, places of their rows)` to batches of similar lengths, in order."""
    _check(model, rows)
    results: dict[int, T] = {}
    with keep_modes(model, evaluate=True):
        for indices in _batches(model, rows):
            batch = collate([rows[i] for i in indices], pad_id)
            placed = {name: batch[name].to(model.device) for name in batch}
            answers = predict_answers(model, {**placed, "use_cache": False})
            results.update(zip(indices, kernel(answers, indices), strict=True))
    return [results[i] for i in range(len(rows))]


def _check(model: LanguageModel, rows: Sequence[Row]) -> None:
    require_asked(model)
    if bare := [i for i, row in enumerate(rows) if all(at == IGNORE for at in row["labels"][1:])]:
        raise ValueError(
            f"row {bare[0]} of {len(rows)} has no labelled token, so there is nothing to score "
            f"({len(bare)} such rows). Did you mean to leave them out?"
        )
    room = positions(model)
    if long := [i for i, row in enumerate(rows) if len(row["input_ids"]) > room]:
        raise ValueError(
            f"row {long[0]} of {len(rows)} has {len(rows[long[0]]['input_ids'])} tokens, and "
            f"{type(model).__name__} has {room} positions ({len(long)} such rows). Did you mean "
            f"`max_length={room}` where they are encoded?"
        )


def _batches(model: LanguageModel, rows: Sequence[Row]) -> Iterator[list[int]]:
    """Yield rows by falling length: little padding, and the first batch takes most memory."""
    vocabulary = model.get_output_embeddings().weight.shape[0]
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]["input_ids"]))
    while order:
        longest = len(rows[order[0]]["input_ids"])
        count = min(ROWS_PER_BATCH, max(1, LOGITS_PER_BATCH // (vocabulary * longest)))
        yield order[:count]
        order = order[count:]
