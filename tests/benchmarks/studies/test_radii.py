"""With SAM and without it: which side has which radius, and differences paired by seed."""

import json
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from benchmarks.studies import attacks
from benchmarks.studies.operating_point import radii

WITHOUT, WITH = (3.5, 3.7, 3.4), (3.6, 3.9, 3.4)


def line(method: str, seed: int, loss: float) -> dict[str, Any]:
    after = {"before": {"loss": loss}, "after": {"loss": loss}}
    found = {path[0]: after for path in radii.COLUMNS.values()}
    return {
        "method": method,
        "seed": seed,
        "attacks": {**found, "retain": {"exact_match": 0.9}},
    }


def keep(folder: Path, run: radii.Run, method: str, losses: tuple[float, ...]) -> None:
    lines = [line("original", 0, 0.0), *(line(method, s, x) for s, x in enumerate(losses))]
    (folder / run.folder).mkdir()
    text = "".join(json.dumps(one) + "\n" for one in lines)
    (folder / run.folder / "results.jsonl").write_text(text)


@pytest.mark.parametrize(
    ("side", "method", "forget", "retain"),
    [
        ("none", "dual_adamw+alm", "0", "0"),
        ("both", "saul", "0.03", "0.03"),
        ("forget", "saul", "0.03", "0"),
        ("retain", "saul", "0", "0.03"),
    ],
)
def test_a_radius_is_given_to_the_side_that_is_named(
    side: str, method: str, forget: str, retain: str
) -> None:
    words = radii.Run("world", side, "0.03").arguments(None, 3, Path("O"))
    assert words[words.index("--methods") + 1] == method
    assert {f"rho_forget={forget}", f"rho_retain={retain}"} <= set(words)


def test_differences_are_those_of_a_paired_t_test(tmp_path: Path) -> None:
    first, second, *_ = radii.runs("world")
    keep(tmp_path, first, "dual_adamw+alm", WITHOUT)
    keep(tmp_path, second, "saul", WITH)
    without, sam = radii.table(tmp_path, "world")
    assert without[:3] == ["none", "", "3.53"]
    oracle = stats.ttest_rel(WITH, WITHOUT).confidence_interval(0.95)
    middle, half = (oracle.low + oracle.high) / 2, (oracle.high - oracle.low) / 2
    assert sam[:3] == ["both", "0.01", f"{middle:+.3f} ± {half:.3f}"]
    assert sam[-1] == "+0.000 ± 0.000"


def test_what_relearning_takes_is_the_loss_before_it_less_the_loss_after(tmp_path: Path) -> None:
    run = radii.Run("world", "none", "0")
    keep(tmp_path, run, "dual_adamw+alm", WITHOUT)
    results = tmp_path / run.folder / "results.jsonl"
    rows = [json.loads(text) for text in results.read_text().splitlines()]
    for row, after in zip(rows[1:], (1.5, 2.7, 0.4), strict=True):
        row["attacks"]["relearn forget, 0.001"] = {"after": {"loss": after}}
    results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [row[radii.RELEARNT] for row in radii.numbers(tmp_path, run)] == [2.0, 1.0, 3.0]


def test_every_radius_is_run_on_every_side_and_a_page_is_written_for_what_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(attacks, "main", called.append)
    monkeypatch.setattr(radii, "KEPT", tmp_path)
    keep(tmp_path, radii.Run("world", "none", "0"), "dual_adamw+alm", WITHOUT)
    assert radii.main(["--output", str(tmp_path / "runs")]) == 0
    assert len({words[words.index("--output") + 1] for words in called}) == 1 + 3 * 3
    assert [path.name for path in tmp_path.glob("*.md")] == ["world-sam.md"]
