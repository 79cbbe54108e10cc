"""The rule behind `mu="auto"` for one number, by hand: plain Python, and torch for gradients."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer


class Rule:
    """Everything is a float; the names are those of the page."""

    def __init__(self, sense: str) -> None:
        self.sense = sense
        self.lam = self.G = self.rho = self.s2 = self.cbar = self.last = self.floor = 0.0
        self.c: list[float] = []
        self.stuck = 0
        self.tilde = self.noise = 0.0

    def weigh(self, c: float) -> float:
        """w for this step's violation."""
        self.c.append(c)
        t = len(self.c)
        self.s2 = 0.98 * self.s2 + 0.02 * c * c if t > 1 else c * c
        self.cbar = 0.9 * self.cbar + 0.1 * c if t > 1 else c
        product = (c - self.c[-2]) * (self.c[-2] - self.c[-3]) if t > 2 else 0.0
        self.noise = 0.98 * self.noise - 0.02 * product
        nu = min(max(self.noise, 0.0) / self.s2, 1.0) if self.s2 else 0.0
        self.K = max((1 - nu) ** 2, 0.05)
        self.tilde = self.tilde + self.K * (c - self.tilde) if t > 1 else c
        self.w = self.project(self.lam + self.mu * self.tilde)
        return self.w

    def project(self, x: float) -> float:
        return x if self.sense == "==" else max(x, 0.0)

    @property
    def mu(self) -> float:
        if self.G == 0:
            return 0.0
        wanted = max(self.floor / self.G, 0.3 * self.rho / math.sqrt(self.s2))
        return min(self.K * 0.3 / self.G, wanted)

    def calibrate(
        self,
        a: Tensor,
        g: Tensor,
        scaled: Callable[[Tensor, Tensor], Tensor],
        *,
        is_adaptive: bool = False,
    ) -> None:
        r = g - self.w * a
        rho = float(r.norm() / a.norm())
        self.floor = 0.0 if is_adaptive and rho else 1e-3
        G = float((a * scaled(a, torch.maximum(r.abs(), rho * a.abs()))).sum())
        self.G, self.rho = (
            (max(G, (self.G + G) / 2), min(rho, (self.rho + rho) / 2)) if self.G else (G, rho)
        )

    def advance(self) -> None:
        if len(self.c) % 20:
            return
        share, fallen = 1.0, abs(self.last) - abs(self.cbar)
        if self.last * self.cbar > 0 and fallen > 0:
            enough = 20 * (self.G * self.rho if self.rho else self.floor * abs(self.cbar))
            share = max(1 - fallen / enough, 0.0) if enough else 0.0
        mu = min(2.0 ** max(self.stuck - 5, 0) * self.mu, self.K * 0.3 / self.G if self.G else 0.0)
        self.lam = self.project(self.lam + share * mu * self.cbar)
        self.stuck = self.stuck + 1 if share > 0.9 and self.last * self.cbar > 0 else 0
        self.last = self.cbar


def scaling(optimizer: Optimizer, theta: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """A step's factor on a gradient a, beside `alone`, below which v might vanish."""
    (group,), state = optimizer.param_groups, optimizer.state.get(theta, {})
    lr, eps = group["lr"], group.get("eps")
    if eps is None:
        return lambda a, alone: lr / (1 - group["momentum"]) * a
    root = theta.grad.abs()
    if "exp_avg_sq" in state:
        root = (state["exp_avg_sq"] / (1 - group["betas"][1] ** float(state["step"]))).sqrt()
    elif "square_avg" in state:
        root = state["square_avg"].sqrt()
    return lambda a, alone: lr * a / (root + alone + eps)


def solve(
    theta: Tensor,
    optimizer: Optimizer,
    objective: Callable[[], Tensor],
    violation: Callable[[], Tensor],
    sense: str,
    steps: int,
) -> list[Tensor]:
    """Theta after each step, of min f subject to c <= 0 (or == 0)."""
    rule, seen = Rule(sense), []
    for t in range(steps):
        c = violation()
        w = rule.weigh(c.item())
        (a,) = torch.autograd.grad(c, theta, retain_graph=True)
        optimizer.zero_grad()
        (objective() + w * c).backward()
        if t < 60 or t % 20 == 0:
            by, is_adaptive = scaling(optimizer, theta), "eps" in optimizer.defaults
            rule.calibrate(a, theta.grad, by, is_adaptive=is_adaptive)
        optimizer.step()
        rule.advance()
        seen.append(theta.detach().clone())
    return seen
