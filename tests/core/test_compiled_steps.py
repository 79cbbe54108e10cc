"""A training step that is compiled as a whole gives what the plain one gives."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM
from torch_alm._optim.objective import make_replay

Loop = Callable[[nn.Module, Tensor], Callable[[], object]]


def saul(net: nn.Module, x: Tensor) -> Callable[[], object]:
    optimizer = DualOptimizer(
        SAM(AdamW(net.parameters(), lr=0.01), rho=0.05),
        ReverseSAM(SGD(net.parameters(), lr=0.01), rho=0.05),
        ALMConstraint(None, alpha=1.0, mu=0.5),
    )

    def step() -> None:
        optimizer.backward(
            retain=lambda: net(x).square().mean(), forget=lambda: net(x).abs().mean()
        )
        optimizer.step()
        optimizer.zero_grad()

    return step


def penalised(net: nn.Module, x: Tensor) -> Callable[[], object]:
    optimizer = SGD(net.parameters(), lr=0.05)
    constraint = ALMConstraint(lambda: net(x).abs().mean(), alpha=1.0, mu=0.5)

    def step() -> None:
        (net(x).square().mean() + constraint()).backward()
        optimizer.step()
        optimizer.zero_grad()
        constraint.step()

    return step


@pytest.mark.filterwarnings("ignore")  # torch's own, while it traces
@pytest.mark.parametrize("loop", [saul, penalised])
def test_a_compiled_step_is_the_plain_step(loop: Loop) -> None:
    def run(*, compiled: bool) -> Tensor:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        step = loop(net, torch.randn(6, 4, dtype=torch.float64))
        torch._dynamo.reset()
        step = torch.compile(step, backend="eager") if compiled else step
        for _ in range(3):
            step()
        return torch.cat([p.detach().reshape(-1) for p in net.parameters()])

    torch.testing.assert_close(run(compiled=True), run(compiled=False), rtol=0, atol=1e-13)


def test_gpu_dropout_is_replayed_where_the_weights_are_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stand-in for two GPUs, whose random numbers no parameter's device tells of."""
    states = [torch.tensor([1]), torch.tensor([2])]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [s.clone() for s in states])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state_all", lambda new: states.__setitem__(slice(None), new)
    )
    replay = make_replay([torch.zeros(1)])
    states[0] = torch.tensor([7])
    replay()
    assert [s.item() for s in states] == [1, 2]
