"""The contract table: every optimizer, as one row. What a row promises is in `test_contract*.py`.

torch's own optimizers are rows too: a promise they do not keep would be a mistake in the test.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

from torch_alm import SAM, ALMConstraint, DualOptimizer, ReverseSAM

ADAFACTOR: Any = vars(torch.optim).get("Adafactor")  # since torch 2.5
Make = Callable[[list[Any]], Optimizer]


def sgd(params: list[Any]) -> Optimizer:
    return SGD(params, lr=0.05, momentum=0.9)


def adamw(params: list[Any], weight_decay: float = 0.01) -> Optimizer:
    # float16 rounds torch's default eps of 1e-8 to 0, and AdamW would divide by it
    return AdamW(params, lr=0.01, weight_decay=weight_decay, eps=1e-4)


def saul(params: list[Any], **options: Any) -> Optimizer:
    return DualOptimizer(
        retain=SAM(adamw(params), rho=0.05),
        forget=ReverseSAM(adamw(params, 0.0), rho=0.02),
        constraint=ALMConstraint(None, alpha=1.4, mu=1.0, multiplier=0.2),
        **options,
    )


ROWS: dict[str, Make] = {
    "SGD": sgd,
    "AdamW": adamw,
    "Adafactor": lambda params: ADAFACTOR(params, lr=0.05),
    "SAM(SGD)": lambda params: SAM(sgd(params), rho=0.05),
    "SAM(AdamW)": lambda params: SAM(adamw(params), rho=0.05),
    "SAM(Adafactor)": lambda params: SAM(ADAFACTOR(params, lr=0.05), rho=0.05),
    "ReverseSAM(AdamW)": lambda params: ReverseSAM(adamw(params), rho=0.05),
    "Dual(AdamW, AdamW)": lambda params: DualOptimizer(adamw(params), adamw(params, 0.0)),
    "Dual(SGD, Adafactor)": lambda params: DualOptimizer(sgd(params), ADAFACTOR(params, lr=0.01)),
    "SAUL": saul,
    "SAUL, scale=step": lambda params: saul(params, scale="step"),
}
if ADAFACTOR is None:
    ROWS = {name: make for name, make in ROWS.items() if "Adafactor" not in name}
PLAIN = [name for name in ROWS if "(" not in name and "SAUL" not in name]
OURS = [name for name in ROWS if name not in PLAIN]
DUAL = [name for name in OURS if "Dual" in name or "SAUL" in name]
PERTURBED = [name for name in OURS if "SAM" in name]


class Model(nn.Module):
    """A classifier with a frozen and an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(3, 5)
        self.frozen = nn.Parameter(torch.randn(5), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(2))
        self.out = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(x) + self.frozen))


class Batch(NamedTuple):
    """Inputs and labels to keep, and to forget."""

    retain: tuple[Tensor, Tensor]
    forget: tuple[Tensor, Tensor]


def build(make: Make, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Model, Any]:
    """A fresh model and its optimizer."""
    torch.manual_seed(seed)
    model = Model().to(dtype)
    return model, make(list(model.parameters()))


def batch(step: int, dtype: torch.dtype = torch.float64) -> Batch:
    """The batch of a step."""
    generator = torch.Generator().manual_seed(1000 + step)

    def draw() -> tuple[Tensor, Tensor]:
        x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
        return x.to(dtype), torch.randint(4, (6,), generator=generator)

    return Batch(draw(), draw())


def loss(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(data[0]), data[1])


def backward(optimizer: Any, model: nn.Module, data: Batch, weight: float = 1.0) -> None:
    """One micro-batch, the way each kind of optimizer is used."""
    if isinstance(optimizer, DualOptimizer):
        optimizer.backward(
            retain=lambda: loss(model, data.retain),
            forget=lambda: loss(model, data.forget),
            weight=weight,
        )
    elif isinstance(optimizer, SAM | ReverseSAM):
        optimizer.backward(lambda: loss(model, data.retain), weight=weight)
    else:
        (weight * loss(model, data.retain)).backward()


def train(optimizer: Any, model: nn.Module, steps: Iterable[int]) -> list[float]:
    """The plain loop; returns what the constraint did, if there is one."""
    dtype = next(model.parameters()).dtype
    weights = []
    for step in steps:
        backward(optimizer, model, batch(step, dtype))
        optimizer.step()
        optimizer.zero_grad()
        constraint = getattr(optimizer, "constraint", None)
        weights += [] if constraint is None else [constraint.weight]
    return weights


def sides(optimizer: Any) -> list[Any]:
    """The optimizers joined by a DualOptimizer; else the optimizer itself."""
    return (
        [optimizer.retain, optimizer.forget]
        if isinstance(optimizer, DualOptimizer)
        else [optimizer]
    )


def innermost(optimizer: Any) -> list[Any]:
    """torch's own optimizers at the bottom."""
    return [getattr(side, "base", side) for side in sides(optimizer)]


def parameters(optimizer: Any) -> list[Tensor]:
    return [p for group in innermost(optimizer)[0].param_groups for p in group["params"]]


def values(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters by name."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_same(found: Any, wanted: Any) -> None:
    """Bit for bit, whatever the nesting."""
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        assert_same(list(found.values()), list(wanted.values()))
    elif isinstance(wanted, list | tuple | deque):
        for mine, its in zip(found, wanted, strict=True):
            assert_same(mine, its)
    elif isinstance(wanted, Tensor | float):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    elif hasattr(wanted, "__dict__"):
        assert_same(vars(found), vars(wanted))
    else:
        assert found == wanted
