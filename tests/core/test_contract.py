"""Promises of every optimizer, row by row of `tests/table.py`: steps, copies, checkpoints."""

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

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
    loss,
    parameters,
    sides,
    train,
    values,
)

every = pytest.mark.parametrize("name", ROWS)
ours = pytest.mark.parametrize("name", OURS)
dual = pytest.mark.parametrize("name", DUAL)
single = pytest.mark.parametrize("name", [name for name in PERTURBED if name not in DUAL])

SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "exponential": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.5),
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=20, cycle_momentum=False
    ),
}


def learning_rates(optimizer: Any) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


@pytest.mark.parametrize("schedule", SCHEDULES)
@every
def test_a_scheduler_on_it_reaches_the_innermost_optimizer(name: str, schedule: str) -> None:
    model, optimizer = build(ROWS[name])
    reference = [torch.optim.SGD(model.parameters(), lr=rate) for rate in learning_rates(optimizer)]
    schedulers = [SCHEDULES[schedule](one) for one in (optimizer, *reference)]
    for step in range(4):
        train(optimizer, model, [step])
        for one in reference:
            one.step()
        for scheduler in schedulers:
            scheduler.step()
    wanted = [rate for one in reference for rate in learning_rates(one)]
    assert learning_rates(optimizer) == wanted
    assert [rate for one in innermost(optimizer) for rate in learning_rates(one)] == wanted
    assert schedulers[0].get_last_lr() == wanted


@pytest.fixture
def order() -> Iterator[list[str]]:
    """Records global hooks, and takes them away."""
    seen: list[str] = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: seen.append("global pre")),
        register_optimizer_step_post_hook(lambda *_: seen.append("global post")),
    ]
    yield seen
    for handle in handles:
        handle.remove()


@every
def test_step_hooks_run_once_and_in_order(name: str, order: list[str]) -> None:
    model, optimizer = build(ROWS[name])
    optimizer.register_step_pre_hook(lambda *_: order.append("pre"))
    optimizer.register_step_post_hook(lambda *_: order.append("post"))
    for step in range(2):
        order.clear()
        backward(optimizer, model, batch(step))
        assert order == []
        optimizer.step()
        assert (order[:2], order[-2:]) == (["global pre", "pre"], ["post", "global post"])
        assert (order.count("pre"), order.count("post")) == (1, 1)


@ours
def test_hooks_of_what_it_wraps_run_once_inside_its_own(name: str, order: list[str]) -> None:
    model, optimizer = build(ROWS[name])
    bases = innermost(optimizer)
    optimizer.register_step_pre_hook(lambda *_: order.append("pre"))
    optimizer.register_step_post_hook(lambda *_: order.append("post"))
    for i, base in enumerate(bases):
        base.register_step_pre_hook(lambda *_, i=i: order.append(f"pre {i}"))
        base.register_step_post_hook(lambda *_, i=i: order.append(f"post {i}"))
    train(optimizer, model, [0])
    inside = [f"{word} {i}" for i in reversed(range(len(bases))) for word in ("pre", "post")]
    assert [word for word in order if "global" not in word] == ["pre", *inside, "post"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@every
def test_only_step_moves_weights_downhill_and_never_their_storage(
    name: str, dtype: torch.dtype
) -> None:
    model, optimizer = build(ROWS[name], dtype=dtype)
    where, first = [p.data_ptr() for p in model.parameters()], batch(0, dtype)
    start = loss(model, first.retain).item()
    for _ in range(15):
        before = values(model)
        backward(optimizer, model, first)
        assert_same(values(model), before)
        optimizer.step()
        optimizer.zero_grad()
        assert not torch.equal(model.out.weight, before["out.weight"])
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert [p.data_ptr() for p in model.parameters()] == where
    assert loss(model, first.retain).item() < start


@every
def test_frozen_and_unused_parameters_are_left_alone(name: str) -> None:
    model, optimizer = build(ROWS[name])
    before = values(model)
    train(optimizer, model, range(4))
    assert_same(model.frozen.detach(), before["frozen"])
    assert_same(model.unused.detach(), before["unused"])
    assert all(
        p not in base.state for base in innermost(optimizer) for p in (model.frozen, model.unused)
    )


@every
def test_add_param_group_trains_the_new_parameters(name: str) -> None:
    torch.manual_seed(0)
    model = Model().double()
    optimizer = ROWS[name](list(model.hidden.parameters()))
    train(optimizer, model, [0])
    before = values(model)
    optimizer.add_param_group({"params": (p for p in model.out.parameters()), "lr": 0.03})
    train(optimizer, model, [1])
    assert not torch.equal(model.out.weight, before["out.weight"])
    for base in innermost(optimizer):
        assert [len(group["params"]) for group in base.param_groups] == [2, 2]
        assert base.param_groups[1]["lr"] == 0.03
        assert base.param_groups[1].keys() == base.param_groups[0].keys()
    assert [group["lr"] for group in optimizer.param_groups].count(0.03) == len(sides(optimizer))
    assert len({*map(id, optimizer.param_groups)}) == 2 * len(sides(optimizer)), "each its own"


@ours
def test_owns_no_groups_and_no_state(name: str) -> None:
    model, optimizer = build(ROWS[name])
    train(optimizer, model, range(2))
    groups = [group for base in innermost(optimizer) for group in base.param_groups]
    for mine, its in zip(optimizer.param_groups, groups, strict=True):
        assert {**mine, "params": 0} == {**its, "params": 0}
    first, last = innermost(optimizer)[0].defaults, innermost(optimizer)[-1].defaults
    assert optimizer.defaults == {key: first[key] for key in first if key in last}
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = values(model)
    train(optimizer, model, range(2))
    assert_same(values(model), before)


@every
def test_whoever_goes_over_the_groups_meets_each_tensor_once(name: str) -> None:
    model, optimizer = build(ROWS[name], dtype=torch.float32)
    backward(optimizer, model, batch(0, torch.float32))
    listed = [p for group in optimizer.param_groups for p in group["params"]]
    assert [*map(id, listed)] == [*map(id, model.parameters())]
    before = [p.grad.clone() for p in listed if p.grad is not None]
    nn.utils.clip_grad_norm_(listed, 0.1 * torch.cat([g.flatten() for g in before]).norm())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)
    after = [p.grad for p in listed if p.grad is not None]
    torch.testing.assert_close(after, [0.1 / 4 * g for g in before])


@every
def test_tensors_that_are_put_into_the_groups_are_trained(name: str) -> None:
    """As accelerate does it, before the first step, with sharded ones."""
    (_, optimizer), (model, reference) = build(ROWS[name]), build(ROWS[name])
    other = copy.deepcopy(model)
    new = iter(other.parameters())
    for group in optimizer.param_groups:
        group["params"] = [next(new) for _ in group["params"]]
    train(optimizer, other, range(3))
    train(reference, model, range(3))
    assert_same(values(other), values(model))


@pytest.mark.parametrize("to_none", [True, False])
@every
def test_zero_grad_clears_everything(name: str, to_none: bool) -> None:
    model, optimizer = build(ROWS[name])
    backward(optimizer, model, batch(0))
    assert model.out.weight.grad is not None
    optimizer.zero_grad(set_to_none=to_none)
    grads = [p.grad for p in parameters(optimizer)]
    assert all(g is None or (not to_none and not g.any()) for g in grads)
    assert to_none or any(g is not None for g in grads)


@ours
def test_inference_mode_is_refused_by_name_and_leaves_nothing_behind(name: str) -> None:
    (model, optimizer), (other, reference) = build(ROWS[name]), build(ROWS[name])
    with torch.inference_mode(), pytest.raises(ValueError, match=r"`torch.inference_mode\(\)`"):
        backward(optimizer, model, batch(0))
    train(optimizer, model, range(2))
    train(reference, other, range(2))
    assert_same(values(model), values(other))


@ours
def test_gradients_are_taken_even_inside_no_grad(name: str) -> None:
    (model, optimizer), (other, reference) = build(ROWS[name]), build(ROWS[name])
    with torch.no_grad():
        train(optimizer, model, range(3))
    train(reference, other, range(3))
    assert_same(values(model), values(other))


@pytest.mark.parametrize("name", [name for name in PERTURBED if name not in DUAL])
def test_step_without_a_perturbed_gradient_is_a_plain_step_that_warns_once(name: str) -> None:
    (model, optimizer), (other, twin) = build(ROWS[name]), build(ROWS[name])
    for step, (one, stepper) in itertools.product(
        range(2), [(model, optimizer), (other, twin.base)]
    ):
        loss(one, batch(step).retain).backward()
        if stepper is optimizer and step == 0:
            with pytest.warns(UserWarning, match=r"plain \w+ step. Did you call"):
                stepper.step()
        else:
            stepper.step()
        stepper.zero_grad()
    assert_same(values(model), values(other))


def everything(optimizer: Any) -> dict[str, Any]:
    """A copy of the checkpoint: torch's own optimizers share memory with theirs."""
    return copy.deepcopy(optimizer.state_dict())


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda both: pickle.loads(pickle.dumps(both))}


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
    lr_scheduler.ExponentialLR(optimizer, 0.5)  # makes `step` a method of this very optimizer
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
