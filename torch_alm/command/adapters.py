"""Adapters of peft: loaded, compared with the model they are merged into, made anew."""

import argparse
import json
import warnings
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import peft
import torch
from torch import nn
from transformers.utils import find_adapter_config_file

from torch_alm.command.model import check_folder, check_loaded, quiet
from torch_alm.command.output import Refusal, tried
from torch_alm.language import LanguageModel

ALL, RANK = "all-linear", 16
MERGED = ("LORA", "LOHA", "LOKR", "IA3", "ADALORA", "OFT", "BOFT", "VERA", "FOURIERFT", "HRA")
"""Kinds that peft merges into the weights, so that a plain model is what they say."""
DERIVED = (".vera_A.default", ".vera_B.default", ".ranknum.default")
"""What peft computes again, or shares between layers."""
NEAR = 1e-2  # of the largest logit: what merging may change by rounding


def is_adapter(name: str) -> bool:
    """Tell whether a folder, or a model on the hub, holds adapters for another model."""
    return find_adapter_config_file(name) is not None


def base_of(name: str) -> str:
    """The model that adapters were trained on; a relative path may start where they lie.

    Raises:
        Refusal: it is not named, or not there.
    """
    base = _config_of(name).get("base_model_name_or_path")
    beside = Path(name) / (base or "")
    if base and beside.is_dir():
        base = str(beside)
    is_path = base and (Path(base).is_absolute() or base.startswith("."))
    if not base or (is_path and not Path(base).is_dir()):
        raise Refusal(
            f"the model {name} holds adapters for {base or 'a model that it does not name'}, which "
            "is not there; without it they are no model. Was it moved? Its place stands in "
            "adapter_config.json, base_model_name_or_path."
        )
    if not Path(base).is_dir():
        check_folder(base)
    return base


def _config_of(name: str) -> dict[str, Any]:
    path = find_adapter_config_file(name)
    assert path is not None
    return json.loads(Path(path).read_text(encoding="utf-8"))


def loaded_onto(base: LanguageModel, name: str, merge: bool) -> LanguageModel:
    """The model with the adapters of that name, merged into it or to be trained.

    Raises:
        Refusal: they are of a kind that cannot be merged, or trained; cannot be loaded; do not fit.
    """
    _check_kind(name, merge)
    model, result = tried(partial(_with_stored, base, name, not merge), name, "set of adapters")
    missing = [k for k in result.missing_keys if ".default" in k and not k.endswith(DERIVED)]
    found = {"missing_keys": missing, "unexpected_keys": result.unexpected_keys}
    check_loaded(f"the model {name}", {**found, "mismatched_keys": ()})
    _check_tied(f"the model {name}", model)
    if merge:
        return _merged(model, name)
    model.peft_config["default"].base_model_name_or_path = base.name_or_path  # in full: from any
    return model


def _check_kind(name: str, merge: bool) -> None:
    """Refuse adapters that peft does not merge, or that `--lora` cannot train, by their kind."""
    config = _config_of(name)
    kind = str(config.get("peft_type"))
    more = [
        key for key in ("alora_invocation_tokens", "trainable_token_indices") if config.get(key)
    ]
    if kind not in MERGED or more:
        told = f"{kind} with {more[0]}" if more else kind
        raise Refusal(
            f"the model {name} holds adapters of the kind {told}, which is not a plain model once "
            "it is merged, so that it could not be told what its users hear. Is there a merged "
            f"model, or one with adapters of the kind {', '.join(MERGED)}?"
        )
    if not merge and kind != "LORA":
        raise Refusal(
            f"the model {name} holds adapters of the kind {kind}, which --lora cannot train on. "
            "Did you mean to leave out --lora? The whole model is saved then."
        )


def _check_tied(name: str, model: LanguageModel) -> None:
    """Refuse adapters on a weight that two layers share: merged, they would change both."""
    layers = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.Linear)]
    pointers = [m.weight.data_ptr() for m in layers]
    for key, module in model.named_modules():
        below = getattr(module, "base_layer", None)
        if below is not None and pointers.count(below.weight.data_ptr()) > 1:
            raise Refusal(
                f"{name} has adapters on {key.rpartition('model.')[2]}, whose weight is tied to "
                "another layer's; merged into one they would change both, and no longer be what "
                "was trained. Did you mean other --lora-targets, or a model with "
                "tie_word_embeddings=False?"
            )


@torch.no_grad()
def _merged(model: LanguageModel, name: str) -> LanguageModel:
    """The model with the adapters merged, compared with the one that has them apart.

    Cost: two forward passes over one row.
    """
    ids = torch.arange(1, 33, device=model.device)[None] % model.get_base_model().vocab_size
    model.eval()
    apart = model(input_ids=ids, use_cache=False).logits.float()
    merged = tried(lambda: model.merge_and_unload(), name, "set of adapters that can be merged")
    merged.requires_grad_(True)  # peft has frozen it
    found = merged(input_ids=ids, use_cache=False).logits.float()
    if not torch.allclose(apart, found, rtol=0, atol=NEAR * float(apart.abs().max())):
        off = float((apart - found).abs().max())
        raise Refusal(
            f"the model {name} says something else once its adapters are merged (a logit is off by "
            f"{off:.2g}), so that a plain model would not be what its users hear. Are the "
            "adapters on weights that several layers share?"
        )
    return merged


def _with_stored(base: LanguageModel, name: str, trains: bool) -> tuple[LanguageModel, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of missing weights, which are refused
        model = peft.PeftModel.from_pretrained(base, name, is_trainable=trains)
        weights = peft.load_peft_weights(name, device=str(base.device))
        return model, peft.set_peft_model_state_dict(model, weights)


def with_adapters(given: argparse.Namespace, model: LanguageModel) -> LanguageModel:
    """The model with adapters to train: those that it came with, or new ones.

    Adapters on top of adapters would not do: other tools load one of the two and leave out the
    other, and what was forgotten comes back. So the same ones are trained on.

    Raises:
        Refusal: adapters of another kind, rank or place than those asked for; or layers to put
            them on that the model does not have.
    """
    rank, targets = given.lora_rank, given.lora_targets
    if not isinstance(model, peft.PeftModel):
        return _with_new(model, rank or RANK, targets or ALL)
    config: Any = model.peft_config["default"]
    names: str | set[str] = config.target_modules
    named = names if isinstance(names, str) else ",".join(sorted(names))
    had = {"--lora-rank": config.r, "--lora-targets": named}
    targets = None if targets in (None, ALL) else ",".join(sorted(targets.split(",")))
    for name, value in {"--lora-rank": rank, "--lora-targets": targets}.items():
        if value is not None and value != had[name]:
            raise Refusal(
                f"{name} {value}, and the model holds adapters with {had[name]}, which --lora "
                f"trains on: others on top of them would be left out by most tools, and what is "
                f"forgotten would come back. Did you mean to leave out {name}?"
            )
    return model


def _with_new(model: LanguageModel, rank: int, targets: str) -> LanguageModel:
    """The model with new adapters, which alone are trained; they change nothing before a step.

    They count twice (`lora_alpha` is 2 rank), and are on every linear layer but the output if
    `targets` is `ALL`.
    """
    names = targets if targets == ALL else targets.split(",")
    if names != ALL:
        _check_targets(model, names)
    config = peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=names, task_type="CAUSAL_LM"
    )
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of tied weights, which are refused
        try:
            adapted = peft.get_peft_model(model, config)
        except ValueError as error:  # layers of a kind that peft has no adapters for
            told = str(error).splitlines()[0]
            raise Refusal(f"--lora-targets {targets}: {told} Did you mean {ALL}?") from error
    _check_tied(f"--lora-targets {targets}: the model", adapted)
    return adapted


def _check_targets(model: nn.Module, names: Iterable[str]) -> None:
    """Refuse names that no layer has; peft would leave them out without a word."""
    layers = [f".{name}" for name, _ in model.named_modules()]
    unknown = [name for name in names if not any(each.endswith(f".{name}") for each in layers)]
    if unknown:
        linear = {
            n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, nn.Linear)
        }
        raise Refusal(
            f"--lora-targets {unknown[0]}: no layer of the model has that name; its linear layers "
            f"are {', '.join(sorted(linear))}. Did you mean some of these, or {ALL}?"
        )
