"""Adapters of peft: loaded, compared with the model they are merged into, made anew."""

import json
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import peft
import torch
from transformers.utils import find_adapter_config_file

from torch_alm.command.model import check_folder, check_loaded
from torch_alm.command.output import Refusal, tried
from torch_alm.language import LanguageModel

RANK = 16
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
    kind = str(_config_of(name).get("peft_type"))
    if not merge and kind != "LORA":
        raise Refusal(
            f"the model {name} holds adapters of the kind {kind}, which --lora cannot train on. "
            "Did you mean to leave out --lora? The whole model is saved then."
        )
    model, result = tried(partial(_with_stored, base, name, not merge), name, "set of adapters")
    missing = [k for k in result.missing_keys if ".default" in k and not k.endswith(DERIVED)]
    found = {"missing_keys": missing, "unexpected_keys": result.unexpected_keys}
    check_loaded(f"the model {name}", {**found, "mismatched_keys": ()})
    if merge:
        return _merged(model, name, kind)
    model.peft_config["default"].base_model_name_or_path = base.name_or_path  # in full: from any
    return model


@torch.no_grad()
def _merged(model: LanguageModel, name: str, kind: str) -> LanguageModel:
    """The model with the adapters merged, compared with the one that has them apart.

    Cost: two forward passes over one row.
    """
    ids = torch.arange(1, 33, device=model.device)[None] % model.get_base_model().vocab_size
    model.eval()
    apart = model(input_ids=ids, use_cache=False).logits.float()
    merged = tried(lambda: model.merge_and_unload(), name, f"{kind} that can be merged")
    merged.requires_grad_(True)  # peft has frozen it
    found = merged(input_ids=ids, use_cache=False).logits.float()
    if not torch.allclose(apart, found, rtol=0, atol=NEAR * float(apart.abs().max())):
        off = float((apart - found).abs().max())
        raise Refusal(
            f"the model {name} says something else once its {kind} is merged (a logit is off by "
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


def with_adapters(model: LanguageModel) -> LanguageModel:
    """The model with adapters to train: those that it came with, or new ones.

    Adapters on top of adapters would not do: other tools load one of the two and leave out the
    other, and what was forgotten comes back. So the same ones are trained on. New ones have rank
    16, count twice (`lora_alpha` is 2 rank), are on every linear layer but the output, and change
    nothing before a step.
    """
    if isinstance(model, peft.PeftModel):
        return model
    config = peft.LoraConfig(
        r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(model, config)
