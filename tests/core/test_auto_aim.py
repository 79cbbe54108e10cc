"""Steps that aim: with `scale="step"` and mu="auto" a forget step ends where the goal is."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from torch_alm import ALMConstraint, DualOptimizer
from torch_alm.auto import Auto

ALPHA = 2.0


def memorised() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
    x, y = torch.randn(64, 16), torch.randint(4, (64,))
    optimizer = AdamW(net.parameters(), lr=1e-2)
    for _ in range(200):
        cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net, x, y


NET, X, Y = memorised()


def overshoot(
    mu: object, scale: object, lr: float, batch: int = 16, steps: int = 150
) -> tuple[float, float]:
    """The furthest beyond alpha, and the forget loss at the end."""
    torch.manual_seed(1)
    net, constraint = copy.deepcopy(NET), ALMConstraint(None, ALPHA, mu)
    retain, forget = (AdamW(net.parameters(), lr=lr, weight_decay=0.0) for _ in range(2))
    dual, found = DualOptimizer(retain, forget, constraint, scale=scale), list[float]()
    for _ in range(steps):
        rows = 48 + torch.randperm(16)[:batch]
        dual.backward(
            retain=lambda: cross_entropy(net(X[:48]), Y[:48]),
            forget=lambda rows=rows: cross_entropy(net(X[rows]), Y[rows]),
        )
        dual.step()
        dual.zero_grad()
        with torch.no_grad():
            found.append(cross_entropy(net(X[48:]), Y[48:]).item())
    return max(found) - ALPHA, found[-1]


@pytest.mark.parametrize("lr", [1e-3, 1e-2])
def test_aimed_steps_overshoot_a_quarter_of_the_gates_at_most(lr: float) -> None:
    aimed, end = overshoot("auto", "step", lr)
    gate, _ = overshoot(1.0, "gradient", lr)
    assert 0 <= aimed <= gate / 4 and end >= 0.99 * ALPHA


def test_minibatches_are_aimed_with_as_well() -> None:
    aimed, end = overshoot("auto", "step", 1e-3, batch=6, steps=300)
    assert aimed < 1.0 and end >= 0.9 * ALPHA


def test_the_share_is_that_of_a_linear_measure() -> None:
    """c falls by s R, with R = 3, of which the first guess was R = 10."""
    entry, c, shares = Auto(), 20.0, list[float]()
    entry.calibrate((10.0, 0.0))
    for _ in range(40):
        shares.append(entry.see(c).aim(1.0))
        entry.advance()
        c -= 3.0 * shares[-1]
    assert all(0 <= s <= 1 for s in shares)
    assert c == pytest.approx(0.0, abs=1e-3)


def test_a_step_of_the_secant_by_hand() -> None:
    entry = Auto()
    entry.calibrate((2.0, 0.0))
    assert entry.see(0.4).aim(1.0) == pytest.approx(0.2)
    entry.advance()
    entry.see(0.2)  # fell by 0.2, where 0.4 was foretold
    reach = 2.0 - 0.7 / (0.2**2 + 0.3**2) * 0.2 * 0.2
    assert entry.aim(1.0) == pytest.approx(0.2 / reach) and entry.reach == pytest.approx(reach)
    assert entry.aim(0.0) == 0.0


@pytest.mark.parametrize(("odd", "reach"), [(-20.0, 3 * 2.0), (20.0, 0.03 * 2.0)])
def test_one_odd_measurement_does_not_hold_the_steps_for_good(odd: float, reach: float) -> None:
    entry = Auto()
    entry.calibrate((2.0, 0.0))
    for c in (0.4, odd):
        entry.see(c).aim(1.0)
        entry.advance()
    assert entry.reach == pytest.approx(reach)


def test_a_violated_constraint_whose_mu_is_not_known_yet_is_measured_in_the_next_step() -> None:
    torch.manual_seed(1)
    net, constraint = copy.deepcopy(NET), ALMConstraint(None, ALPHA, "auto")
    sides = (AdamW(net.parameters(), lr=1e-3) for _ in range(2))
    dual, measured = DualOptimizer(*sides, constraint, scale="step", probe_every=8), list[float]()

    def forget() -> torch.Tensor:
        loss = cross_entropy(net(X[48:]), Y[48:])
        measured.append(loss.item())
        return loss

    for _ in range(3):
        dual.backward(retain=lambda: cross_entropy(net(X[:48]), Y[:48]), forget=forget)
        dual.step()
        dual.zero_grad()
    assert len(measured) == 3 and max(measured) < ALPHA
