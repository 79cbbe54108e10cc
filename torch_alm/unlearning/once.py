"""What is computed once in a run, and what not at all: logits where no label is."""

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from torch_alm.language import IGNORE, Batch, Row, collate
from torch_alm.language._models import LanguageModel
from torch_alm.measures._distribution import Divergence

SHORTENED = {"input_ids", "attention_mask", "use_cache", "logits_to_keep"}  # what such passes take


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


@contextmanager
def lower_once(model: LanguageModel) -> Iterator[bool]:
    """Inside, what enters the first layer that is trained is computed once for each row.

    That shortens passes over right padded rows without a cache. Masks and positions are the model's
    own, and of its family nothing is known but that its layers hand on one tensor: where two rows
    come out otherwise, or weights outside of a list of layers are trained, all passes stay whole.
    Given is whether they are shortened.
    """
    lower, first = _split(model)
    if not lower:
        yield False
        return
    short = _Short(model, first)
    hooks = [model.register_forward_pre_hook(short.begin, with_kwargs=True),
             model.register_forward_hook(short.end, always_call=True)]  # fmt: skip
    own = [vars(layer).get("forward") for layer in lower]
    for layer in lower:
        layer.forward = partial(short.layer, layer.forward)
    try:
        short.is_on = short.is_right()
        yield short.is_on
    finally:
        for hook in hooks:
            hook.remove()
        for layer, forward in zip(lower, own, strict=True):
            del layer.forward
            vars(layer).update({} if forward is None else {"forward": forward})


def _split(model: LanguageModel) -> tuple[Sequence[nn.Module], nn.Module]:
    """The layers below the first that is trained, and that one; none if others are trained, too."""
    trained = {p for p in model.parameters() if p.requires_grad}
    for each in model.modules():
        if isinstance(each, nn.ModuleList) and trained <= {*each.parameters()}:
            layers = [*each]
            first = next(i for i, layer in enumerate(layers) if trained & {*layer.parameters()})
            return layers[:first], layers[first]
    return [], model


class _Reached(Exception):
    """What enters the first layer that is trained; the pass need go no further."""


class _Short:
    """Passes of a model, and what enters its first trained layer, by the tokens of a row."""

    def __init__(self, model: LanguageModel, first: nn.Module) -> None:
        self.model, self.first, self.left = model, first, room()
        self.known: dict[tuple[int, ...], Tensor] = {}
        self.states: Tensor | None = None  # of the pass under way, if it is shortened
        self.is_on = self.in_tuple = False

    @torch.no_grad()
    def is_right(self) -> bool:
        """Tell whether two rows, once known, come out as in whole passes; one is padded."""
        words = self.model.get_output_embeddings().weight.shape[0]
        ids = torch.arange(16, device=self.model.device).view(2, 8) % words
        mask = torch.ones_like(ids)
        mask[1, 5:] = 0
        turned = {"input_ids": ids.flip(0), "attention_mask": mask.flip(0), "use_cache": False}
        whole = self.model(**turned).logits
        self.is_on = True
        try:
            self.of(ids, mask)
            short = self.model(**turned).logits
        except Exception:  # whatever else its layers hand on is missing
            return False
        seen = mask.flip(0) > 0
        return torch.allclose(short[seen], whole[seen], rtol=1e-3, atol=1e-3)

    def begin(self, _: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        """Before a pass: have ready what enters the first trained layer."""
        mask = given.get("attention_mask")
        fits = not args and given.keys() <= SHORTENED and given.get("use_cache") is False
        if self.is_on and fits and mask is not None and bool((mask.diff(dim=1) <= 0).all()):
            self.states = self.of(given["input_ids"], mask)

    def end(self, *_: Any) -> None:
        """After a pass."""
        self.states = None

    def layer(self, own: Any, *args: Any, **more: Any) -> Any:
        """In place of the forward of each layer below."""
        if self.states is not None:
            return (self.states,) if self.in_tuple else self.states
        found = own(*args, **more)
        self.in_tuple = isinstance(found, tuple)  # in transformers 4
        return found

    def of(self, ids: Tensor, mask: Tensor) -> Tensor:
        """What enters the first trained layer, (B, T, width), from memory where it fits."""
        precision = int(torch.is_autocast_enabled(ids.device.type))
        lengths, known = mask.sum(1).tolist(), self.known
        keys = [(precision, *row[:n]) for row, n in zip(ids.tolist(), lengths, strict=True)]
        if new := [i for i, key in enumerate(keys) if key not in known]:
            states = self.read(ids[new], mask[new]).cpu()
            added = {keys[i]: states[j, : lengths[i]].clone() for j, i in enumerate(new)}
            known = {**known, **added}
            size = sum(each.nbytes for each in added.values())
            if size <= self.left:
                self.known, self.left = known, self.left - size
        states = pad_sequence([known[key] for key in keys], batch_first=True)
        return F.pad(states, (0, 0, 0, ids.shape[1] - states.shape[1])).to(ids.device)

    @torch.no_grad()
    def read(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Compute what enters it."""

        def reached(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
            raise _Reached(args[0] if args else given["hidden_states"])

        hook = self.first.register_forward_pre_hook(reached, with_kwargs=True)
        self.is_on = False
        try:
            self.model(input_ids=ids, attention_mask=mask, use_cache=False)
        except _Reached as found:
            return found.args[0]
        finally:
            self.is_on = True
            hook.remove()
        raise RuntimeError("the first trained layer was never reached")
