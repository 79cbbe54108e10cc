"""Load models and tokenizers from folders and the hub, and check that they are complete."""

import argparse
import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from transformers.utils import find_adapter_config_file

from torch_alm.language._models import LanguageModel, Tokenizer
from torch_alm.unlearning.errors import Refusal, attempt
from torch_alm.unlearning.folders import MODEL
from torch_alm.unlearning.loading import Setup, make_setup, with_rows
from torch_alm.unlearning.model import (
    Place,
    check_whole,
    find_place,
    list_names,
    silence,
)
from torch_alm.unlearning.options import options_of
from torch_alm.unlearning.rows import Entry

WIDTHS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CONFIGS = ("config.json", "adapter_config.json")
BUFFERS = ("rotary_emb.inv_freq", "masked_bias", "attn.bias", "attention.bias", "position_ids")


@silence()
def load_model(
    name: str | Path,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    merge: bool = True,
) -> tuple[LanguageModel, Tokenizer]:
    """Load a causal language model in evaluation mode, and its tokenizer.

    Adapters are merged into the model they were trained on: it is then a model like any other.
    Without `merge` the model is one of peft, and they can be trained.
    """
    name = str(name)
    check_folder(name)
    tokenizer = _load_tokenizer(name)
    if (adapters := _adapters_in(name)) is None:
        model = _load(name, dtype)
    else:
        kind = f"causal language model, for the adapters in {name},"
        model = _load_onto(_load(_base_of(name, adapters), dtype, kind), name, merge)
    check_whole(f"the model {name}", model, tokenizer)
    return model.to(device).eval(), tokenizer


def _load_tokenizer(name: str) -> Tokenizer:
    return attempt(partial(transformers.AutoTokenizer.from_pretrained, name), name, "tokenizer")


def _load(name: str, dtype: torch.dtype, kind: str = "causal language model") -> LanguageModel:
    # The full path, so that adapters trained on the model find it from any folder
    known = str(Path(name).resolve()) if os.path.isdir(name) else name
    load = transformers.AutoModelForCausalLM.from_pretrained
    options = {"dtype": dtype, "ignore_mismatched_sizes": True, "output_loading_info": True}
    model, info = attempt(partial(load, known, **options), name, kind)
    check_loaded(f"the model {name}", info)
    return model


def check_folder(name: str) -> None:
    """Raise `Refusal` for a folder without model and tokenizer, or a path that is none."""
    if not os.path.isdir(name):  # False, too, for a name that no file can have
        if os.path.exists(name) or Path(name).is_absolute() or name.startswith("."):
            raise Refusal(f"the model {name} is no folder. Is the path right?")
        return  # transformers says whether the hub has it
    files = {file.name for file in Path(name).iterdir()}
    if not files & {*CONFIGS}:
        within = Path(name, MODEL)
        meant = "Was the model saved there with save_pretrained?"
        meant = f"Did you mean {within}, the model of a run?" if within.is_dir() else meant
        raise Refusal(f"the model {name} has no config.json and no adapter_config.json. {meant}")
    if not files & {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json"}:
        raise Refusal(
            f"the model {name} has no tokenizer beside it, so no text could be read. Did you "
            "call tokenizer.save_pretrained on the same folder?"
        )


def check_loaded(name: str, info: Mapping[str, Iterable[Any]]) -> None:
    """Raise `Refusal` for a checkpoint with missing or unexpected weights.

    `info` is from `from_pretrained(..., output_loading_info=True)`; tied weights are not missing.
    """
    mismatched = [key if isinstance(key, str) else key[0] for key in info["mismatched_keys"]]
    unexpected = [key for key in info["unexpected_keys"] if not key.endswith(BUFFERS)]
    problems = {
        "has no weights for {}, which would be random": info["missing_keys"],
        "has weights of another shape for {}, which would be random": mismatched,
        "has weights that no part of the model takes, {}": unexpected,
    }
    told = [form.format(list_names(names)) for form, names in problems.items() if names]
    if told:
        raise Refusal(
            f"{name} {'; it '.join(told)}; what it forgot or knows could not be told. Is "
            "it a causal language model, saved whole and under its own names?"
        )


def stored_dtype(name: str) -> torch.dtype:
    """Return the dtype a model is stored in, float32 if its configuration has none.

    For adapters it is that of the model they were trained on.
    """
    adapters = _adapters_in(name)
    name = name if adapters is None else _base_of(name, adapters)
    config = transformers.AutoConfig.from_pretrained(name)
    found = config.dtype or config.get_text_config().dtype
    named = getattr(torch, found) if isinstance(found, str) else found
    return named if named in WIDTHS else torch.float32


NEAR = 1e-2  # of the largest logit: what merging may change by rounding


def _adapters_in(name: str) -> dict[str, Any] | None:
    """Return the settings of adapters, if the folder or name on the hub has some."""
    path = find_adapter_config_file(name)
    return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))


def _base_of(name: str, adapters: Mapping[str, Any]) -> str:
    """Return the base of adapters of LoRA; a relative path may start in their folder."""
    if (kind := adapters.get("peft_type")) != "LORA":
        raise Refusal(
            f"the model {name} holds adapters of the kind {kind}, and LoRA alone is read. Did you "
            "mean to merge them first (`merge_and_unload`), and to save the model?"
        )
    base = adapters.get("base_model_name_or_path")
    if base and Path(name, base).is_dir():
        base = str(Path(name, base))
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


def _load_onto(base: LanguageModel, name: str, merge: bool) -> LanguageModel:
    """Load a model with adapters, merged into it or to be trained."""
    model, result = attempt(partial(_load_adapters, base, name, not merge), name, "set of adapters")
    missing = [k for k in result.missing_keys if ".default" in k]
    found = {"missing_keys": missing, "unexpected_keys": result.unexpected_keys}
    check_loaded(f"the model {name}", {**found, "mismatched_keys": ()})
    if merge:
        return _merge(model, name)
    model.peft_config["default"].base_model_name_or_path = base.name_or_path  # in full: from any
    return model


@torch.no_grad()
def _merge(model: LanguageModel, name: str) -> LanguageModel:
    """Merge the adapters; raise `Refusal` if the logits change."""
    ids = torch.arange(1, 33, device=model.device)[None] % model.get_base_model().vocab_size
    model.eval()
    apart = model(input_ids=ids, use_cache=False).logits.float()
    merged = model.merge_and_unload()
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


def _load_adapters(base: LanguageModel, name: str, trains: bool) -> tuple[LanguageModel, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of missing weights, which are refused
        model = peft.PeftModel.from_pretrained(base, name, is_trainable=trains)
        weights = peft.load_peft_weights(name, device=str(base.device))
        return model, peft.set_peft_model_state_dict(model, weights)


def is_bare(name: str) -> bool:
    """Return whether a model is a folder with its configuration and tokenizer, and no weights."""
    files = os.listdir(name) if os.path.isdir(name) else []
    return "config.json" in files and not any(f.endswith((".safetensors", ".bin")) for f in files)


def load_bare(given: argparse.Namespace, found: Mapping[str, Sequence[Entry]]) -> Setup:
    """Encode the rows for a model without weights, made inside `FakeTensorMode`; any device."""
    check_folder(given.model)
    tokenizer = _load_tokenizer(given.model)
    config = transformers.AutoConfig.from_pretrained(given.model)
    device = find_place("auto", "auto").device if given.device == "auto" else given.device
    is_narrow = given.lora and device == "cuda" and given.precision != "fp32"
    dtype = torch.bfloat16 if is_narrow else torch.float32
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    return with_rows(Setup(model, tokenizer, Place(device, False), options_of(given), {}), found)


def load_for(
    given: argparse.Namespace,
    name: str,
    found: Mapping[str, Sequence[Entry]],
    *,
    lora: bool = False,
    day: datetime | None = None,
) -> Setup:
    """Load a model and encode the rows for it; with `lora` its own adapters stay apart."""
    where = find_place(given.device, given.precision)
    # bfloat16 swallows small steps and perturbations; below adapters nothing is trained
    is_narrow = lora and where.autocast and where.device == "cuda"
    dtype = torch.bfloat16 if is_narrow else torch.float32
    model, tokenizer = load_model(name, device=where.device, dtype=dtype, merge=not lora)
    options = options_of(given)
    return make_setup(model, tokenizer, where, options, found, f"the model {name}", day)
