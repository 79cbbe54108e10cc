"""Common ground of the measures: run the model, find the answer tokens, average over them.

Row t of the logits predicts the label of position t + 1. Instead of cutting the logits, the mask
is shifted: `mask[b, t]` says that `logits[b, t]` predicts a labelled token. Only those rows are
ever converted to a wider type, so prompts and padding cost no copy of the vocabulary.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IGNORED = -100

Batch = Mapping[str, Any]
Model = Callable[..., Any]


class Answers(NamedTuple):
    """The N predictions of labelled tokens in a batch of B sequences of T positions."""

    logits: Tensor  # (N, V), the model's dtype
    targets: Tensor  # (N,), the tokens they should predict
    mask: Tensor  # (B, T), True where logits[b, t] predicts a labelled token


def inputs_of(batch: Batch) -> dict[str, Any]:
    """The batch without its labels, as a new dict: the model shall not compute a loss itself."""
    if not isinstance(batch, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"The batch is a {type(batch).__name__}, and a model is called with named tensors. Did "
            'you swap model and batch, or mean {"input_ids": ..., "labels": ...}?'
        )
    return {name: value for name, value in batch.items() if name != "labels"}


def labels_of(batch: Batch) -> Tensor:
    inputs = inputs_of(batch)
    if "labels" not in batch:
        raise ValueError(
            f"The batch has no `labels`, only {sorted(inputs)}: there is no answer to score. "
            "Did the collator drop them, or was this batch already given to a model that pops them?"
        )
    labels: Tensor = batch["labels"]
    return labels


def logits_of(model: Model, batch: Batch) -> Tensor:
    output = model(**inputs_of(batch))
    logits: Tensor | None = (
        output if isinstance(output, Tensor) else getattr(output, "logits", None)
    )
    if logits is None:
        raise ValueError(
            f"{type(model).__name__} gave a {type(output).__name__} without `logits`: no token has "
            "a probability. Is it a model without its head (AutoModel for AutoModelForCausalLM)?"
        )
    return logits


def require_causal(model: Model) -> None:
    """Refuse a model whose logits at t do not predict the token at t + 1."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    masked = [n for m in modules if (n := type(m).__name__).endswith("ForMaskedLM")]
    masked += [type(m).__name__ for m in modules if vars(m).get("is_decoder") is False]  # BERT's
    configs = [getattr(m, "config", None) for m in modules]
    paired = any(getattr(each, "is_encoder_decoder", False) is True for each in configs)
    if not masked and not paired:
        return
    found = "an encoder-decoder" if paired else f"{masked[0]} fills in masked words"
    raise ValueError(
        f"{type(model).__name__} is not causal ({found}): its logits at t are for the label at t, "
        "and would be taken for those of t + 1, so other tokens would be scored. Did you mean a "
        "causal model, or its own loss as the measure?"
    )


def logits_and_labels(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
    require_causal(model)
    labels = labels_of(batch)
    return logits_of(model, batch), labels


def answer_mask(labels: Tensor) -> Tensor:
    """(B, T) bool: True at t where position t + 1 holds a label. The last column is False."""
    return require_positions(F.pad(labels[:, 1:] != IGNORED, (0, 1), value=False))


def labelled(labels: Tensor) -> Tensor:
    """(B, T) bool: True at t where position t itself holds a label."""
    return require_positions(labels != IGNORED)


def require_positions(mask: Tensor) -> Tensor:
    if not mask.any():
        raise ValueError(
            f"In labels or a mask of shape {tuple(mask.shape)} no token is left to score: all are "
            f"{IGNORED}, or only in the first column, which no position predicts; the mean would "
            "be 0/0. Did the collator mask the answer together with the prompt?"
        )
    return mask


def require_match(logits: Tensor, labels: Tensor) -> None:
    if logits.ndim != 3 or logits.shape[:2] != labels.shape:
        raise ValueError(
            f"`logits` of shape {tuple(logits.shape)} and `labels` of shape {tuple(labels.shape)} "
            "do not belong together: (B, T, V) and (B, T) are needed, and pairing them anyway "
            "would score the wrong tokens. Did the model keep fewer logits, or add virtual tokens?"
        )


def select(logits: Tensor, labels: Tensor) -> Answers:
    """Pick the predictions of labelled tokens out of (B, T, V) logits and (B, T) labels."""
    require_match(logits, labels)
    labels = labels.to(logits.device)
    mask = answer_mask(labels)
    targets = labels.roll(-1, dims=1)[mask]
    if ((targets < 0) | (targets >= logits.shape[-1])).any():
        raise ValueError(
            f"`labels` go from {int(targets.min())} to {int(targets.max())}, and the logits have "
            f"{logits.shape[-1]} tokens: some have no probability. Is it another model's "
            f"tokenizer, or is a mask other than {IGNORED} among them?"
        )
    return Answers(logits[mask], targets, mask)


def wide(values: Tensor) -> torch.dtype:
    """The dtype to compute in: fp32 or wider, so half precision is widened and float64 stays."""
    return torch.promote_types(values.dtype, torch.float32)


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-softmax over the vocabulary; on a GPU the widening happens inside the kernel."""
    return F.log_softmax(logits, dim=-1, dtype=wide(logits))


def spread(values: Tensor, mask: Tensor, fill: float = 0.0) -> Tensor:
    """Put (N,) values back to their places in (B, T), with `fill` elsewhere."""
    return values.new_full(mask.shape, fill).masked_scatter(mask, values)


def sequence_means(values: Tensor, mask: Tensor) -> Tensor:
    """(B,) mean over the masked positions of each row; 0 for a row that has none."""
    return values.sum(dim=1) / mask.sum(dim=1).clamp(min=1)


def mean_over_sequences(per_sequence: Tensor, mask: Tensor) -> Tensor:
    """Mean of (B,) values over the sequences that have a masked position."""
    present = mask.any(dim=1)
    return torch.where(present, per_sequence, 0.0).sum() / present.sum()


def mean_over_tokens(values: Tensor, mask: Tensor, reduction: str) -> Tensor:
    """Mean of (B, T) values that are 0 off the mask: per example first, or over all tokens."""
    require_option("reduction", reduction, ("example", "token"))
    if reduction == "token":
        return values.sum() / mask.sum()
    return mean_over_sequences(sequence_means(values, mask), mask)


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
