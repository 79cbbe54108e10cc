"""The margin certificate: a differentiable lower bound on the share of answers not reproduced.

Teacher forcing is enough: greedy decoding returns the tokens of an answer exactly when each of them
is the unique top-1 prediction after the true prefix. The labels decide which tokens those are;
with the end of sequence labelled, running on past the answer counts as a failure, too.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_alm.measures._answers import (
    Answers,
    mean_over_sequences,
    positive,
    predict_answers,
    require_option,
    sequence_means,
    spread,
)
from torch_alm.measures._logits import Batch, Model, compute_dtype


def target_and_rival(answers: Answers) -> Tensor:
    """Return (N, 2) logits of the target and of the best other token, which may be equal."""
    best_two = answers.logits.detach().topk(2, dim=-1).indices
    rival = torch.where(best_two[:, 0] == answers.targets, best_two[:, 1], best_two[:, 0])
    return answers.logits.gather(-1, torch.stack((answers.targets, rival), dim=-1))


def margins_of(answers: Answers) -> Tensor:
    """Return (N,) margins `m_t = p(a_t) - max_{v != a_t} p(v)`: positive if a_t is the only top-1.

    Cost: two columns are exponentiated, not the vocabulary.
    """
    dtype = compute_dtype(answers.logits)
    normaliser = answers.logits.to(dtype).logsumexp(dim=-1, keepdim=True)
    target, rival = (target_and_rival(answers).to(dtype) - normaliser).exp().unbind(dim=-1)
    return target - rival


def surrogate(margin: Tensor, tau: float) -> Tensor:
    """Compute `phi(m) = 1 - log(1 + exp(m/tau + 1))`, never above `1[m <= 0]`.

    It is about 1 for clear failures, -0.313 at m = 0 for every tau, and about -m/tau for m > 0.

    >>> surrogate(torch.tensor([-0.5, 0.0, 0.1]), 0.1)
    tensor([ 0.9819, -0.3133, -1.1269])
    """
    tau = positive("tau", tau, "the surrogate would rise with the margin and bound nothing")
    # log(1 + e^x) = -logsigmoid(-x), which does not overflow
    return 1 + F.logsigmoid(-(margin.to(compute_dtype(margin)) / tau + 1))


def largest_tau(alpha: float) -> float:
    """Return the largest tau with which a certificate of `alpha` can be reached, as m -> -1.

    `tau <= 1 / (1 - log(exp(1 - alpha) - 1))`; infinity when every tau will do (alpha < -0.313).

    Raises:
        ValueError: alpha is 1 or more, which no tau attains: phi stays below 1.

    Source: SAUL's surrogate at m = -1, solved for tau.

    >>> round(largest_tau(0.95), 3)
    0.252
    """
    alpha = float(alpha)
    if not alpha < 1:
        raise ValueError(
            f"`alpha` is {alpha}, but a certificate stays below 1: the constraint could never be "
            "met and its multiplier would grow for ever. Did you mean a share such as 0.95?"
        )
    # 1 - log(exp(1 - alpha) - 1), written so that nothing overflows where alpha is far below 0
    reciprocal = alpha - math.log(-math.expm1(alpha - 1))
    return 1 / reciprocal if reciprocal > 0 else math.inf


def require_attainable(alpha: float, tau: float) -> None:
    """Raise a ValueError if no model can reach a certificate of `alpha` with this `tau`.

    >>> require_attainable(alpha=0.95, tau=0.1)
    """
    tau = positive("tau", tau, "the surrogate would rise with the margin and bound nothing")
    alpha = float(alpha)
    largest = largest_tau(alpha)
    if tau > largest:
        raise ValueError(
            f"`alpha` = {alpha} cannot be certified with `tau` = {tau}: even a model that gives "
            "every target probability 0 stays below it, so the constraint would never be met. "
            f"Did you mean a tau of at most {math.floor(largest * 1e3) / 1e3}?"
        )


def over_sequences(values: Tensor, mask: Tensor, aggregate: str) -> Tensor:
    """Average over sequences the largest, or the mean, of their (N,) token values."""
    require_option("aggregate", aggregate, ("max", "mean"))
    if aggregate == "max":
        return mean_over_sequences(spread(values, mask, fill=-math.inf).amax(dim=1), mask)
    return mean_over_sequences(sequence_means(spread(values, mask), mask), mask)


def certified_failure(
    model: Model, batch: Batch, tau: float = 0.1, *, aggregate: str = "max"
) -> Tensor:
    """Larger = more forgotten: a certified share of answers whose tokens greedy decoding misses.

    `Phi = mean_i max_t max(phi(m_t), 0)`, with m_t the margin by which answer token t beats its
    best rival and `phi(m) = 1 - log(1 + exp(m/tau + 1))`, never above `1[m <= 0]`. Phi >= alpha
    proves `exact_match_failure` >= alpha, on the same batch and with the same `aggregate`:
    certified is that greedy decoding of these prompts gives other tokens than the answer's, which
    may spell the same text (`torch_alm.language.string_nll`). It says nothing of sampling or other
    words. The gradient is that of phi without the max with 0: a remembered sequence has none.

    Args:
        model: as in `token_nll`.
        batch: as in `token_nll`. The labels decide whether the end of sequence is certified, too.
        tau: sharpness, in units of probability; smaller follows the step more closely, and
            `require_attainable(alpha, tau)` checks a threshold.
        aggregate: "max", the paper's: one clearly missed token fails the sequence (and only that
            token receives a gradient); or "mean": a certified share of missed tokens.

    Returns:
        Scalar in fp32 or wider, in [0, 1).

    Raises:
        ValueError: as in `token_nll`; tau not a finite number above 0; unknown aggregate.

    Cost: that of `token_nll`. Source: SAUL, appendix on threshold calibration by margins; the split
    of value and gradient is ours.

    >>> import torch
    >>> logits = torch.tensor([[[9.0, 0.0], [0.0, 0.0]]], requires_grad=True)
    >>> batch = {"labels": torch.tensor([[-100, 0]])}
    >>> remembered = certified_failure(lambda: logits, batch)
    >>> remembered.backward()
    >>> remembered.item(), bool(logits.grad.abs().sum() > 0)
    (0.0, True)
    """
    answers = predict_answers(model, batch)
    phi = surrogate(margins_of(answers), tau)
    trained = over_sequences(phi, answers.mask, aggregate)
    reported = over_sequences(phi.detach().clamp(min=0), answers.mask, aggregate)
    return trained - trained.detach() + reported  # exactly `reported`, as x - x is 0


def exact_match_failure(model: Model, batch: Batch, *, aggregate: str = "max") -> Tensor:
    """Larger = more forgotten: the true failure rate that `certified_failure` bounds from below.

    `mean_i 1[some m_t <= 0]`: the share of answers with a token that is not the unique top-1
    prediction: a tie, or the same text in other tokens, is a failure. It has no gradient.

    Args:
        model: as in `token_nll`.
        batch: as in `token_nll`.
        aggregate: "max", the share of failed sequences; or "mean", the mean over sequences of
            their share of missed tokens, at most `token_nll(...) / log(2)`.

    Returns:
        Scalar in fp32 or wider, in [0, 1]; NaN when a logit that matters is.

    Raises:
        ValueError: as in `token_nll`; unknown aggregate.

    Cost: that of `token_nll`. Source: SAUL, appendix on threshold calibration by margins.

    >>> import torch
    >>> batch = {"labels": torch.tensor([[-100, 1]])}
    >>> exact_match_failure(lambda: torch.zeros(1, 2, 2), batch)
    tensor(1.)
    """
    answers = predict_answers(model, batch)
    target, rival = target_and_rival(answers).detach().unbind(dim=-1)
    # Logits decide, since close probabilities may round to a tie. NaN stays NaN: nothing is known.
    missed = (target <= rival).to(compute_dtype(answers.logits))
    missed = torch.where((target - rival).isnan(), math.nan, missed)
    return over_sequences(missed, answers.mask, aggregate)
