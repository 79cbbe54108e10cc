"""Forget losses that level off: NPO against a reference model, SimNPO without one."""

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_alm.measures._answers import (
    mean_over_sequences,
    positive,
    predict_answers,
    sequence_means,
)
from torch_alm.measures._logits import Batch, Model
from torch_alm.measures._nll import sequence_nll, token_losses


def saturate(gain: Tensor, beta: float) -> Tensor:
    """Compute `-(2/beta) log sigmoid(beta gain)`: slope -1 at gain 0, flat for a large gain."""
    beta = positive("beta", beta, "the loss divides by it, and below 0 it would ask to remember")
    return -2.0 / beta * F.logsigmoid(beta * gain)


def npo(model: Model, batch: Batch, reference: Model | Tensor, beta: float = 0.1) -> Tensor:
    """Smaller = more forgotten: negative preference optimisation, a forget loss to be minimised.

    `U = -(2/beta) mean_i log sigmoid(beta Delta_i)`, with Delta_i the NLL of sequence i (a sum
    over its tokens) minus that of the reference. U > 0; at the reference it is (2/beta) ln 2 with
    the gradient of `-sequence_nll`, and the gradient fades as forgetting proceeds.

    Args:
        model: as in `token_nll`.
        batch: as in `token_nll`.
        reference: the frozen model from before unlearning, run without gradients and in the mode
            it is in (put it in `eval()`), or its `sequence_nll(..., reduction="none")`.
        beta: inverse temperature, per nat; larger fades earlier.

    Raises:
        ValueError: as in `token_nll`; beta not a finite number above 0; reference NLLs of
            another batch size.

    Cost: that of `token_nll`, and a forward of the reference unless its NLLs are given.

    Source: Zhang et al. 2024, Negative Preference Optimization; SAUL's NPO rows.

    >>> import torch
    >>> batch = {"labels": torch.tensor([[-100, 1]])}
    >>> remembers = lambda: torch.zeros(1, 2, 2)
    >>> npo(remembers, batch, reference=remembers)
    tensor(13.8629)
    """
    if not isinstance(reference, Tensor):
        with torch.no_grad():
            reference = sequence_nll(reference, batch, reduction="none")
    nll, mask = token_losses(predict_answers(model, batch))
    if reference.shape != nll.shape[:1]:
        raise ValueError(
            f"`reference` has shape {tuple(reference.shape)} for {nll.shape[0]} sequences: "
            "broadcasting would compare each with a stranger. Did you pick this batch's rows of "
            "`sequence_nll(reference, batch, reduction='none')`?"
        )
    gain = nll.sum(dim=1) - reference.detach().to(nll.device)
    return mean_over_sequences(saturate(gain, beta), mask)


def simnpo(model: Model, batch: Batch, beta: float = 4.5, delta: float = 0.0) -> Tensor:
    """Smaller = more forgotten: NPO without a reference, on length-normalised NLLs; minimised.

    `U = -(2/beta) mean_i log sigmoid(beta (NLL_i / T_i - delta))`.

    Args:
        model: as in `token_nll`.
        batch: as in `token_nll`.
        beta: inverse temperature; its authors use 4.5 for 10 % of TOFU (2.5 for 5 %).
        delta: margin in nats per token that an answer must exceed; 0 in all released settings.

    Raises:
        ValueError: as in `token_nll`; beta not a finite number above 0.

    Cost: that of `token_nll`. Source: Fan et al. 2024, Simplicity Prevails (SimNPO); its gamma is
        beta times delta.

    >>> import torch
    >>> batch = {"labels": torch.tensor([[-100, 1]])}
    >>> simnpo(lambda: torch.zeros(1, 2, 2), batch, beta=1.0)
    tensor(0.8109)
    """
    nll, mask = token_losses(predict_answers(model, batch))
    return mean_over_sequences(saturate(sequence_means(nll, mask) - float(delta), beta), mask)
