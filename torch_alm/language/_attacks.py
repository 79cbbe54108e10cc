"""Attacks that may bring an answer back: relearning, rounding, and the answer's beginning.

Each is a context or a pure function: afterwards the weights are as before, bit for bit.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from torch_alm.language._encoding import IGNORE, Row, answer_ids, collate
from torch_alm.language._models import LanguageModel, keep_modes
from torch_alm.measures import token_nll


@contextmanager
def restore(model: nn.Module) -> Iterator[None]:
    """Restore parameters bit for bit, gradients and modes on exit, also after an error.

    The block begins without gradients. Cost: one copy of the parameters, on the CPU.
    """
    saved = [(p, p.detach().to("cpu", copy=True), p.grad) for p in model.parameters()]
    with keep_modes(model):
        try:
            for p, _, _ in saved:
                p.grad = None
            yield
        finally:
            for p, value, gradient in saved:
                p.detach().copy_(value)
                p.grad = gradient


@torch.no_grad()
def round_weights(weight: Tensor, bits: int) -> Tensor:
    """Return the nearest weights on a symmetric grid of `2^bits - 1` levels per output channel.

    `w -> s round(w / s)` with `s = max |w| / (2^(bits-1) - 1)` of its row, so that the error of a
    weight is at most s / 2. A row of zeros stays.

    Args:
        weight: (output channels, ...).
        bits: 2 to 8.

    >>> round_weights(torch.tensor([[0.0, 0.4, -0.7, 7.0]]), bits=4)
    tensor([[ 0.,  0., -1.,  7.]])
    """
    rows = weight.float().flatten(1)
    top = 2 ** (bits - 1) - 1
    scale = rows.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / top
    return (rows.div(scale).round().mul(scale)).view_as(weight).to(weight.dtype)


@contextmanager
def quantize(model: LanguageModel, bits: int = 8) -> Iterator[int]:
    """Round the weights of `linear_weights` inside the block, as a quantised deployment would.

    Simulated by `round_weights`; a tool that calibrates (GPTQ, AWQ) keeps more of the model.
    Yields the number of weights. Cost: a copy of the parameters on the CPU. Source: Zhang et
    al. 2025, on what quantisation brings back after unlearning.
    """
    weights = linear_weights(model)
    with restore(model):
        for weight in weights:
            weight.copy_(round_weights(weight, bits))
        yield sum(weight.numel() for weight in weights)


def linear_weights(model: LanguageModel) -> list[Tensor]:
    """Return the weights of all linear layers but the output layer, a row per output channel.

    They include those of GPT-2, transposed, and experts in one parameter (experts, rows, columns),
    row by row. Embeddings, norms and the output layer are left out, as in common tools.
    """
    last = model.get_output_embeddings()
    layers = [m for m in model.modules() if m is not last]
    plain = [m.weight.detach() for m in layers if isinstance(m, nn.Linear)]
    plain += [m.weight.detach().T for m in layers if type(m).__name__ == "Conv1D"]
    named = model.named_parameters()
    return plain + [p.detach().flatten(0, 1) for n, p in named if p.ndim == 3 and "experts" in n]


@contextmanager
def relearn(
    model: LanguageModel,
    rows: Sequence[Row],
    pad_id: int,
    *,
    steps: int = 20,
    lr: float = 1e-4,
    batch_size: int = 8,
    seed: int = 0,
    autocast: Callable[[], Any] = nullcontext,
) -> Iterator[float]:
    """Fine-tune the model on a few examples for the block, to see what else comes back.

    The optimizer is AdamW on `token_nll`, without decay, over all trainable weights; the order is a
    seeded shuffle, repeated. Ask about *other* examples inside.

    Args:
        model: a causal language model of transformers; its weights and mode return bit for bit.
        rows: what the attacker has, one or more.
        pad_id: fills rows of a batch.
        steps: optimizer steps.
        lr: learning rate.
        batch_size: rows per step.
        seed: of the order.
        autocast: makes a context for each forward pass.

    Yields the loss of the last step, in nats per token (`nan` for no step). Cost: a copy of the
    parameters on the CPU, AdamW's state, `steps` steps. Source: Hu et al. 2025, on relearning.
    """
    with restore(model):
        yield _learn(model, _batches(rows, pad_id, steps, batch_size, seed), lr, autocast)


def _batches(
    rows: Sequence[Row], pad_id: int, steps: int, batch_size: int, seed: int
) -> Iterator[dict[str, Tensor]]:
    random = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for _ in range(steps):
        while len(order) < min(batch_size, len(rows)):
            order += torch.randperm(len(rows), generator=random).tolist()
        chosen, order = order[:batch_size], order[batch_size:]
        yield collate([rows[i] for i in chosen], pad_id)


@torch.enable_grad()
def _learn(
    model: LanguageModel,
    batches: Iterator[dict[str, Tensor]],
    lr: float,
    autocast: Callable[[], Any],
) -> float:
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer, loss = AdamW(params, lr=lr, weight_decay=0.0), torch.tensor(torch.nan)
    for batch in batches:
        with autocast():
            loss = token_nll(model, {key: value.to(model.device) for key, value in batch.items()})
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.detach())


def with_prefix(row: Row, share: float) -> Row | None:
    """Return the row with the answer's first part given away, `None` if nothing is left to say.

    `share` of the answer's tokens, end of sequence included, is rounded up to one token or more.

    >>> row = {"input_ids": [5, 6, 7, 8], "labels": [-100, 6, 7, 8]}
    >>> with_prefix(row, share=0.25)
    {'input_ids': [5, 6, 7, 8], 'labels': [-100, -100, 7, 8]}
    """
    answer = len(answer_ids(row))
    given = max(1, -int(-share * answer // 1))
    if given >= answer - 1:  # the end of sequence alone is no answer
        return None
    start = len(row["input_ids"]) - answer
    labels = [*row["labels"][:start], *[IGNORE] * given, *row["labels"][start + given :]]
    return {"input_ids": row["input_ids"], "labels": labels}
