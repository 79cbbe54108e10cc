"""Three constraint controllers on the same problems: ours, cooper, humancompatible-train.

    python -m benchmarks.studies.controllers [--quick] [--only LIBRARY ...] [--no-problems]
        [--more | --no-more] [--output DIR]

- solved: problems with known optima (`problems.txt`), one default for all: Adam, 4,000 steps,
  lr 5e-2 with a cosine schedule, mu = 1; the dual step every 50 steps, and every step; ours also
  on more problems (`problems_more.txt`), with the penalty as it is and growing;
- noise: an inactive constraint (slack 0.1, sd 1, mu 1) for 20,000 steps: mean multiplier, and the
  share of steps on which it is above zero;
- NaN: whether multiplier and weights are finite 15 steps after one NaN measurement;
- resume: saved and loaded in fresh objects, how often 10 further steps are what they would have
  been;
- cost: thread time per step on a one-parameter model, and what a constraint that never acts costs.

DIR receives `controllers.json` and, written from it, `controllers.md`.

The two peers are not dependencies: `pip install cooper-optim` and
`pip install --no-deps humancompatible-train`.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import random
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam

from benchmarks.report.results import write_record
from benchmarks.studies.controllers import slsqp
from benchmarks.studies.controllers.costs import cost, gate
from benchmarks.studies.controllers.peers import Controller, Cooper, HumanCompatible, Ours
from benchmarks.studies.controllers.problems import EASY, MORE, Problem, errors
from benchmarks.studies.controllers.problems import solve as solve_with
from benchmarks.studies.controllers.snippets import LINES
from benchmarks.studies.controllers.table import markdown, more_lines
from torch_alm import ALMConstraint
from torch_alm.filters import Mean
from torch_alm.rules import PenaltyGrowth

LIBRARIES: dict[str, type[Controller]] = {
    "torch-alm": Ours,
    "cooper": Cooper,
    "humancompatible": HumanCompatible,
}


def solve(
    library: type[Controller], problem: Problem, every: int, steps: int
) -> tuple[float, float]:
    """The largest violation and the relative gap at the end."""
    x = problem.first().requires_grad_()
    controller = library(problem.at_least, problem.equal, 1.0, every)
    adam = Adam([x], lr=5e-2)
    for step in range(steps):
        adam.param_groups[0]["lr"] = 2.5e-2 * (1 + math.cos(math.pi * step / steps))
        adam.zero_grad()
        controller.loss(problem.objective(x), x).backward()
        adam.step()
        controller.update(step)
    return errors(problem, x.detach())


def solved(library: type[Controller], every: int, steps: int) -> dict[str, Any]:
    """Count the problems that are solved to 1e-3 and to 1e-5."""
    found = {problem.name: solve(library, problem, every, steps) for problem in EASY}
    within = {
        tolerance: sum(max(pair) <= tolerance for pair in found.values())
        for tolerance in (1e-3, 1e-5)
    }
    return {"1e-3": within[1e-3], "1e-5": within[1e-5], "of": len(found), "problems": found}


GROWTH = {
    "as it is": {},
    "growing": {"rules": [PenaltyGrowth(factor=2.0, limit=1e3)], "tolerance": 1e-6},
}


def more(steps: int) -> dict[str, Any]:
    """Ours on more problems: how far from the published optimum, and SciPy from the same start.

    Of a problem with several optima each may find its own; `scipy` says which one that does.
    """
    found: dict[str, Any] = {}
    for problem in MORE:
        _, gap = errors(problem, torch.tensor(slsqp.optimum(problem)))
        ends = {name: solve_with(problem, steps, **how) for name, how in GROWTH.items()}
        found[problem.name] = {
            "scipy": gap,
            **{name: [end.violation, end.gap] for name, end in ends.items()},
        }
    return found


UNSOLVED = {"1e-3": "-", "1e-5": "-", "of": len(EASY)}


def noise(library: type[Controller], steps: int) -> tuple[float, float]:
    """Mean multiplier and share of steps above zero, with a dual step every step."""
    generator = random.Random(0)
    shift = torch.zeros((), dtype=torch.float64)
    controller = library(lambda x: (0.1 + shift + 0.0 * x[0]).reshape(1), None, 1.0, 1)
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    total, above = 0.0, 0
    for step in range(steps):
        shift.fill_(generator.gauss(0.0, 1.0))
        controller.loss(x.sum(), x)
        controller.update(step)
        multiplier = controller.multipliers.item()
        total, above = total + multiplier, above + (multiplier > 0)
    return total / steps, above / steps


def filtered_noise(steps: int) -> tuple[float, float, float]:
    """Measure `noise` for ours with a window and a dead-band; also the share of acting weights."""
    generator = random.Random(0)
    c = ALMConstraint(None, alpha=0.0, mu=1.0, every=50, filter=Mean(50, deadband=1.0))
    total, above, acting = 0.0, 0, 0
    for _ in range(steps):
        c.observe(0.1 + generator.gauss(0.0, 1.0))
        acting += c.step() > 0
        total, above = total + c.multiplier, above + (c.multiplier > 0)
    return total / steps, above / steps, acting / steps


def descend(controller: Controller, x: Tensor, steps: range, optimizer: SGD) -> None:
    """Plain gradient descent on x^2 and the penalties."""
    for step in steps:
        optimizer.zero_grad()
        controller.loss(x.square().sum(), x).backward()
        optimizer.step()
        controller.update(step)


def survives_nan(library: type[Controller]) -> bool:
    """One NaN measurement among twenty."""
    at = [0]

    def measure(x: Tensor) -> Tensor:
        at[0] += 1
        return (x - 1) * (math.nan if at[0] == 5 else 1.0)

    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    controller = library(measure, None, 0.5, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ours says that it skips
        descend(controller, x, range(20), SGD([x], lr=0.05))
    return bool(controller.multipliers.isfinite().all() and x.isfinite().all())


def resumes(library: type[Controller], trials: int = 8) -> int:
    """Count the trials that go on as if never stopped.

    The peers step their multipliers with an optimizer, here with momentum, which is a state.
    """
    library = type(library.__name__, (library,), {"momentum": 0.9})

    def measure(x: Tensor) -> Tensor:
        return x - torch.arange(1.0, 5.0, dtype=torch.float64)

    def equal(x: Tensor) -> Tensor:
        return x[:1] + x[1:2] - 4

    good = 0
    for _ in range(trials):
        x = torch.zeros(4, dtype=torch.float64, requires_grad=True)
        whole = library(measure, equal, 0.3, 1)
        descend(whole, x, range(10), SGD([x], lr=0.05))
        y = x.detach().clone().requires_grad_()
        part = library(measure, equal, 0.3, 1)
        part.loss(y.sum(), y)
        buffer = io.BytesIO()
        torch.save(whole.state_dict(), buffer)
        buffer.seek(0)
        part.load_state_dict(torch.load(buffer, weights_only=False))
        try:
            for each, at in ((whole, x), (part, y)):
                descend(each, at, range(10, 20), SGD([at], lr=0.05))
        except RuntimeError:  # moments of one constraint met another's multipliers
            continue
        good += torch.equal(x, y) and torch.equal(whole.multipliers, part.multipliers)
    return good


def compare(
    names: list[str], *, quick: bool, problems: bool, further: bool = True
) -> dict[str, Any]:
    """Everything, by library."""
    steps, noisy, timed = (400, 2_000, 200) if quick else (4_000, 20_000, 2_000)
    costs, gates = cost(timed), gate(timed // 20)
    found: dict[str, Any] = {"cost": costs, "gate": gates, "filtered noise": filtered_noise(noisy)}
    for name in names:
        library = LIBRARIES[name]
        found[name] = {
            "lines": LINES[name],
            "microseconds": costs[name],
            "extra": costs[name] - costs["by hand"],
            "gate": gates[name] / gates["retain only"],
            "noise": noise(library, noisy),
            "nan": survives_nan(library),
            "resume": resumes(library),
            "every 50": solved(library, 50, steps) if problems else UNSOLVED,
            "every step": solved(library, 1, steps) if problems else UNSOLVED,
        }
        print(f"{name}: done", flush=True)
    if further and problems:
        found["more"] = more(steps)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="controllers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps: a smoke test")
    parser.add_argument(
        "--only", nargs="+", choices=LIBRARIES, default=list(LIBRARIES), help="of these libraries"
    )
    parser.add_argument("--no-problems", action="store_true", help="all but the long part")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--more", action="store_true", help="only the further problems")
    either.add_argument("--no-more", action="store_true", help="without the further problems")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where to write the numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.more:
        record = options.output and options.output / "controllers.json"
        earlier = json.loads(record.read_text()) if record else {}  # missing: said before the runs
        further = more(400 if options.quick else 4_000)
        print("\n".join(more_lines(further)))
        if options.output:
            write_record(options.output, "controllers", {**earlier, "more": further}, markdown)
        return 0
    found = compare(
        options.only,
        quick=options.quick,
        problems=not options.no_problems,
        further=not options.no_more,
    )
    print("us/step: " + ", ".join(f"{name} {value:.0f}" for name, value in found["cost"].items()))
    print(
        "ms/step with a constraint that never acts: "
        + ", ".join(f"{name} {value:.2f}" for name, value in found["gate"].items())
    )
    print(f"\n{markdown(found)}")
    if options.output:
        write_record(options.output, "controllers", found, markdown)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
