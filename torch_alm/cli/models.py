"""Loading a model and its tokenizer, where to put them, and which of the weights may move."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from logging import CRITICAL, getLogger
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from torch import Tensor, nn
from transformers.utils import logging

from torch_alm.cli.refusal import Refusal
from torch_alm.language import LanguageModel, Tokenizer, check_eos

LORA_RANK = 16


@dataclass(frozen=True)
class Place:
    """Where a model computes, and in which precision.

    Attributes:
        device: `"cpu"`, `"cuda"` or `"mps"`.
        autocast: whether forward passes of training run under bfloat16 autocast.
        dtype: of the weights. float32, because bfloat16 swallows small steps and perturbations;
            under LoRA on a GPU, where they are frozen, the base weights are bfloat16.
    """

    device: str
    autocast: bool
    dtype: torch.dtype

    def context(self) -> Callable[[], Any]:
        """What makes the context of a training forward pass."""
        return partial(torch.autocast, self.device, torch.bfloat16, enabled=self.autocast)


def place(device: str, precision: str, *, lora: bool) -> Place:
    """The place for what was asked, `"auto"` being the GPU and bfloat16 where there is one."""
    found = _best_device() if device == "auto" else device
    if found == "cuda" and not torch.cuda.is_available():
        raise Refusal("--device cuda, and torch finds no GPU here. Did you mean --device cpu?")
    on_gpu = found == "cuda" and torch.cuda.is_bf16_supported()
    autocast = on_gpu if precision == "auto" else precision == "bf16"
    narrow = lora and autocast and on_gpu
    return Place(found, autocast, torch.bfloat16 if narrow else torch.float32)


def _best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def load(name: str, place: Place) -> tuple[LanguageModel, Tokenizer]:
    """A causal language model in evaluation mode, and its tokenizer.

    Raises:
        Refusal: one of them is missing or cannot be used.
    """
    _check_folder(name)
    with quiet():
        tokenizer = _from_pretrained(transformers.AutoTokenizer, name, "tokenizer")
        model = _from_pretrained(
            transformers.AutoModelForCausalLM, name, "causal language model", dtype=place.dtype
        )
    try:
        check_eos(tokenizer)
    except ValueError as error:
        raise Refusal(str(error)) from error
    return model.to(place.device).eval(), tokenizer


def _check_folder(name: str) -> None:
    folder = Path(name)
    if not folder.is_dir():
        if folder.exists() or folder.is_absolute() or name.startswith("."):
            raise Refusal(f"--model {name} is no folder. Is the path right?")
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


def _from_pretrained(loader: Any, name: str, kind: str, **options: Any) -> Any:  # noqa: ANN401
    try:
        return loader.from_pretrained(name, **options)
    except Exception as error:  # transformers has no error of its own for any of the many reasons
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise Refusal(
            f"cannot load a {kind} from {name!r} ({first}). Is it a folder made with "
            "save_pretrained, or the name of a model on the hub?"
        ) from error


def with_lora(model: LanguageModel, rank: int = LORA_RANK) -> LanguageModel:
    """The model with adapters on all its linear layers; nothing else may move."""
    config = peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with quiet():
        return peft.get_peft_model(model, config)


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """The weights that move, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


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
