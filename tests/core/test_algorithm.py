"""The library equals Algorithm 1 written by hand, while the gate opens and closes."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

from tests import oracle
from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM

STEPS = 40


class Tied(nn.Module):
    """A small network with everything that trips wrappers: tied, frozen and unused weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.randn(5, 4))
        self.hidden = nn.Linear(4, 4)
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(3))
        self.retain_only = nn.Parameter(torch.zeros(5))

    def forward(self, ids: Tensor, *, retain: bool) -> Tensor:
        logits = torch.tanh(self.hidden(self.embed[ids]) + self.frozen) @ self.embed.T
        return logits + self.retain_only if retain else logits


def batches(seed: int, micro: int) -> list[list[tuple[Tensor, Tensor, Tensor, Tensor]]]:
    """For each step and micro-batch: retain inputs and labels, forget inputs and labels."""
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        return torch.randint(0, 5, (6,), generator=generator)

    return [[(draw(), draw(), draw(), draw()) for _ in range(micro)] for _ in range(STEPS)]


def losses(model: Tied, batch: tuple[Tensor, ...]) -> tuple[Callable[[], Tensor], ...]:
    r_in, r_out, f_in, f_out = batch
    return (
        lambda: F.cross_entropy(model(r_in, retain=True), r_out),
        lambda: F.cross_entropy(model(f_in, retain=False), f_out),
    )


def build(seed: int) -> tuple[Tied, list[nn.Parameter]]:
    torch.manual_seed(seed)
    model = Tied().double()
    return model, list(model.parameters())


def by_hand(seed: int, micro: int, settings: dict) -> tuple[list[Tensor], list[float]]:
    model, theta = build(seed)
    s_r, s_f = oracle.AdamW(3e-2, 1e-2), oracle.AdamW(3e-2, 1e-3)
    saul = oracle.Saul(theta, s_r, s_f, alpha=0.0, mu=0.3, multiplier=0.3, **settings)
    weights = []
    for i, step in enumerate(batches(seed, micro)):
        saul.alpha = alpha_at(i, saul.sense)
        retain, forget = zip(*(losses(model, batch) for batch in step), strict=True)
        weights.append(saul.step(retain, forget))
    return [p.detach().clone() for p in theta], weights


def by_library(seed: int, micro: int, settings: dict) -> tuple[list[Tensor], list[float]]:
    model, theta = build(seed)
    ours = dict(settings)
    rho_r, rho_f, scale = ours.pop("rho_r"), ours.pop("rho_f"), ours.pop("scale")
    nearby = SAM if ours["sense"] == "<=" else ReverseSAM
    constraint = ALMConstraint(None, alpha=0.0, mu=0.3, multiplier=0.3, **ours)
    optimizer = DualOptimizer(
        retain=SAM(AdamW(theta, lr=3e-2, weight_decay=1e-2), rho=rho_r),
        forget=nearby(AdamW(theta, lr=3e-2, weight_decay=1e-3), rho=rho_f),
        constraint=constraint,
        scale=scale,
        probe_every=1,
    )
    weights = []
    for i, step in enumerate(batches(seed, micro)):
        constraint.alpha = alpha_at(i, constraint.sense)
        for batch in step:
            retain, forget = losses(model, batch)
            optimizer.backward(retain=retain, forget=forget, weight=1 / micro)
        optimizer.step()
        optimizer.zero_grad()
        weights.append(constraint.weight)
    return [p.detach().clone() for p in theta], weights


# The threshold moves every ten steps, out of reach and back, so that the gate opens and closes.
ALPHAS = {">=": (3.0, 0.5), "<=": (1.0, 6.0)}


def alpha_at(step: int, sense: str) -> float:
    return ALPHAS[sense][(step // 10) % 2]


SHARP, FLAT = (0.05, 0.1), (0.0, 0.0)
CASES = [*itertools.product(ALPHAS, ["gradient", "step"], [1], [SHARP])]
CASES += [("<=", "gradient", 2, SHARP), (">=", "step", 2, SHARP), (">=", "gradient", 2, FLAT)]


@pytest.mark.parametrize(("sense", "scale", "micro", "rho"), CASES)
def test_matches_algorithm_1_written_by_hand(
    sense: str, scale: str, micro: int, rho: tuple[float, float]
) -> None:
    settings = {"sense": sense, "scale": scale, "rho_r": rho[0], "rho_f": rho[1]}
    theta, weights = by_library(1, micro, settings)
    expected, expected_weights = by_hand(1, micro, settings)

    closed = [w == 0 for w in weights]
    reopened = any(a and not b for a, b in itertools.pairwise(closed))
    assert any(closed) and not all(closed) and reopened, "the gate must close and open again here"
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=1e-12)
    torch.testing.assert_close(theta, expected, rtol=0, atol=1e-12)
