"""Problems with a known optimum, most of them Hock and Schittkowski's, and a way to solve them.

Source: W. Hock and K. Schittkowski, Test Examples for Nonlinear Programming Codes, 1981. Numbers
and starting points are theirs. Inequalities are g(x) >= 0; bounds are among them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_alm import ALMConstraint, ConstraintGroup

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Problem:
    """min objective(x) subject to at_least(x) >= 0 and equal(x) = 0."""

    name: str
    start: tuple[float, ...]
    objective: Function
    optimum: float
    at_least: Function | None = None
    equal: Function | None = None

    def __repr__(self) -> str:
        return self.name

    def first(self) -> Tensor:
        return torch.tensor(self.start, dtype=torch.float64)


def vector(*functions: Callable[..., Tensor]) -> Function:
    """Functions of single coordinates as one function of x."""
    return lambda x: torch.stack([function(*x) for function in functions])


def bounded(function: Function | None, low: list[float], high: list[float]) -> Function:
    """More inequalities: low <= x <= high, where finite."""
    below, above = torch.tensor(low), torch.tensor(high)

    def together(x: Tensor) -> Tensor:
        parts = [x[below.isfinite()] - below[below.isfinite()]]
        parts += [above[above.isfinite()] - x[above.isfinite()]]
        return torch.cat(parts if function is None else [function(x), *parts])

    return together


def box(low: list[float], high: list[float], *functions: Callable[..., Tensor]) -> Function:
    """Inequalities and bounds."""
    return bounded(vector(*functions) if functions else None, low, high)


INF = math.inf

HS = [
    Problem(
        "HS6",
        (-1.2, 1.0),
        lambda x: (1 - x[0]) ** 2,
        0.0,
        equal=vector(lambda a, b: 10 * (b - a**2)),
    ),
    Problem(
        "HS7",
        (2.0, 2.0),
        lambda x: torch.log(1 + x[0] ** 2) - x[1],
        -math.sqrt(3),
        equal=vector(lambda a, b: (1 + a**2) ** 2 + b**2 - 4),
    ),
    Problem(
        "HS10",
        (-10.0, 10.0),
        lambda x: x[0] - x[1],
        -1.0,
        vector(lambda a, b: -3 * a**2 + 2 * a * b - b**2 + 1),
    ),
    Problem(
        "HS11",
        (4.9, 0.1),
        lambda x: (x[0] - 5) ** 2 + x[1] ** 2 - 25,
        -8.498464223,
        vector(lambda a, b: -(a**2) + b),
    ),
    Problem(
        "HS12",
        (0.0, 0.0),
        lambda x: 0.5 * x[0] ** 2 + x[1] ** 2 - x[0] * x[1] - 7 * x[0] - 7 * x[1],
        -30.0,
        vector(lambda a, b: 25 - 4 * a**2 - b**2),
    ),
    Problem(
        "HS14",
        (2.0, 2.0),
        lambda x: (x[0] - 2) ** 2 + (x[1] - 1) ** 2,
        9 - 2.875 * math.sqrt(7),
        vector(lambda a, b: -0.25 * a**2 - b**2 + 1),
        vector(lambda a, b: a - 2 * b + 1),
    ),
    Problem(
        "HS21",
        (-1.0, -1.0),
        lambda x: 0.01 * x[0] ** 2 + x[1] ** 2 - 100,
        -99.96,
        bounded(vector(lambda a, b: 10 * a - b - 10), [2.0, -50.0], [50.0, 50.0]),
    ),
    Problem(
        "HS22",
        (2.0, 2.0),
        lambda x: (x[0] - 2) ** 2 + (x[1] - 1) ** 2,
        1.0,
        vector(lambda a, b: -a - b + 2, lambda a, b: -(a**2) + b),
    ),
    Problem(
        "HS27",
        (2.0, 2.0, 2.0),
        lambda x: 0.01 * (x[0] - 1) ** 2 + (x[1] - x[0] ** 2) ** 2,
        0.04,
        equal=vector(lambda a, b, c: a + c**2 + 1),
    ),
    Problem(
        "HS28",
        (-4.0, 1.0, 1.0),
        lambda x: (x[0] + x[1]) ** 2 + (x[1] + x[2]) ** 2,
        0.0,
        equal=vector(lambda a, b, c: a + 2 * b + 3 * c - 1),
    ),
    Problem(
        "HS35",
        (0.5, 0.5, 0.5),
        lambda x: (
            9
            - 8 * x[0]
            - 6 * x[1]
            - 4 * x[2]
            + 2 * x[0] ** 2
            + 2 * x[1] ** 2
            + x[2] ** 2
            + 2 * x[0] * x[1]
            + 2 * x[0] * x[2]
        ),
        1 / 9,
        bounded(vector(lambda a, b, c: 3 - a - b - 2 * c), [0.0] * 3, [INF] * 3),
    ),
    Problem(
        "HS39",
        (2.0, 2.0, 2.0, 2.0),
        lambda x: -x[0],
        -1.0,
        equal=vector(lambda a, b, c, d: b - a**3 - c**2, lambda a, b, c, d: a**2 - b - d**2),
    ),
    Problem(
        "HS43",
        (0.0, 0.0, 0.0, 0.0),
        lambda x: (
            x[0] ** 2
            + x[1] ** 2
            + 2 * x[2] ** 2
            + x[3] ** 2
            - 5 * x[0]
            - 5 * x[1]
            - 21 * x[2]
            + 7 * x[3]
        ),
        -44.0,
        vector(
            lambda a, b, c, d: 8 - a**2 - b**2 - c**2 - d**2 - a + b - c + d,
            lambda a, b, c, d: 10 - a**2 - 2 * b**2 - c**2 - 2 * d**2 + a + d,
            lambda a, b, c, d: 5 - 2 * a**2 - b**2 - c**2 - 2 * a + b + d,
        ),
    ),
    Problem(
        "HS48",
        (3.0, 5.0, -3.0, 2.0, -2.0),
        lambda x: (x[0] - 1) ** 2 + (x[1] - x[2]) ** 2 + (x[3] - x[4]) ** 2,
        0.0,
        equal=vector(lambda *x: sum(x) - 5, lambda a, b, c, d, e: c - 2 * (d + e) + 3),
    ),
    Problem(
        "HS50",
        (35.0, -31.0, 11.0, 5.0, -5.0),
        lambda x: (x[0] - x[1]) ** 2 + (x[1] - x[2]) ** 2 + (x[2] - x[3]) ** 4 + (x[3] - x[4]) ** 2,
        0.0,
        equal=vector(
            lambda a, b, c, d, e: a + 2 * b + 3 * c - 6,
            lambda a, b, c, d, e: b + 2 * c + 3 * d - 6,
            lambda a, b, c, d, e: c + 2 * d + 3 * e - 6,
        ),
    ),
    Problem(
        "HS51",
        (2.5, 0.5, 2.0, -1.0, 0.5),
        lambda x: (x[0] - x[1]) ** 2 + (x[1] + x[2] - 2) ** 2 + (x[3] - 1) ** 2 + (x[4] - 1) ** 2,
        0.0,
        equal=vector(
            lambda a, b, c, d, e: a + 3 * b - 4,
            lambda a, b, c, d, e: c + d - 2 * e,
            lambda a, b, c, d, e: b - e,
        ),
    ),
    Problem(
        "HS65",
        (-5.0, 5.0, 0.0),
        lambda x: (x[0] - x[1]) ** 2 + (x[0] + x[1] - 10) ** 2 / 9 + (x[2] - 5) ** 2,
        0.9535288567,
        bounded(
            vector(lambda a, b, c: 48 - a**2 - b**2 - c**2), [-4.5, -4.5, -5.0], [4.5, 4.5, 5.0]
        ),
    ),
    Problem(
        "HS76",
        (0.5, 0.5, 0.5, 0.5),
        lambda x: (
            x[0] ** 2
            + 0.5 * x[1] ** 2
            + x[2] ** 2
            + 0.5 * x[3] ** 2
            - x[0] * x[2]
            + x[2] * x[3]
            - x[0]
            - 3 * x[1]
            + x[2]
            - x[3]
        ),
        -4.681818181,
        bounded(
            vector(
                lambda a, b, c, d: 5 - a - 2 * b - c - d,
                lambda a, b, c, d: 4 - 3 * a - b - 2 * c + d,
                lambda a, b, c, d: b + 4 * c - 1.5,
            ),
            [0.0] * 4,
            [INF] * 4,
        ),
    ),
    Problem(
        "HS100",
        (1.0, 2.0, 0.0, 4.0, 0.0, 1.0, 1.0),
        lambda x: (
            (x[0] - 10) ** 2
            + 5 * (x[1] - 12) ** 2
            + x[2] ** 4
            + 3 * (x[3] - 11) ** 2
            + 10 * x[4] ** 6
            + 7 * x[5] ** 2
            + x[6] ** 4
            - 4 * x[5] * x[6]
            - 10 * x[5]
            - 8 * x[6]
        ),
        680.6300573,
        vector(
            lambda a, b, c, d, e, f, g: 127 - 2 * a**2 - 3 * b**4 - c - 4 * d**2 - 5 * e,
            lambda a, b, c, d, e, f, g: 282 - 7 * a - 3 * b - 10 * c**2 - d + e,
            lambda a, b, c, d, e, f, g: 196 - 23 * a - b**2 - 6 * f**2 + 8 * g,
            lambda a, b, c, d, e, f, g: -4 * a**2 - b**2 + 3 * a * b - 2 * c**2 - 5 * f + 11 * g,
        ),
    ),
]

# By hand: x = (-1, -2, 3) + lambda1 (1, 1, 1) + lambda2 (-1, 1, 0) with lambda = (1/3, 1/2).
QP = Problem(
    "QP",
    (0.0, 0.0, 0.0),
    lambda x: 0.5 * x.square().sum() + x[0] + 2 * x[1] - 3 * x[2],
    -79 / 12,
    vector(lambda a, b, c: a + b + c - 1, lambda a, b, c: b - a),
)
LINE = Problem("line", (0.0,), lambda x: (x[0] - 3) ** 2, 4.0, vector(lambda a: 1 - a))

EASY = [*HS, QP, LINE]


@dataclass(frozen=True)
class Solution:
    """The end of a run."""

    x: Tensor
    multipliers: Tensor
    violation: float
    gap: float
    group: ConstraintGroup

    def is_within(self, tolerance: float) -> bool:
        return self.violation <= tolerance and self.gap <= tolerance


def constrained(problem: Problem, **settings: object) -> ConstraintGroup:
    """Both kinds of constraints of a problem, whichever there are."""
    members = {}
    if problem.at_least is not None:
        members["at least"] = ALMConstraint(problem.at_least, alpha=0.0, **settings)
    if problem.equal is not None:
        members["equal"] = ALMConstraint(problem.equal, alpha=0.0, sense="==", **settings)
    return ConstraintGroup(members)


def solve(problem: Problem, steps: int = 4000, lr: float = 5e-2, **settings: object) -> Solution:
    """One default for all: Adam, a cosine schedule, mu = 1, a dual update every 50 steps."""
    group = constrained(problem, **{"mu": 1.0, "every": 50, **settings})
    return solve_side_by_side([(problem, group)], steps, lr)[0]


def solve_side_by_side(
    posed: Sequence[tuple[Problem, ConstraintGroup]], steps: int = 4000, lr: float = 5e-2
) -> list[Solution]:
    """Solve problems that share nothing but the backward pass: each goes where it goes alone."""
    parts = [(problem, group, problem.first().requires_grad_()) for problem, group in posed]
    adam = torch.optim.Adam([x for *_, x in parts], lr=lr)
    for step in range(steps):
        adam.param_groups[0]["lr"] = 0.5 * lr * (1 + math.cos(math.pi * step / steps))
        adam.zero_grad()
        losses = [problem.objective(x) + group(x) for problem, group, x in parts]
        torch.autograd.backward(losses)
        adam.step()
        for _, group, _ in parts:
            group.step()
    return [judged(problem, x.detach(), group) for problem, group, x in parts]


def judged(problem: Problem, x: Tensor, group: ConstraintGroup) -> Solution:
    """Violation and gap of a point, with the definition of the published comparisons."""
    gap = abs(float(problem.objective(x)) - problem.optimum) / (1 + abs(problem.optimum))
    violations = [torch.zeros(1, dtype=torch.float64)]
    if problem.at_least is not None:
        violations.append((-problem.at_least(x)).clamp(min=0))
    if problem.equal is not None:
        violations.append(problem.equal(x).abs())
    multipliers = torch.cat([torch.as_tensor(c.multiplier).reshape(-1) for c in group.values()])
    return Solution(x, multipliers, float(torch.cat(violations).max()), gap, group)
