"""Negative log-likelihood of the answer: per token, per example, per sequence."""

import math

from torch import Tensor
from torch.nn import functional as F

from torch_alm.measures._answers import (
    Answers,
    mean_over_sequences,
    mean_over_tokens,
    predict_answers,
    require_option,
    spread,
)
from torch_alm.measures._logits import Batch, Model, compute_dtype


def token_losses(answers: Answers) -> tuple[Tensor, Tensor]:
    """Return (A, L) token NLLs, 0 off the mask, and the mask."""
    # on a GPU the kernel widens
    log_p = F.log_softmax(answers.logits, dim=-1, dtype=compute_dtype(answers.logits))
    return spread(
        -log_p.gather(-1, answers.targets[:, None]).squeeze(-1), answers.mask
    ), answers.mask


def token_nll(model: Model, batch: Batch, *, reduction: str = "example") -> Tensor:
    """Larger = more forgotten: length-normalised cross-entropy of the answers, in nats per token.

    `mean_i (1/T_i) sum_t -log p(a_t | q, a_<t)`. A labelled end of sequence counts like any
    other token. It is the retain loss if minimised, and the forget loss if raised.
    The same text in other tokens is not seen: see `torch_alm.language.string_nll`.

    Args:
        model: called with the batch except its `labels`; returns logits or has them in `.logits`.
        batch: what transformers models take, with `labels` (B, T), -100 where masked. Not changed.
            Where `position_ids` begin again in a row, or `cu_seq_lens_q` or `seq_idx` cut it, each
            labelled sequence is an example of its own, as if it stood in a row alone.
        reduction: "example", the mean over examples of their token means; "token", the mean over
            all labelled tokens of the batch (the built-in loss of transformers), equal when all
            answers are equally long; or "none", the (B,) token means (one for each labelled
            sequence if rows are packed). An example without a labelled token does not count, and
            is 0 in "none".

    Returns:
        Scalar in fp32 or wider, attached to its graph; (B,) for "none".

    Cost: one forward, with logits of labelled positions alone (of any row of the batch) if it takes
        `logits_to_keep` as models of transformers do; one fp32 row of words per labelled token.

    Raises:
        ValueError: no labels, none left unmasked, one out of range, shapes that do not match, no
            logits, unknown reduction; an encoder-decoder or a model of masked words, whose logits
            are not for the next token.
        TypeError: a batch without names.

    Source: SAUL, the losses L_f and L_r of its problem statement.

    >>> import torch
    >>> ids, labels = torch.tensor([[0, 1]]), torch.tensor([[-100, 1]])
    >>> batch = {"input_ids": ids, "labels": labels}
    >>> token_nll(lambda input_ids: torch.zeros(1, 2, 2), batch)
    tensor(0.6931)
    """
    return mean_over_tokens(*token_losses(predict_answers(model, batch)), reduction)


def sequence_nll(model: Model, batch: Batch, *, reduction: str = "mean") -> Tensor:
    """Larger = more forgotten: the SUM of answer-token NLLs of a sequence, in nats per sequence.

    Args:
        model: as in `token_nll`.
        batch: as in `token_nll`.
        reduction: "mean" over the sequences with a labelled token; or "none", as in `token_nll`.
            Under `torch.no_grad()`, "none" gives `npo` its reference.

    Errors and cost are those of `token_nll`.

    >>> import torch
    >>> batch = {"labels": torch.tensor([[-100, 1, 0], [-100, -100, 1]])}
    >>> sequence_nll(lambda: torch.zeros(2, 3, 2), batch, reduction="none")
    tensor([1.3863, 0.6931])
    """
    require_option("reduction", reduction, ("mean", "none"))
    nll, mask = token_losses(predict_answers(model, batch))
    totals = nll.sum(dim=1)
    return totals if reduction == "none" else mean_over_sequences(totals, mask)


def log_odds(model: Model, batch: Batch, *, reduction: str = "example") -> Tensor:
    """Larger = better known: log(p / (1 - p)) of the answers' tokens, in nats per token.

    Of a token known by heart the loss and its gradient are next to 0; log-odds go on growing, and
    have a gradient of about one. For small p they are -`token_nll`.

    Args, shapes and errors are those of `token_nll`.

    Cost: as `token_nll`, and one more fp32 row of words per labelled token.

    >>> import torch
    >>> batch = {"labels": torch.tensor([[-100, 1]])}
    >>> log_odds(lambda: torch.tensor([[[0.0, 50.0], [0.0, 0.0]]]), batch)
    tensor(50.)
    """
    answers = predict_answers(model, batch)
    logits, chosen = answers.logits.to(compute_dtype(answers.logits)), answers.targets[:, None]
    others = logits.scatter(1, chosen, -math.inf).logsumexp(1)
    odds = spread(logits.gather(1, chosen).squeeze(1) - others, answers.mask)
    return mean_over_tokens(odds, answers.mask, reduction)
