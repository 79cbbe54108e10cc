"""One norm and one perturbation over all parameters: sharded on several meshes, or plain."""

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.optim import SGD

from tests.core.distributed import task
from tests.core.distributed.ranks import Ranks
from torch_alm import SAM, DualOptimizer, perturbed

RHO = 0.3


def numbers(dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    """Weights and gradients, the same on every rank; 5 rows and 1 make uneven shards."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(5, 3), (4, 6), (1, 7), (8,), (2, 2), (3, 3)]
    drawn = [
        [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes] for _ in "tg"
    ]
    return [(theta.to(dtype), g.to(dtype)) for theta, g in zip(*drawn, strict=True)]


def parameters(dtype: torch.dtype = torch.float64) -> list[nn.Parameter]:
    """Two meshes, uneven shards, a shard in a grid, a plain tensor, and a gradient in summands."""
    line, grid = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (1, 2))
    homes = [
        (line, [Shard(0)]),
        (line, [Shard(1)]),
        (line, [Shard(0)]),
        (grid, [Replicate(), Shard(0)]),
        None,
        (line, [Replicate()]),
    ]
    params = []
    for (theta, g), home in zip(numbers(dtype), homes, strict=True):
        p = nn.Parameter(theta if home is None else distribute_tensor(theta, *home))
        p.grad = g if home is None else distribute_tensor(g, *home)
        params.append(p)
    share = (0.25, 0.75)[line.get_local_rank()]
    params[-1].grad = DTensor.from_local(numbers(dtype)[-1][1] * share, line, [Partial()])
    return params


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([task.whole(t).reshape(-1) for t in tensors])


def visit(rank: int, adaptive: bool) -> tuple[Tensor, float, bool]:
    """The perturbed theta, the norm, and whether theta returned, bit for bit and in place."""
    params = parameters()
    before, places = flat(params), [p.to_local().data_ptr() for p in params if p is not params[4]]
    with perturbed(params, RHO, adaptive=adaptive) as perturbation:
        there = flat(params)
        norm = perturbation.norm.item()
    back = [p.to_local().data_ptr() for p in params if p is not params[4]]
    return there, norm, torch.equal(flat(params), before) and back == places


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_ball_is_that_of_all_parameters_together(ranks: Ranks, adaptive: bool) -> None:
    theta, g = (flat(list(side)) for side in zip(*numbers(), strict=True))
    unit = theta.abs() if adaptive else torch.ones_like(theta)
    length = (unit * g).norm()
    expected = theta + RHO * unit.square() * g / length
    for there, norm, returned in ranks(visit, adaptive):
        torch.testing.assert_close(there, expected, rtol=0, atol=1e-12)
        assert norm == pytest.approx(length.item(), rel=1e-13) and returned


def realised(params: list[nn.Parameter]) -> float:
    with SAM(SGD(params), 0.02).perturbed() as perturbation:
        return perturbation.realised


def realised_on(rank: int) -> float:
    return realised(parameters(torch.bfloat16))


def test_what_was_realised_is_told_for_all_shards_together(ranks: Ranks) -> None:
    params = [nn.Parameter(theta) for theta, _ in numbers(torch.bfloat16)]
    for p, (_, g) in zip(params, numbers(torch.bfloat16), strict=True):
        p.grad = g
    alone = realised(params)
    assert 0.5 < alone < 0.99
    for found in ranks(realised_on):
        assert found == pytest.approx(alone, rel=1e-6)


def clipped(rank: int) -> tuple[float, Tensor]:
    params = parameters()
    optimizer = DualOptimizer(SGD(params), SGD(params))
    norm = optimizer.clip_grad_norm_(0.5).retain.item()
    return norm, flat([p.grad for p in params])


def test_clipping_is_by_the_joint_norm(ranks: Ranks) -> None:
    g = flat([g for _, g in numbers()])
    for norm, after in ranks(clipped):
        assert norm == pytest.approx(g.norm().item(), rel=1e-13)
        torch.testing.assert_close(after, g * 0.5 / (g.norm() + 1e-6), rtol=0, atol=1e-14)
