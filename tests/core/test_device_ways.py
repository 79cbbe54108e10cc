"""The ways that theta takes on an accelerator, which a CPU can take as well: with numbers."""

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from torch_alm import SAM, perturbed
from torch_alm._optim import gradients


@pytest.fixture(autouse=True)
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole tensors, and factors that the host never reads."""
    monkeypatch.setattr(gradients, "HOST", ())


@pytest.mark.parametrize("entry", [0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_sparse_direction_without_a_length_moves_nothing(entry: float, adaptive: bool) -> None:
    table = nn.Embedding(5, 2, sparse=True)
    (table(torch.tensor([1, 1, 3])) * entry).sum().backward()
    before = table.weight.detach().clone()
    with perturbed([table.weight], 0.1, adaptive=adaptive):
        assert torch.equal(table.weight, before)
    assert torch.equal(table.weight, before)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_sparse_direction_moves_theta_as_a_dense_one(adaptive: bool) -> None:
    def visited(*, sparse: bool) -> Tensor:
        torch.manual_seed(0)
        table = nn.Embedding(5, 2, sparse=sparse)
        optimizer = SAM(SGD(table.parameters(), lr=0.1), rho=0.3, adaptive=adaptive)
        there: list[Tensor] = []

        def objective() -> Tensor:
            there.append(table.weight.detach().clone())
            return table(torch.tensor([1, 1, 3])).square().sum()

        optimizer.backward(objective)
        optimizer.step()
        return torch.stack([*there, table.weight.detach()])

    found = visited(sparse=True)
    assert not torch.equal(found[0], found[1])
    torch.testing.assert_close(found, visited(sparse=False), rtol=0, atol=1e-6)
