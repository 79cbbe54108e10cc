"""The cost of the library beyond the forward and backward passes it asks for.

    python -m benchmarks.studies.cost.overhead [--quick] [--threads 1] [--dtype float32]
        [--output FILE.json]

Two questions. *Controller*: microseconds per step that `ALMConstraint` adds to a loop with one
parameter, against the same loop with the multiplier written by hand. *Perturbation*: the time to
perturb and restore 100 million parameters in the shapes of a small Llama, in multiples of one plain
`copy_` of the same bytes.

Everything is interleaved: each round measures a row right after the reference; what is reported are
medians over rounds, and of the difference to, or the ratio with, the reference next to it. On one
thread the clock is the thread's own processor time. What else runs on the machine then takes cache
and bandwidth from both, and time from none.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module, util
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD

from benchmarks.report.results import write_json
from torch_alm import SAM, ALMConstraint, perturbed

RHO = 0.05


class Row(NamedTuple):
    """One line of a table."""

    name: str
    median: float
    low: float
    high: float
    extra: float
    note: str


Work = dict[str, Callable[[], Any]]
Pairs = list[tuple[float, float]]


def timed(run: Callable[[], Any]) -> float:
    """Seconds of this thread's own processor time on one thread, else of the wall clock."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    began = clock()
    run()
    return clock() - began


def rounds(work: Work, reference: str, count: int) -> dict[str, Pairs]:
    """For every row and round: its seconds, and those of the reference just before it."""
    names = list(work)
    pairs: dict[str, Pairs] = {name: [] for name in names}
    for i in range(count):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            its = timed(work[reference])
            pairs[name].append((timed(work[name]), its))
    return pairs


def quartiles(values: list[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, low, high


# The controller


class Loop:
    """min theta^2 subject to theta >= 1, by gradient descent on one parameter."""

    def __init__(self) -> None:
        self.theta = torch.zeros(1, requires_grad=True)

    def descend(self, loss: Tensor) -> None:
        loss.backward()
        with torch.no_grad():
            self.theta -= 0.1 * self.theta.grad
        self.theta.grad = None

    def measure(self) -> Tensor:
        return self.theta.sum()


class ByHandLoss(Loop):
    """The penalty and its multiplier, as one writes them into a loop."""

    multiplier = 0.0

    def step(self) -> None:
        c = 1.0 - self.measure()
        weight = (self.multiplier + c).clamp(min=0.0)
        self.descend(self.theta.square().sum() + (weight.square() - self.multiplier**2) / 2)
        self.multiplier = weight.item()


class OurLoss(Loop):
    """`loss + constraint(...)`, then `constraint.step()`."""

    def __init__(self) -> None:
        super().__init__()
        self.constraint = ALMConstraint(self.measure, alpha=1.0, mu=1.0)

    @property
    def multiplier(self) -> Any:
        return self.constraint.multiplier

    def step(self) -> None:
        self.descend(self.theta.square().sum() + self.constraint())
        self.constraint.step()


class ByHandControl(Loop):
    """A weight on somebody else's forget loss, from a value that is at hand."""

    multiplier = 0.0

    def step(self) -> None:
        value = self.measure()
        self.multiplier = max(self.multiplier + 1.0 - value.item(), 0.0)
        self.descend(self.theta.square().sum() - self.multiplier * value)


class OurControl(OurLoss):
    """`observe`, then `weight = step()`."""

    def step(self) -> None:
        value = self.measure()
        self.constraint.observe(value)
        self.descend(self.theta.square().sum() - self.constraint.step() * value)


def controller(count: int, steps: int) -> list[Row]:
    """Microseconds per step; `extra` is on top of the loop by hand."""
    table = []
    ways: dict[str, Any] = {"constraint(...) + step()": (ByHandLoss, OurLoss)}
    ways["observe(value) + step()"] = (ByHandControl, OurControl)
    for name, kinds in ways.items():
        hand, ours = (kind() for kind in kinds)
        work: Work = {"by hand": repeated(hand, steps), name: repeated(ours, steps)}
        for row, pairs in rounds(work, "by hand", count).items():
            micro = [1e6 * mine / steps for mine, _ in pairs]
            extra = statistics.median(1e6 * (mine - its) / steps for mine, its in pairs)
            note = f"theta {hand.theta.item():.4f}" if row == "by hand" else agreement(hand, ours)
            table.append(Row(row, *quartiles(micro), extra, note))
    return table


def repeated(loop: Any, steps: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(steps):
            loop.step()

    return run


def agreement(hand: Any, ours: Any) -> str:
    difference = abs(hand.multiplier - ours.multiplier) + (hand.theta - ours.theta).abs().item()
    return f"differs by {difference:.1e}"


# The perturbation


def llama_shapes(layers: int, vocabulary: int, width: int = 768, inner: int = 2048) -> list[Any]:
    """98 million parameters in 111 tensors with 12 layers and 16,000 words."""
    attention, feed_forward = [(width, width)] * 4, [(inner, width)] * 2 + [(width, inner)]
    layer = [*attention, *feed_forward, (width,), (width,)]
    return [(vocabulary, width), *(layer * layers), (width,), (1, width)]


class Weights:
    """Parameters with gradients, and what each way of perturbing needs."""

    def __init__(self, shapes: list[Any], dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)
        draw = lambda shape: torch.randn(shape, generator=generator).mul_(0.02).to(dtype)  # noqa: E731
        self.params = [nn.Parameter(draw(shape)) for shape in shapes]
        self.grads = [draw(shape) for shape in shapes]
        self.origin = [p.detach().clone() for p in self.params]
        self.size = sum(p.numel() for p in self.params)

    def put_gradients(self) -> None:
        for p, g in zip(self.params, self.grads, strict=True):
            p.grad = g

    @torch.no_grad()
    def return_exactly(self) -> bool:
        """Put the weights where they were; whether they were there already."""
        pairs = zip(self.params, self.origin, strict=True)
        were_back = all(torch.equal(p, origin) for p, origin in pairs)
        torch._foreach_copy_(self.params, self.origin)
        return were_back


def plain_copy(weights: Weights) -> Callable[[], None]:
    buffers = [torch.empty_like(p) for p in weights.params]

    @torch.no_grad()
    def run() -> None:
        for mine, its in zip(buffers, weights.params, strict=True):
            mine.copy_(its)

    run()
    return run


def there_and_back(
    weights: Weights, visit: Callable[[], contextlib.AbstractContextManager[Any]]
) -> Callable[[], None]:
    """Perturb along the gradients, and restore."""

    def run() -> None:
        weights.put_gradients()
        with visit():
            pass

    return run


def two_steps(weights: Weights, *, swap: bool = False) -> Callable[[], None]:
    """The first and second step that most projects copied, without the base optimizer's.

    With `swap` the old weights come back as other memory.
    """

    @torch.no_grad()
    def run() -> None:
        weights.put_gradients()
        norms = [(1.0 * p.grad).norm(p=2) for p in weights.params if p.grad is not None]
        scale = RHO / (torch.stack(norms).norm(p=2) + 1e-12)
        saved = []
        for p in weights.params:
            saved.append(p.data.clone())
            p.add_(1.0 * p.grad * scale.to(p))
        for p, old in zip(weights.params, saved, strict=True):
            if swap:
                p.data = old
            else:
                p.copy_(old)

    return run


class Still(SGD):
    """A base optimizer that does nothing, so that only the perturbation is timed."""

    def step(self, closure: Any = None) -> None:
        """Leave everything as it is."""


def pytorch_optimizer_sam(weights: Weights, foreach: bool) -> Callable[[], None]:
    kind = import_module("pytorch_optimizer").SAM
    optimizer = kind(weights.params, Still, rho=RHO, lr=0.0, foreach=foreach)

    def run() -> None:
        weights.put_gradients()
        optimizer.first_step()
        optimizer.second_step()

    return run


def perturbation(weights: Weights, count: int) -> list[Row]:
    """Milliseconds; `extra` is the multiple of `copy_`."""
    optimizer = SAM(SGD(weights.params, lr=0.0), rho=RHO)
    work: Work = {
        "copy_": plain_copy(weights),
        "SAM.perturbed()": there_and_back(weights, optimizer.perturbed),
        "perturbed(params, rho)": there_and_back(weights, partial(perturbed, weights.params, RHO)),
        "two steps": two_steps(weights),
    }
    if util.find_spec("pytorch_optimizer"):
        for foreach in (False, True):
            name = f"pytorch_optimizer, foreach={foreach}"
            work[name] = pytorch_optimizer_sam(weights, foreach)
    table = []
    for name, run in work.items():  # one after the other: those that allocate leave traces
        run()  # memory is warm afterwards
        note = "bit-exact" if weights.return_exactly() else "not exact"
        pairs = rounds({"copy_": work["copy_"], name: run}, "copy_", count)[name]
        milli = [1e3 * mine for mine, _ in pairs]
        ratio = statistics.median(mine / its for mine, its in pairs)
        table.append(Row(name, *quartiles(milli), ratio, note))
    return table


def show(title: str, unit: str, extra: str, table: list[Row]) -> None:
    print(f"\n{title}\n{'':32}{unit:>10}{'quartiles':>20}{extra:>16}")
    for row in table:
        spread = f"{row.low:.1f} to {row.high:.1f}"
        print(f"{row.name:32}{row.median:10.1f}{spread:>20}{row.extra:16.2f}  {row.note}")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, in seconds")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--rounds", type=int, help="how often each row is measured")
    parser.add_argument("--output", type=Path, help="also write the numbers to this file as JSON")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    count = options.rounds or (8 if options.quick else 24)
    control = controller(count, steps=50 if options.quick else 200)
    show("Controller, per step", "us", "us on top", control)
    shapes = llama_shapes(1, 2000) if options.quick else llama_shapes(12, 16_000)
    weights = Weights(shapes, getattr(torch, options.dtype))
    moved = perturbation(weights, count)
    title = f"Perturb and restore {weights.size / 1e6:.1f} M parameters in {options.dtype}"
    show(f"{title}, {options.threads} thread(s)", "ms", "x copy_", moved)
    if options.output:
        settings = {k: v for k, v in vars(options).items() if k != "output"}
        tables = {"controller_us": control, "perturbation_ms": moved}
        numbers = {name: [row._asdict() for row in table] for name, table in tables.items()}
        write_json(options.output, {"settings": settings, "parameters": weights.size, **numbers})
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        raise SystemExit(main())
