"""Functionals of the whole predicted distribution: distance to a reference, and flatness."""

from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from torch_alm.measures._answers import (
    mean_over_tokens,
    pick_logits,
    places_in,
    predict_answers,
    spread,
)
from torch_alm.measures._logits import Batch, Model, compute_dtype

WORDS_AT_ONCE = 2**20  # tokens x words of a piece: 4 MB in fp32
Context: TypeAlias = Any  # of a pass; torch declares no attributes for it


class Divergence(torch.autograd.Function):
    """(N,) KL(q || p) of rows of logits: `sum_v q_v (log q_v - log p_v)`, 0 log 0 being 0.

    Row `where[i]` of `logits` (M, V) is compared with row i of `reference` (N, V): logits or
    log-probabilities, which log-softmax leaves unchanged. It is computed in pieces of tokens x
    words; the gradient p - q, and that of all logits, have that size.
    """

    @staticmethod
    def forward(
        ctx: Context, logits: Tensor, reference: Tensor, where: Tensor, trained: bool
    ) -> Tensor:
        slope = logits.new_empty(len(where) if trained else 0, logits.shape[1])
        found = list[Tensor]()
        size = max(1, WORDS_AT_ONCE // logits.shape[1])
        for piece in (slice(i, i + size) for i in range(0, len(where), size)):
            log_p = F.log_softmax(logits[where[piece]], dim=-1, dtype=compute_dtype(logits))
            theirs = reference[piece].to(logits.device)
            log_q = F.log_softmax(
                theirs, dim=-1, dtype=torch.promote_types(compute_dtype(theirs), log_p.dtype)
            )
            q = log_q.exp()
            found.append(log_q.sub_(log_p).mul_(q).masked_fill_(q == 0, 0.0).sum(dim=-1))
            if trained:
                slope[piece] = log_p.exp_() - q
        ctx.save_for_backward(slope, where)
        ctx.rows = len(logits)
        return torch.cat(found)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Context, weights: Tensor
    ) -> tuple[Tensor, None, None, None]:
        slope, where = ctx.saved_tensors
        gradient = slope.new_zeros(ctx.rows, slope.shape[1]).index_copy_(0, where, slope)
        scale = weights.new_zeros(ctx.rows).index_copy_(0, where, weights)
        return gradient.mul_(scale[:, None]), None, None, None


def kl_divergence(model: Model, batch: Batch, reference: Model | Tensor) -> Tensor:
    """Smaller = closer to the reference: KL(p_reference || p_model) in nats per token.

    The mean over sequences of means over the positions that predict a labelled token.

    Args:
        model: as in `token_nll`.
        batch: as in `token_nll`.
        reference: the frozen model from before unlearning, run without gradients; or what it said:
            log-probabilities (tokens, words) of the labelled tokens of the batch, row after row.
            They are normalised again, since rounding may have changed their sum.

    Returns:
        Scalar in fp32 or wider, 0 at the reference. It can be differentiated once.

    Cost: that of `token_nll`, a forward of the reference unless its log-probabilities are given,
        and at most two tensors of tokens times words beside the logits.

    Raises:
        ValueError: as in `token_nll`; a reference of other tokens or another vocabulary.
    """
    places = places_in(model, batch)
    if not isinstance(reference, Tensor):
        with torch.no_grad():
            theirs, chosen = pick_logits(reference, batch, places)
            reference = theirs.flatten(0, 1) if chosen.all() else theirs[chosen]
    logits, chosen = pick_logits(model, batch, places)
    where = chosen.flatten().nonzero().squeeze(1)
    if reference.shape != (len(where), logits.shape[-1]):
        raise ValueError(
            f"The reference has shape {tuple(reference.shape)}, which cannot be compared with "
            f"{len(where)} labelled tokens and {logits.shape[-1]} words. Do both models share one "
            "tokenizer and vocabulary size, and are the log-probabilities those of this batch?"
        )
    trained = logits.requires_grad and torch.is_grad_enabled()
    values: Tensor = Divergence.apply(logits.flatten(0, 1), reference.detach(), where, trained)
    answers = places.answers.to(logits.device)
    return mean_over_tokens(spread(values, answers), answers, "example")


def flattening(model: Model, batch: Batch, *, reduction: str = "token") -> Tensor:
    """Smaller = more forgotten: PDU's forget loss, `mean_t (max_v z_v - mean_v z_v)^2`; minimised.

    Zero exactly where the logits z are constant over the vocabulary. No softmax; values of a
    trained model are in the hundreds. The authors' code scores the positions that hold a label,
    one further on.

    Args:
        model: as in `token_nll`.
        batch: as in `token_nll`.
        reduction: as in `token_nll`; "token" is the authors'.

    Returns:
        Scalar in fp32 or wider, in squared logits; (B,) for "none".

    Errors and cost are those of `token_nll`. Source: Entesari et al. 2025, Constrained Entropic
    Unlearning; SAUL's PDU rows.

    >>> import torch
    >>> batch = {"labels": torch.tensor([[-100, 1]])}
    >>> flattening(lambda: torch.tensor([[[2.0, 0.0]] * 2]), batch)
    tensor(1.)
    """
    z, _, mask = predict_answers(model, batch)
    height = z.amax(dim=-1).to(compute_dtype(z)) - z.mean(dim=-1, dtype=compute_dtype(z))
    return mean_over_tokens(spread(height.square(), mask), mask, reduction)
