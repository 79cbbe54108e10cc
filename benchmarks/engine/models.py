"""Models to unlearn from: pretrained ones, or small ones trained here and kept in a cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.engine.scratch import Lesson, Recipe, teach
from torch_alm.unlearning.models import load_model, quiet

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
    return load_model(folder)


def default_cache() -> Path:
    """`$TORCH_ALM_CACHE`, or `torch-alm` in `$XDG_CACHE_HOME` or `~/.cache`."""
    if chosen := os.environ.get("TORCH_ALM_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-alm"


def _key(lesson: Lesson, recipe: Recipe, seed: int) -> str:
    """A hash of everything the weights depend on."""
    content = [CACHE_VERSION, asdict(recipe), seed, lesson.content, lesson.texts]
    if lesson.base is not None:
        weights = sorted(lesson.base.glob("*.safetensors"))
        content += [hashlib.sha256(path.read_bytes()).hexdigest() for path in weights]
    if lesson.replay:  # a model made without it is that model
        content.append(lesson.replay)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


def _save(folder: Path, model: Any, tokenizer: Any) -> None:
    """Write beside the folder, then rename: a reader never finds half a model."""
    partial = folder.with_name(f"partial-{folder.name}-{uuid4().hex}")
    partial.mkdir(parents=True)
    try:
        with quiet():
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
        os.replace(partial, folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process has just finished the same model
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
