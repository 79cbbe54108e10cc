"""Methods on RMU's losses: against themselves by hand, and against what defines RMU."""

import copy
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from benchmarks import methods
from benchmarks.methods import Settings
from benchmarks.methods.rmu import TopicBatch, steered_layer
from tests.benchmarks.methods.oracles import (
    Weight,
    combine,
    dot,
    forget_optimizer_for,
    move,
    optimizer_for,
    weighted_move,
)
from tests.benchmarks.toy import FORGET, Batch, Everything, Toy, batch, flat, memorised
from torch_alm.measures import steering_vector

WIDTH = 24
SETTINGS = Everything(
    losses="rmu",
    layer="hidden",
    coefficient=3.0,
    lr=0.02,
    alpha=6.5,
    mu=2.0,
    multiplier=0.0,
    retain_weight=0.5,
    rho_forget=0.05,
    rho_retain=0.05,
)
SEED = 5
BATCHES = [(batch(10 + i), FORGET) for i in range(3)] * 6


class Wide(Toy):
    """The toy, which tells how wide its hidden states are."""

    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(hidden_size=WIDTH))


@pytest.fixture(scope="module")
def original() -> nn.Module:
    model = Wide()
    model.load_state_dict(memorised().state_dict())
    return model


def change(**changes: Any) -> Settings:
    return dataclasses.replace(SETTINGS, **changes)


def build(key: str, model: nn.Module, settings: Settings) -> Any:
    torch.manual_seed(SEED)
    return methods.build(key, model, settings)


def trained(key: str, original: nn.Module, settings: Settings, batches: Any = BATCHES) -> Tensor:
    model = copy.deepcopy(original)
    method = build(key, model, settings)
    for retain, forget in batches:
        method.step(retain, forget)
    return flat(model)


# By hand


def states(model: Any, data: Batch) -> Tensor:
    seen = model.embed(data["input_ids"]) * data["attention_mask"].unsqueeze(-1)
    weights = torch.arange(1, seen.shape[1] + 1, dtype=torch.float64)
    return model.hidden(seen.cumsum(1) * weights.rsqrt()[:, None])


def distance(found: Tensor, target: Tensor, data: Batch, mask: str) -> Tensor:
    squares = (found - target).square().mean(-1)
    if mask == "all":
        return squares.mean()
    counts = (data["labels"] != -100).double()
    return ((squares * counts).sum(1) / counts.sum(1)).mean()


def direction(topic: int = 0) -> Tensor:
    torch.manual_seed(SEED)
    return steering_vector(WIDTH, int(torch.randint(2**31 - 1, ())) + topic)


def forget_loss(model: nn.Module, data: Batch, s: Settings, topic: int = 0) -> Tensor:
    return distance(states(model, data), s.coefficient * direction(topic), data, s.mask)


def retain_loss(model: nn.Module, first: nn.Module, data: Batch, s: Settings) -> Tensor:
    return distance(states(model, data), states(first, data).detach(), data, s.mask)


class Lowered(Weight):
    """lambda+ = [lambda + mu (U - tau)]_+."""

    def __call__(self, measured: Tensor) -> float:
        return super().__call__(2 * self.s.alpha - measured)


def joint(model: nn.Module, s: Settings, weight: Weight) -> None:
    first, optimizer = copy.deepcopy(model), optimizer_for(model, s)
    for retain, forget in BATCHES:
        u = forget_loss(model, forget, s)
        loss = s.retain_weight * retain_loss(model, first, retain, s) + weight(u.detach()) * u
        move(model, optimizer, gradient(loss, model))


def gradient(loss: Tensor, model: nn.Module) -> list[Tensor]:
    """The gradient, zero for the oracles where no loss reaches."""
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    pairs = zip(found, model.parameters(), strict=True)
    return [torch.zeros_like(p) if g is None else g for g, p in pairs]


def nearby(model: nn.Module, rho: float, loss: Any) -> tuple[Tensor, list[Tensor]]:
    """Value and gradient where the loss is worst nearby."""
    towards = gradient(loss(), model)
    norm = torch.sqrt(sum(d.square().sum() for d in towards))
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for p, d in zip(model.parameters(), towards, strict=True):
            p += rho * d / (norm + 1e-12)
    value = loss()
    found = value.detach(), gradient(value, model)
    model.load_state_dict(before)
    return found


def dual(retain_sam: bool, forget_sam: bool) -> Any:
    def oracle(model: nn.Module, s: Settings, weight: Weight) -> None:
        first = copy.deepcopy(model)
        retain_side, forget_side = optimizer_for(model, s), forget_optimizer_for(model, s)
        for retain, forget in BATCHES:

            def kept(data: Batch = retain) -> Tensor:
                return s.retain_weight * retain_loss(model, first, data, s)

            def steered(data: Batch = forget) -> Tensor:
                return forget_loss(model, data, s)

            _, g_r = nearby(model, s.rho_retain if retain_sam else 0.0, kept)
            value, g_u = nearby(model, s.rho_forget if forget_sam else 0.0, steered)
            w = weight(value)
            if w > 0:
                weighted_move(model, forget_side, g_u, w, s)
            move(model, retain_side, g_r)

    return oracle


def sharp(model: nn.Module, s: Settings, weight: Weight) -> None:
    first = copy.deepcopy(model)
    retain_side, forget_side = optimizer_for(model, s), forget_optimizer_for(model, s)
    for retain, forget in BATCHES:

        def kept(data: Batch = retain) -> Tensor:
            return retain_loss(model, first, data, s)

        def steered(data: Batch = forget) -> Tensor:
            return forget_loss(model, data, s)

        _, hat = nearby(model, s.rho_retain, kept)
        move(model, retain_side, [s.retain_weight * g for g in hat])
        clean = gradient(steered(), model)
        w = weight(steered().detach())
        if w > 0:
            _, hat = nearby(model, s.rho_forget, steered)
            weighted_move(model, forget_side, combine(clean, hat, 2.0, -1.0), w, s)


def resilient(model: nn.Module, s: Settings, weight: Weight) -> None:
    first, optimizer = copy.deepcopy(model), optimizer_for(model, s)
    for retain, forget in BATCHES:
        g_r = gradient(s.retain_weight * retain_loss(model, first, retain, s), model)
        clean = forget_loss(model, forget, s).detach()
        _, hat = nearby(model, s.rho_forget, lambda f=forget: forget_loss(model, f, s))
        w = weight(clean)
        move(model, optimizer, combine(g_r, hat, 1.0, w))


def blur(model: nn.Module, s: Settings, weight: Weight) -> None:
    first, optimizer = copy.deepcopy(model), optimizer_for(model, s)
    for retain, forget in BATCHES:
        g_r = gradient(retain_loss(model, first, retain, s), model)
        u = forget_loss(model, forget, s)
        g_u, w = gradient(u, model), weight(u.detach())
        along = dot(g_r, g_u) / dot(g_u, g_u) if w > 0 else 0.0
        # RMU's form: d = w g_u + retain_weight (g_r - its part along g_u)
        kept = combine(g_r, g_u, 1.0, -along)
        move(model, optimizer, combine(g_u, kept, w, s.retain_weight))


ORACLES = {
    "rmu": joint,
    "dual_adamw": dual(retain_sam=False, forget_sam=False),
    "sharp_min_max": sharp,
    "relearning_resilient": resilient,
    "blur": blur,
    "saul": dual(retain_sam=True, forget_sam=True),
    "saul_no_alm": dual(retain_sam=True, forget_sam=True),
    "saul_no_sam": dual(retain_sam=True, forget_sam=False),
    "saul_no_alm_no_sam": dual(retain_sam=True, forget_sam=False),
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((key, {}) for key in methods.names("rmu")),
    ("rmu+alm", {"mask": "all"}),
    ("saul", {"scale": "step", "forget_lr": 0.01}),
    ("dual_adamw+alm", {"optimizer": "sgd", "lr": 0.3}),
]


@pytest.mark.parametrize(("key", "changes"), VARIANTS, ids=lambda value: str(value))
def test_equals_the_method_written_by_hand(
    key: str, changes: dict[str, Any], original: nn.Module
) -> None:
    settings, plain = change(**changes), key.removesuffix("+alm")
    by_hand = copy.deepcopy(original)
    weight = Lowered(settings, methods.is_controlled(key))
    ORACLES[plain](by_hand, settings, weight)
    assert not torch.equal(flat(by_hand), flat(original))
    if methods.is_controlled(key):
        assert {w > 0 for w in weight.history} == {True, False}, "the gate has to open and close"
    assert_close(trained(key, original, settings), flat(by_hand), rtol=1e-9, atol=1e-12)


def test_every_method_has_an_oracle() -> None:
    assert ORACLES.keys() == methods.LOSSES["rmu"].keys()


@pytest.mark.parametrize("key", [k for k in methods.names("rmu") if k.endswith("+alm")])
def test_a_frozen_controller_is_the_plain_method(key: str, original: nn.Module) -> None:
    settings = change(mu=0.0, multiplier=1.0)
    plain = trained(key.removesuffix("+alm"), original, settings)
    assert torch.equal(trained(key, original, settings), plain)


@pytest.mark.parametrize("key", [k for k in methods.names("rmu") if methods.is_controlled(k)])
def test_a_met_threshold_leaves_the_retain_direction_alone(key: str, original: nn.Module) -> None:
    settings = change(alpha=1e6)
    elsewhere = [(retain, batch(77)) for retain, _ in BATCHES]
    found = trained(key, original, settings)
    assert torch.equal(trained(key, original, settings, elsewhere), found)


@pytest.mark.parametrize("key", methods.names("rmu"))
def test_what_is_forgotten_comes_near_its_vector_and_what_is_kept_stays(
    key: str, original: nn.Module
) -> None:
    model = copy.deepcopy(original)
    method = build(key, model, change(multiplier=1.0, retain_weight=5.0, alpha=0.0))
    for retain, forget in BATCHES:
        method.step(retain, forget)
    start = forget_loss(original, FORGET, SETTINGS).item()
    assert forget_loss(model, FORGET, SETTINGS).item() < 0.6 * start
    moved = retain_loss(model, original, batch(10), SETTINGS).item()
    assert moved < 0.5 * (start - forget_loss(model, FORGET, SETTINGS).item())


def test_the_control_stays_where_nothing_has_moved(original: nn.Module) -> None:
    assert torch.equal(trained(methods.CONTROL, original, change(lr=0.5)), flat(original))


# RMU itself


def test_r_is_zero_at_the_start_and_only_chosen_parameters_move(original: nn.Module) -> None:
    model = copy.deepcopy(original).requires_grad_(False)
    model.hidden.weight.requires_grad_(True)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    method = build("saul", model, SETTINGS)
    assert method.retain_loss(BATCHES[0][0]).item() == 0.0
    for retain, forget in BATCHES[:3]:
        method.step(retain, forget)
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {"hidden.weight"}
    shared = dict(method.reference.named_parameters())
    assert shared["embed.weight"] is dict(model.named_parameters())["embed.weight"]
    assert torch.equal(shared["hidden.weight"], before["hidden.weight"])


def test_every_topic_has_a_direction_of_its_own(original: nn.Module) -> None:
    method = build("rmu", copy.deepcopy(original), SETTINGS)
    for topic in (0, 1, 0):
        method.step(batch(10), TopicBatch(FORGET, topic))
    assert method.directions.keys() == {0, 1}
    for topic, found in method.directions.items():
        assert torch.equal(found, direction(topic))
    assert not torch.equal(method.directions[0], method.directions[1])


def test_seeds_draw_other_directions(original: nn.Module) -> None:
    found = []
    for seed in (0, 1, 0):
        torch.manual_seed(seed)
        method: Any = methods.build("rmu", copy.deepcopy(original), SETTINGS)
        method.step(batch(10), FORGET)
        found.append(method.directions[0])
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


def test_a_shared_multiplier_follows_all_topics(original: nn.Module) -> None:
    method = build("rmu+alm", copy.deepcopy(original), SETTINGS)
    expected = 0.0
    for step in range(6):
        method.step(batch(10), TopicBatch(batch(30 + step % 2), step % 2))
        seen = method.metrics()
        expected = max(expected + SETTINGS.mu * (seen["forget_loss"] - SETTINGS.alpha), 0.0)
        assert seen["lambda"] == pytest.approx(expected, rel=1e-12)
        assert seen["topic"] == step % 2
    assert "lambda_1" not in seen


class Layered(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(1, 1) for _ in range(count)])


def test_the_layer_is_the_authors_or_the_last_but_one_of_a_small_model() -> None:
    assert steered_layer(Layered(32), "auto") == "layers.7"
    assert steered_layer(Layered(3), "auto") == "layers.1"
    assert steered_layer(Layered(1), "auto") == "layers.0"
    assert steered_layer(Layered(3), "layers.2") == "layers.2"
    with pytest.raises(ValueError, match=r"Did you mean one of layers\.0"):
        steered_layer(Layered(3), "layers.9")


@pytest.mark.parametrize("changes", [{"measure": "certificate"}, {"alpha": "relative:0.1"}])
def test_a_controller_that_could_not_compare_is_refused(
    changes: dict[str, Any], original: nn.Module
) -> None:
    with pytest.raises(ValueError, match="the controller looks at U"):
        build("rmu+alm", original, change(**changes))


def test_a_method_without_such_losses_is_named() -> None:
    with pytest.raises(ValueError, match="unknown method 'npo'"):
        methods.check("npo", "rmu")
    with pytest.raises(ValueError, match="unknown method 'rmu'"):
        methods.check("rmu")
