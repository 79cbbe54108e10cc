"""DeepSpeed ZeRO: the constraint in the loss, one backward; our optimizers refuse its own."""

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.distributed.ranks import Ranks
from torch_alm import SAM, ALMConstraint, DualOptimizer

os.environ.setdefault("DS_ACCELERATOR", "cpu")
pytest.importorskip("deepspeed", reason="DeepSpeed is not installed; its engine is not tested")

STEPS, LR = 30, 0.05


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def batches(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x, z = torch.randn(2, 4, 3, generator=generator)
    return x, z


def alpha_at(step: int) -> float:
    return (2.0, -2.0)[step // 10 % 2]


def objective(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - 1).square().mean()


def measure(model: nn.Module, z: torch.Tensor) -> torch.Tensor:
    return model(z).square().mean()


Outcome = tuple[list[float], list[torch.Tensor], list[str]]


def trainings(rank: int, stages: list[int]) -> list[Outcome]:
    """All in one group: DeepSpeed keeps the first one it sees."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(dist.get_world_size()))
    return [sharded(rank, stage) for stage in stages]


def sharded(rank: int, stage: int) -> Outcome:
    """Weights of each step, theta at the end, and what our optimizers say to DeepSpeed's."""
    import deepspeed

    net = network()
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,  # 1 by default, which would clip what the multiplier scaled
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    base = torch.optim.SGD(net.parameters(), lr=LR)
    engine, optimizer, *_ = deepspeed.initialize(model=net, optimizer=base, config=config)
    constraint = ALMConstraint(measure, alpha=0.0, mu=0.5)
    weights = []
    for step in range(STEPS):
        constraint.alpha = alpha_at(step)
        x, z = (t[rank::2] for t in batches(step))
        engine.backward(objective(engine, x) + constraint(engine, z))
        engine.step()
        weights.append(constraint.step())
    with deepspeed.zero.GatheredParameters(list(net.parameters())):  # of stage 3; others are whole
        theta = [p.detach().clone() for p in net.parameters()]
    return weights, theta, refusals(optimizer)


def refusals(optimizer: Any) -> list[str]:
    with pytest.raises(TypeError) as of_sam:
        SAM(optimizer, rho=0.1)
    with pytest.raises(TypeError) as of_dual:
        DualOptimizer(optimizer, optimizer)
    return [str(of_sam.value), str(of_dual.value)]


def test_the_constraint_in_the_loss_is_algorithm_1_on_every_rank(ranks: Ranks) -> None:
    net, multiplier, expected = network(), 0.0, []
    for step in range(STEPS):
        x, z = batches(step)
        value = measure(net, z)
        weight = max(multiplier + 0.5 * (alpha_at(step) - value.item()), 0.0)
        (objective(net, x) - weight * value).backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= LR * p.grad
                p.grad = None
        multiplier = weight
        expected.append(weight)
    assert 0 in expected and max(expected) > 0
    for first, second in zip(*ranks(trainings, [1, 2, 3], timeout=60), strict=True):
        assert first[0] == second[0]
        assert first[0] == pytest.approx(expected, rel=1e-4, abs=1e-5)
        for mine, its, p in zip(first[1], second[1], net.parameters(), strict=True):
            assert torch.equal(mine, its)
            torch.testing.assert_close(mine, p.detach(), rtol=1e-4, atol=1e-5)
        for sentence in first[2] + second[2]:
            assert "engine.backward(retain" in sentence
