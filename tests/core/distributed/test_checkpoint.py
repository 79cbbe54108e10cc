"""Saved on some ranks, loaded on others: training goes on as if nothing had happened."""

import io
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from tests.core.distributed import task
from tests.core.distributed.ranks import Ranks
from torch_alm import DualOptimizer
from torch_alm.checkpoint import DualState

HALF = 2  # not in the middle, where lambda is 0 as if nothing had been saved
CLOSED = (-10.0,) * 12
# In one process torch notes that it is one; 2.8 also that it uses what it has deprecated.
NOTES = "torch.distributed is (disabled|unavailable)|TypedStorage is deprecated"
Run = tuple[list[Tensor], float, dict[str, Any]]


class Saved:
    """A model and its optimizer, as a whole application would save them."""

    def __init__(self, net: nn.Module, optimizer: DualOptimizer) -> None:
        self.net, self.state = net, DualState(net, optimizer)

    def save(self, folder: str) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=NOTES)
            dcp.save(self._parts(), checkpoint_id=folder)

    def load(self, folder: str) -> None:
        parts = self._parts()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=NOTES)
            dcp.load(parts, checkpoint_id=folder)
        set_model_state_dict(self.net, parts["model"])

    def _parts(self) -> dict[str, Any]:
        return {"model": get_model_state_dict(self.net), "optimizer": self.state}


def run(
    rank: int | None,
    engine: str,
    span: tuple[int, int],
    *,
    load: str | None = None,
    save: str | None = None,
    save_at: int = HALF,
    thresholds: tuple[float, ...] = task.REOPENS,
    probe_every: int = 1,
) -> Run:
    """Steps `span` of the task: theta, lambda, and how often each parameter was stepped."""
    net = task.wrapped(engine)
    params = list(net.parameters())
    optimizer = task.dual(params, probe_every=probe_every)
    whole_task = Saved(net, optimizer)
    if load is not None:
        whole_task.load(load)
    constraint = optimizer.constraint
    rows = slice(None) if rank is None else task.rows_of(rank, dist.get_world_size())
    for step in task.steps(net, optimizer, rows, range(*span), thresholds=thresholds):
        if save is not None and step + 1 == save_at:
            whole_task.save(save)
    counts = {
        name: [side.state[p]["step"].item() if p in side.state else None for p in params]
        for name, side in (("retain", optimizer.retain), ("forget", optimizer.forget))
    }
    return [task.whole(p) for p in params], constraint.multiplier, counts


def assert_equal(found: Run, expected: Run) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found[0], expected[0], strict=True))
    assert found[1:] == expected[1:]


def assert_close(found: Run, expected: Run) -> None:
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-12)
    assert found[1] == pytest.approx(expected[1], abs=1e-12) and found[2] == expected[2]


def everywhere(ranks: Ranks, engine: str) -> Callable[..., list[Run]]:
    if engine == "alone":
        return lambda *args: [args[0](None, *args[1:])]
    return ranks


def call(rank: int | None, engine: str, span: tuple[int, int], options: dict[str, Any]) -> Run:
    return run(rank, engine, span, **options)


@pytest.mark.parametrize(
    ("engine", "thresholds"),
    [("alone", task.REOPENS), ("ddp", task.REOPENS), ("fsdp", task.REOPENS), ("fsdp", CLOSED)],
)
def test_saving_and_loading_change_nothing(
    ranks: Ranks, tmp_path: Path, engine: str, thresholds: tuple[float, ...]
) -> None:
    at, saved = everywhere(ranks, engine), str(tmp_path / "state")
    options = {"thresholds": thresholds}
    through = at(call, engine, (0, task.STEPS), options)
    saving = at(call, engine, (0, task.STEPS), {**options, "save": saved})
    resumed = at(call, engine, (HALF, task.STEPS), {**options, "load": saved})
    for one, two, three in zip(through, saving, resumed, strict=True):
        assert_equal(two, one)
        assert_equal(three, one)
        assert (one[2]["forget"] == [None] * len(one[0])) == (thresholds is CLOSED)


@pytest.mark.parametrize(
    ("first", "second", "thresholds"),
    [("fsdp", "alone", task.REOPENS), ("alone", "fsdp", CLOSED), ("ddp", "fsdp", task.REOPENS)],
)
def test_from_some_ranks_to_others(
    ranks: Ranks, tmp_path: Path, first: str, second: str, thresholds: tuple[float, ...]
) -> None:
    options, saved = {"thresholds": thresholds}, str(tmp_path / "state")
    everywhere(ranks, first)(call, first, (0, HALF), {**options, "save": saved})
    resumed = everywhere(ranks, second)(
        call, second, (HALF, task.STEPS), {**options, "load": saved}
    )
    through = call(None, "alone", (0, task.STEPS), options)
    for found in resumed:
        assert_close(found, through)


def test_a_released_constraint_is_probed_at_the_same_steps_after_a_resume(tmp_path: Path) -> None:
    options, saved = {"thresholds": CLOSED, "probe_every": 4}, str(tmp_path)
    through = run(None, "alone", (0, len(CLOSED)), **options, save=saved, save_at=7)
    resumed = run(None, "alone", (7, len(CLOSED)), **options, load=saved)
    assert_equal(resumed, through)


class Code:
    """Unpickled, it would call a function."""

    def __reduce__(self) -> Any:
        return warnings.warn, ("called",)


def test_loading_calls_nothing_that_a_checkpoint_names() -> None:
    net, packed = task.model(), io.BytesIO()
    torch.save({"control": Code()}, packed)
    state = DualState(net, task.dual(list(net.parameters())))
    with pytest.raises(pickle.UnpicklingError, match=r"warnings\.warn"):
        state.load_state_dict({"rest": packed.getvalue()})
