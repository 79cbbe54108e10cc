"""The quantity under control, and words for the level it is to reach."""

import copy
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from benchmarks import methods
from benchmarks.engine import levels
from benchmarks.methods import Settings
from benchmarks.methods.forgetting import measure
from benchmarks.methods.method import forward
from benchmarks.methods.settings import parse
from tests.benchmarks.toy import FORGET, RETAIN, Batch, batch, ce, flat, memorised, sequence_sums
from tests.benchmarks.toy_benchmark import ToyBenchmark
from torch_alm.rules import Leak
from torch_alm.thresholds import loss_for_rate

SETTINGS = Settings(lr=0.02, epochs=8, mu=0.3, multiplier=0.0, rho_forget=0.05, rho_retain=0.05)
CERTIFICATE = dataclasses.replace(SETTINGS, measure="certificate", alpha=0.9)


class WithHeldOut(ToyBenchmark):
    """The toy with text that it was never trained on."""

    def held_out(self, settings: Settings) -> Iterator[Batch]:
        return iter([batch(50), batch(51)])


@pytest.fixture(scope="module")
def benchmark() -> WithHeldOut:
    found = WithHeldOut()
    found.prepare()
    return found


@pytest.fixture(scope="module")
def original() -> nn.Module:
    return memorised()


def phi_by_hand(model: nn.Module, data: Batch, tau: float) -> Tensor:
    """(B, T - 1) surrogates of the answer tokens, -inf where there is none."""
    p = model(data["input_ids"], data["attention_mask"]).logits[:, :-1].softmax(-1)
    labels = data["labels"][:, 1:]
    of_label = p.gather(-1, labels.clamp(min=0).unsqueeze(-1))
    rival = p.scatter(-1, labels.clamp(min=0).unsqueeze(-1), -1.0).amax(-1)
    phi = 1 - torch.log1p(torch.exp((of_label.squeeze(-1) - rival) / tau + 1))
    return phi.masked_fill(labels == -100, -math.inf)


def test_a_certificate_shows_the_clamped_value_and_has_the_gradient_of_phi(
    original: nn.Module,
) -> None:
    found = measure(CERTIFICATE)(*forward(original, FORGET))
    phi = phi_by_hand(original, FORGET, CERTIFICATE.tau).amax(1)
    assert found.item() == pytest.approx(phi.clamp(min=0).mean().item(), abs=1e-12)
    assert phi.min() < 0, "or clamping would show nothing"
    parameters = list(original.parameters())
    expected = torch.autograd.grad(phi.mean(), parameters)
    assert_close(torch.autograd.grad(found, parameters), expected, rtol=1e-9, atol=1e-12)


def test_a_token_certificate_averages_over_the_tokens_of_each_answer(original: nn.Module) -> None:
    settings = dataclasses.replace(CERTIFICATE, measure="token_certificate", tau=0.2)
    found = measure(settings)(*forward(original, FORGET))
    phi = phi_by_hand(original, FORGET, 0.2)
    means = [row[row > -math.inf].clamp(min=0).mean() for row in phi]
    assert found.item() == pytest.approx(torch.stack(means).mean().item(), abs=1e-12)


def test_an_answer_counts_up_to_the_level_and_is_pushed_no_further(original: nn.Module) -> None:
    model = copy.deepcopy(original)
    with torch.no_grad():
        model.out.bias[FORGET["input_ids"][0, 2]] -= 20.0  # one answer far beyond, others not
    losses = sequence_sums(model, FORGET) / (FORGET["labels"] != -100).sum(1)
    level = losses.median().item() + 0.01
    settings = dataclasses.replace(SETTINGS, measure="level_share", level=level, alpha=0.95)
    found = measure(settings)(*forward(model, FORGET))
    assert found.item() == pytest.approx((losses / level).clamp(max=1).mean().item(), rel=1e-9)
    below = losses[losses < level]
    assert 0 < len(below) < len(losses)
    expected = torch.autograd.grad(below.sum() / level / len(losses), model.out.weight)
    assert_close(torch.autograd.grad(found, model.out.weight), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["failure", "token_failure"])
def test_a_failure_counts_what_greedy_decoding_misses_flat_predictions_too(
    name: str, original: nn.Module
) -> None:
    model = copy.deepcopy(original)
    with torch.no_grad():
        model.out.bias[FORGET["input_ids"][0, 2]] -= 20.0
    logits = model(FORGET["input_ids"], FORGET["attention_mask"]).logits[:, :-1].clone()
    labels = FORGET["labels"][:, 1:]
    logits[1] *= 1e-6  # next to no margin anywhere: nothing of it could be certified
    wrong = (logits.argmax(-1) != labels) & (labels != -100)
    shares = wrong.sum(1) / (labels != -100).sum(1)
    expected = shares if name == "token_failure" else wrong.any(1).double()
    whole = torch.cat([logits, logits[:, :1]], dim=1)
    found = measure(dataclasses.replace(SETTINGS, measure=name, alpha=0.5))(whole, FORGET["labels"])
    assert 0 < expected.mean() < 1
    assert found.item() == pytest.approx(expected.mean().item(), abs=1e-6)


def test_two_states_raise_the_measure(original: nn.Module) -> None:
    settings = dataclasses.replace(CERTIFICATE, mu=0.0, multiplier=1.0)
    model, by_hand = copy.deepcopy(original), copy.deepcopy(original)
    methods.build("dual_adamw+alm", model, settings).step(RETAIN, FORGET)
    sides = [torch.optim.AdamW(by_hand.parameters(), lr=0.02, weight_decay=0.0) for _ in range(2)]
    parameters = list(by_hand.parameters())
    up = torch.autograd.grad(-phi_by_hand(by_hand, FORGET, 0.1).amax(1).mean(), parameters)
    down = torch.autograd.grad(ce(by_hand, RETAIN), parameters)
    for side, gradient in zip(sides, (up, down), strict=True):
        for p, g in zip(parameters, gradient, strict=True):
            p.grad = g
        side.step()
    assert_close(flat(model), flat(by_hand), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("key", ["npo", "single_adamw", "sharp_min_max", "blur", "pdu"])
def test_other_methods_keep_their_direction_and_only_look(key: str, original: nn.Module) -> None:
    settings = dataclasses.replace(CERTIFICATE, mu=0.0, multiplier=1.0, lr=0.005)
    model, plain = copy.deepcopy(original), copy.deepcopy(original)
    method = methods.build(f"{key}+alm", model, settings)
    before = phi_by_hand(model, FORGET, 0.1).amax(1).clamp(min=0).mean().item()
    method.step(RETAIN, FORGET)
    methods.build(key, plain, settings).step(RETAIN, FORGET)
    assert torch.equal(flat(model), flat(plain))
    assert method.constraint is not None
    if key != "sharp_min_max":  # looks after its retain step
        assert method.constraint.metrics()["value"] == pytest.approx(before, abs=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"measure": "certificate", "alpha": 0.95, "tau": 0.5}, "cannot be certified"),
        ({"measure": "level_share", "level": 2.0, "alpha": 1.5}, "never exceeds 1"),
        ({"alpha": "never_seen"}, "is the word 'never_seen'"),
        ({"measure": "level_share", "alpha": 0.9}, "level is the word"),
        ({"measure": "failure", "alpha": 1.5}, "never exceeds 1"),
        ({"measure": "token_failure", "alpha": 0.5}, "has no gradient"),
    ],
)
def test_what_could_never_be_met_is_refused(
    changes: dict[str, Any], message: str, original: nn.Module
) -> None:
    with pytest.raises(ValueError, match=message):
        methods.build("dual_adamw+alm", original, dataclasses.replace(SETTINGS, **changes))


def test_never_seen_is_the_mean_loss_of_the_held_out_batches(benchmark: WithHeldOut) -> None:
    found = levels.resolved(dataclasses.replace(SETTINGS, alpha="never_seen"), benchmark)
    model = benchmark.models["original"]
    expected = (ce(model, batch(50)) + ce(model, batch(51))).item() / 2
    assert found.alpha == pytest.approx(expected, rel=1e-9)
    assert dataclasses.replace(found, alpha="never_seen") == dataclasses.replace(
        SETTINGS, alpha="never_seen"
    )


def test_retrained_is_what_the_forget_set_costs_the_other_model(benchmark: WithHeldOut) -> None:
    found = levels.resolved(dataclasses.replace(SETTINGS, alpha="retrained"), benchmark)
    assert found.alpha == pytest.approx(ce(benchmark.models["retrained"], FORGET).item(), rel=1e-9)


def test_a_share_of_a_level_resolves_the_level(benchmark: WithHeldOut) -> None:
    settings = dataclasses.replace(SETTINGS, measure="level_share", level="retrained", alpha=0.95)
    found = levels.resolved(settings, benchmark)
    expected = ce(benchmark.models["retrained"], FORGET).item()
    assert (found.alpha, found.level) == (0.95, pytest.approx(expected, rel=1e-9))


def test_a_rate_is_read_off_a_run_without_a_controller(benchmark: WithHeldOut) -> None:
    settings = dataclasses.replace(SETTINGS, alpha="rate:0.6")
    found = levels.resolved(settings, benchmark)
    model = copy.deepcopy(benchmark.models["original"])
    method = methods.build("dual_adamw", model, settings)
    losses, rates = [], []
    for retain, forget in benchmark.batches(settings, levels.CALIBRATION_SEED):
        losses.append(ce(model, forget).item())
        rates.append(phi_by_hand(model, forget, 0.1).amax(1).clamp(min=0).mean().item())
        method.step(retain, forget)
    assert found.alpha == pytest.approx(loss_for_rate(losses, rates, 0.6), rel=1e-6)
    assert rates[0] < 0.6 < rates[-1]


def test_a_number_needs_nothing() -> None:
    assert levels.resolved(SETTINGS, ToyBenchmark()) is not None
    assert levels.resolved(SETTINGS, ToyBenchmark()) == SETTINGS


def test_words_that_cannot_be_resolved_say_why(benchmark: WithHeldOut) -> None:
    with pytest.raises(ValueError, match="ToyBenchmark has no held-out text"):
        levels.resolved(dataclasses.replace(SETTINGS, alpha="never_seen"), ToyBenchmark())
    with pytest.raises(ValueError, match=r"Did you mean alpha=0\.9"):
        levels.resolved(dataclasses.replace(CERTIFICATE, alpha="rate:0.9"), benchmark)
    short = dataclasses.replace(SETTINGS, alpha="rate:0.99", epochs=1, lr=1e-6)
    with pytest.raises(ValueError, match=r"the rate wanted is 0\.99"):
        levels.resolved(short, benchmark)


def test_settings_read_numbers_and_words() -> None:
    assert parse("alpha", "4") == 4.0
    assert parse("alpha", "rate:0.95") == "rate:0.95"
    assert parse("level", "never_seen") == "never_seen"
    for wrong in ("never", "rate:2", "rate:", "rate:x"):
        with pytest.raises(ValueError, match=r"expected a number, never_seen"):
            parse("alpha", wrong)
        with pytest.raises(ValueError, match="alpha is"):
            Settings(alpha=wrong)


def test_a_release_reaches_the_controller(original: nn.Module) -> None:
    settings = dataclasses.replace(SETTINGS, release=0.5, release_after=3)
    method = methods.build("dual_adamw+alm", copy.deepcopy(original), settings)
    assert method.constraint is not None and method.constraint.rules == (Leak(0.5, after=3),)
    assert Settings().controller().keys().isdisjoint({"filter", "rules"})
    with pytest.raises(ValueError, match="release is 2"):
        Settings(release=2.0)
