"""Loading a model and its tokenizer, and which of the weights may move."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from logging import CRITICAL, getLogger
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn
from transformers.utils import logging

from torch_alm.language import LanguageModel, Tokenizer, check_eos
from torch_alm.unlearning.adapters import base_of, is_adapter, loaded_onto
from torch_alm.unlearning.hub import check_model
from torch_alm.unlearning.refusal import Refusal, tried
from torch_alm.unlearning.whole import check_finite, check_loaded, check_vocabulary

WIDTHS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def load_model(
    name: str | Path,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    merge: bool = True,
) -> tuple[LanguageModel, Tokenizer]:
    """Load a causal language model in evaluation mode, and its tokenizer.

    Adapters are merged into the model they were trained on: it is then a model like any other.

    Args:
        name: a folder, or a name on the hub.
        device: where to.
        dtype: of the weights; float32, because bfloat16 swallows small steps and perturbations.
        merge: whether adapters are; otherwise the model is one of peft, and they can be trained.

    Raises:
        Refusal: one of them is missing, is not whole, or cannot be used.
    """
    name = str(name)
    check_folder(name)
    with quiet():
        loader = transformers.AutoTokenizer.from_pretrained
        tokenizer = tried(partial(loader, name), name, "tokenizer")
        if is_adapter(name):
            kind = f"causal language model, for the adapters in {name},"
            model = loaded_onto(_whole(base_of(name), dtype, kind), name, merge)
        else:
            model = _whole(name, dtype)
    try:
        check_eos(tokenizer)
    except ValueError as error:
        raise Refusal(str(error)) from error
    check_finite(f"the model {name}", model)
    check_vocabulary(f"the model {name}", model, tokenizer)
    return model.to(device).eval(), tokenizer


def stored_dtype(name: str) -> torch.dtype:
    """The dtype that a model is stored in; float32 where its configuration does not say.

    For adapters it is that of the model they were trained on.
    """
    with quiet():
        config = transformers.AutoConfig.from_pretrained(
            base_of(name) if is_adapter(name) else name
        )
    found = config.dtype or config.get_text_config().dtype
    named = getattr(torch, found) if isinstance(found, str) else found
    return named if named in WIDTHS else torch.float32


@contextmanager
def stored_as(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Parameters in this dtype within the context, and to the bit what they were after it.

    Cost: a copy of the weights in the dtype, if it is another one.
    """
    wide = [(p, p.data) for p in model.parameters()]
    try:
        for p, data in wide:
            p.data = data.to(dtype)
        yield
    finally:
        for p, data in wide:
            p.data = data


def _whole(name: str, dtype: torch.dtype, kind: str = "causal language model") -> LanguageModel:
    # The full path, so that adapters trained on the model find it from any folder
    known = str(Path(name).resolve()) if os.path.isdir(name) else name
    load = transformers.AutoModelForCausalLM.from_pretrained
    options = {"dtype": dtype, "ignore_mismatched_sizes": True, "output_loading_info": True}
    model, info = tried(partial(load, known, **options), name, kind)
    check_loaded(f"the model {name}", info)
    return model


def check_folder(name: str) -> None:
    """Refuse a folder without a model and its tokenizer, and a name that the hub does not know.

    Raises:
        Refusal: it is so.
    """
    folder = Path(name)
    if not os.path.isdir(name):  # False, too, for a name that no file can have
        if os.path.exists(name) or folder.is_absolute() or name.startswith("."):
            raise Refusal(f"the model {name} is no folder. Is the path right?")
        check_model(name)
        return
    files = {file.name for file in folder.iterdir()}
    if not files & {"config.json", "adapter_config.json"}:
        raise Refusal(
            f"the model {name} has no config.json and no adapter_config.json. Was the model saved "
            "there with save_pretrained?"
        )
    if not files & {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json"}:
        raise Refusal(
            f"the model {name} has no tokenizer beside it, so no text could be read. Did you "
            "call tokenizer.save_pretrained on the same folder?"
        )


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The weights that move, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def positions_of(model: LanguageModel) -> int:
    """Number of tokens that a model can tell the places of; huge where it says nothing of it."""
    return getattr(model.config, "max_position_embeddings", None) or sys.maxsize


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no advice of transformers for what takes a moment."""
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    hub = getLogger("huggingface_hub")
    hub_level = hub.level
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hub.setLevel(CRITICAL)
    try:
        with warnings.catch_warnings():
            # what peft and transformers announce to one another
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        hub.setLevel(hub_level)
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
