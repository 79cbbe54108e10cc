"""The methods of the command against loops that use torch alone."""

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.cli.conftest import FORGET, RETAIN
from torch_alm.cli.goal import Goal
from torch_alm.cli.methods import METHODS, Rates
from torch_alm.cli.training import Training
from torch_alm.language import collate, encode

ALPHA, MU, LR, RHO, BETA = 1.0, 0.5, 1e-2, 0.07, 0.3


def token_losses(model: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Token losses and mask, by hand."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    labels = batch["labels"][:, 1:]
    said = F.log_softmax(logits[:, :-1], dim=-1)
    nll = -said.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return nll, (labels != -100).float()


def mean_loss(model: Any, batch: Any) -> Tensor:
    nll, mask = token_losses(model, batch)
    return ((nll * mask).sum(1) / mask.sum(1)).mean()


def surrogate(key: str, model: Any, original: Any, batch: Any) -> Tensor:
    """The loss that is descended on the forget batch, from the papers' formulas."""
    nll, mask = token_losses(model, batch)
    sums = (nll * mask).sum(1)
    if key == "npo":
        with torch.no_grad():
            before, _ = token_losses(original, batch)
        gain = sums - (before * mask).sum(1)
        return (-2 / BETA * F.logsigmoid(BETA * gain)).mean()
    if key == "simnpo":
        return (-2 / BETA * F.logsigmoid(BETA * sums / mask.sum(1))).mean()
    return -mean_loss(model, batch)


@pytest.fixture
def still(model: Any) -> Any:
    """The model without dropout, in double precision: a loop beside it has the same numbers."""
    found = copy.deepcopy(model).double()
    for layer in found.model.layers:
        layer.self_attn.attention_dropout = 0.0
    return found


@pytest.fixture
def rows(tokenizer: Any) -> tuple[list[Any], list[Any]]:
    return [encode(tokenizer, **r) for r in FORGET], [encode(tokenizer, **r) for r in RETAIN]


def trained(key: str, model: Any, rows: Any, goal: Goal) -> Training:
    method = METHODS[key](model, goal, Rates(LR, RHO, MU, BETA), nullcontext)
    run = Training(method, *rows, 0, epochs=3, batch_size=4, seed=0)
    run.run("", lambda: None, 15.0)
    return run


def weights(model: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("key", ["grad_diff", "npo", "simnpo"])
def test_one_optimizer_with_the_controller(key: str, still: Any, rows: Any) -> None:
    original, model = copy.deepcopy(still), copy.deepcopy(still)
    run = trained(key, still, rows, Goal("loss", ALPHA, ""))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    price, prices = 0.0, []
    for retain, forget in run.order:
        kept, gone = (
            collate([r[i] for i in chosen], 0)
            for r, chosen in ((rows[1], retain), (rows[0], forget))
        )
        price = max(0.0, price + MU * (ALPHA - float(mean_loss(model, gone).detach())))
        prices.append(price)
        loss = mean_loss(model, kept)
        if price > 0:
            loss = loss + price * surrogate(key, model, original, gone)
        optimizer.zero_grad()
        (loss / (1 + price)).backward()
        optimizer.step()
    assert {p > 0 for p in prices} == {True, False}, "the gate has to open and close"
    assert [row["lambda"] for row in run.trace] == pytest.approx(prices, abs=1e-6)
    torch.testing.assert_close(weights(still), weights(model), rtol=0, atol=1e-6)


def gradient(
    model: Any, batch: Any, params: list[Tensor], rho: float
) -> tuple[float, list[Tensor]]:
    """Loss and gradient at theta + rho g / |g|."""
    found = torch.autograd.grad(mean_loss(model, batch), params)
    norm = torch.sqrt(sum(g.square().sum() for g in found))
    saved = [p.detach().clone() for p in params]
    with torch.no_grad():
        for p, g in zip(params, found, strict=True):
            p.add_(rho * g / norm)
    loss = mean_loss(model, batch)
    there = torch.autograd.grad(loss, params)
    with torch.no_grad():
        for p, value in zip(params, saved, strict=True):
            p.copy_(value)
    return float(loss.detach()), list(there)


@pytest.mark.parametrize(("key", "rho"), [("dual", 0.0), ("saul", RHO)])
def test_two_optimizers_are_algorithm_1(key: str, rho: float, still: Any, rows: Any) -> None:
    model = copy.deepcopy(still)
    run = trained(key, still, rows, Goal("loss", ALPHA, ""))
    params = list(model.parameters())
    sides = [torch.optim.AdamW(params, lr=LR, weight_decay=0.0) for _ in range(2)]
    price, prices = 0.0, []
    for retain, forget in run.order:
        kept, gone = (
            collate([r[i] for i in chosen], 0)
            for r, chosen in ((rows[1], retain), (rows[0], forget))
        )
        _, g_r = gradient(model, kept, params, rho)
        value, g_f = gradient(model, gone, params, -rho)
        price = max(0.0, price + MU * (ALPHA - value))
        prices.append(price)
        for side, register, factor in ((sides[1], g_f, -price), (sides[0], g_r, 1.0)):
            if factor:
                for p, g in zip(params, register, strict=True):
                    p.grad = factor * g
                side.step()
    assert {p > 0 for p in prices} == {True, False}, "the gate has to open and close"
    assert [row["lambda"] for row in run.trace] == pytest.approx(prices, abs=1e-6)
    torch.testing.assert_close(weights(still), weights(model), rtol=0, atol=1e-6)


def test_a_rate_is_seen_floored_and_raised_unfloored() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 4, 5, dtype=torch.float64)
    labels = torch.tensor([[-100, 1, 2, 3]]).repeat(3, 1)
    sure = torch.tensor([3.0, 5.0, 4.0, 0.0])[:, None]  # a remembered answer
    logits[0] = F.one_hot(torch.tensor([1, 2, 3, 0]), 5) * sure + 0.1 * logits[0]
    logits.requires_grad_()
    p = logits[:, :-1].softmax(-1)
    target = p.gather(-1, labels[:, 1:, None])[..., 0]
    rival = (p - 2 * F.one_hot(labels[:, 1:], 5)).amax(-1)
    phi = (1 - torch.log1p(torch.exp((target - rival) / 0.1 + 1))).amax(1)
    assert phi[0] < 0 < phi[1:].min()
    value = Goal("rate", 0.9, "").measure(logits, labels)
    torch.testing.assert_close(value, phi.clamp(min=0).mean(), rtol=0, atol=1e-12)
    expected = torch.autograd.grad(phi.mean(), logits)[0]
    torch.testing.assert_close(torch.autograd.grad(value, logits)[0], expected, rtol=0, atol=1e-9)
    assert expected[0].abs().max() > 0, "a remembered answer needs a gradient"


@pytest.mark.parametrize("key", METHODS)
@pytest.mark.parametrize(
    ("kind", "kept"), [("rate", 0.5), ("loss", 1.0)], ids=["rate gives back half", "loss"]
)
def test_a_price_unwinds_and_that_of_a_rate_is_given_back(key: str, kind: Any, kept: float) -> None:
    rates = Rates(LR, RHO, 1.0, BETA)
    constraint = METHODS[key](nn.Linear(1, 1), Goal(kind, 0.75, ""), rates, nullcontext).constraint
    price, prices, found = 0.0, [], []
    for value in (0.25, 0.5, 0.75, 1.0, 1.0, 0.25):
        constraint.observe(torch.tensor(value))
        constraint.step()
        found.append(constraint.metrics()["multiplier"])
        price = max(0.0, price + 0.75 - value) * (kept if value >= 0.75 else 1.0)
        prices.append(price)
    assert found == prices


def test_autocast_reaches_the_forward_and_leaves_the_weights(still: Any, rows: Any) -> None:
    model, seen = still.float(), []
    model.lm_head.register_forward_hook(lambda *found: seen.append(found[2].dtype))
    context = lambda: torch.autocast("cpu", torch.bfloat16)  # noqa: E731
    method = METHODS["saul"](model, Goal("loss", ALPHA, ""), Rates(LR, RHO, MU, BETA), context)
    Training(method, *rows, 0, epochs=1, batch_size=8, seed=0).run("", lambda: None, 15.0)
    assert set(seen) == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("key", "is_open", "passes"),
    [
        *(("dual", True, 2), ("dual", False, 1), ("saul", True, 4), ("saul", False, 3)),
        *((key, is_open, 1 + is_open) for key in ("grad_diff", "npo", "simnpo")
          for is_open in (True, False)),
    ],
)  # fmt: skip
def test_a_closed_gate_saves_the_backward_passes_of_the_forget_side(
    key: str, is_open: bool, passes: int, still: Any, rows: Any
) -> None:
    """SAUL looks at the forget loss beside the weights, and pays one to get there."""
    rates = Rates(lr=LR, rho=RHO, mu=MU, beta=BETA)
    goal = Goal("loss", 1e3 if is_open else 1e-9, "")
    method = METHODS[key](still, goal, rates, nullcontext)
    retain, forget = (collate(some, 0) for some in (rows[1][:2], rows[0][:2]))
    forget["reference_nll"] = torch.zeros(2, dtype=torch.float64)
    seen: list[Tensor] = []
    still.lm_head.weight.register_hook(seen.append)
    method.step(retain, forget)
    assert len(seen) == passes


def test_nothing_is_cached_of_what_is_only_learnt(still: Any, rows: Any) -> None:
    method = METHODS["grad_diff"](
        still, Goal("loss", 9.0, ""), Rates(LR, RHO, MU, BETA), nullcontext
    )
    seen: list[Any] = []
    still.register_forward_hook(lambda _, __, found: seen.append(found.past_key_values))
    method.step(*(collate(some[:2], 0) for some in rows))
    assert seen == [None, None]
