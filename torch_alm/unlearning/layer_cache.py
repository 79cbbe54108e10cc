"""Shorter passes of a run: frozen layers once per row, and logits of labelled tokens alone."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

from torch_alm.language import IGNORE, Batch, Row, collate
from torch_alm.language._models import LanguageModel
from torch_alm.measures._distribution import Divergence
from torch_alm.measures._logits import compute_dtype

AT_ONCE = 8  # rows of the original's answers
SHORTENED = {"input_ids", "attention_mask", "use_cache", "logits_to_keep"}  # of a short pass


def memory_limit() -> int:
    """Return the bytes of a cache: an eighth of the machine's memory, shared by its ranks."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8 // ranks


def answer_logits(model: LanguageModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return logits (N, V) of the labelled tokens, row after row, and where they are, (B, T - 1).

    The output layer runs for these alone.
    """
    following = batch["labels"][:, 1:] != IGNORE

    def pick(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (args[0][:, :-1][following][None],)

    inner = model.module if isinstance(model, DistributedDataParallel) else model
    hook = inner.get_output_embeddings().register_forward_pre_hook(pick)
    try:
        inputs = {k: batch[k] for k in ("input_ids", "attention_mask")}
        return model(**inputs, use_cache=False).logits[0], following
    finally:
        hook.remove()


def pad_logits(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Pad `answer_logits` to (B, L + 1, V), with labels (B, L + 1), for L tokens or fewer a row."""
    following = labels[:, 1:] != IGNORE
    counts = following.sum(1, keepdim=True)
    places = torch.arange(int(counts.max()) + 1, device=labels.device) < counts
    padded = logits.new_zeros(*places.shape, logits.shape[1])
    padded[places] = logits
    beside = labels.new_full(places.shape, IGNORE)
    beside[:, 1:][places[:, :-1]] = labels[:, 1:][following]
    return padded, beside


class Original:
    """Log-probabilities that a model gives at the labelled tokens of rows.

    They are kept in float32 or, where these took more than an eighth of the machine's memory, in
    bfloat16; where these did, too, the weights that train are, and the model is asked every time.
    """

    def __init__(self, model: LanguageModel, rows: Sequence[Row], pad: int) -> None:
        head = model.get_output_embeddings().weight
        each = len(head) * sum(label != IGNORE for row in rows for label in row["labels"][1:])
        dtypes = compute_dtype(head), torch.bfloat16
        dtypes = [dtype for dtype in dtypes if each * dtype.itemsize <= memory_limit()]
        self.weights = None if dtypes else Weights(model)
        self.log_probs: dict[tuple[int, ...], Tensor] = {}
        for start in range(0, len(rows) if dtypes else 0, AT_ONCE):
            some = rows[start : start + AT_ONCE]
            batch = {k: v.to(model.device) for k, v in collate(some, pad).items()}
            with torch.no_grad():
                found, following = answer_logits(model, batch)
            said = found.log_softmax(-1, dtype=compute_dtype(found)).to("cpu", dtypes[0])
            for row, own in zip(some, said.split(following.sum(1).tolist()), strict=True):
                self.log_probs[(*row["input_ids"], *row["labels"])] = own

    def divergence(self, model: LanguageModel, batch: Batch) -> Tensor:
        """Return KL(original || model) in nats per token: the mean over rows of token means."""
        if self.weights is None:
            ends = batch["attention_mask"].sum(1).tolist()
            both = zip(batch["input_ids"].tolist(), batch["labels"].tolist(), ends, strict=True)
            theirs = torch.cat([self.log_probs[(*ids[:n], *labels[:n])] for ids, labels, n in both])
        else:
            with torch.no_grad(), self.weights.lend():
                theirs, _ = answer_logits(model, batch)
        logits, following = answer_logits(model, batch)
        where = torch.arange(len(logits), device=logits.device)
        found = Divergence.apply(logits, theirs, where, torch.is_grad_enabled())
        shares = following.to(found) / following.sum(1, keepdim=True) / len(following)
        return (found * shares[following]).sum()


class Weights:
    """A copy of the weights of a model that are trained, as they are now.

    No copy of the model: a `forward` that somebody put into a layer may hold the layer itself.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.pairs = [(p, p.detach().clone()) for p in model.parameters() if p.requires_grad]

    @torch.no_grad()
    def put_back(self) -> None:
        """Copy the weights into the model."""
        for p, was in self.pairs:
            p.copy_(was)

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Give the model these weights in the context."""
        now = [p.data for p, _ in self.pairs]
        for p, was in self.pairs:
            p.data = was
        try:
            yield
        finally:
            for (p, _), data in zip(self.pairs, now, strict=True):
                p.data = data


class LayerCache:
    """A cache of the hidden states that enter the first layer that trains, by row.

    A pass over right padded rows skips the layers below, if all its rows are in the cache. Masks
    and positions are computed by the model. It works for every model whose layers return one
    tensor. `layers` is empty, and each pass runs all layers, if two test rows come out otherwise,
    if weights outside of a list of layers train, or if a lower layer has a `forward` of its own, as
    under accelerate's hooks.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model, self.left = model, memory_limit()
        self.layers, self.first = split_layers(model)
        self.states_by_row: dict[tuple[int, ...], Tensor] = {}
        self.keys: list[tuple[int, ...]] = []  # the rows of the pass under way
        self.states: Tensor | None = None  # what enters the first trained layer, if all are known
        self.in_tuple = False
        if self.layers and not self.is_exact():
            self.layers = []

    @contextmanager
    def enable(self) -> Iterator[None]:
        """Skip layers whose output is in the cache, in the context."""
        if not self.layers:
            yield
            return
        hooks = [
            self.model.register_forward_pre_hook(self.begin, with_kwargs=True),
            self.model.register_forward_hook(self.end, always_call=True),
            self.first.register_forward_pre_hook(self.keep, with_kwargs=True),
        ]
        for layer in self.layers:
            layer.forward = partial(self.cached_forward, layer.forward)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for layer in self.layers:
                del layer.forward

    @torch.no_grad()
    def is_exact(self) -> bool:
        """Return whether two rows, one of them padded, come out as in a whole pass."""
        ids = torch.arange(16, device=self.model.device).view(2, 8)
        ids %= self.model.get_output_embeddings().weight.shape[0]
        mask = torch.ones_like(ids)
        mask[1, 5:] = 0
        try:
            with self.enable():
                whole = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
                ids, mask = ids.flip(0), mask.flip(0)
                short = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        except Exception:  # whatever else its layers hand on is missing
            return False
        return torch.allclose(short[mask > 0], whole.flip(0)[mask > 0], rtol=1e-3, atol=1e-3)

    def begin(self, _: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        """Look up the states of the rows before a pass (a hook of the model)."""
        mask = given.get("attention_mask")
        is_usual = not args and given.keys() <= SHORTENED and given.get("use_cache") is False
        if not is_usual or mask is None:
            return
        if bool((mask.diff(dim=1) > 0).any()):  # padded on the left
            return
        both = zip(given["input_ids"].tolist(), mask.sum(1).tolist(), strict=True)
        self.keys = [(*ids[:length],) for ids, length in both]
        if all(key in self.states_by_row for key in self.keys):
            states = pad_sequence([self.states_by_row[key] for key in self.keys], batch_first=True)
            self.states = F.pad(states, (0, 0, 0, mask.shape[1] - states.shape[1])).to(mask.device)

    def end(self, *_: Any) -> None:
        """Drop the rows and states of a pass (a hook of the model)."""
        self.keys, self.states = [], None

    def cached_forward(self, own: Any, *args: Any, **more: Any) -> Any:
        """Run a frozen layer, or return the states of the cache."""
        if self.states is not None:
            return (self.states,) if self.in_tuple else self.states
        found = own(*args, **more)
        self.in_tuple = isinstance(found, tuple)  # so in transformers 4
        return found

    def keep(self, _: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        """Save what enters the first trained layer (a hook of it)."""
        if self.keys and self.states is None:
            states = (args[0] if args else given["hidden_states"]).detach().cpu()
            for key, each in zip(self.keys, states, strict=True):
                if key not in self.states_by_row and each.nbytes <= self.left:
                    self.left -= each.nbytes
                    self.states_by_row[key] = each[: len(key)].clone()


def split_layers(model: LanguageModel) -> tuple[list[nn.Module], nn.Module]:
    """Return the layers below the first that trains, and that one.

    The list is empty if weights outside train, or if a lower layer has a `forward` of its own.
    """
    trained = {p for p in model.parameters() if p.requires_grad}
    for each in model.modules():
        if isinstance(each, nn.ModuleList) and trained <= {*each.parameters()}:
            layers = [*each]
            first = next(i for i, layer in enumerate(layers) if trained & {*layer.parameters()})
            has_own = any("forward" in vars(m) for layer in layers[:first] for m in layer.modules())
            return [] if has_own else layers[:first], layers[first]
    return [], model
