"""Ask a model for logits: at the positions that count alone, where its forward takes positions."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Batch = Mapping[str, Any]
Model = Callable[..., Any]


def inputs_of(batch: Batch) -> dict[str, Any]:
    """The batch without its labels, as a new dict: the model shall not compute a loss itself."""
    if not isinstance(batch, Mapping) or isinstance(batch.get("labels"), list):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"The batch is a {type(batch).__name__}, and no dict of tensors. Did you swap model "
            'and batch, or mean {"input_ids": ..., "labels": ...}, of rows by `language.collate`?'
        )
    return {name: value for name, value in batch.items() if name != "labels"}


def logits_of(model: Model, batch: Batch, kept: Tensor | None = None) -> Tensor:
    """(B, T, V) logits; or (B, K, V), of the K positions `kept`, which the model is asked for.

    A batch may bring its own `logits_to_keep`, to which its labels belong.
    """
    inputs = inputs_of(batch)
    if kept is not None:
        inputs["logits_to_keep"] = kept
    output = model(**inputs)
    logits: Tensor | None = (
        output if isinstance(output, Tensor) else getattr(output, "logits", None)
    )
    if logits is None:
        raise ValueError(
            f"{type(model).__name__} gave a {type(output).__name__} without `logits`: no token has "
            "a probability. Is it a model without its head (AutoModel for AutoModelForCausalLM)?"
        )
    return logits


def takes_positions(model: Model) -> bool:
    """Return whether a forward takes a tensor as `logits_to_keep`, or hands it to one that does."""
    config = getattr(model, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):  # virtual tokens move every position
        return False
    try:
        called = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
    except (TypeError, ValueError):
        return False
    if option := called.parameters.get("logits_to_keep"):
        return "Tensor" in str(option.annotation)  # older models take a number alone
    passes = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in called.parameters.values())
    inner = unwrap(model)
    return passes and inner is not None and takes_positions(inner)


def unwrap(model: Model) -> Model | None:
    """The model in a wrapper that hands all arguments on (torch.compile, DDP, FSDP, PEFT)."""
    if isinstance(model, nn.DataParallel):  # cuts every tensor along its first dimension
        return None
    base: Callable[[], Model] | None = getattr(model, "get_base_model", None)
    return base() if base else getattr(model, "_orig_mod", None) or getattr(model, "module", None)


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


def compute_dtype(values: Tensor) -> torch.dtype:
    """The dtype to compute in: fp32 or wider, so half precision is widened and float64 stays."""
    return torch.promote_types(values.dtype, torch.float32)
