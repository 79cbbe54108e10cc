"""Refusal of a model that is not whole: weights never saved are random, and forget everything."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from torch_alm.language import LanguageModel, Row, Tokenizer
from torch_alm.unlearning.refusal import Refusal

# What transformers once saved with a model and computes today
BUFFERS = ("rotary_emb.inv_freq", "attn.masked_bias", "attn.bias", "position_ids")
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def check_loaded(name: str, info: Mapping[str, Iterable[Any]]) -> None:
    """Refuse a checkpoint that does not fill the model, or holds what the model has no place for.

    Args:
        name: what the model is called in a sentence, such as `"the model M"`.
        info: what `from_pretrained(..., output_loading_info=True)` returns; tied weights are not
            among the missing ones.
    """
    mismatched = [key if isinstance(key, str) else key[0] for key in info["mismatched_keys"]]
    unexpected = [key for key in info["unexpected_keys"] if not key.endswith(BUFFERS)]
    problems = {
        "has no weights for {}, which would be random": info["missing_keys"],
        "has weights of another shape for {}, which would be random": mismatched,
        "has weights that no part of the model takes, {}": unexpected,
    }
    told = [form.format(listed(names)) for form, names in problems.items() if names]
    if told:
        raise Refusal(
            f"{name} {'; it '.join(told)}; what it forgot or knows could not be told. Is "
            "it a causal language model, saved whole and under its own names?"
        )


def check_finite(name: str, model: LanguageModel) -> None:
    """Refuse weights that are not numbers.

    Cost: one pass over the weights.
    """
    tensors = [*model.named_parameters(), *model.named_buffers()]
    broken = [key for key, tensor in tensors if not bool(torch.isfinite(tensor).all())]
    if broken:
        raise Refusal(
            f"{name} has NaN or infinite numbers in {listed(broken)}; it would say nothing "
            "at all, which looks like forgetting. Did its training diverge?"
        )


def check_vocabulary(name: str, model: LanguageModel, tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer that knows tokens the model has no embedding for."""
    most = max(tokenizer.get_vocab().values(), default=-1) + 1
    rows = model.get_input_embeddings().weight.shape[0]
    if most > rows:
        raise Refusal(
            f"{name} has an embedding of {rows} tokens, and its tokenizer has ids up to "
            f"{most - 1}; such a token would end the run. Is it the tokenizer of another model, or "
            "was model.resize_token_embeddings forgotten?"
        )


@torch.no_grad()
def check_answers(name: str, model: LanguageModel, row: Row) -> None:
    """Refuse a model whose logits on a row are not finite, or depend on the tokens to come.

    Cost: two forward passes over one row.
    """
    ids = torch.tensor([row["input_ids"]], device=model.device)
    seen: Tensor = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    most = seen.amax(-1)  # some models rule tokens out with -inf
    if not bool(torch.isfinite(most).all()) or bool((most == seen.amin(-1)).all()):
        raise Refusal(
            f"{name} has finite weights, and yet its logits on the first row to forget are "
            "NaN, infinite, or all the same; it says nothing at all, which looks like forgetting. "
            "Were its weights scaled?"
        )
    ids[:, -1] = (ids[:, -1] + 1) % model.get_input_embeddings().weight.shape[0]
    other = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    if not torch.allclose(seen, other, rtol=1e-3, atol=1e-3 * float(most.abs().max())):
        raise Refusal(
            f"{name} ({type(model).__name__}) sees the tokens that it shall predict: its "
            "loss would say nothing of what it knows. Is it a masked language model, such as BERT?"
        )


def fingerprint(model: LanguageModel) -> str:
    """Sixteen digits that change with any weight: one exact sum of bits per tensor, hashed.

    Cost: one pass over the weights, wherever they are.
    """
    found = hashlib.sha256(model.config.to_json_string().encode())
    for name, p in model.named_parameters():
        bits = p.detach().contiguous().view(BITS[p.element_size()])
        found.update(
            f"{name} {tuple(p.shape)} {p.dtype} {int(bits.sum(dtype=torch.int64))}".encode()
        )
    return found.hexdigest()[:16]


def fingerprint_of_words(tokenizer: Tokenizer) -> str:
    """Sixteen digits that change with the tokenizer or its chat template; not with its date."""
    inner = getattr(tokenizer, "backend_tokenizer", None)
    known = json.dumps(tokenizer.get_vocab(), sort_keys=True) if inner is None else inner.to_str()
    template = json.dumps(getattr(tokenizer, "chat_template", None))
    return hashlib.sha256(f"{known} {template}".encode()).hexdigest()[:16]


def listed(names: Iterable[str]) -> str:
    """The first three names, and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more
