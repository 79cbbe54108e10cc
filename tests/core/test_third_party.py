"""8-bit base optimizers where their moments really are 8 bits wide: large enough parameters."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests import oracle
from tests.core import third_party
from tests.core.table import assert_same, values
from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM

MAKERS = {"torchao": third_party.TORCHAO, "bitsandbytes": third_party.BNB}
ALPHA, MU, RHO = 4.3, 1.0, 0.05


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(64, 64, bias=False)  # torchao keeps fewer than 4096 numbers in 32 bits


def loss(model: Any, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, 64, generator=generator)
    return F.cross_entropy(model(x), torch.randint(64, (8,), generator=generator))


def saul(model: nn.Module, make: Any) -> DualOptimizer:
    sides = [make(list(model.parameters())) for _ in range(2)]
    return DualOptimizer(
        SAM(sides[0], RHO), ReverseSAM(sides[1], RHO), ALMConstraint(None, ALPHA, MU)
    )


def train(model: nn.Module, optimizer: DualOptimizer, steps: range) -> list[float]:
    weights = []
    for step in steps:
        optimizer.backward(
            retain=lambda s=step: loss(model, s), forget=lambda s=step: loss(model, 100 + s % 4)
        )
        optimizer.step()
        optimizer.zero_grad()
        weights.append(optimizer.constraint.weight)
    return weights


def is_eight_bit(state: dict[str, Any]) -> bool:
    codes = [getattr(value, "codes", value) for value in state.values()]
    return any(isinstance(code, Tensor) and code.dtype == torch.uint8 for code in codes)


@pytest.mark.parametrize("library", MAKERS)
def test_saul_over_8_bit_moments_is_algorithm_1_over_them(library: str) -> None:
    model, other = net(), net()
    optimizer = saul(model, MAKERS[library])
    weights = train(model, optimizer, range(12))
    assert is_eight_bit(optimizer.retain.state[model.weight])
    theta, multiplier, expected = [other.weight], 0.0, []
    s_r, s_f = (MAKERS[library](theta) for _ in range(2))
    for step in range(12):
        g_r, _ = oracle.grad_sam(lambda s=step: loss(other, s), theta, RHO, +1.0)
        g_f, value = oracle.grad_sam(lambda s=step: loss(other, 100 + s % 4), theta, RHO, -1.0)
        multiplier = max(multiplier + MU * (ALPHA - value), 0.0)
        if multiplier > 0:
            other.weight.grad = -multiplier * g_f[0]
            s_f.step()
        other.weight.grad = g_r[0]
        s_r.step()
        expected.append(multiplier)
    assert 0.0 in expected and max(expected) > 0, "the gate must open and close"
    torch.testing.assert_close(weights, expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(model.weight, other.weight, rtol=0, atol=2e-4)


@pytest.mark.parametrize("library", MAKERS)
def test_8_bit_moments_resume_from_a_file_bit_exactly(library: str) -> None:
    model, resumed = net(), net()
    optimizer = saul(model, MAKERS[library])
    train(model, optimizer, range(4))
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    train(model, optimizer, range(4, 8))
    file.seek(0)
    weights, state = torch.load(file, weights_only=library == "bitsandbytes")
    resumed.load_state_dict(weights)
    later = saul(resumed, MAKERS[library])
    later.load_state_dict(state)
    train(resumed, later, range(4, 8))
    assert_same(values(resumed), values(model))
