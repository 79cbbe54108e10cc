"""A model that is not all there is refused before anything else: random weights know nothing."""

import copy
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AddedToken,
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from tests.command.conftest import FORGET, Refused
from tests.command.test_lora import KINDS, adapted
from torch_alm.command.models import load_model
from torch_alm.language import encode
from torch_alm.unlearning.errors import Refusal
from torch_alm.unlearning.model import check_answers, fingerprint, silence

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
         "num_attention_heads": 2}  # fmt: skip
Weights = dict[str, torch.Tensor]


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """The model's folder again, with its weights changed."""

    def changed(change: Callable[[Weights], Weights] = lambda weights: weights) -> Path:
        path = tmp_path / "changed"
        shutil.copytree(folder, path)
        weights = change(load_file(path / "model.safetensors"))
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
        return path

    return changed


def without(*names: str) -> Callable[[Weights], Weights]:
    return lambda weights: {k: v for k, v in weights.items() if k not in names}


HEAD, NORM, EMBEDDING = "lm_head.weight", "model.norm.weight", "model.embed_tokens.weight"
BROKEN: dict[str, tuple[Callable[[Weights], Weights], str]] = {
    "headless": (without(HEAD), f"has no weights for {HEAD}, which would be random"),
    "compiled": (
        lambda weights: {f"_orig_mod.{k}": v for k, v in weights.items()},
        "and 9 more, which would be random; it has weights that no part of the model takes, "
        f"_orig_mod.{HEAD}, _orig_mod.{EMBEDDING}, ",
    ),
    "partly": (without(NORM, EMBEDDING), f"has no weights for {EMBEDDING}, {NORM}, which"),
    "of another size": (
        lambda weights: weights | {HEAD: weights[HEAD][:7].clone()},
        f"has weights of another shape for {HEAD}",
    ),
    "more layers": (
        lambda weights: weights | {"model.layers.1.mlp.up_proj.weight": torch.zeros(64, 32)},
        "no part of the model takes, model.layers.1.mlp.up_proj.weight; what",
    ),
    "NaN": (lambda w: w | {NORM: w[NORM] * torch.nan}, f"NaN or infinite numbers in {NORM};"),
    "infinite": (lambda w: w | {HEAD: w[HEAD] / 0}, f"NaN or infinite numbers in {HEAD};"),
    "scaled": (lambda w: {k: v * 1e30 for k, v in w.items()}, "its logits on the first row to"),
    "overflowing": (lambda w: w | {HEAD: w[HEAD] * 1e38}, "its logits on the first row to"),
    "small vocabulary": (lambda weights: weights, "has an embedding of 43 tokens, and its"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_weights_that_are_not_there_or_not_numbers_are_refused_by_name(
    refused: Refused, tmp_path: Path, copied: Callable[..., Path], kind: str
) -> None:
    change, told = BROKEN[kind]
    path = copied(change)
    if kind == "small vocabulary":
        tokenizer = AutoTokenizer.from_pretrained(path)
        tokenizer.add_tokens([AddedToken("<new>"), AddedToken("<newer>")])
        tokenizer.save_pretrained(path)
    for verb in ("unlearn", "evaluate"):
        sentence = refused(verb, model=path)
        assert sentence.startswith(f"torch-alm: the model {path} has ")
        assert sentence.endswith("?")
        assert told in sentence
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", [BertModel, BertForMaskedLM])
def test_a_masked_language_model_is_none_of_the_next_token(
    refused: Refused, tmp_path: Path, folder: Path, tokenizer: Any, kind: Any
) -> None:
    """BERT loads as a causal language model; with its head, nothing of it is missing."""
    torch.manual_seed(0)
    path = tmp_path / "bert"
    shutil.copytree(folder, path)
    with silence():
        config = BertConfig(vocab_size=len(tokenizer), initializer_range=0.5, **SMALL)
        kind(config).save_pretrained(path)
        told = refused("unlearn", model=path)
    assert ("no weights for cls.predictions" if kind is BertModel else "is not causal") in told
    assert not (tmp_path / "out").exists()


def test_tied_weights_and_what_older_releases_saved_are_no_mistake(
    tmp_path: Path, folder: Path, tokenizer: Any
) -> None:
    torch.manual_seed(0)
    models = {
        "tied": LlamaForCausalLM(
            LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=True, **SMALL)
        ),
        "gpt2": GPT2LMHeadModel(
            GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=1, n_head=2)
        ),
    }
    old = {"tied": "model.layers.0.self_attn.rotary_emb.inv_freq",
           "gpt2": "transformer.h.0.attn.masked_bias"}  # fmt: skip
    for name, model in models.items():
        path = tmp_path / name
        shutil.copytree(folder, path)
        with silence():
            model.save_pretrained(path)
        weights = load_file(path / "model.safetensors")
        save_file(weights | {old[name]: torch.ones(8)}, path / "model.safetensors",
                  metadata={"format": "pt"})  # fmt: skip
        loaded, _ = load_model(path)
        check_answers(name, loaded, encode(tokenizer, **FORGET[0]))
        assert fingerprint(loaded) == fingerprint(load_model(path)[0])


def adapters_for(folder: Path, tokenizer: Any, base: str | None, path: Path) -> Path:
    """Adapters that name their base like this."""
    adapted(folder, tokenizer, copy.deepcopy(KINDS["LORA"]), path)
    set_in(path / "adapter_config.json", base_model_name_or_path=base)
    return path


def set_in(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("kind", ["full", "beside", "from here"])
def test_adapters_are_read_with_their_base_wherever_it_lies(
    tmp_path: Path, folder: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    base = shutil.copytree(folder, tmp_path / "base")
    named = {"full": str(base), "beside": "../base", "from here": "base"}[kind]
    path = adapters_for(folder, tokenizer, named, tmp_path / "adapters")
    if kind == "from here":
        monkeypatch.chdir(tmp_path)
    model, _ = load_model(path)
    assert type(model) is LlamaForCausalLM
    assert all(p.requires_grad for p in model.parameters()), "there is something to train"
    with silence():
        plain = AutoModelForCausalLM.from_pretrained(base)
        theirs = peft.PeftModel.from_pretrained(plain, path).eval()
    ids = torch.tensor([encode(tokenizer, **FORGET[0])["input_ids"]])
    with torch.no_grad():
        assert torch.allclose(model(ids).logits, theirs(ids).logits, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"base_model_name_or_path": "/nowhere/at/all"}, "adapters for /nowhere/at/all, which is"),
        ({"base_model_name_or_path": "../gone"}, "adapters for ../gone, which is not there"),
        ({"base_model_name_or_path": None}, "adapters for a model that it does not name, which is"),
        ({"r": 4}, "cannot load a set of adapters"),
    ],
)
def test_adapters_without_their_base_are_no_model(
    refused: Refused, tmp_path: Path, folder: Path, tokenizer: Any, change: Any, told: str
) -> None:
    path = adapters_for(folder, tokenizer, str(folder), tmp_path / "adapters")
    set_in(path / "adapter_config.json", **change)
    assert told in refused("evaluate", model=path)
    assert not (tmp_path / "out").exists()


def test_adapters_that_are_not_whole_are_refused_by_name(
    refused: Refused, tmp_path: Path, folder: Path, tokenizer: Any
) -> None:
    path = adapters_for(folder, tokenizer, str(folder), tmp_path / "adapters")
    weights = load_file(path / "adapter_model.safetensors")
    first = min(weights)
    moved = {k.replace(first, f"base_model.model.else.{first}"): v for k, v in weights.items()}
    save_file(moved, path / "adapter_model.safetensors")
    told = refused("evaluate", model=path)
    assert f"has no weights for {first.removesuffix('.weight')}.default.weight" in told
    assert f"no part of the model takes, base_model.model.else.{first}" in told


def test_a_fingerprint_changes_with_any_weight_and_with_the_configuration(
    folder: Path, model: LlamaForCausalLM
) -> None:
    same, other = (load_model(folder)[0] for _ in range(2))
    assert fingerprint(same) == fingerprint(other)
    with torch.no_grad():
        last = [*other.parameters()][-1].flatten()
        last[-1] = torch.nextafter(last[-1], last[-1] + 1)
    assert fingerprint(same) != fingerprint(other)
    seen = {fingerprint(same.to(dtype)) for dtype in (torch.float32, torch.bfloat16, torch.half)}
    assert len(seen) == 3
    same.float().config.rope_theta = 5.0
    assert fingerprint(same) not in seen


@pytest.mark.parametrize("name", ["models/my/best", "a b", "runs//model", "x" * 300])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(Refusal, match=re.escape(f"cannot load a tokenizer from {name!r} (")):
        load_model(name)
