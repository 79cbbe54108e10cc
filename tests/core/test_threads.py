"""Two threads that step two optimizers do not disturb each other."""

import threading
from typing import Any

from tests.core.table import assert_same, backward, batch, build, saul, train, values
from torch_alm._optim.objective import is_first_pass, is_running, mark_running

STEPS = 40


def test_two_threads_train_as_one_after_the_other() -> None:
    alone, loops = ([build(saul, seed) for seed in (0, 1)] for _ in range(2))
    for model, optimizer in alone:
        train(optimizer, model, range(STEPS))
    together = threading.Barrier(2)

    def loop(model: Any, optimizer: Any) -> None:
        for step in range(STEPS):
            backward(optimizer, model, batch(step))
            together.wait()
            optimizer.step()
            optimizer.zero_grad()

    threads = [threading.Thread(target=loop, args=each) for each in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (model, _), (expected, _) in zip(loops, alone, strict=True):
        assert_same(values(model), values(expected))


def test_a_pass_within_one_that_does_not_count_does_not_either() -> None:
    with mark_running(counts=False):
        with mark_running(counts=True):
            assert is_first_pass()
        assert is_first_pass()
    assert not is_running()
