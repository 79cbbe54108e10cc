"""Lightning's own loop, manual and automatic, against Algorithm 1 by hand."""

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, Subset, TensorDataset

from tests import oracle
from tests.core.distributed.ranks import Ranks
from tests.core.table import assert_same
from torch_alm import SAM, ALMConstraint, ReverseSAM

lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
ours = pytest.importorskip("torch_alm.integrations.lightning")

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of Lightning: workers, loggers, devices
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
ALPHA, MU, RHO, LR, ROWS = 1.5, 1.0, 0.05, 0.05, 12


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    columns = (torch.randn(ROWS, 4, dtype=torch.float64, generator=generator) for _ in "fr")
    return TensorDataset(*columns)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


class Module(lightning.LightningModule):
    """Manual with two sides, or automatic with the constraint in the loss, as on the page."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.0), nn.Linear(5, 1)).double()
        self.kind = kind
        self.automatic_optimization = kind == "loss"
        self.constraint = ALMConstraint(loss_of, alpha=ALPHA, mu=MU)
        self.weights: list[Any] = []

    def configure_optimizers(self) -> Any:
        sides = [AdamW(self.parameters(), lr=LR, weight_decay=0.0) for _ in "rf"]
        if self.kind == "saul":
            given = SAM(sides[0], RHO), ReverseSAM(sides[1], RHO), self.constraint
            return ours.ManualDualOptimizer(*given)
        return ours.ManualSAM(sides[0], RHO) if self.kind == "sam" else sides[0]

    def on_fit_start(self) -> None:
        if self.kind != "loss":
            self.optimizers().optimizer.backward_fn = self.manual_backward

    def on_train_start(self) -> None:
        if self.kind == "loss":
            self.constraint.attach(self.trainer.optimizers[0])

    def on_save_checkpoint(self, checkpoint: Any) -> None:
        checkpoint["constraint"] = self.constraint.state_dict()

    def on_load_checkpoint(self, checkpoint: Any) -> None:
        self.constraint.load_state_dict(checkpoint["constraint"])

    def training_step(self, batch: Any, _: int) -> Any:
        forget, retain = batch
        if self.kind == "loss":
            return loss_of(self.net, retain) + self.constraint(self.net, forget)
        optimizer = self.optimizers()
        if self.kind == "saul":
            optimizer.optimizer.backward(
                retain=lambda: loss_of(self.net, retain), forget=lambda: loss_of(self.net, forget)
            )
        else:
            optimizer.optimizer.backward(lambda: loss_of(self.net, retain))
        optimizer.step()
        optimizer.zero_grad()
        self.weights.append(self.constraint.weight)
        return None

    def validation_step(self, batch: Any, _: int) -> None:
        if self.kind == "loss":  # without gradients nothing is observed
            self.constraint(self.net, 3 * batch[0])


def fit(
    kind: str, folder: Path, epochs: int = 3, mine: range = range(ROWS), **given: Any
) -> tuple[Any, Any]:
    module, path = Module(kind), given.pop("ckpt_path", None)
    saving = lightning.callbacks.ModelCheckpoint(folder, save_top_k=-1, filename="{epoch}")
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=[saving], **quiet, **{"devices": 1, **given}
    )
    batches = DataLoader(Subset(rows(), mine), batch_size=3)
    trainer.fit(module, batches, DataLoader(rows(), batch_size=6), ckpt_path=path)
    return module, trainer


def by_hand(kind: str, parts: int = 1, batch_size: int = 3) -> tuple[list[Tensor], list[float]]:
    net = Module(kind).net
    theta = list(net.parameters())
    s, weights = oracle.AdamW(LR), list[float]()
    saul = oracle.Saul(theta, s, oracle.AdamW(LR), ALPHA, MU, 0.0, rho_r=RHO, rho_f=RHO)
    alm = oracle.Alm(theta, s, ALPHA, MU)
    batches = [b for _ in range(3) for b in DataLoader(rows(), batch_size=batch_size)]
    for step in zip(*[iter(batches)] * parts, strict=True):
        sides = zip(*step, strict=True)
        forget, retain = ([lambda x=x: loss_of(net, x) for x in side] for side in sides)
        if kind == "sam":
            s.step(theta, oracle.grad_sam(retain[0], theta, RHO, +1.0)[0])
        else:
            weights.append({"saul": saul, "loss": alm}[kind].step(retain, forget))
    return theta, weights


@pytest.mark.parametrize("kind", ["saul", "sam", "loss"])
def test_the_loop_is_the_algorithm_and_its_steps_count(kind: str, tmp_path: Path) -> None:
    module, trainer = fit(kind, tmp_path)
    theta, weights = by_hand(kind)
    assert trainer.global_step == 3 * ROWS // 3
    for found, expected in zip(module.net.parameters(), theta, strict=True):
        torch.testing.assert_close(found.detach(), expected.detach(), rtol=0, atol=1e-12)
    if kind == "saul":
        torch.testing.assert_close(module.weights, weights, rtol=0, atol=1e-12)
        assert 0.0 in weights and max(weights) > 0, "the gate must open and close"
    if kind == "loss":
        assert module.constraint.metrics()["steps"] == trainer.global_step
        assert module.constraint.multiplier == pytest.approx(weights[-1], abs=1e-12)


def in_a_group(rank: int, kind: str, folder: str) -> tuple[list[Tensor], list[Any], int, Any]:
    """A fit as a launcher starts it; the process group is there already."""
    warnings.simplefilter("ignore")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(GROUP_RANK="0", TORCHELASTIC_RUN_ID="test")
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="1")
    # by itself Lightning shuffles what each rank gets
    given = {"devices": 2, "use_distributed_sampler": False, "mine": range(rank, ROWS, 2)}
    module, trainer = fit(kind, Path(folder), strategy="ddp", **given)
    theta = [p.detach() for p in module.net.parameters()]
    return theta, module.weights, trainer.global_step, module.constraint.state_dict()


@pytest.mark.parametrize("kind", ["saul", "sam", "loss"])
def test_two_ranks_are_one_process_with_both_batches(
    kind: str, ranks: Ranks, tmp_path: Path
) -> None:
    found = ranks(in_a_group, kind, str(tmp_path))
    theta, weights = by_hand(kind, batch_size=6)
    for each, seen, steps, _ in found:
        assert steps == 3 * ROWS // 6
        for p, expected in zip(each, theta, strict=True):
            torch.testing.assert_close(p, expected.detach(), rtol=0, atol=1e-12)
        if kind == "saul":
            torch.testing.assert_close(seen, weights, rtol=0, atol=1e-12)
    assert all(torch.equal(p, q) for p, q in zip(found[0][0], found[1][0], strict=True))
    assert_same(found[0][3], found[1][3])
    if kind == "loss":
        assert found[0][3]["multiplier"] == pytest.approx(weights[-1], abs=1e-12)


def test_accumulated_batches_are_one_step_of_the_constraint(tmp_path: Path) -> None:
    """A validation in the middle of a step leaves its micro-batches alone."""
    given = {"accumulate_grad_batches": 2, "val_check_interval": 1}
    module, trainer = fit("loss", tmp_path, **given)
    theta, weights = by_hand("loss", parts=2)
    assert module.constraint.metrics()["steps"] == trainer.global_step == len(weights) == 6
    assert module.constraint.multiplier == pytest.approx(weights[-1], abs=1e-12)
    for found, expected in zip(module.net.parameters(), theta, strict=True):
        torch.testing.assert_close(found.detach(), expected.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["saul", "sam", "loss"])
def test_a_resumed_run_goes_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    through, _ = fit(kind, tmp_path)
    resumed, trainer = fit(kind, tmp_path, ckpt_path=str(tmp_path / "epoch=1.ckpt"))
    assert trainer.global_step == 3 * ROWS // 3
    found, expected = resumed.net.state_dict(), through.net.state_dict()
    assert all(torch.equal(found[name], p) for name, p in expected.items())
    assert_same(resumed.constraint.state_dict(), through.constraint.state_dict())
