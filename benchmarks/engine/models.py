"""Models to unlearn from: pretrained ones, or small ones trained here and kept in a cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from benchmarks.engine.scratch import Lesson, Recipe, teach
from torch_alm.language import check_eos

CACHE_VERSION = 1  # to be raised when a change of the training code makes cached models wrong


def trained(
    lesson: Lesson,
    recipe: Recipe,
    cache_dir: str | Path | None = None,
    seed: int = 0,
    *,
    progress: bool = True,
) -> tuple[Any, Any]:
    """The model that has learnt a lesson, from the cache where it was trained before."""
    folder = Path(cache_dir or default_cache()) / f"{lesson.name}-{_key(lesson, recipe, seed)}"
    if not folder.is_dir():
        label = lesson.name if progress else None
        _save(folder, *teach(lesson, recipe, seed, label))
    with _quiet():
        return load_pretrained(folder)


def load_pretrained(
    name_or_path: str | Path, dtype: torch.dtype = torch.float32
) -> tuple[Any, Any]:
    """A causal language model and its tokenizer, from a local folder or the hub.

    Args:
        name_or_path: What `from_pretrained` takes.
        dtype: Of the weights. fp32, because bf16 weights swallow a SAM perturbation.

    Raises:
        ValueError: Model or tokenizer cannot be loaded, or the tokenizer has no EOS token.
    """
    tokenizer = _from_pretrained(AutoTokenizer, name_or_path, "tokenizer")
    check_eos(tokenizer)
    model = _from_pretrained(AutoModelForCausalLM, name_or_path, "causal language model")
    return model.to(dtype).eval(), tokenizer


def default_cache() -> Path:
    """`$TORCH_ALM_CACHE`, or `torch-alm` in `$XDG_CACHE_HOME` or `~/.cache`."""
    if chosen := os.environ.get("TORCH_ALM_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-alm"


def _from_pretrained(loader: Any, name_or_path: str | Path, kind: str) -> Any:
    try:
        return loader.from_pretrained(name_or_path)
    except (ImportError, OSError, ValueError, KeyError) as error:  # a package to convert with, too
        is_folder = Path(name_or_path).is_dir()
        place = "in the folder" if is_folder else "on the hub (and no such folder) under"
        raise ValueError(
            f"load_pretrained: no {kind} {place} {str(name_or_path)!r}: {error}\n"
            "Were model and tokenizer both saved there with save_pretrained?"
        ) from error


def _key(lesson: Lesson, recipe: Recipe, seed: int) -> str:
    """A hash of everything the weights depend on."""
    content = [CACHE_VERSION, asdict(recipe), seed, lesson.content, lesson.texts]
    if lesson.base is not None:
        weights = sorted(lesson.base.glob("*.safetensors"))
        content += [hashlib.sha256(path.read_bytes()).hexdigest() for path in weights]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def _save(folder: Path, model: Any, tokenizer: Any) -> None:
    """Write beside the folder, then rename: a reader never finds half a model."""
    partial = folder.with_name(f"partial-{folder.name}-{uuid4().hex}")
    partial.mkdir(parents=True)
    try:
        with _quiet():
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
        os.replace(partial, folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process has just finished the same model
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars of transformers for what takes a moment; they would break ours."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
