"""The memory that a run needs, of a model that is given by its configuration alone."""

from collections.abc import Sequence
from math import ceil

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from transformers.pytorch_utils import Conv1D

from torch_alm.language import Row, answer_ids, collate, pad_id
from torch_alm.language._models import LanguageModel
from torch_alm.language._strings import MOST_SPELLINGS
from torch_alm.unlearning.asking import FEW_TOKENS, ROWS_PER_BATCH, TOKENS_PER_BATCH
from torch_alm.unlearning.layer_cache import memory_limit, split_layers
from torch_alm.unlearning.loading import Setup
from torch_alm.unlearning.model import RANK
from torch_alm.unlearning.train import peak_memory

FLOAT = 4  # bytes
ALWAYS = ("program", "weights", "moments", "kept")
PASSES = 4  # copies of the logits of a batch at once: of the pass, its loss and their gradients


def plan_memory(loaded: Setup, ranks: int) -> dict[str, float]:
    """Return the bytes that each of so many processes needs in a step, by what takes them.

    The model is one of `FakeTensorMode`. Both sides have a gradient and AdamW's two moments. Kept
    are the last good weights, what enters the first trained layer, and the original's answers. A
    row to forget may be in a batch in four spellings.
    """
    model, given = loaded.model, loaded.given
    trained = FLOAT * _mark_trained(model, lora=given.lora)
    rows = [*loaded.rows("forget"), *loaded.rows("retain")]
    words = model.get_output_embeddings().weight.shape[0]
    width = model.config.get_text_config().hidden_size
    tokens = sum(len(row["input_ids"]) for row in rows) if split_layers(model)[0] else 0
    answers = FLOAT * words * sum(len(answer_ids(row)) for row in loaded.rows("retain"))
    share = ceil(given.batch_size / ranks)
    spelled = _longest(loaded.rows("forget"), share) * MOST_SPELLINGS
    batches = spelled, _longest(loaded.rows("retain"), share)
    found = {
        "program": float(peak_memory()) if loaded.place.device == "cpu" else 0.0,
        "weights": float(trained * given.lora + sum(p.nbytes for p in model.parameters())),
        "gradients": float(trained * (3 if ranks > 1 else 2)),  # and the buckets of DDP
        "moments": float(4 * trained),
        "kept": float(
            trained + min(FLOAT * width * tokens, memory_limit()) + min(answers, memory_limit())
        ),
        "activations": float(max(_count_pass(loaded, batch) for batch in batches)),
        "asking": float(_count_asking(loaded)),
    }
    at_most = max(found["gradients"] + found["activations"], found["asking"])
    return {**found, "in all": sum(found[name] for name in ALWAYS) + at_most}


def _longest(rows: Sequence[Row], count: int) -> list[Row]:
    return sorted(rows, key=lambda row: -len(row["input_ids"]))[:count]


def _mark_trained(model: LanguageModel, *, lora: bool) -> int:
    """Return the number of weights that train; of adapters, mark the layers that they train."""
    if not lora:
        return sum(p.numel() for p in model.parameters() if p.requires_grad)
    head = model.get_output_embeddings()
    linear = [m for m in model.modules() if isinstance(m, nn.Linear | Conv1D) and m is not head]
    model.requires_grad_(False)
    for layer in linear:
        layer.weight.requires_grad_(True)
    return RANK * sum(sum(layer.weight.shape) for layer in linear)


def _count_pass(loaded: Setup, rows: Sequence[Row]) -> int:
    """Return the bytes of a batch: those kept for the backward pass by the body, and its logits."""
    model = loaded.model
    own = {StorageWeakRef(p.untyped_storage()) for p in model.parameters()}
    found: dict[StorageWeakRef, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if (place := StorageWeakRef(storage)) not in own:
            found[place] = storage.nbytes()
        return tensor

    ids = collate(rows, pad_id(loaded.tokenizer))["input_ids"]
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        kept = model(input_ids=ids, use_cache=False, logits_to_keep=1)
    del kept
    words = model.get_output_embeddings().weight.shape[0]
    logits = PASSES * FLOAT * words * sum(len(answer_ids(row)) for row in rows)
    return sum(found.values()) + logits


def _count_asking(loaded: Setup) -> int:
    """Return the bytes of the keys and values of the rows that are asked at once."""
    config = loaded.model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rows = loaded.rows("forget")
    tokens = len(rows[:ROWS_PER_BATCH]) * max(len(row["input_ids"]) + FEW_TOKENS for row in rows)
    each = 2 * config.num_hidden_layers * heads * size * loaded.model.dtype.itemsize
    return each * min(tokens, TOKENS_PER_BATCH)
