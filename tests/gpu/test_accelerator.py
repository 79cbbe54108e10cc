"""The optimizers, the command and shards on an accelerator: `pytest -m gpu`.

Without a CUDA device all of it skips. `TORCH_ALM_TEST_DEVICE=cpu` runs what has a meaning there.
"""

import copy
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from benchmarks.studies.overhead import KINDS, Kind, Training, llama
from tests.command.conftest import folder, lay, model, tokenizer  # noqa: F401  # fixtures
from tests.oracle import AdamW as AdamWByHand
from tests.oracle import Saul
from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM, perturbed

DEVICE = torch.device(os.environ.get("TORCH_ALM_TEST_DEVICE", "cuda"))
IS_CUDA = DEVICE.type == "cuda"
MISSING = IS_CUDA and not torch.cuda.is_available()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(MISSING, reason="no CUDA device; see TORCH_ALM_TEST_DEVICE"),
]
needs_cuda = pytest.mark.skipif(not IS_CUDA, reason="has a meaning on a CUDA device alone")
Loss = Callable[[], Tensor]


def network(dtype: torch.dtype = torch.float64, *, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(6, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 3)
    return nn.Sequential(*layers).to(DEVICE, dtype)


def losses(net: nn.Module, step: int, dtype: torch.dtype = torch.float64) -> tuple[Loss, Loss]:
    """The retain and the forget loss of a step."""
    random = torch.Generator().manual_seed(step)

    def one() -> Loss:
        x = torch.randn(8, 6, generator=random).to(DEVICE, dtype)
        y = torch.randint(3, (8,), generator=random).to(DEVICE)
        return lambda: nn.functional.cross_entropy(net(x), y)

    return one(), one()


def saul(net: nn.Module, base: Callable[..., Any] = AdamW, **settings: Any) -> DualOptimizer:
    theta = list(net.parameters())
    return DualOptimizer(
        SAM(base(theta, lr=2e-2, **settings), rho=0.05),
        ReverseSAM(base(theta, lr=2e-2, weight_decay=0.0, **settings), rho=0.1),
        ALMConstraint(None, alpha=1.0, mu=5.0, multiplier=0.0),
    )


def train(net: nn.Module, optimizer: DualOptimizer) -> list[float]:
    """Twenty steps; the weight of the forget side in each."""
    weights = []
    for step in range(20):
        retain, forget = losses(net, step)
        optimizer.backward(retain=retain, forget=forget)
        optimizer.step()
        optimizer.zero_grad()
        weights.append(float(optimizer.constraint.weight))
    return weights


def assert_close(net: nn.Module, theta: Any, tolerance: float) -> None:
    torch.testing.assert_close([*net.parameters()], theta, rtol=tolerance, atol=tolerance)


def test_saul_is_algorithm_1_by_hand() -> None:
    net = network()
    by_hand = copy.deepcopy(net)
    theta = list(by_hand.parameters())
    sides = AdamWByHand(2e-2, 1e-2), AdamWByHand(2e-2)
    oracle = Saul(theta, *sides, alpha=1.0, mu=5.0, multiplier=0.0, rho_r=0.05, rho_f=0.1)
    weights = train(net, saul(net))
    expected = []
    for step in range(20):
        retain, forget = losses(by_hand, step)
        expected.append(oracle.step([retain], [forget]))
    assert weights == pytest.approx(expected, rel=1e-9)
    assert {weight > 0 for weight in weights} == {True, False}, "the gate opens and closes"
    assert_close(net, theta, 1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_theta_comes_back_bit_for_bit(dtype: torch.dtype, rounding: str) -> None:
    if rounding == "stochastic" and dtype is not torch.bfloat16:
        pytest.skip("stochastic rounding is for bfloat16")
    theta = [torch.randn(size, device=DEVICE).to(dtype) for size in ((300, 257), (5,), (1,))]
    for p in theta:
        p.requires_grad_().grad = torch.randn_like(p)
    before = [p.detach().clone() for p in theta]
    with pytest.raises(KeyError), perturbed(theta, 1.0, rounding=rounding):
        assert not all(torch.equal(p, b) for p, b in zip(theta, before, strict=True))
        raise KeyError
    assert all(torch.equal(p, b) for p, b in zip(theta, before, strict=True))


def test_both_passes_of_sam_see_the_same_dropout() -> None:
    net, masks = network(dropout=0.5), []
    net[2].register_forward_hook(lambda _, seen, out: masks.append((out == 0) & (seen[0] != 0)))
    sam = SAM(SGD(net.parameters(), lr=0.1), rho=0.05)
    for step in range(3):
        sam.backward(losses(net, step)[0])
        sam.step()
    first, second = masks[::2], masks[1::2]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1]), "each step draws anew"


@needs_cuda
@pytest.mark.parametrize("name", ["fused", "capturable", "foreach"])
def test_variants_of_the_base_agree(name: str) -> None:
    net, other = network(), network()
    # Capturable ones count steps in float32, all alike.
    usual = {"capturable": True, "foreach": False} if name == "capturable" else {}
    found = train(net, saul(net, **{name: True}))
    assert found == pytest.approx(train(other, saul(other, **usual)), rel=1e-6)
    assert_close(net, other.parameters(), 1e-6)


def test_a_grad_scaler_changes_nothing_and_skips_what_overflows() -> None:
    nets = network(torch.float32), network(torch.float32)
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0**8, growth_interval=1000)
    for net, scaled in zip(nets, (True, False), strict=True):
        sam = SAM(AdamW(net.parameters(), lr=1e-2), rho=0.05)
        if scaled:
            sam.backward_fn = lambda value: scaler.scale(value).backward()
        for step in range(6):
            sam.backward(losses(net, step, torch.float32)[0])
            if scaled and step == 3:
                before = [p.detach().clone() for p in net.parameters()]
                for p in net.parameters():
                    p.grad.fill_(float("inf"))
            if step != 3 or scaled:
                scaler.step(sam) if scaled else sam.step()
            if scaled:
                scaler.update()
            if scaled and step == 3:
                assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))
            sam.zero_grad()
    assert_close(nets[0], nets[1].parameters(), 1e-6)


@needs_cuda
@pytest.mark.parametrize("kind", KINDS[:5], ids=lambda kind: kind.name)
def test_a_step_waits_once_for_its_constraint_and_not_at_all_without(kind: Kind) -> None:
    ids = torch.zeros(2, 16, dtype=torch.long, device=DEVICE)
    training = Training(llama(64, 2).to(DEVICE), kind, ids)
    for _ in range(3):
        training.step()
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            waits.clear()  # what torch says of the mode itself
            training.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found = [str(w.message) for w in waits if "synchroniz" in str(w.message)]
    assert len(found) <= (kind.alpha is not None), found


@needs_cuda
@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.name)
def test_a_step_holds_at_most_one_copy_of_the_weights_more_than_dual_adamw(kind: Kind) -> None:
    (plain, weights), (found, _) = peak(KINDS[0]), peak(kind)
    assert found - plain <= 1.1 * weights


def peak(kind: Kind) -> tuple[int, int]:
    """The most bytes in a few steps of a Llama of 0.1 billion weights, and those of the weights."""
    ids = torch.randint(0, 32_000, (4, 128), device=DEVICE)
    training = Training(llama(768, 12, 32_000).to(DEVICE), kind, ids)
    training.step()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        training.step()
    return torch.cuda.max_memory_allocated(), sum(p.nbytes for p in training.model.parameters())


CARDS = torch.cuda.device_count() or 2  # processes on a CPU
TRAINER = """
import sys, torch
from torch.utils._pytree import tree_map_only
from tests.integrations.test_trainers import CONFIGURED, SAULTrainer, assert_is, by_hand, run
args = {"num_train_epochs": 6, "use_cpu": sys.argv[2] == "cpu", **CONFIGURED}
found = run(SAULTrainer, sys.argv[1], args)
assert_is([tree_map_only(torch.Tensor, lambda each: each.cpu(), found)], by_hand.saul)
"""


def launch(count: int, *words: object) -> None:
    """Run in so many processes, as a user does."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    place = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    given = [f"--nproc-per-node={count}", *map(str, words)]
    subprocess.run([*start, *given], check=True, env=place)


@pytest.mark.parametrize("more", [(), ("--lora",)])
def test_the_command_meets_its_goal_on_every_card(
    more: tuple[str, ...],
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    files = [word for name, path in lay(tmp_path).items() for word in (f"--{name}", path)]
    place = "--model", folder, "--output", tmp_path / "out", "--device", DEVICE.type
    how = "--alpha", 2, "--batch-size", 6, "--max-retain-loss", 9, "--max-probe-loss", 1
    launch(min(CARDS, 6), "-m", "torch_alm", "unlearn", *place, *files, *how, *more)


def test_saul_in_shards_is_algorithm_1_by_hand(tmp_path: Path) -> None:
    """A CPU has no shards, and the same script."""
    launch(1, "--no-python", sys.executable, "-c", TRAINER, tmp_path, DEVICE.type)
