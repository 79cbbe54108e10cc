"""The methods of the paper: against themselves written by hand, and against what defines them."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from benchmarks import methods
from benchmarks.methods import LOSSES, Method, Settings
from tests.benchmarks.methods.oracles import ORACLES, Weight
from tests.benchmarks.toy import FORGET, Everything, batch, ce, flat, memorised

BATCHES = [(batch(10 + i), FORGET) for i in range(3)] * 5  # gates close after 14 steps at last
FEW = BATCHES[:6]
METHODS = LOSSES["tokens"]
SETTINGS = Everything(
    lr=0.05,
    alpha=1.0,
    mu=0.3,
    multiplier=0.0,
    rho_forget=0.05,
    rho_retain=0.05,
    warmup_epochs=0,
    retain_multiplier=20.0,
    epsilon=1.0,
)
OPTIONAL = [key for key in METHODS if f"{key}+alm" in methods.names()]
TWO_STATES = ["dual_adamw", "sharp_min_max"]


@pytest.fixture(scope="module")
def original() -> nn.Module:
    return memorised()


def train(key: str, model: nn.Module, settings: Settings, batches: list = BATCHES) -> Method:
    method = methods.build(key, model, settings)
    for retain, forget in batches:
        method.step(retain, forget)
    return method


def trained(key: str, original: nn.Module, settings: Settings, batches: list = BATCHES) -> Tensor:
    model = copy.deepcopy(original)
    train(key, model, settings, batches)
    return flat(model)


def change(**changes: Any) -> Settings:
    return dataclasses.replace(SETTINGS, **changes)


# With plain SGD the one needs a longer, the other a shorter step than the rest.
SLOW = ("gra", "pdu")
VARIANTS = [
    *((key, {}) for key in methods.names()),
    *((key, {"optimizer": "sgd", "lr": 0.3}) for key in methods.names() if key[:3] not in SLOW),
    ("grad_ascent+alm", {"optimizer": "sgd", "lr": 3.0}),
    ("npo+alm", {"retain_weight": 2.0, "beta": 0.4}),
    ("simnpo", {"beta": 2.5, "margin": 0.3, "forget_weight": 0.125}),
    ("sharp_min_max", {"order": "simultaneous"}),
    ("sharp_min_max+alm", {"order": "simultaneous", "optimizer": "sgd", "lr": 0.2}),
    ("sharp_min_max", {"kappa": 0.3}),
    *((key, {"weight_decay": 0.5}) for key in ("single_adamw", "dual_adamw+alm", "sharp_min_max")),
    *((key, {"scale": "step"}) for key in ("dual_adamw+alm", "saul", "sharp_min_max+alm")),
    *((key, {"forget_lr": 0.02}) for key in ("dual_adamw", "saul", "sharp_min_max")),
    *((key, {"forget_weight": 0.2}) for key in ("blur", "dual_adamw")),
    ("pdu", {"retain_multiplier": 0.5, "epsilon": 3.0}),
]


@pytest.mark.parametrize(("key", "changes"), VARIANTS, ids=lambda value: str(value))
def test_equals_the_method_written_by_hand(
    key: str, changes: dict[str, Any], original: nn.Module
) -> None:
    settings, plain = change(**changes), key.removesuffix("+alm")
    controlled = METHODS[plain].method.alm == "built in" or key != plain
    by_hand, weight = copy.deepcopy(original), Weight(settings, controlled)
    batches = BATCHES if controlled else FEW  # without a gate every step is like the ones before
    ORACLES[plain](by_hand, settings, batches, weight)
    assert not torch.equal(flat(by_hand), flat(original))
    if controlled:
        assert {w > 0 for w in weight.history} == {True, False}, "the gate has to open and close"
    assert_close(trained(key, original, settings, batches), flat(by_hand), rtol=1e-9, atol=1e-12)


def test_a_retain_side_may_hold_what_the_model_predicted(original: nn.Module) -> None:
    model, retain = copy.deepcopy(original), BATCHES[0][0]
    method = train("dual_adamw", model, change(retain="kl"), FEW)
    inputs = {name: retain[name] for name in ("input_ids", "attention_mask")}
    now, before = (m(**inputs).logits[:, :-1].log_softmax(-1) for m in (model, original))
    is_answer = retain["labels"][:, 1:] != -100
    far = ((before.exp() * (before - now)).sum(-1) * is_answer).sum(1) / is_answer.sum(1)
    assert_close(method.retain_loss(retain), far.mean())
    assert far.mean() > 1e-3
    alone = methods.build("retain_only", copy.deepcopy(original), change(retain="kl"))
    assert alone.retain_loss(retain).item() == pytest.approx(0.0, abs=1e-12)


def test_every_method_has_an_oracle() -> None:
    assert ORACLES.keys() == METHODS.keys()


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("key", OPTIONAL)
def test_a_frozen_controller_is_the_plain_method(
    key: str, optimizer: str, original: nn.Module
) -> None:
    weight = 1.0 if key in TWO_STATES else 0.375
    settings = change(optimizer=optimizer, mu=0.0, multiplier=weight, forget_weight=weight)
    settings = dataclasses.replace(settings, lr=0.003 if "pdu" in key else 0.05)
    plain = trained(key, original, settings, FEW)
    assert not torch.equal(plain, flat(original))
    assert torch.equal(trained(f"{key}+alm", original, settings, FEW), plain)


@pytest.mark.parametrize("key", OPTIONAL)
def test_a_closed_gate_leaves_the_retain_direction_alone(key: str, original: nn.Module) -> None:
    satisfied = change(alpha=-1.0, multiplier=0.0)
    closed = copy.deepcopy(original)
    method = train(f"{key}+alm", closed, satisfied, FEW)
    assert method.metrics()["gate_open"] == 0.0
    elsewhere = [(retain, batch(77)) for retain, _ in FEW]
    assert torch.equal(trained(f"{key}+alm", original, satisfied, elsewhere), flat(closed))
    assert torch.equal(flat(closed), flat(original)) == (key == "grad_ascent")


def test_pdu_keeps_its_retain_multiplier_while_warming_up(original: nn.Module) -> None:
    method = methods.build("pdu", copy.deepcopy(original), change(warmup_epochs=2, lr=0.003))
    seen = []
    for _ in range(3):
        for retain, forget in BATCHES[:3]:
            method.step(retain, forget)
        method.end_epoch()
        seen.append(method.metrics()["retain_multiplier"])
    assert seen[0] == seen[1] == 20.0
    assert seen[2] != 20.0


@pytest.mark.parametrize("key", methods.names())
def test_metrics_tell_what_happened(key: str, original: nn.Module) -> None:
    model = copy.deepcopy(original)
    before = ce(model, FORGET).item()
    numbers = train(key, model, change(rho_forget=0.0, order="simultaneous"), BATCHES[:1]).metrics()
    assert numbers["forget_loss"] == pytest.approx(before, rel=1e-12)
    if "lambda" in numbers:
        assert numbers["violation"] == pytest.approx(SETTINGS.alpha - before, rel=1e-12)
        assert numbers["lambda"] == pytest.approx(SETTINGS.mu * numbers["violation"], rel=1e-12)
        assert numbers["weight"] == numbers["lambda"]
    assert numbers["gate_open"] == 1.0


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("sual", "Did you mean 'saul'"),
        ("saul+alm", "Did you mean 'saul'"),
        ("dual_adam+alm", "dual_adamw+alm"),
    ],
)
def test_an_unknown_method_is_named_with_the_closest_one(key: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("+", r"\+")):
        methods.check_method(key)


@pytest.mark.parametrize(
    "changes", [{"epochs": 0}, {"mu": -1.0}, {"rho_forget": -1e-3}, {"optimizer": "adam"}]
)
def test_settings_no_method_could_use_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        change(**changes)


@pytest.mark.parametrize("losses", LOSSES)
def test_a_method_has_the_settings_it_reads_and_no_others(losses: str) -> None:
    """The union of all settings is what a command line may name."""
    numbers = {"losses": losses, "lr": 0.5, "beta": 0.7, "rho_forget": 0.2, "nothing": 1}
    for key in methods.names(losses):
        found = dataclasses.asdict(methods.settings_of(key, numbers))
        known = {name for name, value in numbers.items() if found.get(name) == value}
        assert known == numbers.keys() & found.keys()
        assert "nothing" not in found
    assert not hasattr(methods.settings_of("grad_diff", {}), "beta")
    assert methods.settings_of("saul", numbers).rho_forget == 0.2
