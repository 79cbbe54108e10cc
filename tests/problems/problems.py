"""Problems of Hock and Schittkowski with their optima, and a way to solve them.

They stand in `problems.txt`. Inequalities are g(x) >= 0.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    multipliers: tuple[float, ...] = ()

    def __repr__(self) -> str:
        return self.name

    def first(self) -> Tensor:
        return torch.tensor(self.start, dtype=torch.float64)


def vector(*functions: Callable[..., Tensor]) -> Function:
    """Functions of single coordinates as one function of x."""
    return lambda x: torch.stack([function(*x) for function in functions])


NAMES = {"log": torch.log, "sqrt": math.sqrt}


def read(file: str) -> list[Problem]:
    """The problems of a file of this folder; the head of `problems.txt` says how it is written."""
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    blocks = [block.splitlines() for block in text.split("\n\n")]
    return [parsed(*lines) for lines in blocks if not lines[0].startswith("#")]


def parsed(head: str, *lines: str) -> Problem:
    """A problem from its name, start and optimum, and the lines below them."""
    name, start, optimum, multipliers = head.split(" | ")
    said: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        said[line[2:6].strip()].append(line[6:])
    first = numbers(start)
    at_least, equal = (written(said[sign], len(first)) for sign in ("0 <=", "0 =="))
    objective = re.sub(r"\bx(\d)", lambda place: f"x[{int(place[1]) - 1}]", *said["min"])
    minimised = eval(f"lambda x: {objective}", NAMES)
    found = *numbers(optimum), at_least, equal, tuple(numbers(multipliers))
    return Problem(name, tuple(first), minimised, *found)


def numbers(text: str) -> list[float]:
    """Numbers, or formulas of them, between commas."""
    return [float(number) for number in eval(f"[{text}]", {}, vars(math))]


def written(texts: Sequence[str], size: int) -> Function | None:
    """Functions of so many coordinates as one function of x; None for none."""
    names = ", ".join(f"x{i}" for i in range(1, size + 1))
    return vector(*(eval(f"lambda {names}: {text}", NAMES) for text in texts)) if texts else None


EASY = read("problems.txt")


@dataclass(frozen=True)
class Solution:
    """The end of a run."""

    multipliers: Tensor
    violation: float
    gap: float
    group: ConstraintGroup


def constrained(problem: Problem, **settings: object) -> ConstraintGroup:
    """Both kinds of constraints of a problem, whichever there are."""
    members = {}
    if problem.at_least is not None:
        members["at least"] = ALMConstraint(problem.at_least, alpha=0.0, **settings)
    if problem.equal is not None:
        members["equal"] = ALMConstraint(problem.equal, alpha=0.0, sense="==", **settings)
    return ConstraintGroup(members)


def solve_side_by_side(
    posed: Sequence[tuple[Problem, ConstraintGroup]], steps: int, lr: float = 5e-2
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
    """The end of a run at a point."""
    multipliers = torch.cat([torch.as_tensor(c.multiplier).reshape(-1) for c in group.values()])
    return Solution(multipliers, *errors(problem, x), group)


def errors(problem: Problem, x: Tensor) -> tuple[float, float]:
    """The largest violation and the relative gap, as the published comparisons define them."""
    gap = abs(float(problem.objective(x)) - problem.optimum) / (1 + abs(problem.optimum))
    violations = [torch.zeros(1, dtype=torch.float64)]
    if problem.at_least is not None:
        violations.append((-problem.at_least(x)).clamp(min=0))
    if problem.equal is not None:
        violations.append(problem.equal(x).abs())
    return float(torch.cat(violations).max()), gap
