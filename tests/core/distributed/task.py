"""A small unlearning task that runs alike in one process, under DDP and under FSDP2."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from tests import oracle
from tests.core.distributed.ranks import WORLD
from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM

ROWS, MU, MULTIPLIER = 8, 0.5, 0.1
# Thresholds out of reach, then easily met: the gate opens, closes and opens again in so few steps;
# in more there is time to leave measurements out; and met to the end there is time to pause.
REOPENS = (3.0, 3.0, -1.0, -1.0, 3.0, 3.0)
STEPS = len(REOPENS)
Batch = tuple[Tensor, Tensor, Tensor, Tensor]


class Outcome(NamedTuple):
    """The result of a run; theta whole, whatever it was sharded into."""

    theta: list[Tensor]
    multipliers: list[float]
    weights: list[float]
    passes: int = 0


def model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 5)
    return nn.Sequential(*layers).double()


def wrapped(engine: str) -> nn.Module:
    """The model under an engine; 5 outputs make uneven shards."""
    if engine == "alone":
        return model()
    if engine.startswith("ddp"):
        return DistributedDataParallel(model(), gradient_as_bucket_view=engine == "ddp-view")
    if engine == "tp":
        return tensor_parallel(model(), init_device_mesh("cpu", (WORLD,)))
    policies: dict[str, Callable[[], dict[str, Any]]] = {
        "fsdp": dict,
        "fsdp-mixed": lambda: {"mp_policy": MixedPrecisionPolicy(torch.float32, torch.float64)},
        "fsdp-offload": lambda: {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
        "hsdp": lambda: {"mesh": grid("replicated", "sharded")},
        "tp-fsdp": lambda: {"mesh": grid("data", "tensor")["data"]},
    }
    sharded, policy = model(), policies[engine]()
    if engine == "tp-fsdp":
        tensor_parallel(sharded, grid("data", "tensor")["tensor"])
    for module in (sharded[0], sharded[2], sharded):  # the root, too, has weights of its own
        fully_shard(module, **policy)
    return sharded


def grid(*names: str) -> DeviceMesh:
    """Four ranks in two rows."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=names)


def tensor_parallel(net: nn.Module, mesh: DeviceMesh) -> nn.Module:
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(net, mesh, plan)


def reshard(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def batch(step: int, micro: int, rows: slice = slice(None)) -> Batch:
    """Retain inputs and labels, forget inputs and labels."""
    generator = torch.Generator().manual_seed(100 * step + micro)
    inputs = [torch.randn(ROWS, 6, generator=generator, dtype=torch.float64) for _ in range(2)]
    labels = [torch.randint(0, 5, (ROWS,), generator=generator) for _ in range(2)]
    return inputs[0][rows], labels[0][rows], inputs[1][rows], labels[1][rows]


def rows_of(rank: int, world: int = WORLD) -> slice:
    share = ROWS // world
    return slice(rank * share, (rank + 1) * share)


def rows_under(engine: str, rank: int) -> slice:
    """Find a rank's rows; those of one tensor-parallel group see the same ones."""
    if engine == "tp":
        return slice(None)
    if engine == "tp-fsdp":
        return rows_of(rank // 2, 2)
    return rows_of(rank, dist.get_world_size())


def losses(net: Callable, data: Batch) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    x, y, z, w = data
    return lambda: F.cross_entropy(net(x), y), lambda: F.cross_entropy(net(z), w)


def assert_gate_opens_and_closes(weights: list[float]) -> None:
    closed = [w == 0 for w in weights]
    reopened = any(a and not b for a, b in itertools.pairwise(closed))
    assert any(closed) and not all(closed) and reopened, "the gate must close and open again here"


def dual(params: list[Tensor], **settings: Any) -> DualOptimizer:
    """SAUL to the letter of Algorithm 1, which measures in every step, unless told otherwise."""
    sam = settings.pop("sam", {})
    settings = {"probe_every": 1, **settings}
    retain = AdamW(params, lr=1e-2, weight_decay=1e-2)
    forget = AdamW(params, lr=1e-2, weight_decay=0.0)
    return DualOptimizer(
        retain=SAM(retain, rho=0.05, **sam),
        forget=ReverseSAM(forget, rho=0.1, **sam),
        constraint=ALMConstraint(None, alpha=0.0, mu=MU, multiplier=MULTIPLIER),
        **settings,
    )


def steps(
    net: nn.Module,
    optimizer: DualOptimizer,
    rows: slice,
    span: Iterable[int],
    micro: int = 1,
    sync: Callable[[int], AbstractContextManager] = lambda _: nullcontext(),
    last: bool = False,
    thresholds: tuple[float, ...] = REOPENS,
) -> Iterator[int]:
    """Train; yields the number of each finished step."""
    for step in span:
        optimizer.constraint.alpha = thresholds[step]
        for k in range(micro):
            retain, forget = losses(net, batch(step, k, rows))
            ends = {"last": last and k == micro - 1}
            with sync(k):
                optimizer.backward(retain=retain, forget=forget, weight=1 / micro, **ends)
        optimizer.step()
        optimizer.zero_grad()
        yield step


def whole(p: Tensor) -> Tensor:
    p = p.detach()
    return (p.full_tensor() if isinstance(p, DTensor) else p).clone()


def train(
    rank: int | None, engine: str, micro: int = 1, settings: dict[str, Any] | None = None
) -> Outcome:
    """A whole run of one rank; of the only process if `rank` is `None`."""
    settings = dict(settings or {})
    net = wrapped(engine)
    last, unsynced = settings.pop("last", False), settings.pop("unsynced", 0)
    thresholds = settings.pop("thresholds", REOPENS)
    if settings.pop("per_rank", False):
        settings["sam"] = {"first_pass": net.no_sync}
    if settings.pop("reshard", False):
        settings["reshard"] = lambda: reshard(net)
    passes = 0

    def backward(loss: Tensor) -> None:
        nonlocal passes
        passes += 1
        loss.backward()

    params = list(net.parameters())
    optimizer = dual(params, backward=backward, **settings)
    rows = slice(None) if rank is None else rows_under(engine, rank)
    sync = lambda k: net.no_sync() if k < unsynced else nullcontext()  # noqa: E731
    multipliers, weights = [], []
    for _ in steps(net, optimizer, rows, range(len(thresholds)), micro, sync, last, thresholds):
        multipliers.append(optimizer.constraint.multiplier)
        weights.append(optimizer.constraint.weight)
    return Outcome([whole(p) for p in params], multipliers, weights, passes)


Parts = Callable[[int], list[Batch]]


def by_hand(parts: Parts, cast: Callable[[nn.Module], Callable] = lambda net: net) -> Outcome:
    """Algorithm 1 in one process; `parts(step)` are micro-batches of equal weight."""
    net = model()
    theta = list(net.parameters())
    s_r, s_f = oracle.AdamW(1e-2, 1e-2), oracle.AdamW(1e-2, 0.0)
    saul = oracle.Saul(theta, s_r, s_f, 0.0, MU, MULTIPLIER, rho_r=0.05, rho_f=0.1)
    weights = []
    for step, saul.alpha in enumerate(REOPENS):
        retain, forget = zip(*(losses(cast(net), data) for data in parts(step)), strict=True)
        weights.append(saul.step(retain, forget))
    return Outcome([p.detach().clone() for p in theta], weights, weights)
