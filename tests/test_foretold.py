"""The coming step of an optimizer is read from its state a block at a time, not copied whole."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from torch_alm._constraint import foretold
from torch_alm._constraint.foretold import blocks, numbers
from torch_alm._constraint.response import Sides, one_weight, pulls, response, sides

Make = Callable[[Iterable[Tensor]], Optimizer]
MAKES: dict[str, Make] = {
    "SGD": partial(SGD, lr=0.1, momentum=0.9),
    "AdamW": partial(AdamW, lr=1e-3),
    "Adam, the largest": partial(Adam, lr=1e-3, amsgrad=True),
}


def stepped(make: Make, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> Any:
    """Two optimizers with a past over the same parameters, and the gradients to come."""
    torch.manual_seed(0)
    params = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]
    both = make(params), make(params)
    for side in both:
        for _ in range(3):
            for p in params:
                p.grad = torch.randn_like(p)
            side.step()
    return (*both, *({p: torch.randn_like(p) for p in params} for _ in range(2)))


def everything(made: Any) -> list[float]:
    retain, forget, r, f = made
    for p, g in r.items():
        p.grad = g
    found = response(pulls(retain, f, {}, 0.5, 1.0))
    return [*sides(retain, forget, r, f, -1), *one_weight(forget, r, f, -1, 0.3), *found]


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_blocks_of_any_length_say_the_same(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made = stepped(make, [(3, 5), (), (0,), (64,)], torch.float64)
    whole = everything(made)
    monkeypatch.setattr(foretold, "BLOCK", 7)
    assert everything(made) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 1e-3), (torch.float64, 1e-9)])
def test_the_step_of_the_optimizer_is_foretold(make: Make, dtype: torch.dtype, rel: float) -> None:
    """In float32 weights of about 1 hold moves of about 1e-3 to four digits."""
    retain, forget, r, f = stepped(make, [(3, 5), (64,)], dtype)
    for side in (retain, forget):
        side.param_groups[0]["weight_decay"] = 0.0
    found = sides(retain, forget, r, f, -1)
    moved = {}
    for side, gradient, sign in ((retain, r, 1), (forget, f, -1)):
        before = {p: p.detach().double().clone() for p in r}
        for p, g in gradient.items():
            p.grad = sign * g
        side.step()
        moved[side] = torch.cat([(before[p] - p.detach().double()).flatten() for p in r])
    slope = torch.cat([-g.double().flatten() for g in f.values()])
    assert found.gain == pytest.approx((slope @ moved[forget]).item(), rel=rel)
    assert found.drift == pytest.approx(-(slope @ moved[retain]).item(), rel=rel)
    assert found.forget == pytest.approx(moved[forget].norm().item(), rel=rel)
    assert found.retain == pytest.approx(moved[retain].norm().item(), rel=rel)


class Largest(TorchDispatchMode):
    """Notes the longest tensor that is made."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        known = {x.untyped_storage().data_ptr() for x in args if isinstance(x, Tensor)}
        if isinstance(found, Tensor) and found.untyped_storage().data_ptr() not in known:
            self.numel = max(self.numel, found.numel())
        return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_nothing_is_copied_whole(
    make: Make, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stepped(make, [(30, 50), (700,)], dtype)
    monkeypatch.setattr(foretold, "BLOCK", 100)
    with Largest() as largest:
        everything(made)
    assert 0 < largest.numel <= 100


def test_gradients_whose_squares_vanish_in_float32_count() -> None:
    theta = torch.zeros(8, requires_grad=True)
    g = torch.full_like(theta, 1e-30)
    found = sides(SGD([theta], lr=0.1), SGD([theta], lr=0.1), {theta: g}, {theta: g}, +1)
    small = Sides(8e-61, -8e-61, 8**0.5 * 1e-31, 8**0.5 * 1e-31)
    assert found == pytest.approx(small, rel=1e-6, abs=0.0)


def test_a_divisor_of_zero_gives_a_number() -> None:
    theta = torch.zeros(3, requires_grad=True)
    sides_of = [Adam([theta], lr=0.1, eps=0.0) for _ in range(2)]
    none = {theta: torch.zeros_like(theta)}
    for side in sides_of:
        theta.grad = none[theta]
        side.step()
    assert sides(sides_of[0], sides_of[1], none, none, +1) == (0.0, 0.0, 0.0, 0.0)


def test_a_side_without_a_gradient_of_a_parameter_leaves_it_where_it_is() -> None:
    retain, forget, r, f = stepped(MAKES["AdamW"], [(4,), (6,)], torch.float64)
    first, second = r
    alone = sides(retain, forget, {first: r[first]}, {first: f[first]}, +1)
    assert sides(retain, forget, {first: r[first]}, f, +1).retain == alone.retain
    assert sides(retain, forget, r, {first: f[first]}, +1).forget == alone.forget
    assert sides(retain, forget, r, {second: f[second]}, +1).drift != alone.drift


def test_steps_counted_on_a_device_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foretold, "HOST", ("another",))
    waits, cpu = list[int](), Tensor.cpu
    monkeypatch.setattr(Tensor, "cpu", lambda x: waits.append(x.numel()) or cpu(x))
    given = [torch.tensor(3.0), 4, torch.tensor(5), 6.0, torch.tensor(7.0)]
    assert numbers(given) == [3.0, 4.0, 5.0, 6.0, 7.0]
    assert waits == [3]


def test_a_rate_for_which_a_host_might_wait_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stepped(partial(Adam, lr=torch.tensor(1e-3)), [(30,), (40,)], torch.float32)
    reads, read = list[int](), Tensor.__float__
    monkeypatch.setattr(foretold, "BLOCK", 7)
    monkeypatch.setattr(Tensor, "__float__", lambda x: reads.append(x.dtype.itemsize) or read(x))
    monkeypatch.setattr(foretold, "numbers", lambda given: [3.0] * len(given))
    foretold.movers(made[0])[next(iter(made[2]))].next(torch.randn(7), slice(0, 7))
    assert len(reads) == 1


def test_an_accelerator_has_longer_blocks() -> None:
    long = 10 * foretold.BLOCK
    on_host = [*blocks(torch.empty(long, dtype=torch.bool))]
    away = [*blocks(torch.empty(long, dtype=torch.bool, device="meta"))]
    assert len(on_host) == 10 and len(away) == 1
    assert [*blocks(torch.empty(0))] == [slice(0, foretold.BLOCK)], "an empty one has a sum, too"


def test_moments_in_fewer_bits_are_unpacked() -> None:
    kinds = pytest.importorskip("torchao.optim.subclass_8bit", reason="torchao is not installed")
    made = stepped(MAKES["AdamW"], [(64, 128)], torch.float32)
    (theta,) = made[2]
    packed = []
    for side in made[:2]:
        for name in ("exp_avg", "exp_avg_sq"):
            packed.append(kinds.OptimState8bit.zeros(theta.shape, signed=name == "exp_avg"))
            side.state[theta][name] = packed[-1].copy_(side.state[theta][name])
    found = everything(made)
    for side in made[:2]:
        for name in ("exp_avg", "exp_avg_sq"):
            side.state[theta][name] = packed.pop(0).dequantize()
    assert found == everything(made)
