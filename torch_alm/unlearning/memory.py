"""Check a model and rows in memory, and restore the model's modes afterwards."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from peft import PeftModel
from torch import nn

from torch_alm.language import record_of
from torch_alm.language._models import LanguageModel, Tokenizer, keep_modes
from torch_alm.unlearning.errors import Refusal
from torch_alm.unlearning.loading import Setup, check_sets, with_rows
from torch_alm.unlearning.model import check_answers, check_whole, find_place, narrow
from torch_alm.unlearning.options import Options
from torch_alm.unlearning.rows import Entry, entry_of

Rows: TypeAlias = Iterable[Mapping[str, Any]]
CHECKPOINTING = "gradient_checkpointing"  # of modules, which a run may change
FORWARDS = ("forward", "_original_forward")  # accelerate puts autocast around it
NARROW = (torch.bfloat16, torch.float16)


def entries_of(rows: Rows | None, role: str) -> list[Entry]:
    """Return rows as entries, named by role and place; empty columns of `datasets` are left out."""
    found: list[Entry] = []
    if isinstance(rows, str | Path | Mapping):
        raise Refusal(
            f"{role} is a {type(rows).__name__}, and no list of rows. Did you mean `[json.loads("
            "line) for line in open(path)]`, or the command, which reads files?"
        )
    try:
        for i, row in enumerate(cast("Iterable[Any]", [] if rows is None else rows), 1):
            record = record_of(f"{role} row {i}", {**row} if isinstance(row, Mapping) else row)
            kept = {k: v for k, v in record.fields.items() if v is not None}
            found.append(entry_of(record._replace(fields=kept), "to rename its columns"))
    except ValueError as error:
        raise Refusal(str(error)) from error
    if rows is not None and not found:
        raise Refusal(f"{role} has no rows, so nothing could be measured. Is it the right list?")
    return found


def sets_of(**rows: Rows | None) -> dict[str, list[Entry]]:
    """Return all sets as entries; raise `Refusal` for a row in two of them."""
    found = {name: entries_of(each, name) for name, each in rows.items()}
    check_sets(found)
    return found


def make_setup(
    model: LanguageModel,
    tokenizer: Tokenizer,
    given: Options,
    found: Mapping[str, list[Entry]],
) -> Setup:
    """Return the model with encoded rows; raise `Refusal` if it cannot be asked."""
    name = "the model"
    if isinstance(tokenizer, str):
        raise Refusal("the tokenizer is a name. Did you mean AutoTokenizer.from_pretrained(...)?")
    where = find_place(next(model.parameters()).device.type, given.precision)
    check_whole(name, model, tokenizer)
    loaded = with_rows(Setup(model, tokenizer, where, given, {}), found)
    check_answers(name, model, loaded.rows("forget")[0])
    return loaded


def check_given(model: LanguageModel) -> None:
    """Refuse what is no model, is wrapped, lies in pieces or elsewhere, or can have no gradient."""
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
    if "meta" in devices and any(hasattr(m, "_hf_hook") for m in model.modules()):
        raise Refusal(
            "the model lies in pieces: accelerate (`device_map`, offload) lends weights on `meta` "
            "to each pass, and a step would not reach them. Did you mean to load it without "
            "`device_map`, in bfloat16 and with `lora` where memory is short?"
        )
    if "meta" in devices:
        raise Refusal("the model has weights on `meta`, without values. Was it loaded with them?")
    if len(devices) > 1 or devices[0] not in ("cpu", "cuda:0", "mps:0"):
        raise Refusal(
            f"the model is on {', '.join(devices)}; it trains on the CPU, or on the first GPU. Did "
            "you mean `model.to(0)`, or to set CUDA_VISIBLE_DEVICES?"
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
    adapted = isinstance(model, PeftModel)
    for p in model.parameters():
        if p.dtype in NARROW and (p.requires_grad or not adapted):
            p.data = p.data.float()
