"""Two threads that step two optimizers disturb neither each other nor torch's global hooks."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM

STEPS = 40


@pytest.fixture
def stepped() -> Iterator[list[Optimizer]]:
    """The optimizers whose steps global hooks have seen."""
    seen: list[Optimizer] = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: None),
        register_optimizer_step_post_hook(lambda optimizer, *_: seen.append(optimizer)),
    ]
    yield seen
    for handle in handles:
        handle.remove()


def saul(
    seed: int, on_step: Callable[[], object] = lambda: None
) -> tuple[nn.Module, Callable[[], object]]:
    torch.manual_seed(seed)
    net = nn.Linear(3, 2).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    params = list(net.parameters())
    optimizer = DualOptimizer(
        SAM(AdamW(params, lr=0.01), rho=0.05),
        ReverseSAM(SGD(params, lr=0.01), rho=0.05),
        ALMConstraint(None, alpha=5.0, mu=0.1),
    )

    def step() -> None:
        optimizer.backward(
            retain=lambda: net(x).square().mean(), forget=lambda: net(x).abs().mean()
        )
        on_step()
        optimizer.step()
        optimizer.zero_grad()

    return net, step


def test_two_threads_train_as_one_after_the_other(stepped: list[Optimizer]) -> None:
    def alone(seed: int) -> nn.Module:
        net, step = saul(seed)
        for _ in range(STEPS):
            step()
        return net

    expected = [alone(seed) for seed in (0, 1)]
    stepped.clear()
    together = threading.Barrier(2)
    loops = [saul(seed, on_step=together.wait) for seed in (0, 1)]
    threads = [
        threading.Thread(target=lambda step=step: [step() for _ in range(STEPS)])
        for _, step in loops
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (net, _), reference in zip(loops, expected, strict=True):
        for p, q in zip(net.parameters(), reference.parameters(), strict=True):
            assert torch.equal(p, q)
    assert {*Counter(map(id, stepped)).values()} == {STEPS}, "once per step of each"
    plain = SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    plain.step()
    assert stepped[-1] is plain, "torch's hooks are still there"
