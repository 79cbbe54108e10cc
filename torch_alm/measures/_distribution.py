"""Functionals of the whole predicted distribution: distance to a reference, and flatness."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_alm.measures._answers import (
    Batch,
    Model,
    answer_mask,
    labelled,
    labels_of,
    log_probabilities,
    logits_and_labels,
    logits_of,
    mean_over_tokens,
    require_causal,
    require_match,
    require_option,
    require_positions,
    spread,
    wide,
)


def kl_divergence_of_logits(
    logits: Tensor, reference_logits: Tensor, labels: Tensor | None = None
) -> Tensor:
    """Smaller = closer to the reference: kernel of `kl_divergence`; logits at t predict t + 1."""
    if logits.shape != reference_logits.shape:
        raise ValueError(
            f"`logits` of shape {tuple(logits.shape)} and reference logits of shape "
            f"{tuple(reference_logits.shape)} cannot be compared token by token. "
            "Do both models share one tokenizer and one vocabulary size?"
        )
    if labels is None:
        mask = torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
        require_positions(mask)
    else:
        require_match(logits, labels)
        mask = answer_mask(labels.to(logits.device))
    log_q = log_probabilities(reference_logits.detach().to(logits.device)[mask])
    log_p = log_probabilities(logits[mask]).masked_fill(log_q == -math.inf, 0.0)  # 0 log 0 is 0
    divergence = F.kl_div(log_p, log_q, reduction="none", log_target=True)
    divergence = divergence.masked_fill(log_q == -math.inf, 0.0).sum(dim=-1)
    return mean_over_tokens(spread(divergence, mask), mask, "example")


def kl_divergence(model: Model, batch: Batch, reference: Model, *, mask: str = "tokens") -> Tensor:
    """Smaller = closer to the reference: KL(p_reference || p_model) in nats per token.

    Args:
        model: as in `token_nll`.
        batch: as in `token_nll`; labels are needed for `mask="tokens"` only.
        reference: the frozen model from before unlearning, run without gradients.
        mask: "tokens", the mean over sequences of means over the positions that predict a labelled
            token; or "all", every position with padding and prompt, as open-unlearning computes it.

    Returns:
        Scalar in fp32 or wider, 0 at the reference.

    Cost: two forwards, one without gradients.

    Raises:
        ValueError: no labelled token for `mask="tokens"`, unknown mask, different vocabularies.
    """
    require_option("mask", mask, ("tokens", "all"))
    labels = labels_of(batch) if mask == "tokens" else None
    if labels is not None:
        require_causal(model)
    with torch.no_grad():
        reference_logits = logits_of(reference, batch)
    return kl_divergence_of_logits(logits_of(model, batch), reference_logits, labels)


def flattening_of_logits(
    logits: Tensor, labels: Tensor, *, shifted: bool = True, reduction: str = "token"
) -> Tensor:
    """Smaller = more forgotten: the kernel of `flattening`; logits at t predict t + 1."""
    require_match(logits, labels)
    labels = labels.to(logits.device)
    mask = answer_mask(labels) if shifted else labelled(labels)
    chosen = logits[mask]
    height = chosen.amax(dim=-1).to(wide(chosen)) - chosen.mean(dim=-1, dtype=wide(chosen))
    return mean_over_tokens(spread(height.square(), mask), mask, reduction)


def flattening(
    model: Model, batch: Batch, *, shifted: bool = True, reduction: str = "token"
) -> Tensor:
    """Smaller = more forgotten: PDU's forget loss, `mean_t (max_v z_v - mean_v z_v)^2`; minimised.

    Zero exactly where the logits z are constant over the vocabulary. No softmax; values of a
    trained model are in the hundreds.

    Args:
        model: as in `token_nll`.
        batch: as in `token_nll`.
        shifted: score the positions that predict a labelled token; False scores those that hold
            one, as the authors' code does (which misses the prediction of the first answer token).
        reduction: as in `token_nll`; "token" is the authors'.

    Returns:
        Scalar in fp32 or wider, in squared logits.

    Errors and cost are those of `token_nll`. Source: Entesari et al. 2025, Constrained Entropic
    Unlearning; SAUL's PDU rows.

    >>> import torch
    >>> batch = {"labels": torch.tensor([[-100, 1]])}
    >>> flattening(lambda: torch.tensor([[[2.0, 0.0]] * 2]), batch)
    tensor(1.)
    """
    logits, labels = logits_and_labels(model, batch)
    return flattening_of_logits(logits, labels, shifted=shifted, reduction=reduction)
