"""Weights outside an optimizer, or new to it: named, or left as they are."""

import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR
from torch.utils.checkpoint import checkpoint

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM, perturbed
from torch_alm._optim import gradients

Tensors = list[nn.Parameter]


def weights(*lengths: int) -> Tensors:
    generator = torch.Generator().manual_seed(3)
    draw = lambda n: torch.randn(n, generator=generator, dtype=torch.float64)  # noqa: E731
    return [nn.Parameter(draw(n)) for n in lengths]


def product(body: Tensor, head: Tensor) -> Tensor:
    return (body * head).sum().square()


@pytest.mark.parametrize("engine", [Tensor.backward, lambda loss: loss.backward()])
def test_the_first_pass_leaves_nothing_on_weights_of_another_optimizer(engine: Callable) -> None:
    body, head = weights(3, 3)
    head.grad = torch.ones_like(head)
    SAM(SGD([body]), rho=0.3, backward=engine).backward(lambda: product(body, head), weight=0.5)
    (g,) = torch.autograd.grad(product(body, head), [body])
    there = (body + 0.3 * g / (g.norm() + 1e-12)).detach()
    (expected,) = torch.autograd.grad(product(there, head), [head])
    torch.testing.assert_close(head.grad, 1 + 0.5 * expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("wrap", [lambda base: base, lambda base: ReverseSAM(base, rho=0.1)])
def test_the_forget_side_leaves_nothing_there_whatever_its_gate_does(wrap: Any) -> None:
    body, head = weights(3, 3)
    optimizer = DualOptimizer(SGD([body]), wrap(SGD([body])))
    forget = lambda: (body * head).sin().sum()  # noqa: E731
    for _ in range(2):
        optimizer.backward(retain=lambda: product(body, head), forget=forget)
    (expected,) = torch.autograd.grad(product(body, head), [head])
    torch.testing.assert_close(head.grad, 2 * expected, rtol=1e-12, atol=0)


def climbing(side: str, turned: bool) -> None:
    (p,) = weights(2)
    sides = {name: SGD([p], maximize=name == side and not turned) for name in ("retain", "forget")}
    made = SAM(sides["base"]) if side == "base" else DualOptimizer(**sides)
    sides[side].param_groups[0]["maximize"] = True
    loss = lambda: p.square().sum()  # noqa: E731
    made.backward(loss) if side == "base" else made.backward(retain=loss, forget=loss)


@pytest.mark.parametrize("turned", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("side", ["retain", "forget"])
def test_a_base_that_climbs_is_refused(side: str, turned: bool) -> None:
    with pytest.raises(ValueError, match="SGD with maximize=True, which would go the wrong way"):
        climbing(side, turned)
    (p,) = weights(2)
    with pytest.raises(ValueError, match=r"^SAM found SGD with maximize"):
        SAM(SGD([p], maximize=True))
    raised = ReverseSAM(SGD([p], lr=0.1, maximize=True), rho=0.0)  # the one that is to climb
    before = p.detach().norm()
    raised.backward(lambda: p.square().sum())
    raised.step()
    assert p.norm() > before


@pytest.mark.parametrize("side", ["retain", "forget"])
def test_a_group_that_one_side_was_given_alone_is_refused(side: str) -> None:
    p, new = weights(2, 3)
    optimizer = DualOptimizer(SAM(SGD([p])), ReverseSAM(SGD([p])))
    getattr(optimizer, side).add_param_group({"params": [new]})
    objectives = {"retain": lambda: p.sum() + new.sum(), "forget": lambda: p.sum() + new.sum()}
    with pytest.raises(ValueError, match=r"retain has \d parameters and forget \d"):
        optimizer.backward(**objectives)
    assert p.grad is None
    getattr(optimizer, {"retain": "forget", "forget": "retain"}[side]).add_param_group(
        {"params": [new]}
    )
    optimizer.backward(**objectives)
    assert new.grad is not None


def test_memory_that_a_later_group_shares_is_refused() -> None:
    (p,) = weights(2)
    optimizer = SAM(SGD([p]))
    optimizer.base.add_param_group({"params": [nn.Parameter(p.data)]})
    with pytest.raises(ValueError, match="two parameters lie in the same memory"):
        optimizer.backward(lambda: p.sum())


def test_both_sides_may_list_their_parameters_in_any_order() -> None:
    def trained(turn: int) -> list[Tensor]:
        both = weights(2, 3)
        loss = lambda: both[0].square().sum() * both[1].sin().sum()  # noqa: E731
        optimizer = DualOptimizer(SAM(SGD(both, 0.1), 0.1), ReverseSAM(SGD(both[::turn], 0.1), 0.1))
        for _ in range(2):
            optimizer.backward(retain=loss, forget=loss, weight=0.5)
        optimizer.step()
        return both

    torch.testing.assert_close(trained(1), trained(-1), rtol=1e-12, atol=0)


@pytest.mark.parametrize("form", ["a loss", "a linear loss", "an output"])
def test_a_loss_that_was_computed_before_is_named(form: str) -> None:
    (p,) = weights(3)
    y = p.sum() if form == "a linear loss" else p.square()
    loss = y if y.ndim == 0 else y.sum()
    optimizer = SAM(SGD([p]))
    with pytest.raises(RuntimeError, match=r"^SAM\.backward: .*computed before.*`lambda: loss\(m"):
        optimizer.backward((lambda: y.sum()) if form == "an output" else lambda: loss)


@pytest.mark.parametrize("weight", [float("nan"), -1.0, float("inf")])
def test_a_weight_that_is_none_is_refused_and_nothing_has_happened(weight: float) -> None:
    (p,) = weights(3)
    loss = lambda: p.square().sum()  # noqa: E731
    constraint = ALMConstraint(None, 9.0, 1.0)
    dual = DualOptimizer(SGD([p]), SGD([p]), constraint)
    with pytest.raises(ValueError, match=r"^SAM\.backward: weight is"):
        SAM(SGD([p])).backward(loss, weight=weight)
    with pytest.raises(ValueError, match=r"^DualOptimizer\.backward: weight is"):
        dual.backward(retain=loss, forget=loss, weight=weight)
    assert p.grad is None and constraint.observed == 0


def test_a_first_pass_that_overflows_alone_is_announced() -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer, scales = SAM(SGD([p], lr=0.1), every=3), iter([torch.inf, 1.0, 1.0, 1.0])
    optimizer.backward(lambda: p.square().sum() * next(scales))
    with pytest.warns(UserWarning, match="first gradient that is not finite.* a plain SGD step"):
        optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((2,), 0.8))
    optimizer.backward(lambda: p.square().sum() * next(scales))
    assert next(scales, None) is None, "delta was found anew"


def test_sharded_parameters_are_refused_by_name_where_torch_is_too_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Sharded(nn.Parameter):
        placements = ()

    monkeypatch.setattr(gradients, "SHARDED", types.__name__)  # without DTensor, as in torch 2.4
    p = Sharded(torch.ones(2))
    for refused in (lambda: SAM(SGD([p])), lambda: perturbed([p], 0.1)):
        with pytest.raises(TypeError, match=r"found sharded parameters.*torch 2\.5 or newer"):
            refused()


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_default_device_is_none_of_ours(dtype: torch.dtype, rounding: Any) -> None:
    def trained(device: str) -> Tensor:
        p, frozen = nn.Parameter(torch.ones(4, dtype=dtype)), nn.Parameter(torch.ones(1))
        sides = SAM(SGD([p], 0.1), 0.5, rounding=rounding), ReverseSAM(SGD([p], 0.1), 0.5)
        optimizer = DualOptimizer(*sides, ALMConstraint(None, 9.0, 0.1))
        torch.set_default_device(device)
        try:
            for _ in range(2):
                optimizer.backward(retain=lambda: p.square().sum(), forget=lambda: (p.sum(), 0.5))
                optimizer.step()
            with (
                pytest.warns(UserWarning, match="has a gradient"),
                perturbed([frozen], 0.1) as still,
            ):
                assert still.norm.item() == 0
        finally:
            torch.set_default_device(None)
        return p.detach()

    assert torch.equal(trained("meta"), trained("cpu"))


def test_weights_that_a_checkpointed_layer_rescales_are_named() -> None:
    table = nn.Embedding(4, 3, max_norm=0.1)
    run = lambda: checkpoint(table, torch.tensor([1, 2]), use_reentrant=False).sum()  # noqa: E731
    with pytest.raises(RuntimeError, match=r"moved 1 parameters.*`Embedding\(max_norm=\)`"):
        SAM(SGD(table.parameters(), lr=0.1), rho=1.0).backward(run)


@pytest.mark.parametrize("swapped", [False, True])
def test_schedules_that_cycle_what_one_side_lacks_are_refused_by_torch(swapped: bool) -> None:
    (p,) = weights(2)
    sides = [AdamW([p], lr=0.1), SGD([p], lr=0.1, momentum=0.9)]
    optimizer = DualOptimizer(*sides[:: -1 if swapped else 1])
    for made in (
        lambda: OneCycleLR(optimizer, 0.1, total_steps=9),
        lambda: CyclicLR(optimizer, 0.1, 0.2),
    ):
        with pytest.raises(ValueError, match="momentum"):
            made()
    OneCycleLR(DualOptimizer(AdamW([p]), AdamW([p])), 0.1, total_steps=9)


def test_decay_shrinks_weights_whatever_the_sign_of_lambda() -> None:
    p = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    constraint = ALMConstraint(None, 0.0, 0.0, sense="==", multiplier=-0.5)
    forget = SGD([p], lr=0.1, weight_decay=1.0)
    optimizer = DualOptimizer(SGD([p], lr=0.0), forget, constraint, scale="step")
    optimizer.backward(retain=p.sum, forget=lambda: 3 * p.sum())
    optimizer.step()
    # half a step of descent along 3, with the decay of 2
    assert p.item() == pytest.approx(2 - 0.5 * 0.1 * (3 + 2), rel=1e-12)


@pytest.mark.parametrize(("rate", "told"), [(1e-4, 1), (0.1, 0)])
def test_a_multiplied_step_that_the_dtype_swallows_is_told_once(rate: float, told: int) -> None:
    p = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    constraint = ALMConstraint(None, 0.0, 0.0, multiplier=0.5)
    optimizer = DualOptimizer(SGD([p], lr=0.0), SGD([p], lr=rate), constraint, scale="step")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            optimizer.backward(retain=p.sum, forget=p.sum)
            optimizer.step()
            optimizer.zero_grad()
    assert sum("dtype swallows the forget step" in str(each.message) for each in caught) == told


def test_one_tensor_is_a_list_of_one() -> None:
    p = nn.Parameter(torch.zeros(2))
    p.grad = torch.tensor([3.0, 4.0])
    with perturbed(p, 1.0):
        torch.testing.assert_close(p.detach(), torch.tensor([0.6, 0.8]))


def test_a_weight_frozen_before_a_direction_is_reused_stays_where_it_is() -> None:
    p, other = weights(2, 2)
    optimizer, seen = SAM(SGD([p, other], lr=0.0), rho=1.0, every=2), list[Tensor]()

    def closure() -> Tensor:
        seen.append(other.detach().clone())
        loss = p.square().sum() + other.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    other.requires_grad_(False)
    optimizer.step(closure)  # with a stale gradient on the other
    assert len(seen) == 3
    assert not torch.equal(seen[1], seen[0]) and torch.equal(seen[2], seen[0])


def test_a_backward_that_fails_uses_up_no_direction() -> None:
    (p,) = weights(2)
    passes = [0, 0]
    sides = SAM(SGD([p], 0.0), every=2), ReverseSAM(SGD([p], 0.0), every=2)
    optimizer = DualOptimizer(*sides)

    def objective(side: int, fails: bool) -> Tensor:
        passes[side] += 1
        return 1 / 0 if fails else p.square().sum()

    def backward(fails: bool) -> None:
        optimizer.backward(retain=lambda: objective(0, False), forget=lambda: objective(1, fails))

    backward(False)
    with pytest.raises(ZeroDivisionError):
        backward(True)
    backward(False)
    assert passes == [2 + 1 + 1, 2 + 1 + 1], "the retain side reuses its direction still"
