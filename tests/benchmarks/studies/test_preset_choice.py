"""The choice of a preset: what holds, what is gone, and which of those is taken."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tofu
from benchmarks.studies.operating_point import preset
from benchmarks.studies.operating_point.preset import Candidate

NEVER_SAW = {"method": "retrained", "seed": 0, "membership_auc": 0.4}


def row(method: str = "saul", utility: float = 0.8, **numbers: float) -> dict[str, Any]:
    gone = {"forget_exact_match": 0.0, "forget_rouge": 0.3, "membership_auc": 0.5}
    return {"method": method, "seed": 0, "model_utility": utility, **gone, **numbers}


def keep(folder: Path, name: str, *rows: dict[str, Any]) -> None:
    (folder / name).mkdir(parents=True)
    text = "".join(json.dumps(one) + "\n" for one in (NEVER_SAW, *rows))
    (folder / name / "results.jsonl").write_text(text)


@pytest.fixture
def controls(tmp_path: Path) -> Path:
    """Half the steps hold at every rate, twice the steps only up to 1e-4."""
    for rate in preset.RATES:
        for epochs in preset.EPOCHS:
            lost = 0.02 if rate == "1e-3" or (rate == "3e-4" and epochs == "20") else 0.005
            lines = row("original", 0.9), row("retain_only", 0.9 - lost)
            keep(tmp_path, preset.control_folder(rate, epochs), *lines)
    return tmp_path


def test_the_rate_is_the_largest_at_which_the_control_holds_with_all_numbers_of_steps(
    controls: Path,
) -> None:
    assert preset.chosen_rate(controls) == "1e-4"


def test_no_rate_is_chosen_where_no_control_was_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at none of the rates"):
        preset.chosen_rate(tmp_path)


@pytest.mark.parametrize(
    "number", [{"forget_exact_match": 0.05}, {"forget_rouge": 0.71}, {"membership_auc": 0.56}]
)
def test_gone_is_gone_on_every_seed_and_by_every_number(number: dict[str, float]) -> None:
    assert preset.is_gone([row(), row(membership_auc=0.54)], NEVER_SAW)
    assert not preset.is_gone([row(), row(**number)], NEVER_SAW)


def test_of_what_is_gone_the_best_utility_is_taken(controls: Path) -> None:
    better, best, remembers = list(preset.candidates("1e-4"))[:3]
    keep(controls, better.folder, row(utility=0.8), row("dual_adamw+alm", 0.7))
    keep(controls, best.folder, row(utility=0.81), row("dual_adamw+alm", 0.7))
    keep(controls, remembers.folder, row(utility=0.9, forget_rouge=0.9), row("dual_adamw+alm", 0.9))
    text = preset.page(controls)
    assert f"Chosen: {best.target}, {best.way}, {best.relative:.2g}." in text
    assert text.count("| no |") == 1 and text.count("| yes |") == 2


def test_every_run_is_on_the_seeds_of_searches_and_names_all_that_a_preset_sets(
    controls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(tofu, "main", called.append)
    monkeypatch.setattr(preset, "KEPT", controls)
    assert preset.main(["--output", str(tmp_path / "runs")]) == 0
    assert len(called) == len(preset.RATES) * len(preset.EPOCHS) + 18
    assert {words[words.index("--seed") + 1] for words in called} == {"1000000"}
    for words in called[12:]:
        assert {"--lr", "--forget-lr", "--alpha", "--mu", "--multiplier", "--rho"} <= set(words)


def test_the_folders_differ() -> None:
    assert len({one.folder for one in preset.candidates("1e-4")}) == 18


def test_the_forget_side_has_its_own_rate() -> None:
    words = Candidate("certificate", "gate", "3e-4", 1 / 3).arguments()
    assert float(words[words.index("--forget-lr") + 1]) == pytest.approx(1e-4)
