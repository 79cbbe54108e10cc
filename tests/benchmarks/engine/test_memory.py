"""The count is what tensors take; and models held in less memory do the same."""

import argparse
import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import methods
from benchmarks.engine import memory
from benchmarks.engine.counters import Memory
from benchmarks.engine.model_setup import ModelSetup, add_setup_arguments, set_up
from benchmarks.methods import Settings
from benchmarks.methods.sharing import copy_trainable, frozen

CONFIG = LlamaConfig(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, vocab_size=50, use_cache=False, pad_token_id=0,
)  # fmt: skip
ON_RMU = Settings(losses="rmu", batch_size=2, lr=1e-3, alpha=1e-3, mu=1.0, multiplier=1.0)


def llama(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return LlamaForCausalLM(CONFIG)


def tokens(rows: int = 2, columns: int = 16) -> dict[str, torch.Tensor]:
    ids = torch.arange(rows * columns).reshape(rows, columns) % 50
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


@pytest.mark.parametrize(("key", "parameters"), [("saul", "rmu"), ("sharp_min_max", "all")])
def test_the_count_is_what_real_tensors_take(key: str, parameters: str) -> None:
    how = ModelSetup(parameters)
    found = memory.counted(CONFIG, how, key, ON_RMU, (2, 16))
    batch = tokens()
    with Memory() as real:
        model = set_up(llama(), how)
        method = methods.build(key, model.train(), ON_RMU)
        real.restart()
        for _ in range(2):
            method.step(batch, batch)
    assert found.weights == sum(p.nbytes for p in model.parameters())
    assert found.trained == sum(p.nbytes for p in model.parameters() if p.requires_grad)
    assert found.peak == pytest.approx(real.peak, rel=0.02)


def test_every_saving_saves() -> None:
    def peak(settings: Settings = ON_RMU, columns: int = 64, **how: Any) -> int:
        return memory.counted(CONFIG, ModelSetup(**how), "rmu", settings, (2, columns)).peak

    whole, short = peak(), peak(columns=2)
    assert peak(parameters="rmu") < 0.8 * whole
    assert peak(lora=2) < 0.8 * whole
    assert peak(checkpointing=True) < whole
    eight_bit = peak(replace(ON_RMU, optimizer="adamw8bit"), columns=2)
    assert eight_bit < 0.9 * short  # not a half: the tables are as large as these weights
    weights = sum(p.nbytes for p in llama().parameters())
    saved = whole - peak(replace(ON_RMU, reference="offloaded"))
    assert 0.8 * weights < saved < weights


def test_a_twin_shares_what_is_not_trained_and_nothing_else() -> None:
    model = set_up(llama(), ModelSetup("rmu"))
    other = copy_trainable(model)
    for (name, mine), its in zip(model.named_parameters(), other.parameters(), strict=True):
        assert (mine is its) == (not mine.requires_grad), name
        assert torch.equal(mine, its)
    reference = frozen(model)
    assert not any(p.requires_grad for p in reference.parameters())
    assert sum(p.requires_grad for p in model.parameters()) == 1
    with torch.no_grad():
        next(p for p in other.parameters() if p.requires_grad).zero_()
    same = zip(model.parameters(), reference.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in same)


def test_an_offloaded_reference_says_the_same() -> None:
    pytest.importorskip("accelerate")
    model, batch = llama().eval(), tokens()
    reference = frozen(model, offloaded=True)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        assert torch.equal(reference(**inputs).logits, model(**inputs).logits)
    assert all(p.is_meta for p in reference.model.layers.parameters())
    with pytest.raises(ValueError, match="they would be taken from the model too"):
        frozen(set_up(llama(), ModelSetup("rmu")), offloaded=True)


def run(model: nn.Module, key: str = "saul", steps: int = 3, **changes: Any) -> nn.Module:
    torch.manual_seed(1)
    method = methods.build(key, model.train(), replace(ON_RMU, **changes))
    for _ in range(steps):
        method.step(tokens(), tokens())
    return model


def test_an_offloaded_reference_changes_no_step() -> None:
    pytest.importorskip("accelerate")
    resident, offloaded = run(llama()), run(llama(), reference="offloaded")
    for mine, its in zip(resident.parameters(), offloaded.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_checkpointing_changes_no_step() -> None:
    kept = run(set_up(llama(), ModelSetup("rmu")))
    again = run(set_up(llama(), ModelSetup("rmu", checkpointing=True)))
    for mine, its in zip(kept.parameters(), again.parameters(), strict=True):
        assert_close(mine, its, rtol=1e-6, atol=1e-7)


def test_bfloat16_around_what_is_trained_follows_float32() -> None:
    start = set_up(llama(), ModelSetup("rmu"))
    wide = run(copy.deepcopy(start))
    model = run(set_up(llama(), ModelSetup("rmu", dtype="bfloat16")))
    dtypes = {p.requires_grad: p.dtype for p in model.parameters()}
    assert dtypes == {True: torch.float32, False: torch.bfloat16}
    moves = [
        torch.cat([(p - q).flatten() for p, q in pairs if p.requires_grad])
        for pairs in (
            list(zip(m.parameters(), start.parameters(), strict=True)) for m in (wide, model)
        )
    ]
    assert torch.cosine_similarity(*moves, dim=0) > 0.9


# peft asks transformers in a way it has moved away from
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_adapters_are_trained_alone() -> None:
    model = set_up(llama(), ModelSetup(lora=2))
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    run(model, "dual_adamw+alm")
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved
    assert all("lora_" in name for name in moved)


def test_a_name_that_is_no_parameter_s_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing would be trained"):
        set_up(llama(), ModelSetup("layers.7.mlp"))
    for names in (r".*\.bias", "rmu"):
        with pytest.raises(ValueError, match="either adapters"):
            ModelSetup(names, lora=4)
    with pytest.raises(ValueError, match="--lora -4 is no rank"):
        ModelSetup(lora=-4)


@pytest.mark.parametrize("limit", ["nan", "0", "-1"])
def test_a_limit_that_nothing_could_exceed_or_keep_is_refused(
    limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_setup_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--memory-limit", limit])
    assert f"{limit} is no size" in capsys.readouterr().err
