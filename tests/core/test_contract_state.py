"""Promises of every optimizer, row by row of `tests/table.py`: copies and checkpoints."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

from tests.core.table import (
    DUAL,
    OURS,
    PERTURBED,
    PLAIN,
    ROWS,
    Model,
    assert_same,
    backward,
    batch,
    build,
    innermost,
    train,
    values,
)

every = pytest.mark.parametrize("name", ROWS)
ours = pytest.mark.parametrize("name", OURS)
dual = pytest.mark.parametrize("name", DUAL)
single = pytest.mark.parametrize("name", [name for name in PERTURBED if name not in DUAL])


def everything(optimizer: Any) -> dict[str, Any]:
    """A copy of the checkpoint: torch's own optimizers share memory with theirs."""
    return copy.deepcopy(optimizer.state_dict())


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda both: pickle.loads(pickle.dumps(both)),
}


@pytest.mark.parametrize("how", COPIES)
@every
def test_a_copy_continues_bit_for_bit_and_on_its_own(name: str, how: str) -> None:
    model, optimizer = build(ROWS[name])
    train(optimizer, model, range(3))
    other, twin = COPIES[how]((model, optimizer))
    train(optimizer, model, range(3, 6))
    assert not torch.equal(other.out.weight, model.out.weight)
    train(twin, other, range(3, 6))
    assert_same(values(other), values(model))
    assert_same(twin.state_dict(), optimizer.state_dict())


@pytest.mark.parametrize("how", COPIES)
@every
def test_a_copy_of_a_scheduled_optimizer_steps_itself(name: str, how: str) -> None:
    model, optimizer = build(ROWS[name])
    ExponentialLR(optimizer, 0.5)  # replaces `optimizer.step` by a method of this very optimizer
    other, twin = COPIES[how]((model, optimizer))
    before = values(model)
    train(twin, other, range(2))
    assert_same(values(model), before)
    assert not torch.equal(other.out.weight, model.out.weight)


@pytest.mark.parametrize("how", COPIES)
@dual
def test_both_sides_of_a_copy_share_one_set_of_parameters(name: str, how: str) -> None:
    model, optimizer = build(ROWS[name])
    twin = COPIES[how](optimizer)
    retain, forget = (base.param_groups[0]["params"] for base in innermost(twin))
    assert all(a is b for a, b in zip(retain, forget, strict=True))
    assert not {*retain} & {*model.parameters()}


@pytest.mark.parametrize("how", COPIES)
@ours
def test_a_copy_between_backward_and_step_keeps_all_gradients(name: str, how: str) -> None:
    model, optimizer = build(ROWS[name])
    backward(optimizer, model, batch(0))
    other, twin = COPIES[how]((model, optimizer))
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        assert_same(its.grad, mine.grad)
        assert mine.grad is None or its.grad is not mine.grad
    before = values(model)
    optimizer.step()
    twin.step()
    assert_same(values(other), values(model))
    assert not torch.equal(model.out.weight, before["out.weight"])


@pytest.mark.parametrize("how", COPIES)
@ours
def test_a_copy_after_the_step_has_no_gradients_as_torchs_have_none(name: str, how: str) -> None:
    model, optimizer = build(ROWS[name])
    backward(optimizer, model, batch(0))
    optimizer.step()
    assert model.out.weight.grad is not None
    other, _ = COPIES[how]((model, optimizer))
    assert all(p.grad is None for p in other.parameters())


@every
def test_a_checkpoint_resumes_bit_for_bit(name: str) -> None:
    model, optimizer = build(ROWS[name])
    train(optimizer, model, range(4))
    other, resumed = build(ROWS[name], seed=1)
    train(resumed, other, range(2))
    other.load_state_dict(model.state_dict())
    # torch's own go on sharing memory with what they load; ours do not
    state = everything(optimizer) if name in PLAIN else optimizer.state_dict()
    resumed.load_state_dict(state)
    assert_same(resumed.state_dict(), optimizer.state_dict())
    train(optimizer, model, range(4, 8))
    train(resumed, other, range(4, 8))
    assert_same(values(other), values(model))
    assert_same(resumed.state_dict(), optimizer.state_dict())


@every
def test_named_parameters_keep_their_names(name: str) -> None:
    torch.manual_seed(0)
    model = Model().double()
    optimizer = ROWS[name](list(model.named_parameters()))
    names = [key for key, _ in model.named_parameters()]
    assert all(group["param_names"] == names for group in optimizer.param_groups)
    train(optimizer, model, range(2))
    other = copy.deepcopy(model)
    resumed = ROWS[name](list(other.named_parameters()))
    resumed.load_state_dict(everything(optimizer))
    train(optimizer, model, range(2, 4))
    train(resumed, other, range(2, 4))
    assert_same(values(other), values(model))
    assert all(group["param_names"] == names for group in resumed.param_groups)


@every
def test_state_dict_hooks_run_once(name: str) -> None:
    model, optimizer = build(ROWS[name])
    train(optimizer, model, [0])
    order: list[str] = []
    optimizer.register_state_dict_pre_hook(lambda _: order.append("save"))
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "note": 1})
    optimizer.register_load_state_dict_pre_hook(
        lambda _, state: {key: value for key, value in state.items() if key != "note"}
    )
    optimizer.register_load_state_dict_post_hook(lambda _: order.append("loaded"))
    state = optimizer.state_dict()
    assert state["note"] == 1
    optimizer.load_state_dict(state)
    assert order == ["save", "loaded"]


@single
def test_its_checkpoint_is_that_of_what_it_wraps(name: str) -> None:
    model, optimizer = build(ROWS[name])
    train(optimizer, model, range(3))
    assert_same(optimizer.state_dict(), optimizer.base.state_dict())
    _, twin = build(ROWS[name])
    twin.base.load_state_dict(optimizer.state_dict())
    assert_same(twin.state_dict(), optimizer.state_dict())


@dual
def test_a_dual_checkpoint_nests_its_parts(name: str) -> None:
    model, optimizer = build(ROWS[name])
    train(optimizer, model, range(3))
    constraint = optimizer.constraint and optimizer.constraint.state_dict()
    parts = {"retain": optimizer.retain.state_dict(), "forget": optimizer.forget.state_dict()}
    found = optimizer.state_dict()
    assert_same(found, {**parts, "constraint": constraint})


def refuses(optimizer: Any, state: dict[str, Any], words: str) -> None:
    """The error names what it found, and nothing was loaded."""
    before = everything(optimizer)
    with pytest.raises(ValueError, match=words):
        optimizer.load_state_dict(state)
    assert_same(optimizer.state_dict(), before)


@ours
def test_refuses_the_checkpoint_of_another_number_of_parameters(name: str) -> None:
    model, optimizer = build(ROWS[name])
    train(optimizer, model, [0])
    small = nn.Linear(3, 4).double()
    refuses(optimizer, ROWS[name](list(small.parameters())).state_dict(), "another model|group")


def test_refuses_the_checkpoint_of_the_other_sense() -> None:
    model, optimizer = build(ROWS["SAUL"])
    train(optimizer, model, [0])
    state = everything(optimizer)
    state["constraint"]["sense"] = "<="
    refuses(optimizer, state, "sense")
