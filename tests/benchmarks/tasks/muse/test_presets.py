"""MUSE's settings: the paper's rows, and what is made of its gaps."""

import pytest

from benchmarks import methods
from benchmarks.engine.presets import PRESETS
from benchmarks.methods import Settings
from benchmarks.tasks.muse.presets import MUSE


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("split", ["news", "books", "forget"])
@pytest.mark.parametrize("key", methods.names())
def test_every_preset_is_complete(name: str, split: str, key: str) -> None:
    assert isinstance(MUSE.preset(name, split, key).settings, Settings)


# SAUL, appendix on hyperparameters: what the rows of Books and of News say
PAPER = {
    ("books", "saul"): {
        "forget_lr": 2e-5, "lr": 6e-5, "beta": 0.1, "rho_forget": 5e-3, "rho_retain": 5e-3,
        "alpha": 55, "multiplier": 1.0, "mu": 3e-4,
    },
    ("news", "saul"): {
        "forget_lr": 2.25e-5, "lr": 6e-5, "beta": 0.1, "rho_forget": 5e-3, "rho_retain": 5e-3,
        "alpha": 40, "multiplier": 0.45, "mu": 7.5e-5,
    },
    ("books", "sharp_min_max"): {"lr": 1e-5, "kappa": 0.2, "forget_weight": 1.0},
    ("news", "sharp_min_max"): {"lr": 2.66e-4, "kappa": 0.05, "forget_weight": 20.0},
    ("books", "relearning_resilient"): {
        "lr": 2.15e-6, "beta": 0.1, "rho_forget": 5e-3, "retain_weight": 2.0, "forget_weight": 0.75,
    },
    ("news", "relearning_resilient"): {
        "lr": 7e-5, "beta": 0.2, "rho_forget": 5e-3, "retain_weight": 5.0, "forget_weight": 2.0,
    },
    ("books", "blur"): {"lr": 2.4e-6, "beta": 0.4, "forget_weight": 1.0},
    ("news", "blur"): {"lr": 6.5e-5, "beta": 0.4, "forget_weight": 1.0},
}  # fmt: skip


@pytest.mark.parametrize(("split", "key"), PAPER)
def test_the_paper_preset_is_the_papers_table(split: str, key: str) -> None:
    found = MUSE.preset("paper", split, key).settings
    assert {name: getattr(found, name) for name in PAPER[split, key]} == PAPER[split, key]
    assert (found.batch_size, found.epochs, found.optimizer) == (1, 10, "adamw")


@pytest.mark.parametrize("split", ["news", "books"])
@pytest.mark.parametrize("key", methods.names())
def test_only_the_row_of_blur_leaves_no_doubt(split: str, key: str) -> None:
    assert bool(MUSE.preset("paper", split, key).note) == (key.removesuffix("+alm") != "blur")


def test_a_controller_starts_at_the_weight_it_replaces() -> None:
    found = MUSE.preset("paper", "news", "sharp_min_max+alm").settings
    assert found.multiplier == found.forget_weight == 20.0


def test_recommended_gives_every_method_the_same_rate_steps_and_controller() -> None:
    shared = ("lr", "epochs", "batch_size", "alpha", "mu", "multiplier", "every", "window")
    found = [MUSE.preset("recommended", "forget", key).settings for key in methods.names()]
    assert len({tuple(getattr(s, name) for name in shared) for s in found}) == 1
