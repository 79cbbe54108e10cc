"""An objective that measures in threads of its own is observed once; other threads stay apart."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from torch_alm import SAM, ALMConstraint


def sam(x: Tensor) -> SAM:
    return SAM(SGD([x], lr=0.1), rho=0.5)


def in_parallel(*works: Any) -> None:
    """Run each in a thread of its own; what one raises is raised."""
    with ThreadPoolExecutor(len(works)) as pool:
        for each in [pool.submit(work) for work in works]:
            each.result(timeout=60)


@pytest.mark.parametrize("other", ["plain loop", "SAM"])
def test_two_optimizers_in_two_threads_do_not_disturb_each_other(other: str) -> None:
    """The second one measures while the first is in its first pass, and the other way round."""
    turn = threading.Barrier(2, timeout=60)
    seen: dict[str, list[int]] = {"first": [], "second": []}

    def first() -> None:
        x = torch.ones(1, requires_grad=True)
        optimizer, c = sam(x), ALMConstraint(lambda: x.sum(), alpha=4.0, mu=0.5)

        def objective() -> Tensor:
            turn.wait()  # the other measures now
            turn.wait()
            return x.square().sum() + c()

        for _ in range(3):
            optimizer.backward(objective)
            seen["first"].append(c.observed)
            optimizer.step()
            c.step()

    def second() -> None:
        x = torch.ones(1, requires_grad=True)
        optimizer, c = sam(x), ALMConstraint(lambda: x.sum(), alpha=4.0, mu=0.5)
        for _ in range(3):
            if other == "SAM":
                optimizer.backward(lambda: (turn.wait(), c(), turn.wait())[1])
                seen["second"].append(c.observed)
                c.step()
                continue
            for _ in range(2):
                turn.wait()
                c().backward()
                turn.wait()
            seen["second"].append(c.observed)
            c.step()

    in_parallel(first, second)
    assert seen["first"] == [1, 1, 1]
    assert seen["second"] == ([1, 1, 1] if other == "SAM" else [2, 2, 2])


def test_a_constraint_made_elsewhere_belongs_to_the_thread_that_steps_it() -> None:
    c = ALMConstraint(None, alpha=4.0, mu=0.5)
    x, y = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    inside, done = threading.Event(), threading.Event()

    def loop() -> None:
        c.observe(0.0)
        c.step()
        inside.wait(60)
        c.observe(0.0)  # while the thread that made it is in a first pass
        done.set()

    thread = threading.Thread(target=loop)
    thread.start()

    def objective() -> Tensor:
        inside.set()
        done.wait(60)
        return x.sum() + y.sum()

    sam(x).backward(objective)
    thread.join()
    assert c.observed == 1


def test_passes_within_a_first_pass_do_not_count_and_leave_no_trace() -> None:
    x, c = torch.ones(1, requires_grad=True), ALMConstraint(None, alpha=4.0, mu=0.5)
    inner, outer = sam(torch.ones(1, requires_grad=True)), sam(x)
    y = inner.param_groups[0]["params"][0]

    def nested() -> Tensor:
        c.observe(0.0)
        return y.sum()

    outer.backward(lambda: x.sum() + inner.backward(nested))
    assert c.observed == 1
    with pytest.raises(ZeroDivisionError):
        outer.backward(lambda: x.sum() / (1 // 0))
    c.observe(0.0)
    assert c.observed == 2
