"""Attacks: what they do to the weights, what they give away, and that the weights return."""

import copy
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, MixtralConfig, MixtralForCausalLM

from tests.language.conftest import ROWS, Words, asked
from torch_alm.language import answer_ids, continuations, losses
from torch_alm.language._attacks import quantize, relearn, restore, round_weights, with_prefix


def snapshot(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_same(model: nn.Module, before: dict[str, torch.Tensor]) -> None:
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_rounding_is_to_the_nearest_level_of_each_row(bits: int) -> None:
    weight = torch.randn(5, 40) * torch.logspace(-3, 3, 5)[:, None]
    weight[3] = 0
    top = 2 ** (bits - 1) - 1
    for row, rounded in zip(weight, round_weights(weight, bits), strict=True):
        grid = row.abs().max() * torch.arange(-top, top + 1) / top
        nearest = (row[:, None] - grid).abs().amin(1)
        slack = 1e-6 * float(row.abs().max())
        torch.testing.assert_close((row - rounded).abs(), nearest, rtol=0, atol=slack)
        assert (rounded[:, None] - grid).abs().amin(1).max() <= 1e-5 * row.abs().max()


def test_linear_layers_are_rounded_but_for_the_output(model: Any) -> None:
    before = snapshot(model)
    with quantize(model, 4) as count:
        changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    linear = {
        n for n, p in before.items() if p.ndim == 2 and "embed" not in n and "lm_head" not in n
    }
    assert changed == linear
    assert count == sum(before[name].numel() for name in linear)
    assert_same(model, before)


def taught(model: Any, rows: Sequence[Any], steps: int) -> Any:
    """A copy after AdamW on all rows in every step, so that their order says nothing."""
    other = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2, weight_decay=0.0)
    ids = torch.tensor([row["input_ids"] for row in rows])
    for _ in range(steps):
        logits = other(ids).logits[:, 1:-1].log_softmax(-1)
        loss = -logits.gather(-1, ids[:, 2:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return other


def test_gradients_and_modes_of_before_take_no_part_and_return(model: Any) -> None:
    """A loop that clears them first leaves them behind; a frozen layer is evaluated."""
    clean = copy.deepcopy(model)
    model.train()
    model.model.layers[0].eval()
    modes = [m.training for m in model.modules()]
    left = [torch.full_like(p, 1e3) for p in model.parameters()]
    for p, gradient in zip(model.parameters(), left, strict=True):
        p.grad = gradient
    with relearn(model, ROWS, 0, steps=3) as found, relearn(clean, ROWS, 0, steps=3) as alone:
        assert found == pytest.approx(alone, rel=1e-5)
    assert [id(p.grad) for p in model.parameters()] == [*map(id, left)]
    losses(model, ROWS, 0)
    continuations(model, Words(), [[1, 2]], max_new_tokens=2)
    assert [m.training for m in model.modules()] == modes


def test_gpt2s_layers_are_rounded_by_their_output_channels() -> None:
    config = GPT2Config(vocab_size=12, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    model = GPT2LMHeadModel(config)
    weight = model.transformer.h[0].mlp.c_fc.weight
    before = snapshot(model)
    by_hand = round_weights(weight.detach().T.contiguous(), 4).T
    with quantize(model, 4) as count:
        assert torch.equal(weight, by_hand)
    assert count == 8 * (24 + 8 + 32 + 32)
    assert_same(model, before)


def test_all_experts_are_rounded_and_what_chooses_among_them_is_not() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "vocab_size": 40, "num_local_experts": 3}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = MixtralForCausalLM(MixtralConfig(**sizes, **heads))
    before = snapshot(model)
    with quantize(model, 4) as count:
        moved = {
            n: p.detach().clone() for n, p in model.named_parameters() if (p != before[n]).any()
        }
    assert count == sum(p.numel() for p in moved.values()) == 4 * 16 * 16 + 3 * 3 * 16 * 24
    experts = {name: p for name, p in moved.items() if "experts" in name}
    assert experts
    for name, p in experts.items():
        rows = before[name].reshape(-1, p.shape[-1])
        assert torch.equal(p.reshape(-1, p.shape[-1]), round_weights(rows, 4)), name
    assert_same(model, before)


def test_weights_return_after_an_exception(model: Any) -> None:
    before = snapshot(model)
    with pytest.raises(RuntimeError, match="inside"), restore(model):
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(torch.nan)
        raise RuntimeError("inside")
    assert_same(model, before)


@pytest.mark.parametrize("share", [0.01, 0.25, 0.5, 0.75])
@pytest.mark.parametrize("length", [3, 4, 9])
def test_a_prefix_moves_into_the_prompt(length: int, share: float) -> None:
    row = {"input_ids": list(range(20, 20 + 2 + length)), "labels": []}
    row["labels"] = [-100, -100, *row["input_ids"][2:]]
    given = max(1, next(n for n in range(length + 1) if n >= share * length))
    found = with_prefix(row, share)
    if given >= length - 1:  # the end of sequence alone is no answer
        assert found is None
        return
    assert found is not None
    assert found["input_ids"] == row["input_ids"]
    assert answer_ids(found) == answer_ids(row)[given:]
    assert len(found["labels"]) == len(row["labels"])


def test_relearning_is_adamw_on_a_few_rows(model: Any) -> None:
    """All that an attacker has is in one batch."""
    before = snapshot(model)
    with relearn(model, ROWS[:3], 0, steps=4, lr=1e-2) as last:
        found = losses(model, ROWS, 0)
    assert_same(model, before)
    after, before_it = (taught(model, ROWS[:3], steps=steps) for steps in (4, 3))
    assert found == pytest.approx([asked(after, row)[0] for row in ROWS], abs=1e-4)
    assert last == pytest.approx(sum(asked(before_it, row)[0] for row in ROWS[:3]) / 3, abs=1e-4)


@pytest.mark.parametrize("size", [1, 2])
def test_the_seed_chooses_which_rows_an_attacker_learns_from(model: Any, size: int) -> None:
    each = [asked(model, row)[0] for row in ROWS[:3]]
    means = [sum(some) / size for some in itertools.combinations(each, size)]
    seen = set[int]()
    for seed in range(8):
        with relearn(model, ROWS[:3], 0, steps=1, batch_size=size, seed=seed) as last:
            nearest = min(range(3), key=lambda i: abs(means[i] - last))
        assert last == pytest.approx(means[nearest], abs=1e-5)
        seen.add(nearest)
    assert seen == {0, 1, 2}


def test_relearning_is_under_the_autocast_that_it_is_given(model: Any) -> None:
    entered: list[bool] = []

    @contextmanager
    def autocast() -> Iterator[None]:
        entered.append(torch.is_grad_enabled())
        yield

    with relearn(model, ROWS, 0, steps=3, autocast=autocast):
        assert entered == [True] * 3
