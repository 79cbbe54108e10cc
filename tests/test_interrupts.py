"""Ctrl-C at any line leaves weights, gradients, states and lambda as before or as after.

In CI every line is interrupted the first time it runs, many the last time, too; by hand, with
`python -m tests.test_interrupts`, each time, which is some 15,000 interrupts in ten minutes.
"""

import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import torch_alm
from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM, perturbed

OURS = str(Path(torch_alm.__file__).parent)
Line = tuple[str, int]


class Interrupter:
    """A trace function that counts the library's lines and raises at one of them."""

    def __init__(self, at: int = -1) -> None:
        self.at, self.lines = at, list[Line]()

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            self.lines.append((frame.f_code.co_filename, frame.f_lineno))
            if len(self.lines) - 1 == self.at:
                raise KeyboardInterrupt
        return self

    def watch(self, call: Callable[[], object]) -> None:
        tracer = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        finally:
            sys.settrace(tracer)


class Loop:
    """A small problem under one of the optimizers, after one step."""

    def __init__(self, name: str) -> None:
        g = torch.Generator().manual_seed(0)
        drawn = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((3, 2), (2,), (4, 3)))
        *theta, self.x = drawn
        self.theta = [nn.Parameter(p) for p in theta]
        sides: list[Optimizer] = [AdamW(self.theta, lr=0.1), SGD(self.theta, lr=0.1, momentum=0.9)]
        if "sharp" in name:
            sides = [SAM(sides[0], rho=0.2), ReverseSAM(sides[1], rho=0.1)]
        self.optimizer: Any = sides[0]
        if "dual" in name:
            constraint = ALMConstraint(None, alpha=9.0, mu=0.5)
            scale = "step" if "step" in name else "gradient"
            self.optimizer = DualOptimizer(*sides, constraint, scale=scale)
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def retained(self) -> Tensor:
        return (self.x @ self.theta[0] + self.theta[1]).square().mean()

    def forgotten(self) -> Tensor:
        return (self.x @ self.theta[0] - self.theta[1]).abs().mean()

    def backward(self, **last: bool) -> None:
        if isinstance(self.optimizer, DualOptimizer):
            self.optimizer.backward(retain=self.retained, forget=self.forgotten, **last)
        else:
            self.optimizer.backward(self.retained)

    def closure(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.retained()
        loss.backward()
        return loss

    def inside(self) -> None:
        with perturbed(self.theta, rho=0.3):
            self.retained().backward()

    def everything(self) -> list[object]:
        """Theta, gradients, the checkpoint (moments, lambda), what was observed and registered."""
        found = [[p.detach() for p in self.theta], [p.grad for p in self.theta]]
        found.append(self.optimizer.state_dict())
        if isinstance(self.optimizer, DualOptimizer):
            register = self.optimizer._forget_register
            found += [self.optimizer.constraint.observed, register and [*register.values()]]
        return [frozen(each) for each in found]


def frozen(entry: object) -> object:
    """A copy that compares by value."""
    if isinstance(entry, Tensor):
        return (entry.dtype, tuple(entry.shape), entry.detach().reshape(-1).tolist().__repr__())
    if isinstance(entry, dict):
        return {key: frozen(value) for key, value in entry.items()}
    return [frozen(e) for e in entry] if isinstance(entry, list | tuple) else repr(entry)


# The call that is interrupted, and what has to happen before it.
CALLS: dict[str, tuple[Callable[[Loop], object], Callable[[Loop], object]]] = {
    "perturbed": (Loop.inside, Loop.backward),
    "backward": (Loop.backward, lambda loop: None),
    "backward, accumulating": (Loop.backward, Loop.backward),
    "backward, last": (lambda loop: loop.backward(last=True), lambda loop: None),
    "step": (lambda loop: loop.optimizer.step(), Loop.backward),
}
CASES = [
    ("sharp", "perturbed"),
    ("sharp", "backward, accumulating"),
    ("sharp", "step"),
    ("dual sharp", "backward, accumulating"),
    ("dual sharp", "backward, last"),
    ("dual sharp", "step"),
    ("dual step", "step"),
]


def ready(name: str, call: str) -> Loop:
    loop = Loop(name)
    CALLS[call][1](loop)
    return loop


def interrupt(loop: Loop, call: str, at: int) -> list[Line]:
    """The lines of a call, to the `at`-th, at which it is interrupted; none if it ends before."""
    interrupter = Interrupter(at)
    try:
        interrupter.watch(lambda: CALLS[call][0](loop))
    except KeyboardInterrupt:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        return interrupter.lines
    return []


def before_and_after(name: str, call: str) -> tuple[list[object], list[object], list[Line]]:
    loop, interrupter = ready(name, call), Interrupter()
    before = loop.everything()
    interrupter.watch(lambda: CALLS[call][0](loop))
    return before, loop.everything(), interrupter.lines


def first(lines: list[Line]) -> list[int]:
    return sorted({line: index for index, line in reversed([*enumerate(lines)])}.values())


def first_and_last(lines: list[Line]) -> list[int]:
    places = defaultdict[Line, list[int]](list)
    for index, line in enumerate(lines):
        places[line].append(index)
    return sorted({index for found in places.values() for index in (found[0], found[-1])})


def check(name: str, call: str, which: Callable[[list[Line]], list[int]]) -> int:
    """Interrupt a call at each of these lines, in one loop as long as it goes on as before."""
    before, after, lines = before_and_after(name, call)
    assert before != after, "nothing would be seen"
    chosen, loop = which(lines), None
    for at in chosen:
        passed = lines[: at + 1]
        # Memory that an interrupted call has kept, say, spares the next one a line.
        if loop is None or interrupt(loop, call, at) != passed:
            loop = ready(name, call)
            assert interrupt(loop, call, at) == passed
        found = loop.everything()
        if call == "perturbed":  # the gradients inside the block are its own
            assert found[0] == before[0], lines[at]
        else:
            assert found in (before, after), lines[at]
        if found != before:
            loop = None
    return len(chosen)


@pytest.mark.parametrize(("name", "call"), CASES, ids=lambda text: text.replace(", ", "-"))
def test_an_interrupt_at_any_line_leaves_all_as_before_or_as_after(name: str, call: str) -> None:
    assert check(name, call, first if "dual" in name else first_and_last) > 30


def test_after_an_interrupt_measurements_count_again() -> None:
    """The mark of the pass that does not count is gone, wherever the interrupt came."""
    _, _, lines = before_and_after("sharp", "backward")
    for at in first(lines):
        assert interrupt(ready("sharp", "backward"), "backward", at)
        constraint = ALMConstraint(lambda x: x, alpha=1.0, mu=1.0)
        constraint(torch.zeros((), requires_grad=True))
        assert constraint.observed == 1, lines[at]  # in the thread that was interrupted


class Signalling(SGD):
    """An optimizer in whose step somebody types Ctrl-C, half-way."""

    def step(self, closure: None = None) -> None:
        first, *rest = self.param_groups[0]["params"]
        first.data.sub_(1.0)
        signal.raise_signal(signal.SIGINT)
        for p in rest:
            p.data.sub_(1.0)


@pytest.fixture
def theta() -> Iterator[list[nn.Parameter]]:
    yield [nn.Parameter(torch.ones(2)) for _ in range(3)]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("side", ["retain", "forget"])
def test_a_signal_waits_until_both_sides_have_stepped(theta: list[nn.Parameter], side: str) -> None:
    sides: dict[str, Optimizer] = {n: SGD(theta, lr=1.0) for n in ("retain", "forget")}
    sides[side] = Signalling(theta, lr=1.0)
    optimizer = DualOptimizer(**sides, constraint=ALMConstraint(None, alpha=9.0, mu=1.0))
    optimizer.backward(retain=lambda: sum(p.sum() for p in theta), forget=lambda: theta[0].sum())
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    # Signalling takes 1 from each entry; SGD adds lambda+ = 9 - 2 to the first, or takes 1 each.
    first = [1.0 - 1.0 - 1.0] * 3 if side == "forget" else [1.0 + 7.0 - 1.0, 0.0, 0.0]
    assert [p.detach()[0].item() for p in theta] == first
    assert optimizer.constraint.multiplier == 7.0


def test_a_signal_waits_until_both_gradients_are_cleared(theta: list[nn.Parameter]) -> None:
    class Signalling(SGD):
        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none)
            signal.raise_signal(signal.SIGINT)

    constraint = ALMConstraint(None, alpha=9.0, mu=0.5)
    optimizer = DualOptimizer(Signalling(theta, lr=0.1), SGD(theta, lr=0.1), constraint)
    optimizer.backward(retain=lambda: theta[0].sum(), forget=lambda: theta[0].sum())
    with pytest.raises(KeyboardInterrupt):
        optimizer.zero_grad()
    assert all(p.grad is None for p in theta)
    assert constraint.observed == 0
    forgotten = optimizer.clip_grad_norm_(1.0).forget  # nothing is left of it
    assert forgotten.item() == 0.0


def test_a_signal_waits_in_sam_s_step_too(theta: list[nn.Parameter]) -> None:
    optimizer = SAM(Signalling(theta, lr=1.0), rho=0.1)
    optimizer.backward(lambda: sum(p.sum() for p in theta))
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert [p.detach()[0].item() for p in theta] == [0.0, 0.0, 0.0]


def test_a_handler_of_one_s_own_is_called_once_and_kept(theta: list[nn.Parameter]) -> None:
    calls: list[int] = []
    mine = lambda number, frame: calls.append(number)  # noqa: E731
    previous = signal.signal(signal.SIGINT, mine)
    try:
        optimizer = SAM(Signalling(theta, lr=1.0), rho=0.1)
        optimizer.backward(lambda: sum(p.sum() for p in theta))
        optimizer.step()
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, previous)
    assert calls == [signal.SIGINT]


def test_outside_the_main_thread_nobody_s_handler_is_touched() -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            Loop("dual sharp")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures


if __name__ == "__main__":
    for case in CASES:
        count = check(*case, which=lambda lines: list(range(len(lines))))
        print(*case, count, "interrupts, nothing torn", flush=True)
