"""However gradients and weights are laid out, the result is that of dense float64 tensors."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.functional import embedding
from torch.optim import SGD, Adadelta

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM, perturbed
from torch_alm._optim.objective import Passes

WORDS = torch.tensor([0, 3, 3, 1, 0, 3])  # repeated: the gradient is not coalesced
ADAPTIVE = pytest.mark.parametrize("adaptive", [False, True])


class Table(nn.Module):
    """An embedding, whose gradient may be sparse, below a dense layer."""

    def __init__(self, *, sparse: bool, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        random = [torch.randn(s, generator=generator, dtype=torch.float64) for s in ((5, 3), (3,))]
        self.words, self.head = (nn.Parameter(r.to(dtype)) for r in random)
        self.sparse = sparse

    def forward(self, ids: Tensor) -> Tensor:
        return (embedding(ids, self.words, sparse=self.sparse) * self.head).sum(1).tanh()


def whole(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().reshape(-1) for p in net.parameters()])


def trained(net: Table, optimizer: SAM | ReverseSAM, objective: Callable[[], Tensor]) -> Tensor:
    for _ in range(3):
        for _ in range(2):
            optimizer.backward(objective, weight=0.5)
        optimizer.step()
        optimizer.zero_grad()
    return whole(net)


@ADAPTIVE
@pytest.mark.parametrize("wrapper", [SAM, ReverseSAM])
@pytest.mark.parametrize("coalesced", [False, True])
def test_a_sparse_gradient_perturbs_as_the_dense_one(
    wrapper: type, adaptive: bool, coalesced: bool
) -> None:
    ids = torch.tensor([0, 1, 3]) if coalesced else WORDS

    def run(sparse: bool) -> Tensor:
        net = Table(sparse=sparse)
        optimizer = wrapper(SGD(net.parameters(), lr=0.1), rho=0.5, adaptive=adaptive)
        return trained(net, optimizer, lambda: net(ids).square().mean())

    torch.testing.assert_close(run(True), run(False), rtol=0, atol=1e-14)


@pytest.mark.parametrize("scale", ["gradient", "step"])
@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("sharp", [False, True])
def test_a_sparse_forget_gradient_acts_as_the_dense_one(
    scale: str, clipped: bool, sharp: bool
) -> None:
    def run(sparse: bool) -> tuple[Tensor, float]:
        net = Table(sparse=sparse)
        sides = [SGD(net.parameters(), lr=0.05) for _ in range(2)]
        if sharp:
            sides = [SAM(sides[0], rho=0.1), ReverseSAM(sides[1], rho=0.1)]
        constraint = ALMConstraint(None, alpha=3.0, mu=0.7)
        optimizer = DualOptimizer(*sides, constraint, scale=scale)
        for _ in range(4):
            for part in WORDS.chunk(2):
                optimizer.backward(
                    retain=lambda ids=part: net(ids).square().mean(),
                    forget=lambda ids=part: net(ids).mean(),
                    weight=0.5,
                )
            if clipped:
                optimizer.clip_grad_norm_(0.01)
            optimizer.step()
            optimizer.zero_grad()
        assert constraint.weight > 0, "the gate has to be open for this to say anything"
        return whole(net), net(WORDS).mean().item()

    (sparse, raised), (dense, _) = run(True), run(False)
    torch.testing.assert_close(sparse, dense, rtol=0, atol=1e-14)
    assert raised > Table(sparse=False)(WORDS).mean().item(), "the forget side raises its measure"


def test_gradients_that_are_all_sparse_are_measured_and_clipped() -> None:
    theta = nn.Parameter(torch.ones(5, 3, dtype=torch.float64))
    optimizer = DualOptimizer(SGD([theta], lr=0.1), SGD([theta], lr=0.1))
    row = lambda: embedding(WORDS, theta, sparse=True).sum()  # noqa: E731
    optimizer.backward(retain=row, forget=row)
    length = (3 * (2**2 + 3**2 + 1)) ** 0.5  # how often each row is named, over three columns
    assert optimizer.clip_grad_norm_(1.0).retain.item() == pytest.approx(length, rel=1e-12)
    assert theta.grad.to_dense().norm().item() == pytest.approx(1.0, abs=1e-6)


@ADAPTIVE
def test_complex_weights_move_by_the_metric_of_their_absolute_value(adaptive: bool) -> None:
    torch.manual_seed(0)
    theta = nn.Parameter(torch.randn(6, dtype=torch.complex128))
    theta.grad = g = torch.randn(6, dtype=torch.complex128)
    origin = theta.detach().clone()
    unit = origin.abs() if adaptive else torch.ones(6, dtype=torch.float64)
    with perturbed([theta], rho=0.3, eps=0.0, adaptive=adaptive):
        delta = theta.detach() - origin
    expected = 0.3 * unit.square() * g / torch.view_as_real(unit * g).norm()
    torch.testing.assert_close(delta, expected, rtol=0, atol=1e-14)


def test_a_gradient_that_is_a_lazy_conjugate_is_measured_and_clipped() -> None:
    theta = nn.Parameter(torch.tensor([3.0 + 4.0j, 1.0j], dtype=torch.complex128))
    optimizer = DualOptimizer(SGD([theta], lr=1.0), SGD([theta], lr=1.0))
    optimizer.backward(
        retain=lambda: theta.real.sum() * 0, forget=lambda: (theta.conj() * (1 + 2j)).real.sum()
    )
    theta.grad = torch.tensor([3.0 + 4.0j, 0.0], dtype=torch.complex128).conj()
    assert theta.grad.is_conj()
    norms = optimizer.clip_grad_norm_(1.0)
    torch.testing.assert_close(norms.retain.item(), 5.0)
    torch.testing.assert_close(theta.grad.abs().sum().item(), 1.0, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        *((dtype, s) for dtype in (torch.float32, torch.bfloat16) for s in (1e20, 1e-30, 1e-21)),
        *((torch.float16, s) for s in (1e4, 6e-8)),
    ],
    ids=str,
)
def test_very_large_and_very_small_gradients_have_a_direction(
    scale: float, dtype: torch.dtype
) -> None:
    g = torch.tensor([3.0, 4.0]) * scale
    theta = nn.Parameter(torch.zeros(2, dtype=dtype))
    theta.grad = g.to(dtype)
    wide = theta.grad.double()
    with perturbed([theta], rho=1.0, eps=0.0) as perturbation:
        torch.testing.assert_close(theta.detach().double(), wide / wide.norm(), rtol=4e-3, atol=0)
    torch.testing.assert_close(perturbation.norm.item(), wide.norm().item(), rtol=1e-6, atol=0)


def test_parameters_that_share_a_part_of_their_memory_are_refused() -> None:
    memory = torch.ones(6)
    theta = [nn.Parameter(memory[:4]), nn.Parameter(memory[2:])]
    with pytest.raises(ValueError, match=r"SAM: two parameters lie in the same memory"):
        SAM(SGD(theta, lr=0.1), rho=0.5)
    with pytest.raises(ValueError, match=r"perturbed: two parameters lie in the same memory"):
        perturbed(theta, 0.5)
    apart = [nn.Parameter(memory[:3]), nn.Parameter(memory[3:])]
    SAM(SGD(apart, lr=0.1), rho=0.5).backward(lambda: apart[0].sum() + apart[1].sum())
    assert torch.equal(memory, torch.ones(6))


def test_a_rho_of_the_base_optimizer_is_no_radius() -> None:
    theta = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = SAM(Adadelta([theta], lr=0.1, rho=0.9), rho=1e-3)
    origin, points = theta.detach().clone(), []
    optimizer.backward(lambda: points.append(theta.detach().clone()) or theta.square().sum())
    torch.testing.assert_close((points[-1] - origin).norm().item(), 1e-3, rtol=1e-3, atol=0)
    assert optimizer.param_groups[0]["rho"] == 0.9


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
    passes = Passes(lambda: loss, 1.0, lambda loss: None, params, owner)
    passes._differentiate(loss, 1.0, [])


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
