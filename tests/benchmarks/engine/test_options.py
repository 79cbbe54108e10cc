"""The command line: what it means, and what is refused before anything is trained."""

from typing import Any

import pytest

from benchmarks import methods
from benchmarks.engine.options import Options, parse
from benchmarks.engine.presets import Presets
from benchmarks.methods.settings import hints
from benchmarks.tasks.muse.task import Muse
from benchmarks.tasks.tofu.task import Tofu
from benchmarks.tasks.wmdp.task import Wmdp


def given(*words: str) -> Options:
    return parse(Options, words, None)[1]


def test_a_command_line_is_read_as_its_types() -> None:
    words = "--methods saul,npo --no-control --seeds 2 --seed 3 --batch-size 4 --rho 0.1"
    found = given(*words.split(), "--set", "beta=0.2", "--set", "tau=1", "measure=row_nll")
    assert found.keys() == ("saul", "npo")
    assert list(found.all_seeds()) == [3, 4]
    assert found.overrides() == {
        "rho_forget": 0.1, "rho_retain": 0.1, "batch_size": 4,
        "beta": 0.2, "tau": 1, "measure": "row_nll",
    }  # fmt: skip
    assert given("--methods", "all").keys() == (methods.CONTROL, *methods.names())
    assert given("--methods", methods.CONTROL).keys() == (methods.CONTROL,)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--seeds 0", "--seeds 0: did you mean at least 1"),
        ("--lora 4 --parameters rmu", "adapters are trained or parameters are"),
        ("--methods sual", "Did you mean 'saul'"),
        ("--methods retain_only --no-control", "nothing would be run"),
        ("--set beta", "sets nothing. Did you mean NAME=VALUE"),
        ("--set btea=1", "no method has a setting 'btea'. Did you mean 'beta'"),
    ],
)
def test_nonsense_is_refused_with_what_was_meant(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((ValueError, SystemExit)) as error:
        found = given(*words.split())
        found.keys(), found.overrides()
    said = capsys.readouterr().err
    assert message in said + str(error.value)
    assert len(said.splitlines()) in (0, 2), "one sentence, and where help is"


TOFU, MUSE, WMDP = Tofu.presets, Muse.presets, Wmdp.presets

# ---- presets ------------------------------------------------------------------------------------

PRESETS = {
    "tofu": (TOFU, "tokens", ("forget01", "forget05", "forget10", "forget")),
    "muse": (MUSE, "tokens", ("news", "books", "forget")),
    "wmdp": (WMDP, "rmu", ("bio+cyber", "doom+shade")),
}


@pytest.mark.parametrize("name", PRESETS)
def test_every_method_has_settings_on_every_split(name: str) -> None:
    presets, losses, splits = PRESETS[name]
    kinds = [methods.kind_of(key, losses) for key in methods.names(losses)]
    known = {name for kind in kinds for name in hints(kind)}
    for table in (presets.table["paper"], presets.table["recommended"]):
        parts = [table["all"], *table.get("methods", {}).values()]
        parts += [c for split in table.get("splits", {}).values() for c in split.values()]
        assert {n for part in parts for n in part} <= known | {"rho", "note"}
    for preset in ("paper", "recommended"):
        for split in splits:
            for key in methods.names(losses):
                assert presets.preset(preset, split, key).settings.losses == losses


def numbers(presets: Presets, preset: str, split: str, key: str, **changes: Any) -> dict[str, Any]:
    return vars(presets.preset(preset, split, key, changes).settings)


@pytest.mark.parametrize(
    ("presets", "split", "key", "expected"),
    [
        (TOFU, "forget01", "saul", {"lr": 1e-5, "rho_forget": 1e-3, "alpha": 10.0, "mu": 1e-3}),
        (TOFU, "forget01", "saul_no_sam", {"rho_retain": 1e-3, "alpha": 30.0, "mu": 1e-4}),
        (TOFU, "forget05", "saul_no_alm", {"rho_forget": 1e-3, "rho_retain": 1e-4}),
        (TOFU, "forget10", "dual_adamw+alm", {"alpha": 12.0, "multiplier": 1.0, "probe_every": 1}),
        (TOFU, "forget10", "sharp_min_max", {"rho_forget": 1e-4, "rho_retain": 1e-3, "lr": 1e-2}),
        (TOFU, "forget10", "sharp_min_max+alm", {"rho_retain": 1e-4, "alpha": 20.0,
                                                "optimizer": "sgd"}),
        (TOFU, "forget05", "simnpo+alm", {"beta": 2.5, "multiplier": 0.1375}),
        (TOFU, "forget", "relearning_resilient", {"lr": 6e-2, "rho_forget": 1e-2, "alpha": 20.0}),
        (MUSE, "news", "saul", {"forget_lr": 2.25e-5, "multiplier": 0.45, "alpha": 40.0}),
        (MUSE, "books", "saul", {"multiplier": 1.0, "mu": 3e-4, "scale": "step"}),
        (MUSE, "news", "sharp_min_max", {"kappa": 0.05, "forget_weight": 20.0}),
        (MUSE, "books", "blur", {"lr": 2.4e-6, "beta": 0.4}),
        (WMDP, "bio+cyber", "saul", {"forget_lr": 6e-6, "alpha": 1.5e-3}),
        (WMDP, "bio+cyber", "rmu+alm", {"coefficient": 6.5, "retain_weight": 1200.0}),
        (WMDP, "bio+cyber", "relearning_resilient", {"lr": 1.25e-5, "rho_forget": 5e-6}),
    ],
)  # fmt: skip
def test_the_papers_rows(presets: Presets, split: str, key: str, expected: dict[str, Any]) -> None:
    assert expected.items() <= numbers(presets, "paper", split, key).items()


def test_an_override_takes_along_what_belongs_to_it() -> None:
    found = numbers(WMDP, "paper", "bio", "saul", lr=4e-4, alpha=4.0)
    assert found["forget_lr"] == pytest.approx(6e-5)
    assert (found["measure"], found["alpha"]) == ("token_nll", 4.0)
    found = numbers(WMDP, "paper", "bio", "saul", lr=4e-4, forget_lr=None)
    assert found["forget_lr"] is None
