"""The command line: everything wrong with it is said before anything is trained."""

import dataclasses
import math
from pathlib import Path

import pytest

from benchmarks import methods
from benchmarks.engine.presets import PRESETS
from benchmarks.engine.runner import runs
from benchmarks.methods import Settings
from benchmarks.methods.dual_adamw import DualAdamW
from benchmarks.methods.settings import parse
from benchmarks.tasks.tofu.presets import TOFU
from tests.benchmarks.toy_benchmark import options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "saul,dual_adam"), "unknown method 'dual_adam'. Did you mean 'dual_adamw'"),
        (("--methods", ","), "names none"),
        (("--methods", "retain_only"), "nothing would be run"),
        (("--preset", "papre"), "unknown preset 'papre'. Did you mean 'paper'"),
        (("--set", "alhpa=3"), "no setting is called 'alhpa'"),
        (("--set", "alpha"), "Did you mean NAME=VALUE"),
        (("--alpha", "high"), "alpha=high: expected a number"),
        (("--epochs", "2.5"), "epochs=2.5: expected int"),
        (("--seeds", "0"), "at least 1"),
        (("--match", "forget_rouge"), "Did you mean a number"),
        (("--match", "forget_rogue=0.03"), "Did you mean 'forget_rouge'"),
        (("--match", "x=1"), "Did you mean 'forget_"),
        (("--match", "forget_rouge=nan"), "'nan' is no level"),
        (("--fix", "lr"), "--match is not given"),
        (("--match", "forget_rouge=1", "--fix", "lrr"), "Did you mean 'lr'"),
        (("--seed", "99999999999999999999"), "no generator takes it"),
        (("--parameters", "("), "is no regular expression"),
    ],
)
def test_a_mistake_is_named(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error:
        options(tmp_path, *arguments)
    assert message in str(error.value)


def test_all_is_every_method_once(tmp_path: Path) -> None:
    assert options(tmp_path, "--methods", "saul,all,saul").methods[0] == "saul"
    assert sorted(options(tmp_path, "--methods", "all").methods) == sorted(methods.names())
    assert len(set(methods.names())) == len(methods.names())


def test_the_control_alone_can_be_asked_for(tmp_path: Path) -> None:
    alone = options(tmp_path, "--methods", "retain_only", control=True)
    assert runs(alone) == ("retain_only",)
    beside = options(tmp_path, "--methods", "saul,retain_only", control=True)
    assert runs(beside) == ("retain_only", "saul")


def test_seeds_count_from_the_first(tmp_path: Path) -> None:
    assert options(tmp_path, "--seed", "3", "--seeds", "2").seeds == (3, 4)


def test_an_alpha_alone_is_in_nats_and_a_measure_beside_it_is_kept() -> None:
    """The recommended preset constrains a rate, which no number of nats could be."""
    kept = TOFU.preset("recommended", "world", "saul").settings
    assert kept.measure == "token_certificate" and kept.alpha == 0.5
    nats = TOFU.preset("recommended", "world", "saul", {"alpha": 4.0}).settings
    assert nats == dataclasses.replace(kept, measure="token_nll", alpha=4.0)
    rate = {"alpha": 0.9, "measure": "certificate"}
    assert TOFU.preset("recommended", "world", "saul", rate).settings.measure == "certificate"


def test_the_paper_measures_in_every_step_and_what_is_recommended_when_forecast() -> None:
    for preset, expected in (("paper", 1), ("recommended", "auto")):
        assert TOFU.preset(preset, "forget01", "saul").settings.probe_every == expected
    assert parse("probe_every", "auto") == "auto" and parse("probe_every", "8") == 8
    with pytest.raises(ValueError, match="expected int"):
        parse("probe_every", "seldom")
    for wrong in (0, "seldom"):
        with pytest.raises(ValueError, match="probe_every is"):
            Settings(probe_every=wrong)


@pytest.mark.parametrize("number", [math.nan, math.inf, 1e300])
@pytest.mark.parametrize("name", ["lr", "forget_lr", "mu", "rho_forget"])
def test_a_rate_that_no_float32_holds_is_refused(name: str, number: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is"):
        Settings(**{name: number})


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_level_that_is_no_number_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="alpha is"):
        Settings(alpha=number)


def test_overrides_reach_every_setting(tmp_path: Path) -> None:
    found = options(
        tmp_path, "--rho", "0.5", "--batch-size", "2", "--set", "kappa=2", "--set", "forget_lr=none"
    )
    changed = TOFU.preset("paper", "forget01", "saul", found.overrides).settings
    assert (changed.rho_forget, changed.rho_retain) == (0.5, 0.5)
    assert (changed.batch_size, changed.kappa, changed.forget_lr) == (2, 2.0, None)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("split", ["forget01", "forget05", "forget10", "forget"])
@pytest.mark.parametrize("key", methods.names())
def test_every_preset_is_complete(name: str, split: str, key: str) -> None:
    assert isinstance(TOFU.preset(name, split, key).settings, Settings)


PAPER = {
    # SAUL, appendix on hyperparameters: (split, method) -> lr, rho_f, rho_r, alpha, mu
    ("forget01", "saul"): (1e-5, 1e-3, 1e-3, 10, 1e-3),
    ("forget01", "saul_no_sam"): (1e-5, None, 1e-3, 30, 1e-4),
    ("forget01", "dual_adamw+alm"): (1e-5, None, None, 10, 1e-4),
    ("forget01", "sharp_min_max"): (3e-2, 1e-4, 1e-4, None, None),
    ("forget01", "sharp_min_max+alm"): (3e-2, 1e-4, 1e-4, 10, 1e-4),
    ("forget01", "relearning_resilient+alm"): (6e-2, 1e-2, None, 20, 1e-4),
    ("forget05", "saul"): (1e-5, 1e-4, 1e-4, 10, 1e-4),
    ("forget05", "saul_no_alm"): (1e-5, 1e-3, 1e-4, None, None),
    ("forget05", "saul_no_sam"): (1e-5, None, 1e-2, 10, 1e-4),
    ("forget05", "dual_adamw"): (1e-5, None, None, None, None),
    ("forget05", "sharp_min_max+alm"): (1e-1, 1e-3, 1e-3, 20, 1e-4),
    ("forget10", "saul"): (1e-5, 1e-2, 1e-2, 10, 1e-4),
    ("forget10", "dual_adamw+alm"): (1e-5, None, None, 12, 1e-4),
    ("forget10", "sharp_min_max"): (1e-2, 1e-4, 1e-3, None, None),
    ("forget10", "sharp_min_max+alm"): (1e-2, 1e-4, 1e-4, 20, 1e-4),
}


@pytest.mark.parametrize(("split", "key"), PAPER)
def test_the_paper_preset_is_the_papers_table(split: str, key: str) -> None:
    found = TOFU.preset("paper", split, key).settings
    names = ("lr", "rho_forget", "rho_retain", "alpha", "mu")
    for name, value in zip(names, PAPER[split, key], strict=True):
        assert value is None or getattr(found, name) == value, name
    assert (found.batch_size, found.epochs, found.multiplier) == (8, 10, 1.0)


def test_sharpness_methods_use_sgd_on_tofu_and_the_others_adamw() -> None:
    kinds = {
        key: TOFU.preset("paper", "forget01", key).settings.optimizer for key in methods.names()
    }
    sgd = {key.removesuffix("+alm") for key, kind in kinds.items() if kind == "sgd"}
    assert sgd == {"sharp_min_max", "relearning_resilient"}


def test_a_suspicious_entry_says_which_reading_is_used() -> None:
    assert "1e-8" in TOFU.preset("paper", "forget05", "dual_adamw").note
    assert "SGD" in TOFU.preset("paper", "forget10", "sharp_min_max+alm").note
    assert not TOFU.preset("paper", "forget10", "saul").note


def test_the_controller_starts_at_the_baselines_forget_weight() -> None:
    for key in methods.names():
        settings = TOFU.preset("paper", "forget05", key).settings
        assert settings.multiplier == settings.forget_weight


def test_recommended_gives_every_method_the_same_rate_steps_and_radii() -> None:
    shared = (
        "lr",
        "epochs",
        "batch_size",
        "multiplier",
        "every",
        "window",
        "rho_forget",
        "rho_retain",
    )
    found = [TOFU.preset("recommended", "forget", key).settings for key in methods.names()]
    assert len({tuple(getattr(s, name) for name in shared) for s in found}) == 1
    assert all(dataclasses.asdict(s)["optimizer"] == "adamw" for s in found)


def test_recommended_aims_where_the_measure_is_what_is_raised_and_is_a_gate_elsewhere() -> None:
    own = ("forget_lr", "mu", "scale", "release")
    for key in methods.names():
        settings = TOFU.preset("recommended", "forget", key).settings
        raises = issubclass(methods.METHODS[key.removesuffix("+alm")].method, DualAdamW)
        aimed = raises and methods.is_controlled(key)
        expected = (9e-4, "auto", "step", 0.0) if aimed else (None, 0.1, "gradient", 0.5)
        assert tuple(getattr(settings, name) for name in own) == expected, key


def test_a_rate_takes_that_of_the_forget_side_along_unless_that_is_given_too() -> None:
    slower = TOFU.preset("recommended", "forget", "saul", {"lr": 1e-4}).settings
    assert (slower.lr, slower.forget_lr) == (1e-4, pytest.approx(3e-4))
    both = TOFU.preset("recommended", "forget", "saul", {"lr": 1e-4, "forget_lr": None}).settings
    assert (both.lr, both.forget_lr) == (1e-4, None)


def test_a_share_of_tokens_is_only_asked_of_methods_that_raise_it() -> None:
    """Elsewhere it may be out of reach for good, and the gate would never close."""
    for key in filter(methods.is_controlled, methods.names()):
        settings = TOFU.preset("recommended", "forget", key).settings
        raises = issubclass(methods.METHODS[key.removesuffix("+alm")].method, DualAdamW)
        wanted = ("token_certificate", 0.5) if raises else ("failure", 0.95)
        assert (settings.measure, settings.alpha) == wanted, key
