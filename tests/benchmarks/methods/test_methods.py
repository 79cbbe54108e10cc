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
from benchmarks.methods.npo import NPO
from benchmarks.methods.relearning_resilient import RelearningResilient
from benchmarks.methods.sharp_min_max import SharpMinMax
from tests.benchmarks.methods.oracles import (
    ORACLES,
    Weight,
    at_distance,
    combine,
    dot,
    flattening_by_hand,
    grads,
    npo_by_hand,
)
from tests.benchmarks.toy import (
    FORGET,
    RETAIN,
    Everything,
    batch,
    ce,
    flat,
    memorised,
    sequence_sums,
)

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


@pytest.fixture
def elsewhere(original: nn.Module) -> nn.Module:
    """A model at which no gradient vanishes."""
    model = copy.deepcopy(original)
    torch.manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn_like(p)
    return model


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
    ("blur", {"forget_weight": 0.2}),
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


@pytest.mark.parametrize("key", TWO_STATES)
def test_a_frozen_controller_is_the_plain_method_with_step_placement(
    key: str, original: nn.Module
) -> None:
    settings = change(mu=0.0, multiplier=1.0, scale="step")
    assert torch.equal(trained(f"{key}+alm", original, settings), trained(key, original, settings))


@pytest.mark.parametrize("key", OPTIONAL)
def test_a_closed_gate_leaves_the_retain_direction_alone(key: str, original: nn.Module) -> None:
    satisfied = change(alpha=-1.0, multiplier=0.0)
    closed = copy.deepcopy(original)
    method = train(f"{key}+alm", closed, satisfied, FEW)
    assert method.metrics()["gate_open"] == 0.0
    elsewhere = [(retain, batch(77)) for retain, _ in FEW]
    assert torch.equal(trained(f"{key}+alm", original, satisfied, elsewhere), flat(closed))
    assert torch.equal(flat(closed), flat(original)) == (key == "grad_ascent")


@pytest.mark.parametrize("key", [*(f"{k}+alm" for k in TWO_STATES), "saul", "saul_no_sam"])
def test_a_closed_gate_never_calls_the_forget_optimizer(key: str, original: nn.Module) -> None:
    method: Any = train(key, copy.deepcopy(original), change(alpha=-1.0), FEW)
    side = method.optimizer.forget if hasattr(method, "optimizer") else method.forget_side
    assert not side.state


@pytest.mark.parametrize("key", [k for k in methods.names() if k != "grad_ascent"])
def test_what_was_memorised_is_forgotten_and_the_rest_is_kept(
    key: str, original: nn.Module
) -> None:
    model = copy.deepcopy(original)
    train(key, model, change(lr=0.01, multiplier=1.0, alpha=3.0), [(RETAIN, FORGET)] * 60)
    assert ce(original, FORGET) < 0.1
    assert ce(model, FORGET) > 1.5
    assert ce(model, RETAIN) < ce(model, FORGET) - 1.0


def test_saul_without_radii_is_dual_adamw_with_the_controller(original: nn.Module) -> None:
    settings = change(rho_forget=0.0, rho_retain=0.0)
    assert torch.equal(
        trained("saul", original, settings), trained("dual_adamw+alm", original, settings)
    )


def test_saul_with_a_frozen_multiplier_is_its_ablation_without_alm(original: nn.Module) -> None:
    settings = change(mu=0.0, multiplier=1.0)
    assert torch.equal(
        trained("saul", original, settings), trained("saul_no_alm", original, settings)
    )


def test_saul_without_a_forget_radius_is_its_ablation_without_sam(original: nn.Module) -> None:
    settings = change(rho_forget=0.0)
    assert torch.equal(
        trained("saul", original, settings), trained("saul_no_sam", original, settings)
    )


def test_without_alm_and_sam_still_perturbs_the_retain_side(original: nn.Module) -> None:
    key = "saul_no_alm_no_sam"
    assert torch.equal(
        trained(key, original, change(rho_retain=0.0)), trained("dual_adamw", original, SETTINGS)
    )
    assert not torch.equal(
        trained(key, original, SETTINGS), trained("dual_adamw", original, SETTINGS)
    )


@pytest.mark.parametrize("key", ["dual_adamw+alm", "saul"])
def test_from_zero_mu_drops_out_of_the_gradient_placement(key: str, elsewhere: nn.Module) -> None:
    settings = change(alpha=4.0, lr=0.003)
    slow, fast = (
        trained(key, elsewhere, dataclasses.replace(settings, mu=mu)) for mu in (1.0, 100.0)
    )
    assert_close(slow, fast, rtol=0.0, atol=1e-4)


def test_one_step_of_step_placement_is_lambda_times_the_learning_rate(original: nn.Module) -> None:
    settings = change(scale="step", mu=0.0, multiplier=0.25, retain_weight=0.0, alpha=9.0)
    plain = change(retain_weight=0.0)
    start, once = flat(original), [(RETAIN, FORGET)]
    whole = trained("sharp_min_max", original, plain, once) - start
    part = trained("sharp_min_max+alm", original, settings, once) - start
    assert_close(part, 0.25 * whole, rtol=1e-9, atol=1e-12)


def step_of(key: str, model: nn.Module, settings: Settings) -> list[Tensor]:
    """The direction of one SGD step, read off the weights."""
    before = [p.detach().clone() for p in model.parameters()]
    unit = dataclasses.replace(settings, optimizer="sgd", lr=1.0)
    train(key, model, unit, [(RETAIN, FORGET)])
    return [b - p.detach() for b, p in zip(before, model.parameters(), strict=True)]


def test_blur_moves_along_the_forget_gradient_by_gamma(
    elsewhere: nn.Module, original: nn.Module
) -> None:
    g_u = npo_gradient(elsewhere, elsewhere)
    d = step_of("blur", elsewhere, change(forget_weight=0.6))
    assert dot(d, g_u) == pytest.approx(0.6 * dot(g_u, g_u), rel=1e-10)


def test_blur_with_gamma_of_the_retain_gradient_is_the_retain_gradient(
    elsewhere: nn.Module,
) -> None:
    g_r, g_u = grads(ce(elsewhere, RETAIN), elsewhere), npo_gradient(elsewhere, elsewhere)
    gamma = dot(g_r, g_u) / dot(g_u, g_u)
    d = step_of("blur", elsewhere, change(forget_weight=gamma))
    for mine, theirs in zip(d, g_r, strict=True):
        assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def npo_gradient(model: nn.Module, reference: nn.Module) -> list[Tensor]:
    return grads(npo_by_hand(model, copy.deepcopy(reference), FORGET, SETTINGS.beta), model)


@pytest.mark.parametrize(("kappa", "of_clean", "of_worst"), [(0.0, 1, 0), (1.0, 2, -1)])
def test_sharp_min_max_follows_two_g_minus_g_hat(
    kappa: float, of_clean: float, of_worst: float, elsewhere: nn.Module
) -> None:
    def loss() -> Tensor:
        return -ce(elsewhere, FORGET)

    g = grads(loss(), elsewhere)
    _, g_hat = at_distance(elsewhere, g, SETTINGS.rho_forget, loss)
    d = step_of("sharp_min_max", elsewhere, change(kappa=kappa, retain_weight=0.0))
    for mine, theirs in zip(d, combine(g, g_hat, of_clean, of_worst), strict=True):
        assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_simultaneous_sgd_is_one_step_on_the_sum(elsewhere: nn.Module) -> None:
    parts = [
        step_of("sharp_min_max", copy.deepcopy(elsewhere), change(**weights))
        for weights in ({"retain_weight": 0.0}, {"forget_weight": 0.0})
    ]
    whole = step_of("sharp_min_max", elsewhere, change(order="simultaneous"))
    for mine, a, b in zip(whole, *parts, strict=True):
        assert_close(mine, a + b, rtol=1e-9, atol=1e-12)


class Literal(SharpMinMax):
    """The objective as printed, with the forget loss where its negative is meant."""

    def objective(self, forget: Any) -> tuple[Tensor, Tensor]:
        loss, value = super().objective(forget)
        return -loss, value


class LiteralRelearning(RelearningResilient):
    """The measure as printed: worst-case NPO is to grow, so the multiplier pushes it up."""

    def objective(self, forget: Any) -> tuple[Tensor, Tensor]:
        loss, value = super().objective(forget)
        return -loss, value


@pytest.mark.parametrize(
    ("meant", "printed"), [(SharpMinMax, Literal), (RelearningResilient, LiteralRelearning)]
)
def test_the_printed_sign_relearns_and_the_one_meant_forgets(
    meant: type[Method], printed: type[Method], elsewhere: nn.Module
) -> None:
    settings = change(lr=0.01, retain_weight=0.0)
    assert after(meant, elsewhere, settings) > ce(elsewhere, FORGET) + 1.0
    assert after(printed, elsewhere, settings) < ce(elsewhere, FORGET) / 2


def after(method: type[Method], original: nn.Module, settings: Settings) -> Tensor:
    """The forget loss once a method is done."""
    model = copy.deepcopy(original)
    at_work = method(model, settings)
    for _ in range(30):
        at_work.step(RETAIN, FORGET)
    return ce(model, FORGET).detach()


def test_relearning_resilient_without_a_radius_is_npo(original: nn.Module) -> None:
    settings = change(rho_forget=0.0)
    for suffix in ("", "+alm"):
        assert torch.equal(
            trained(f"relearning_resilient{suffix}", original, settings),
            trained(f"npo{suffix}", original, settings),
        )


def test_npo_starts_as_gradient_ascent_on_whole_sequences(original: nn.Module) -> None:
    d = step_of("npo", copy.deepcopy(original), change(retain_weight=0.0))
    ascent = grads(-sequence_sums(original, FORGET).mean(), original)
    for mine, theirs in zip(d, ascent, strict=True):
        assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_the_reference_of_npo_stays_as_it_was(original: nn.Module) -> None:
    method = train("npo", copy.deepcopy(original), SETTINGS)
    assert isinstance(method, NPO)
    assert torch.equal(flat(method.reference), flat(original))
    assert not any(p.requires_grad for p in method.reference.parameters())


def test_pdu_moves_its_retain_multiplier_by_the_retain_violation(original: nn.Module) -> None:
    settings = change(retain_multiplier=2.0, dual_lr=0.5, epsilon=0.4, lr=0.003)
    model = copy.deepcopy(original)
    method = methods.build("pdu", model, settings)
    expected = 2.0
    for retain, forget in BATCHES:
        expected = max(expected + 0.5 * (ce(model, retain).item() - 0.4), 0.0)
        method.step(retain, forget)
        assert method.metrics()["retain_multiplier"] == pytest.approx(expected, rel=1e-12)


def test_pdu_keeps_its_retain_multiplier_while_warming_up(original: nn.Module) -> None:
    method = methods.build("pdu", copy.deepcopy(original), change(warmup_epochs=2, lr=0.003))
    seen = []
    for _ in range(3):
        for retain, forget in BATCHES[:3]:
            method.step(retain, forget)
        method.end_of_epoch()
        seen.append(method.metrics()["retain_multiplier"])
    assert seen[0] == seen[1] == 20.0
    assert seen[2] != 20.0


def test_pdu_with_both_multipliers_at_zero_stays_where_it_is(original: nn.Module) -> None:
    model = copy.deepcopy(original)
    settings = change(retain_multiplier=1.0, epsilon=50.0, alpha=-1.0)
    method = train("pdu+alm", model, settings, BATCHES[:1])
    assert method.metrics()["retain_multiplier"] == 0.0
    moved = flat(model)
    assert not torch.equal(moved, flat(original))
    for retain, forget in BATCHES:
        method.step(retain, forget)
    assert torch.equal(flat(model), moved)


def test_pdu_flattens_the_forget_logits(original: nn.Module) -> None:
    model = copy.deepcopy(original)
    train("pdu", model, change(lr=0.01), BATCHES * 2)
    assert flattening_by_hand(model, FORGET) < 0.5 * flattening_by_hand(original, FORGET)


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
        methods.check(key)


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
