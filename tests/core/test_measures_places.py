"""Logits where a label is and nowhere else, and packed answers: both as if it were not so."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from inspect import signature
from types import MethodType
from typing import Any

import pytest
import torch
import transformers
from accelerate.hooks import ModelHook, add_hook_to_module
from accelerate.utils import convert_outputs_to_fp32
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, DataCollatorWithFlattening

from torch_alm import measures
from torch_alm.integrations.transformers import PairedCollator
from torch_alm.measures._logits import takes_positions

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated")

WORDS = 13
SIZES: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "gemma 2, a soft cap": lambda: transformers.Gemma2Config(
        **SIZES, final_logit_softcapping=2.0, query_pre_attn_scalar=8
    ),
    "cohere, a scaled head": lambda: transformers.CohereConfig(**SIZES, logit_scale=0.3),
    "granite, a scaled head": lambda: transformers.GraniteConfig(**SIZES, logits_scaling=3.0),
    "gpt-2": lambda: transformers.GPT2Config(vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2),
}
FACES: dict[str, Callable[..., Tensor]] = {
    "token_nll": measures.token_nll,
    "token_nll, each": lambda m, b: (measures.token_nll(m, b, reduction="none") ** 2).sum(),
    "sequence_nll": measures.sequence_nll,
    "npo": lambda m, b: measures.npo(m, b, other(), beta=0.5),
    "simnpo": measures.simnpo,
    "certificate": lambda m, b: measures.certified_failure(m, b, 0.5),
    "certified tokens": lambda m, b: measures.certified_failure(m, b, aggregate="mean"),
    "failure": measures.exact_match_failure,
    "kl_divergence": lambda m, b: measures.kl_divergence(m, b, other()),
    "flattening": lambda m, b: measures.flattening(m, b, reduction="example"),
}
every_face = pytest.mark.parametrize("face", FACES.values(), ids=FACES)


def made(family: str = "llama", seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(FAMILIES[family]())
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    return model.double().eval()


@functools.cache
def other() -> Any:
    return Restarting(made(seed=1))


class Restarting(nn.Module):
    """Hands on what transformers finds packed sequences by, however the batch tells it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = model

    def forward(self, input_ids: Tensor, position_ids: Tensor, **_: Any) -> Any:
        position_ids = position_ids[0] if position_ids.ndim == 3 else position_ids
        return self.inner(input_ids=input_ids, position_ids=position_ids, use_cache=False)


def rows() -> list[dict[str, list[int]]]:
    """Four answers of unequal lengths; the second row has a label in its first column."""
    ids = torch.randint(3, WORDS, (4, 12), generator=torch.Generator().manual_seed(0)).tolist()
    cut = [(0, 6, 8), (1, 0, 5), (2, 7, 12), (3, 2, 9)]
    return [{"input_ids": ids[i][:n], "labels": [-100] * at + ids[i][at:n]} for i, at, n in cut]


def padded(left: bool = False, start: int = 0) -> dict[str, Tensor]:
    some = rows()[start:]
    longest = max(len(row["input_ids"]) for row in some)

    def column(values: list[list[int]], fill: int) -> Tensor:
        gaps = [[fill] * (longest - len(value)) for value in values]
        return torch.tensor(
            [gap + v if left else v + gap for v, gap in zip(values, gaps, strict=True)]
        )

    ids = [row["input_ids"] for row in some]
    mask = column([[1] * len(each) for each in ids], 0)
    return {
        "input_ids": column(ids, 0),
        "attention_mask": mask,
        "labels": column([row["labels"] for row in some], -100),
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
    }


class Whole(nn.Module):
    """A model of which nobody can ask for less than all logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Any:
        return self.inner(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids
        )


def shapes_of(model: Any) -> list[int]:
    seen: list[int] = []
    head = model.get_output_embeddings()
    head.register_forward_hook(lambda _, __, found: seen.append(found.shape[1]))
    return seen


def gradients(value: Tensor, model: nn.Module) -> list[Tensor]:
    found = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    return [torch.zeros(()) if g is None else g for g in found]


def assert_same(face: Callable, model: Any, batch: Any, whole: Any) -> None:
    found, expected = face(model, batch), face(whole, batch)
    assert_close(found, expected, rtol=1e-10, atol=1e-12)
    if found.requires_grad:
        pairs = zip(gradients(found, model), gradients(expected, whole), strict=True)
        for ours, theirs in pairs:
            assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@every_face
@pytest.mark.parametrize("family", FAMILIES)
def test_labelled_positions_alone_give_the_same_value_and_gradient(
    face: Callable, family: str
) -> None:
    model = made(family)
    whole = Whole(model)
    seen = shapes_of(model)
    left = "gemma" not in family  # of padding its attention makes NaN in float64
    for batch in (padded(start=2), padded(left=left)):
        seen.clear()
        assert_same(face, model, batch, whole)
        assert seen == [int((batch["labels"][:, 1:] >= 0).any(0).sum()), batch["labels"].shape[1]]


def checkpointed(model: Any) -> Any:
    model.train().gradient_checkpointing_enable({"use_reentrant": False})
    return model


class Swallowing(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.module = model

    def forward(self, input_ids: Tensor, logits_to_keep: int | Tensor = 0, **kwargs: Any) -> Any:
        return self.module(input_ids=input_ids, **kwargs)


class Counting(Swallowing):
    def forward(self, input_ids: Tensor, logits_to_keep: int = 0, **kwargs: Any) -> Any:
        return self.module(input_ids=input_ids, logits_to_keep=logits_to_keep, **kwargs)


class Passing(Swallowing):
    """Hands on all that it is given, as DDP does."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def hooked(model: Any) -> Any:
    add_hook_to_module(model, ModelHook())
    return model


def prepared(model: Any) -> Any:
    """As accelerate prepares a model under mixed precision."""
    model.forward = MethodType(convert_outputs_to_fp32(model.forward.__func__), model)
    return model


LORA = LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")
WRAPPERS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "peft": (lambda model: get_peft_model(model, LORA), True),
    "torch.compile": (lambda model: torch.compile(model, backend="eager"), True),
    "DDP": (Passing, True),
    "compiled, in DDP, of PEFT": (
        lambda model: torch.compile(Passing(get_peft_model(model, LORA)), backend="eager"),
        True,
    ),
    "hooks of accelerate": (hooked, True),
    "mixed precision of accelerate": (prepared, True),
    "gradient checkpointing": (checkpointed, True),
    "DataParallel": (nn.DataParallel, False),
    "swallowed": (Swallowing, False),
    "a number only": (Counting, False),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_are_seen_through_and_what_heeds_nothing_is_noticed(name: str) -> None:
    wrap, heeds = WRAPPERS[name]
    batch, plain = padded(left=True), made()
    expected = measures.token_nll(Whole(plain), batch)
    model = made()
    seen = shapes_of(model)
    found = measures.token_nll(wrap(model), batch)
    tolerance = 1e-6 if name == "mixed precision of accelerate" else 1e-12
    assert_close(found.double(), expected, rtol=tolerance, atol=0)
    kept = int((batch["labels"][:, 1:] >= 0).any(0).sum())
    assert seen == [kept if heeds else batch["labels"].shape[1]]


def patched(model: Any) -> Any:
    """A `forward` of the object, as people who patch leave it, whose signature says nothing."""
    inner = model.forward
    model.forward = lambda *args, **kwargs: inner(*args, **kwargs)
    return model


SURROUNDINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "no_grad": (torch.no_grad, lambda model: model),
    "inference_mode": (torch.inference_mode, lambda model: model),
    "DataParallel": (nullcontext, nn.DataParallel),
    "DDP": (nullcontext, Passing),
    "a forward of the object": (nullcontext, patched),
}


MEASURES = [n for n in measures.__all__ if "model" in signature(getattr(measures, n)).parameters]


@pytest.mark.parametrize("how", SURROUNDINGS)
@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_of_a_model_is_the_same_whatever_is_around_it(name: str, how: str) -> None:
    def asked(context: Any, wrap: Any) -> Tensor:
        model, measure = wrap(made()), getattr(measures, name)
        layer = next(n for n, _ in model.named_modules() if n.endswith("layers.0"))
        given = {"reference": wrap(made(seed=1)), "layer": layer, "direction": torch.ones(16)}
        with context():
            batch = padded(start=2)
            found = measure(
                model,
                batch,
                **{n: v for n, v in given.items() if n in signature(measure).parameters},
            )
        return found.clone()

    assert_close(asked(*SURROUNDINGS[how]), asked(nullcontext, lambda m: m), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["token_nll", "simnpo", "certificate", "flattening"])
def test_labels_belong_to_the_positions_that_a_batch_brings(name: str) -> None:
    face = FACES[name]
    model, batch, places = made(), padded(start=2), torch.arange(5, 12)
    del batch["position_ids"]
    batch["labels"][:, :6] = -100
    own = {**batch, "logits_to_keep": places, "labels": batch["labels"][:, places]}
    assert_close(face(model, own), face(model, batch), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("first", [1, 3])
def test_positions_that_nobody_asked_for_are_not_taken_for_the_labelled_ones(first: int) -> None:
    z, labels = torch.randn(1, 5, 4), torch.full((1, 5), -100)
    labels[:, 1 : 6 - first] = 1  # as many labels as positions that the model gives
    with pytest.raises(ValueError, match="do not belong together"):
        measures.token_nll(lambda: z[:, first:], {"labels": labels})


def test_virtual_tokens_move_every_position_and_are_refused_as_before() -> None:
    config = PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    model = get_peft_model(made(), config).double()
    assert not takes_positions(model)
    batch = {name: x for name, x in padded().items() if name != "position_ids"}
    with pytest.raises(ValueError, match="add virtual tokens"):
        measures.token_nll(model, batch)


# --- packed rows ---------------------------------------------------------------------------------


def flattened(**options: bool) -> dict[str, Any]:
    return DataCollatorWithFlattening(**options)(rows(), return_tensors="pt")


class Tokens:
    pad_token_id = eos_token_id = 0


def paired() -> dict[str, Any]:
    """Two packed rows, the second of which is padded."""
    joined = []
    for some in (
        rows()[:1] + rows()[2:],
        [{"input_ids": [5], "labels": [-100]}, *rows()[1:2], {"input_ids": [3], "labels": [-100]}],
    ):
        row = {key: [x for each in some for x in each[key]] for key in ("input_ids", "labels")}
        places = [i for each in some for i in range(len(each["input_ids"]))]
        joined.append({**row, "position_ids": places})
    return PairedCollator(Tokens())(joined)


def by_lengths() -> dict[str, Any]:
    """Told by the lengths alone; the positions, which the model needs, are withheld."""
    batch = flattened(return_flash_attn_kwargs=True)
    return {**batch, "position_ids": batch["position_ids"][None]}


PACKED: dict[str, Callable[[], dict[str, Any]]] = {
    "flattened": flattened,
    "paired": paired,
    "by lengths": by_lengths,
    "by index": lambda: {
        **(b := flattened(return_seq_idx=True)),
        "position_ids": b["position_ids"][None],
    },
}


@pytest.mark.parametrize("how", PACKED)
@every_face
def test_packed_answers_count_as_they_do_in_rows_of_their_own(face: Callable, how: str) -> None:
    model = made()
    found = face(Restarting(model), PACKED[how]())
    assert_close(found, face(model, padded()), rtol=1e-10, atol=1e-12)


def test_a_packed_batch_has_a_loss_for_each_of_its_answers() -> None:
    model, batch = made(), padded()
    for measure in (measures.token_nll, measures.sequence_nll):
        found = measure(Restarting(model), flattened(), reduction="none")
        assert_close(found, measure(model, batch, reduction="none"), rtol=1e-10, atol=0)


def test_positions_that_begin_after_padding_do_not_pack_a_row() -> None:
    batch = padded(left=True)
    batch["labels"][2] = -100
    found = measures.token_nll(made(), batch, reduction="none")
    assert found.shape == (4,) and found[2] == 0 and (found[[0, 1, 3]] > 0).all()


def test_states_of_packed_answers_count_alike() -> None:
    model, u = made(), measures.steering_vector(16, dtype=torch.float64)
    labels = {"labels": padded()["labels"].clone()}
    labels["labels"][:, 0] = -100  # whoever flattens masks the first token of each
    packed, plain = (
        measures.rmu(Restarting(model), b, "inner.model.layers.0", u)
        for b in (flattened(), padded() | labels)
    )
    assert_close(packed, plain, rtol=1e-10, atol=0)
