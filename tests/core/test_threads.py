"""Two threads that step two optimizers do not disturb each other."""

import threading
from collections.abc import Callable

import torch
from torch import nn
from torch.optim import SGD, AdamW

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM
from torch_alm._optim.objective import is_first_pass, is_running, running

STEPS = 40


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


def test_two_threads_train_as_one_after_the_other() -> None:
    def alone(seed: int) -> nn.Module:
        net, step = saul(seed)
        for _ in range(STEPS):
            step()
        return net

    expected = [alone(seed) for seed in (0, 1)]
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


def test_a_pass_within_one_that_does_not_count_does_not_either() -> None:
    with running(counts=False):
        with running(counts=True):
            assert is_first_pass()
        assert is_first_pass()
    assert not is_running()
