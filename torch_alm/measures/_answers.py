"""Common ground of the measures: find the answer tokens and their predictions, average over them.

Row t of the logits predicts the label of position t + 1. Instead of cutting the logits, the mask
is shifted: `mask[b, t]` says that `logits[b, t]` predicts a labelled token. Only those rows are
asked of a model that can leave the others out, and only those are converted to a wider type.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_alm.measures._logits import (
    Batch,
    Model,
    inputs_of,
    logits_of,
    require_causal,
    takes_positions,
)

IGNORED = -100


class Places(NamedTuple):
    """Places of N labelled tokens in a batch of B rows of T positions that hold A answers."""

    mask: Tensor  # (B, T), True where logits[b, t] predicts a labelled token
    targets: Tensor  # (N,), the tokens they should predict
    answers: Tensor  # (A, L), True where an answer has a token: `mask`, if no row is packed


class Answers(NamedTuple):
    """The N predictions of labelled tokens in A answers."""

    logits: Tensor  # (N, V), the model's dtype
    targets: Tensor  # (N,), the tokens they should predict
    mask: Tensor  # (A, L), True where an answer has a token, N in all


def labels_of(batch: Batch) -> Tensor:
    inputs, labels = inputs_of(batch), batch.get("labels")
    if labels is None or labels.ndim != 2:
        found = f"only {sorted(inputs)}" if labels is None else f"but of {tuple(labels.shape)}"
        raise ValueError(
            f"The batch has no `labels` of shape (B, T), {found}: there is no answer to score. Did "
            "the collator, or a model, drop them? Of one row, did you mean `labels[None]`?"
        )
    return labels


def starts_of(batch: Batch, labels: Tensor) -> Tensor | None:
    """(B, T) bool: True where a sequence begins in a packed row. None if the batch names none."""
    starts = torch.zeros_like(labels, dtype=torch.bool)
    positions, sequence = batch.get("position_ids"), batch.get("seq_idx")
    lengths = batch.get("cu_seq_lens_q", batch.get("cu_seq_lens"))
    if positions is not None and positions.ndim <= 2:  # with three, they are places in a picture
        starts[:, 1:] |= positions.to(labels.device).diff() < 1
    if sequence is not None:
        starts[:, 1:] |= sequence.to(labels.device).diff() != 0
    if lengths is not None:
        ends = torch.as_tensor(lengths, device=labels.device).long()
        starts.view(-1)[ends[ends < labels.numel()]] = True
    return starts if starts.any() else None


def places_of(labels: Tensor, starts: Tensor | None = None, *, shifted: bool = True) -> Places:
    """Find the positions that predict a label; not `shifted`, those that hold one themselves."""
    if shifted:
        if starts is not None:  # no position predicts the first token of a sequence
            labels = labels.masked_fill(starts, IGNORED)
        labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    mask = labels != IGNORED
    if not mask.any():
        raise ValueError(
            f"In labels or a mask of shape {tuple(mask.shape)} no token is left to score: all are "
            f"{IGNORED}, or only in the first column, which no position predicts; the mean would "
            "be 0/0. Did the collator mask the answer together with the prompt?"
        )
    return Places(mask, labels[mask], by_answer(mask, starts))


def by_answer(mask: Tensor, starts: Tensor | None) -> Tensor:
    """(A, L): a row for each labelled sequence if a row of `mask` holds several, else `mask`."""
    if starts is None:
        return mask
    rows = torch.arange(len(mask), device=mask.device)[:, None] * (mask.shape[1] + 1)
    lengths = (starts.cumsum(1) + rows)[mask].unique_consecutive(return_counts=True)[1]
    if len(lengths) == mask.any(dim=1).sum():
        return mask
    return torch.arange(int(lengths.max()), device=mask.device) < lengths[:, None]


def pick_logits(model: Model, batch: Batch, places: Places) -> tuple[Tensor, Tensor]:
    """Logits (B, K, V) of K positions, all that count among them, and the (B, K) mask of those."""
    kept = places.mask.any(dim=0).nonzero().squeeze(1)
    is_asked = "logits_to_keep" not in batch and takes_positions(model)
    logits = logits_of(model, batch, kept if is_asked else None)
    is_cut = is_asked and logits.shape[1] == len(kept)  # not every model heeds it
    mask = places.mask[:, kept] if is_cut else places.mask
    if logits.ndim != 3 or logits.shape[:2] != mask.shape:
        raise ValueError(
            f"`logits` of shape {tuple(logits.shape)} and `labels` of shape {tuple(mask.shape)} "
            "do not belong together: (B, T, V) and (B, T) are needed, and pairing them anyway "
            "would score the wrong tokens. Did the model keep fewer logits, or add virtual tokens?"
        )
    return logits, mask.to(logits.device)


def places_in(model: Model, batch: Batch) -> Places:
    labels = labels_of(batch)
    require_causal(model)
    return places_of(labels, starts_of(batch, labels))


def predict_answers(model: Model, batch: Batch) -> Answers:
    """Return a model's predictions for the answers of a batch; packed answers are kept apart."""
    places = places_in(model, batch)
    logits, mask = pick_logits(model, batch, places)
    targets = places.targets.to(logits.device)
    if ((targets < 0) | (targets >= logits.shape[-1])).any():
        raise ValueError(
            f"`labels` go from {int(targets.min())} to {int(targets.max())}, and the logits have "
            f"{logits.shape[-1]} tokens: some have no probability. Is it another model's "
            f"tokenizer, or is a mask other than {IGNORED} among them?"
        )
    return Answers(logits[mask], targets, places.answers.to(logits.device))


def spread(values: Tensor, mask: Tensor, fill: float = 0.0) -> Tensor:
    """Put (N,) values back to their places in (A, L), with `fill` elsewhere."""
    return values.new_full(mask.shape, fill).masked_scatter(mask, values)


def sequence_means(values: Tensor, mask: Tensor) -> Tensor:
    """(A,) mean over the masked positions of each row; 0 for a row that has none."""
    return values.sum(dim=1) / mask.sum(dim=1).clamp(min=1)


def mean_over_sequences(per_sequence: Tensor, mask: Tensor) -> Tensor:
    """Mean of (A,) values over the sequences that have a masked position."""
    present = mask.any(dim=1)
    return torch.where(present, per_sequence, 0.0).sum() / present.sum()


def mean_over_tokens(values: Tensor, mask: Tensor, reduction: str) -> Tensor:
    """Mean of (A, L) values that are 0 off the mask: per example first, or over all tokens."""
    require_option("reduction", reduction, ("example", "token", "none"))
    if reduction == "token":
        return values.sum() / mask.sum()
    means = sequence_means(values, mask)
    return means if reduction == "none" else mean_over_sequences(means, mask)


def require_option(name: str, found: str, options: tuple[str, ...]) -> None:
    if found not in options:
        raise ValueError(f"`{name}` is {found!r}. Did you mean one of {', '.join(options)}?")


def positive(name: str, found: float | Tensor, otherwise: str) -> float:
    """The setting as a plain number, whatever held it; a `ValueError` if it is not above 0."""
    number = float(found)
    if not 0 < number < math.inf:
        raise ValueError(
            f"`{name}` is {number}: {otherwise}. Did you mean a finite number above 0?"
        )
    return number
