"""Sharded tensors in a group of one process: what is done with them, whatever other ranks hold."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim import SGD

from torch_alm import SAM, DualOptimizer
from torch_alm._optim import gradients


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def sharded(values: Any, mesh: DeviceMesh) -> DTensor:
    return distribute_tensor(torch.tensor(values), mesh, [Shard(0)])


def arrived(params: list[Tensor], owner: str) -> None:
    loss = torch.zeros((), requires_grad=True)
    gradients.differentiate(loss, 1.0, lambda loss: None, params, owner)


def test_a_backward_that_left_nothing_on_shards_is_an_error(mesh: DeviceMesh) -> None:
    p, plain = nn.Parameter(sharded([1.0], mesh)), nn.Parameter(torch.ones(1))
    with pytest.raises(RuntimeError, match=r"^SAM\.backward: .* no gradient on 1 sharded"):
        arrived([p, plain], "SAM.backward")
    frozen = nn.Parameter(sharded([1.0], mesh), requires_grad=False)
    plain.grad = torch.ones(1)
    with pytest.raises(RuntimeError, match="no gradient on 1 sharded"):
        arrived([p, plain], "SAM.backward")
    arrived([frozen, plain], "SAM.backward")
    p.grad = sharded([1.0], mesh)
    arrived([p, nn.Parameter(sharded([1.0], mesh))], "SAM.backward")


@pytest.mark.parametrize("use_orig_params", [True, False])
@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`")
@pytest.mark.usefixtures("mesh")
def test_parameters_that_fsdp1_has_flattened_are_refused(use_orig_params: bool) -> None:
    host = torch.device("cpu")
    model = FullyShardedDataParallel(
        nn.Linear(3, 2), device_id=host, use_orig_params=use_orig_params
    )
    base = SGD(model.parameters(), lr=0.1)
    for build in (lambda: SAM(base), lambda: DualOptimizer(base, SGD(model.parameters()))):
        with pytest.raises(TypeError, match=r"FSDP1.*norms and gates.*`fully_shard` \(FSDP2\)"):
            build()
    plain = nn.Linear(3, 2)
    assert SAM(SGD(plain.parameters(), lr=0.1)), "while FSDP1 is imported"
