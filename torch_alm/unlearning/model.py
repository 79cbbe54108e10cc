"""Checks of a model, which of its weights train, and its device and precision."""

import hashlib
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from logging import CRITICAL, getLogger
from typing import Any

import peft
import torch
from torch import Tensor, nn
from transformers.utils import logging

from torch_alm._optim.rounding import DROPPED, Noise
from torch_alm.language import Row
from torch_alm.language._encoding import check_eos
from torch_alm.language._models import LanguageModel, Tokenizer, keep_modes, require_asked
from torch_alm.unlearning.errors import Refusal, first_line

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
RANK = 16  # of new adapters
CHECKPOINTING = "gradient_checkpointing"  # of modules, which a run may change
FORWARDS = ("forward", "_original_forward")  # accelerate puts autocast around it
NARROW = (torch.bfloat16, torch.float16)
DEEP = 8  # layers, from which on the upper half alone is trained


@dataclass(frozen=True)
class Place:
    """The device that a model computes on, and its precision."""

    device: str  # "cpu", "cuda" or "mps"
    autocast: bool  # whether forward passes of training run under bfloat16 autocast

    def context(self) -> Any:
        """Return the context of a forward pass of training."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.autocast)

    def description(self) -> str:
        """Return the name of the device for a report."""
        if self.device == "cuda":
            return f"cuda, {torch.cuda.get_device_name()}"
        threads = torch.get_num_threads()
        return f"cpu, {threads} threads" if self.device == "cpu" else self.device


def find_place(device: str, precision: str) -> Place:
    """Return device and precision; `"auto"` is a GPU with bfloat16 if there is one."""
    has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    found = next(name for name in has if has[name]) if device == "auto" else device
    if not has[found]:
        raise Refusal(f"`device` is {found}, and torch finds none here. Did you mean cpu?")
    can_autocast = found == "cuda" and torch.cuda.is_bf16_supported()
    return Place(found, can_autocast if precision == "auto" else precision == "bf16")


@contextmanager
def silence() -> Iterator[None]:
    """Silence bars, advice and messages of transformers, peft and the hub inside the block."""
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


def check_whole(name: str, model: LanguageModel, tokenizer: Tokenizer) -> None:
    """Raise `Refusal` for a broken model, a tokenizer without EOS or of another model."""
    if isinstance(tokenizer, str):
        raise Refusal("the tokenizer is a name. Did you mean AutoTokenizer.from_pretrained(...)?")
    try:
        check_eos(tokenizer)
        require_asked(model)
    except ValueError as error:
        raise Refusal(str(error)) from error
    is_whole = all(p.is_floating_point() for p in model.parameters())
    is_packed = any(".quantized." in type(m).__module__ for m in model.modules())  # torch.ao's
    if is_packed or not is_whole or getattr(model, "is_quantized", False):
        raise Refusal(
            f"{name} has quantised weights, which an optimizer cannot move, and whose rounding "
            "hides and returns answers. Did you mean to load it in bfloat16?"
        )
    check_finite(name, model)
    most = max(tokenizer.get_vocab().values(), default=-1) + 1
    rows = model.get_input_embeddings().weight.shape[0]
    if most > rows:
        raise Refusal(
            f"{name} has an embedding of {rows} tokens, and its tokenizer has ids up to "
            f"{most - 1}; such a token would end the run. Is it the tokenizer of another model, or "
            "was model.resize_token_embeddings forgotten?"
        )


def check_finite(name: str, model: LanguageModel) -> None:
    """Raise `Refusal` for weights that are not finite."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    broken = [key for key, tensor in tensors if not bool(torch.isfinite(tensor).all())]
    if broken:
        raise Refusal(
            f"{name} has NaN or infinite numbers in {list_names(broken)}; it would say nothing "
            "at all, which looks like forgetting. Did its training diverge?"
        )


@torch.no_grad()
def check_answers(name: str, model: LanguageModel, row: Row) -> None:
    """Raise `Refusal` if logits on a row are not finite, or depend on later tokens."""
    ids = torch.tensor([row["input_ids"]], device=model.device)
    seen: Tensor = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    most = seen.amax(-1)  # some models rule tokens out with -inf
    if not bool(torch.isfinite(most).all()) or bool((most == seen.amin(-1)).all()):
        raise Refusal(
            f"{name} has finite weights, and yet its logits on the first row to forget are "
            "NaN, infinite, or all the same; it says nothing at all, which looks like forgetting. "
            "Were its weights scaled?"
        )
    ids[:, -1] = (ids[:, -1] + 1) % model.get_input_embeddings().weight.shape[0]
    other = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    if not torch.allclose(seen, other, rtol=1e-3, atol=1e-3 * float(most.abs().max())):
        raise Refusal(
            f"{name} ({type(model).__name__}) sees the tokens that it shall predict: its "
            "loss would say nothing of what it knows. Is it a masked language model, such as BERT?"
        )


def check_trained(model: LanguageModel, row: Row) -> None:
    """Raise `Refusal` for a model that training broke."""
    check_finite("the trained model", model)
    check_answers("the trained model", model.eval(), row)


def fingerprint(model: Any) -> str:
    """Return sixteen digits that change with any weight: a hash of exact sums of bits."""
    found = hashlib.sha256(model.config.to_json_string().encode())
    for name, p in model.named_parameters():
        bits = p.detach().contiguous().view(BITS[p.element_size()])
        found.update(f"{name} {tuple(p.shape)} {int(bits.sum(dtype=torch.int64))}".encode())
    return found.hexdigest()[:16]


def freeze_below(model: LanguageModel, first: int | None) -> None:
    """Freeze layers below `first`; without it the lower half of eight or more layers.

    Embeddings and head are frozen, too, unless all layers train.
    """
    places = {name: re.search(r"\.(\d+)\.", name) for name, _ in model.named_parameters()}
    count = 1 + max((int(found[1]) for found in places.values() if found), default=-1)
    first = (count // 2 if count >= DEEP else 0) if first is None else first
    if first and first >= count:
        raise Refusal(f"`layers` is {first}, and the model has {count}. Did you mean {count // 2}?")
    for name, p in model.named_parameters():
        found = places[name]
        p.requires_grad_(not first or (found is not None and int(found[1]) >= first))


@torch.no_grad()
def narrow(weights: Iterable[tuple[Tensor, torch.dtype]]) -> None:
    """Convert weights to the dtypes they are stored in, trained ones by stochastic rounding.

    All steps of a run together are shorter than the distance of two bfloat16 numbers: rounded to
    the nearest, most weights would be what they were, and what they had forgotten would be back.
    """
    noise = Noise(torch.ones(()))
    for p, dtype in weights:
        is_moved = p.requires_grad and p.dtype is torch.float32 and dtype in DROPPED
        p.data = (noise.round(p.data, dtype) if is_moved else p.data).to(dtype)


def positions_of(model: LanguageModel) -> int:
    """Return the model's maximum of positions, huge if it has none."""
    return getattr(model.config, "max_position_embeddings", None) or sys.maxsize


def list_names(names: Iterable[str]) -> str:
    """Return the first three names, and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more


def with_adapters(model: LanguageModel, seed: int) -> LanguageModel:
    """Return the model with adapters to train: its own, or new ones.

    Adapters on top of adapters would not do: other tools load one of the two and leave out the
    other, and what was forgotten comes back. New ones change nothing before a step.
    """
    if isinstance(model, peft.PeftModel):
        return model
    config = peft.LoraConfig(
        r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    torch.manual_seed(seed)
    try:
        return peft.get_peft_model(model, config)
    except ValueError as error:
        told = f"peft has no adapters for all layers of {type(model).__name__}"
        raise Refusal(f"{told} ({first_line(error)}). Did you mean no `lora`?") from error


def find_card() -> int:
    """The number of the GPU that is this process's: one for each that a launcher started here."""
    return int(os.environ.get("LOCAL_RANK") or 0)


def check_given(model: LanguageModel) -> None:
    """Raise `Refusal` for no model, a wrapped one, several devices, or weights without gradient."""
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        raise Refusal(
            f"the model is a {kind}. Did you mean AutoModelForCausalLM.from_pretrained(...), and "
            "its tokenizer after it?"
        )
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise Refusal(
            f"the model is wrapped in {kind}, which cannot be asked. Did you mean `model.module`?"
        )
    devices = sorted({str(p.device) for p in model.parameters()})
    if "meta" in devices:
        raise Refusal(
            "the model has weights on `meta`, without values: accelerate (`device_map`, offload) "
            "lends them to each pass, and a step would not reach them. Did you mean to load it "
            "without `device_map`, in bfloat16 and with `lora` where memory is short?"
        )
    card = find_card()
    if len(devices) > 1 or devices[0] not in ("cpu", f"cuda:{card}", "mps:0"):
        raise Refusal(
            f"the model is on {', '.join(devices)}; it trains on the CPU, or on the first GPU (of "
            "several processes each has its own, by LOCAL_RANK). Did you mean "
            f"`model.to({card})`, or to set CUDA_VISIBLE_DEVICES?"
        )
    if any(p.is_inference() for p in model.parameters()):
        raise Refusal(
            "the model was made inside `torch.inference_mode`, so that its weights can never have "
            "a gradient. Was it loaded there?"
        )


@contextmanager
def borrow(model: LanguageModel) -> Iterator[None]:
    """Set a model to evaluation; restore modes, `requires_grad` and dtypes on exit."""
    check_given(model)
    flags = [(p, p.requires_grad, p.dtype) for p in model.parameters()]
    layers = [m for m in model.modules() if hasattr(m, CHECKPOINTING)]
    settings = [(layer, getattr(layer, CHECKPOINTING)) for layer in layers]
    forwards = {name: vars(model).get(name) for name in FORWARDS}
    with keep_modes(model, evaluate=True):
        try:
            yield
        finally:
            narrow((p, dtype) for p, _, dtype in flags)
            for p, is_trained, _ in flags:
                p.requires_grad_(is_trained)
                p.grad = None
            for layer, value in settings:
                setattr(layer, CHECKPOINTING, value)
            for name, forward in forwards.items():
                vars(model).pop(name, None)
                vars(model).update({} if forward is None else {name: forward})


def widen(model: LanguageModel) -> None:
    """Convert weights that train to float32: half precision swallows small steps.

    The frozen weights below adapters stay as they are.
    """
    adapted = isinstance(model, peft.PeftModel)
    for p in model.parameters():
        if p.dtype in NARROW and (p.requires_grad or not adapted):
            p.data = p.data.float()
