"""Waits for a device are counted, and nothing else is."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks.studies.accelerator import waits
from benchmarks.studies.accelerator.checks import Place
from benchmarks.studies.accelerator.waiting import stand_in
from torch_alm import perturbed

HOST = Place(torch.device("cpu"), quick=True)
aten = torch.ops.aten
MIXED = [kind for kind in waits.KINDS if kind.has_stand_in]


@pytest.mark.parametrize(
    ("call", "count"),
    [
        (lambda t, h: t.sum().item(), 1),
        (lambda t, h: bool(t.sum() > 0), 1),
        (lambda t, h: t.cpu(), 1),
        (lambda t, h: t.to("cpu", non_blocking=True), 0),
        (lambda t, h: aten._to_copy(h, device="cuda"), 1),
        (lambda t, h: aten._to_copy(h, device="cuda", non_blocking=True), 0),
        (lambda t, h: aten.copy_(h, t), 1),
        (lambda t, h: aten.copy_(h, t, True), 0),
        (lambda t, h: torch._foreach_copy_([t, h], [t.clone(), t]), 1),
        (lambda t, h: torch._foreach_copy_([t, h], [t.clone(), h.clone()]), 0),
        (lambda t, h: t.double(), 0),
        (lambda t, h: aten.nonzero(t), 1),
        (lambda t, h: torch.where(t > 0, t, 0.0), 0),
        (lambda t, h: h.sum().item(), 0),
        (lambda t, h: torch.cuda.Event().synchronize(), 1),
    ],
)
def test_what_waits_is_counted(call: Callable[[Tensor, Tensor], object], count: int) -> None:
    with stand_in() as found:
        there, here = torch.ones(3, device="cuda"), torch.ones(3)
        call(there, here)
    assert len(found) == count


def test_a_step_that_waits_too_often_fails() -> None:
    def careless(world: waits.World) -> Callable[[], None]:
        step = waits.dual(world, alpha=waits.OPEN)
        return lambda: (step(), world.value.item())

    kind = waits.Kind("careless", careless, 1, 1)
    with pytest.raises(AssertionError, match="waits 2 times, not 1"):
        waits.counted(HOST, kind)


class Landed(torch.utils._python_dispatch.TorchDispatchMode):
    """Sizes of the tensors that are made on the host, but for single numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[torch.Size] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, Tensor) and t.device.type == "cpu" and t.numel() > 1:
                self.found.append(t.shape)
        return out


@pytest.mark.parametrize("kind", MIXED, ids=lambda kind: kind.name)
def test_nothing_as_large_as_a_parameter_is_made_on_the_host(kind: waits.Kind) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what has no data
        with stand_in(), Landed() as landed:
            world = waits.World(torch.device("cuda"), torch.float32, is_real=False)
            step = kind.make(world)
            for _ in range(2):
                step()
    assert landed.found == []


def test_copies_kept_on_the_host_are_let_go_when_theta_has_moved_to_a_device() -> None:
    with stand_in() as found:
        p = torch.nn.Parameter(torch.ones(4, device="cuda"))
        p.grad = torch.ones(4, device="cuda")
        memory = {p: torch.empty(4)}
        with perturbed([p], 0.1, memory=memory):
            assert found == []
        assert found == [] and memory == {}


@pytest.mark.parametrize("host_first", [True, False])
@pytest.mark.parametrize("kind", MIXED, ids=lambda kind: kind.name)
def test_weights_may_lie_on_the_host_and_on_a_device(kind: waits.Kind, host_first: bool) -> None:
    with warnings.catch_warnings(), stand_in() as found:
        warnings.simplefilter("ignore")  # of what has no data
        world = waits.World(torch.device("cuda"), torch.float32, is_real=False)
        world.params.insert(0 if host_first else 3, torch.nn.Parameter(torch.ones(5)))
        step = kind.make(world)
        for _ in range(2):
            step()
        found.clear()
        step()
    assert len(found) <= 4  # one a perturbation of either side, one for the value, one for the norm
