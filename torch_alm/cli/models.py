"""Loading a model and its tokenizer, and which of the weights may move."""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from logging import CRITICAL, getLogger
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from torch import Tensor, nn
from transformers.utils import find_adapter_config_file, logging

from torch_alm.cli.hub import check_model
from torch_alm.cli.places import Place
from torch_alm.cli.refusal import Refusal
from torch_alm.cli.whole import check_finite, check_loaded, check_vocabulary
from torch_alm.language import LanguageModel, Tokenizer, check_eos

WIDTHS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def load(name: str, place: Place, *, merge: bool = True) -> tuple[LanguageModel, Tokenizer]:
    """Load a causal language model in evaluation mode, and its tokenizer.

    Adapters are merged into the model they were trained on: it is then a model like any other.

    Args:
        name: a folder, or a name on the hub.
        place: where to.
        merge: whether adapters are; otherwise the model is one of peft, and they can be trained.

    Raises:
        Refusal: one of them is missing, is not whole, or cannot be used.
    """
    _check_folder(name)
    with quiet():
        loader = transformers.AutoTokenizer.from_pretrained
        tokenizer = tried(partial(loader, name), name, "tokenizer")
        model = _adapted(name, place, merge) if is_adapter(name) else _whole(name, place)
    try:
        check_eos(tokenizer)
    except ValueError as error:
        raise Refusal(str(error)) from error
    check_finite(f"--model {name}", model)
    check_vocabulary(f"--model {name}", model, tokenizer)
    return model.to(place.device).eval(), tokenizer


def stored_dtype(name: str) -> torch.dtype:
    """The dtype that a model is stored in; float32 where its configuration does not say.

    For adapters it is that of the model they were trained on.
    """
    with quiet():
        config = transformers.AutoConfig.from_pretrained(
            _base_of(name) if is_adapter(name) else name
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


def is_adapter(name: str) -> bool:
    """Tell whether a folder, or a model on the hub, holds adapters for another model."""
    return find_adapter_config_file(name) is not None


def _whole(name: str, place: Place, kind: str = "causal language model") -> LanguageModel:
    # The full path, so that adapters trained on the model find it from any folder
    known = str(Path(name).resolve()) if Path(name).is_dir() else name
    load = transformers.AutoModelForCausalLM.from_pretrained
    options = {"dtype": place.dtype, "ignore_mismatched_sizes": True, "output_loading_info": True}
    model, info = tried(partial(load, known, **options), name, kind)
    check_loaded(f"--model {name}", info)
    return model


def _adapted(name: str, place: Place, merge: bool) -> LanguageModel:
    base = _whole(_base_of(name), place, f"causal language model, for the adapters in {name},")
    model, result = tried(partial(_with_adapters, base, name, not merge), name, "set of adapters")
    missing = [key for key in result.missing_keys if ".default" in key]
    unexpected = result.unexpected_keys
    found = {"missing_keys": missing, "unexpected_keys": unexpected, "mismatched_keys": ()}
    check_loaded(f"--model {name}", found)
    if merge:
        return model.merge_and_unload().requires_grad_(True)  # peft has frozen it
    config = model.peft_config["default"]
    if config.peft_type != peft.PeftType.LORA:
        raise Refusal(
            f"--model {name} holds adapters of the kind {config.peft_type.value}, which --lora "
            "cannot train on. Did you mean to leave out --lora? The whole model is saved then."
        )
    config.base_model_name_or_path = base.name_or_path  # in full: found from any folder
    return model


def _base_of(name: str) -> str:
    """The model that adapters were trained on; a relative path may start where they lie."""
    config = find_adapter_config_file(name)
    assert config is not None
    base = json.loads(Path(config).read_text(encoding="utf-8")).get("base_model_name_or_path")
    beside = Path(name) / (base or "")
    if base and beside.is_dir():
        base = str(beside)
    is_path = base and (Path(base).is_absolute() or base.startswith("."))
    if not base or (is_path and not Path(base).is_dir()):
        raise Refusal(
            f"--model {name} holds adapters for {base or 'a model that it does not name'}, which "
            "is not there; without it they are no model. Was it moved? Its place stands in "
            "adapter_config.json, base_model_name_or_path."
        )
    if not Path(base).is_dir():
        check_model(base)
    return base


def _with_adapters(base: LanguageModel, name: str, trains: bool) -> tuple[LanguageModel, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of missing weights, which are refused
        model = peft.PeftModel.from_pretrained(base, name, is_trainable=trains)
        weights = peft.load_peft_weights(name, device=str(base.device))
        return model, peft.set_peft_model_state_dict(model, weights)


def _check_folder(name: str) -> None:
    folder = Path(name)
    if not folder.is_dir():
        if folder.exists() or folder.is_absolute() or name.startswith("."):
            raise Refusal(f"--model {name} is no folder. Is the path right?")
        check_model(name)
        return
    files = {file.name for file in folder.iterdir()}
    if not files & {"config.json", "adapter_config.json"}:
        raise Refusal(
            f"--model {name} has no config.json and no adapter_config.json. Was the model saved "
            "there with save_pretrained?"
        )
    if not files & {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json"}:
        raise Refusal(
            f"--model {name} has no tokenizer beside the model, so no text could be read. Did you "
            "call tokenizer.save_pretrained on the same folder?"
        )


def tried(load: Callable[[], Any], name: str, kind: str) -> Any:  # noqa: ANN401
    """Load something.

    Raises:
        Refusal: it could not be, with the first line of the reason.
    """
    try:
        return load()
    except Exception as error:  # transformers has no error of its own for any of the many reasons
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise Refusal(
            f"cannot load a {kind} from {name!r} ({first}). Is it a folder made with "
            "save_pretrained, or the name of a model on the hub?"
        ) from error


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
