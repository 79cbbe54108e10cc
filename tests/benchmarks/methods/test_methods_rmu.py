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
from tests.benchmarks.methods.oracles import Losses, Weight, blur, joint, of_both, relearning
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


def distance(found: Tensor, target: Tensor, data: Batch) -> Tensor:
    squares = (found - target).square().mean(-1)
    counts = (data["labels"] != -100).double()
    return ((squares * counts).sum(1) / counts.sum(1)).mean()


def direction(topic: int = 0) -> Tensor:
    torch.manual_seed(SEED)
    return steering_vector(WIDTH, int(torch.randint(2**31 - 1, ())) + topic)


def forget_loss(model: nn.Module, data: Batch, s: Settings, topic: int = 0) -> Tensor:
    return distance(states(model, data), s.coefficient * direction(topic), data)


def retain_loss(model: nn.Module, first: nn.Module, data: Batch, s: Settings) -> Tensor:
    return distance(states(model, data), states(first, data).detach(), data)


class Lowered(Weight):
    """lambda+ = [lambda + mu (U - tau)]_+."""

    def __call__(self, measured: Tensor) -> float:
        return super().__call__(2 * self.s.alpha - measured)


def steered(model: nn.Module, first: nn.Module, data: Batch, s: Settings) -> Tensor:
    return forget_loss(model, data, s)


RMU = Losses(kept=retain_loss, lowered=steered, measured=steered)
ORACLES = {
    **of_both(RMU),
    "rmu": joint(RMU),
    "relearning_resilient": relearning(RMU),
    "blur": blur(RMU),
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((key, {}) for key in methods.names("rmu")),
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
    ORACLES[plain](by_hand, settings, BATCHES, weight)
    assert not torch.equal(flat(by_hand), flat(original))
    if methods.is_controlled(key):
        assert {w > 0 for w in weight.history} == {True, False}, "the gate has to open and close"
    assert_close(trained(key, original, settings), flat(by_hand), rtol=1e-9, atol=1e-12)


def test_every_method_has_an_oracle() -> None:
    assert ORACLES.keys() == methods.LOSSES["rmu"].keys()


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


def test_a_retain_side_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"retain is 'kl'.*losses=tokens"):
        Settings(losses="rmu", retain="kl")
