"""LoRA adapters: told from whole models, loaded onto theirs, and made anew."""

import json
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformers.utils import find_adapter_config_file

from torch_alm.language import LanguageModel
from torch_alm.unlearning.hub import check_model
from torch_alm.unlearning.refusal import Refusal, tried
from torch_alm.unlearning.whole import check_loaded

ALL = "all-linear"


def is_adapter(name: str) -> bool:
    """Tell whether a folder, or a model on the hub, holds adapters for another model."""
    return find_adapter_config_file(name) is not None


def with_new(model: LanguageModel, rank: int, targets: str | Sequence[str] = ALL) -> LanguageModel:
    """The model with new adapters, which alone are trained; they change nothing before a step.

    Args:
        model: a causal language model of transformers; wrapped in place.
        rank: of the adapters; they count twice (`lora_alpha` is 2 rank).
        targets: names of layers; every linear one but the output by default.

    Raises:
        ValueError: no layer has such a name, or one is of a kind that peft has no adapters for.
    """
    import peft

    config = peft.LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=targets if isinstance(targets, str) else [*targets],
        task_type="CAUSAL_LM",
    )
    return peft.get_peft_model(model, config)


def base_of(name: str) -> str:
    """The model that adapters were trained on; a relative path may start where they lie.

    Raises:
        Refusal: it is not named, or not there.
    """
    config = find_adapter_config_file(name)
    assert config is not None
    base = json.loads(Path(config).read_text(encoding="utf-8")).get("base_model_name_or_path")
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
        check_model(base)
    return base


def loaded_onto(base: LanguageModel, name: str, merge: bool) -> LanguageModel:
    """The model with the adapters of that name, merged into it or to be trained.

    Raises:
        Refusal: they cannot be loaded, do not fit, or could not be trained.
    """
    load = partial(_with_stored, base, name, not merge)
    model, result = tried(load, name, "set of adapters")
    missing = [key for key in result.missing_keys if ".default" in key]
    unexpected = result.unexpected_keys
    found = {"missing_keys": missing, "unexpected_keys": unexpected, "mismatched_keys": ()}
    check_loaded(f"the model {name}", found)
    if merge:
        return model.merge_and_unload().requires_grad_(True)  # peft has frozen it
    config = model.peft_config["default"]
    if config.peft_type != "LORA":
        raise Refusal(
            f"the model {name} holds adapters of the kind {config.peft_type.value}, which --lora "
            "cannot train on. Did you mean to leave out --lora? The whole model is saved then."
        )
    config.base_model_name_or_path = base.name_or_path  # in full: found from any folder
    return model


def _with_stored(base: LanguageModel, name: str, trains: bool) -> tuple[LanguageModel, Any]:
    import peft

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of missing weights, which are refused
        model = peft.PeftModel.from_pretrained(base, name, is_trainable=trains)
        weights = peft.load_peft_weights(name, device=str(base.device))
        return model, peft.set_peft_model_state_dict(model, weights)
