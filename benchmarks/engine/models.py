"""Load models to unlearn from, or train and cache them, and choose what is trained."""

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.engine.options import Options
from benchmarks.engine.scratch import Lesson, Recipe, spare_threads, teach
from benchmarks.methods.rmu import steered_layer
from torch_alm.language import pad_id

CACHE_VERSION = 3  # to be raised when a change of the training code makes cached models wrong


def load_model(name: str | Path) -> tuple[Any, Any]:
    """Load a causal language model, in float32 and evaluation mode, and its tokenizer.

    Raises:
        ValueError: Weights are missing, which would be random, or the tokenizer has no EOS.
        OSError: There is no such model.
    """
    tokenizer = AutoTokenizer.from_pretrained(name)
    pad_id(tokenizer)  # raises for one without EOS
    model, info = AutoModelForCausalLM.from_pretrained(
        name, dtype=torch.float32, output_loading_info=True
    )
    if info["missing_keys"]:
        raise ValueError(
            f"the model {name} lacks {sorted(info['missing_keys'])[:3]}, which would be random. "
            "Is it a causal language model, saved whole?"
        )
    spare_threads(model)
    return model.eval(), tokenizer


def load_taught(lesson: Lesson, recipe: Recipe, cache: str | Path | None = None) -> tuple[Any, Any]:
    """Teach a model a lesson, or load it from the cache if that was done before.

    The default cache is `torch-alm` in `$XDG_CACHE_HOME` or `~/.cache`.
    """
    content = [CACHE_VERSION, asdict(recipe), lesson.content, lesson.texts]
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-alm"
    folder = Path(cache or usual) / f"{lesson.name}-{key}"
    if not folder.is_dir():
        save_model(folder, *teach(lesson, recipe))
    return load_model(folder)


def save_model(folder: Path, model: Any, tokenizer: Any) -> None:
    """Write beside the folder, then rename: no reader finds half a model."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as place:
        partial = Path(place, folder.name)
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        with suppress(OSError):  # another process has finished the same model
            partial.rename(folder)


def make_trainable(model: Any, options: Options) -> Any:
    """Choose the parameters to train, or add adapters; return the model."""
    if options.lora:
        import peft

        rank = options.lora
        config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
        model = peft.get_peft_model(model, config)
    else:
        select_trainable(model, options.parameters or "all")
    return model


def select_trainable(model: nn.Module, pattern: str) -> None:
    """Choose which of a model's parameters are trained.

    Args:
        model: Changed in place.
        pattern: A regular expression of whole names, or a word: `all`; `rmu`, the down projections
            of RMU's layer and the two before it; `below`, all of RMU's layer and those before it.
    """
    if pattern in ("rmu", "below"):
        stack, _, last = steered_layer(model, "auto").rpartition(".")
        first = max(0, int(last) - 2) if pattern == "rmu" else 0
        layers = "|".join(map(str, range(first, int(last) + 1)))
        part = r"mlp\.down_proj\.weight" if pattern == "rmu" else ".*"
        pattern = rf"{re.escape(stack)}\.({layers})\.{part}"
    names = dict(model.named_parameters())
    chosen = {n for n in names if re.fullmatch(".*" if pattern == "all" else pattern, n)}
    if not chosen:
        raise ValueError(
            f"--parameters {pattern!r} is the name of no parameter of {type(model).__name__}; "
            f"nothing would be trained. Did you mean something like {list(names)[-2:]}?"
        )
    for name, parameter in names.items():
        parameter.requires_grad_(name in chosen)
