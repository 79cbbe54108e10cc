"""What is computed once in a run, and what not at all: logits where no label is."""

import copy
import os
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torch_alm.language import IGNORE, Batch, Row, collate
from torch_alm.language._models import LanguageModel
from torch_alm.measures._distribution import Divergence


def room() -> int:
    """Bytes that what is kept may take: an eighth of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8


def answered(model: LanguageModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits (N, V) of the labelled tokens, row after row, and (B, T - 1): True where one is next.

    The output layer is asked for these alone.
    """
    following = batch["labels"][:, 1:] != IGNORE

    def pick(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (args[0][:, :-1][following][None],)

    hook = model.get_output_embeddings().register_forward_pre_hook(pick)
    try:
        inputs = {k: batch[k] for k in ("input_ids", "attention_mask")}
        return model(**inputs, use_cache=False).logits[0], following
    finally:
        hook.remove()


def side_by_side(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What `answered` found as (B, L + 1, V), with (B, L + 1) labels: rows of L tokens or fewer."""
    following = labels[:, 1:] != IGNORE
    counts = following.sum(1, keepdim=True)
    places = torch.arange(int(counts.max()) + 1, device=labels.device) < counts
    padded = logits.new_zeros(*places.shape, logits.shape[1])
    padded[places] = logits
    beside = labels.new_full(places.shape, IGNORE)
    beside[:, 1:][places[:, :-1]] = labels[:, 1:][following]
    return padded, beside


class Original:
    """What a model says to rows, in log-probabilities of their labelled tokens.

    They are kept in float32 or, where these took more than an eighth of the machine's memory, in
    bfloat16; where these did, too, a copy of the weights that train is, and is asked every time.

    Args:
        model: the original.
        rows: all that it will be asked.
        pad: the token that fills rows.
    """

    def __init__(self, model: LanguageModel, rows: Sequence[Row], pad: int) -> None:
        each = model.get_output_embeddings().weight.shape[0] * sum(
            label != IGNORE for row in rows for label in row["labels"][1:]
        )
        dtypes = [d for d in (torch.float32, torch.bfloat16) if each * d.itemsize <= room()]
        self.copy = None if dtypes else original_of(model)
        self.said: dict[tuple[int, ...], Tensor] = {}
        for row in rows if dtypes else ():
            batch = collate([row], pad)
            with torch.no_grad():
                found, _ = answered(model, {k: v.to(model.device) for k, v in batch.items()})
            said = found.log_softmax(-1, dtype=torch.float32)
            self.said[(*row["input_ids"], *row["labels"])] = said.to("cpu", dtypes[0])

    def divergence(self, model: LanguageModel, batch: Batch) -> Tensor:
        """KL(original || model) in nats per token: the mean over rows of the mean over tokens."""
        if self.copy is None:
            ends = batch["attention_mask"].sum(1).tolist()
            both = zip(batch["input_ids"].tolist(), batch["labels"].tolist(), ends, strict=True)
            theirs = torch.cat([self.said[(*ids[:n], *labels[:n])] for ids, labels, n in both])
        else:
            with torch.no_grad():
                theirs, _ = answered(self.copy, batch)
        logits, following = answered(model, batch)
        where = torch.arange(len(logits), device=logits.device)
        found = Divergence.apply(logits, theirs, where, torch.is_grad_enabled())
        shares = following / following.sum(1, keepdim=True) / len(following)
        return (found * shares[following]).sum()


def original_of(model: LanguageModel) -> LanguageModel:
    """The model as it is now: a copy of the weights that are trained, around the frozen ones."""
    frozen = {id(p): p for p in model.parameters() if not p.requires_grad}
    return copy.deepcopy(model, frozen).eval().requires_grad_(False)
