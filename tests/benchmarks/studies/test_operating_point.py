"""Searched without the controller beside asked for with it: the plan, the numbers, the marks."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from benchmarks import tofu
from benchmarks.methods import names, with_controller
from benchmarks.report.results import read_lines, write_lines
from benchmarks.studies.operating_point import __main__ as study
from benchmarks.studies.operating_point import frontier, report
from benchmarks.studies.operating_point.plan import (
    EVERY,
    FIXED,
    KINDS,
    PLAIN,
    RATES,
    REFINED,
    SHARES,
    TRIALS,
    Place,
)

PLACE = Place("forget01", methods=("npo",), rates=("3e-4", "1e-3"))


def line(method: str, seed: int, utility: float, rouge: float = 0.1) -> dict[str, Any]:
    return {"method": method, "seed": seed, "model_utility": utility, "forget_rouge": rouge}


def kept(folder: Path, rate: str, kind: str, *rows: dict[str, Any], place: Place = PLACE) -> None:
    runs = folder / place.folder(rate, kind)
    runs.mkdir()
    (runs / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    plain, asked = (0.80, 0.82, 0.79), (0.90, 0.91, 0.92)
    control = [line("original", 0, 0.95), line("retain_only", 0, 0.945)]
    kept(tmp_path, "3e-4", "searched", *control, *(line("npo", s, u) for s, u in enumerate(plain)))
    kept(tmp_path, "3e-4", "asked", *(line("npo+alm", s, u) for s, u in enumerate(asked)))
    lost = [line("original", 0, 0.95), line("retain_only", 0, 0.89)]
    kept(tmp_path, "1e-3", "searched", *lost, line("npo", 0, 0.5, 0.3))
    return tmp_path


def test_the_difference_is_that_of_a_paired_t_test(recorded: Path) -> None:
    found = report.read(recorded, PLACE, "3e-4", "npo").gain(report.UTILITY)
    oracle = stats.ttest_rel([0.90, 0.91, 0.92], [0.80, 0.82, 0.79]).confidence_interval(0.95)
    assert found is not None
    assert found[0] - found[1] == pytest.approx(oracle.low)
    assert found[0] + found[1] == pytest.approx(oracle.high)


def test_one_seed_has_no_interval(recorded: Path) -> None:
    assert report.read(recorded, PLACE, "1e-3", "npo").gain(report.UTILITY) is None


def test_a_rate_whose_control_fails_and_too_little_forgetting_are_marked(recorded: Path) -> None:
    small, large = report.table(recorded, PLACE)
    assert small[:2] == ["3e-4", "0.945"] and "†" not in "".join(small)
    assert large[1] == "(0.890)" and large[4] == "0.30†" and large[5] == "–"


def test_a_page_for_each_place_with_runs_and_two_figures_from_three_rates_on(
    recorded: Path,
) -> None:
    report.write(recorded)
    assert [path.name for path in recorded.iterdir() if path.is_file()] == ["forget01.md"]
    kept(recorded, "1e-4", "searched", line("retain_only", 0, 0.95), line("npo", 0, 0.9))
    report.write(recorded)
    assert {path.name for path in recorded.iterdir() if path.is_file()} == {
        *("forget01.md", "forget01-light.png", "forget01-dark.png")
    }
    assert (recorded / "forget01.md").read_text().count("| 3e-4 |") == 1


def test_a_point_far_below_the_control_stands_at_the_edge_with_its_value(recorded: Path) -> None:
    (axes,) = report.draw(recorded, PLACE).axes
    lowest = 0.89 - report.SHOWN
    assert [text.get_text() for text in axes.texts] == ["↓ 0.80", "↓ 0.50"]
    assert axes.texts[1].xy == (1e-3, lowest)
    assert min(y for line in axes.lines for y in line.get_ydata()) == lowest


def test_every_rate_is_searched_without_the_controller_and_asked_once_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(tofu, "main", called.append)
    monkeypatch.setattr(study, "KEPT", tmp_path)
    assert study.main(["--output", str(tmp_path)]) == 0
    assert len(called) == len(RATES) * len(KINDS)
    for searched, asked in zip(called[::2], called[1::2], strict=True):
        assert searched[searched.index("--trials") + 1] == str(TRIALS)
        assert searched[searched.index("--fix") + 1] == FIXED and "--match" not in asked
        assert searched[searched.index("--methods") + 1] == ",".join(PLAIN)
        assert asked[asked.index("--methods") + 1] == ",".join(f"{key}+alm" for key in PLAIN)
        assert searched[searched.index("--lr") + 1] == asked[asked.index("--lr") + 1]


def test_a_pretrained_model_brings_its_width_and_its_prose() -> None:
    words = Place("forget05", base=Path("BASE")).arguments("1e-4", "asked", Path("DIR"), Path("O"))
    assert "--width" not in words and words[words.index("--base") + 1] == "BASE"
    assert words[words.index("--prose") + 1] == str(Path("BASE") / "held_out.jsonl")
    assert words[words.index("--epochs") + 1] == "2"


def test_a_model_that_reads_on_and_one_with_adapters_have_folders_of_their_own() -> None:
    base = Path("BASE")
    plain, other = Place("forget01", base=base), Place("forget01", base=base, replay=True, lora=16)
    words = other.arguments("1e-4", "asked", Path("DIR"), Path("O"))
    assert words[words.index("--replay") + 1] == str(base / "read.jsonl")
    assert words[words.index("--lora") + 1] == "16"
    assert plain.folder("1e-4", "asked") != other.folder("1e-4", "asked")
    assert (other.level, replace(other, lora=0).level, plain.level) == ("0.20", "0.15", "0.20")


def test_enough_is_the_next_twentieth_above_what_the_retrained_model_says() -> None:
    found = [
        (place, row["forget_rouge"])
        for place in report.PLACES
        for rate in RATES
        for row in read_lines(study.KEPT / place.folder(rate, "searched") / "results.jsonl")
        if row["method"] == "retrained"
    ]
    assert found
    for place, said in found:
        above = math.floor(20 * said) / 20 + 0.05
        assert float(place.level) == pytest.approx(above), place.name


def test_a_number_of_epochs_has_its_own_folder_and_asks_with_the_present_preset(
    tmp_path: Path,
) -> None:
    place = Place("forget05", epochs=10)
    assert place.folder("3e-4", "asked") == "forget05-10-epochs-3e-4-asked"
    for kind in KINDS:
        words = place.arguments("3e-4", kind, tmp_path, tmp_path)
        assert words.count("--epochs") == 1 and words[words.index("--epochs") + 1] == "10"
        assert ("--mu" in words) == (kind == "searched")
    fifty = Place("forget05").arguments("3e-4", "asked", tmp_path, tmp_path)
    assert fifty[fifty.index("--epochs") + 1] == "2" and "--mu" in fifty


def test_what_was_never_seen_is_asked_for_beside_the_same_search(tmp_path: Path) -> None:
    place, half = (Place("forget05", epochs=10, unseen=unseen) for unseen in ("certified", ""))
    assert place.folder("3e-4", "searched") == half.folder("3e-4", "searched")
    assert place.folder("3e-4", "asked") == "forget05-10-epochs-unseen-3e-4-asked"
    words, searched = (
        place.arguments("3e-4", k, tmp_path, tmp_path) for k in ("asked", "searched")
    )
    assert words[words.index("--alpha") + 1] == "0.85" and "--alpha" not in searched


def test_the_share_is_certified_or_counted_each_in_a_folder_of_its_own(tmp_path: Path) -> None:
    certified, wrong = (Place("forget01", unseen=unseen) for unseen in SHARES)
    assert certified.folder("3e-4", "asked") != wrong.folder("3e-4", "asked")
    assert certified.folder("3e-4", "searched") == wrong.folder("3e-4", "searched")
    for place, measure in ((certified, "token_certificate"), (wrong, "token_failure")):
        words = place.arguments("3e-4", "asked", tmp_path, tmp_path)
        assert f"measure={measure}" in words and "--mu" not in words  # of the present preset


def test_a_finer_search_goes_on_where_the_coarse_one_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(study.tofu, "main", called.append)
    monkeypatch.setattr(study, "KEPT", tmp_path / "kept")
    coarse, finer = (Place("forget05", epochs=10, unseen="wrong", finer=f) for f in (False, True))
    assert finer.folder("1e-4", "asked") == coarse.folder("1e-4", "asked")
    source, target = (tmp_path / place.folder("1e-4", "searched") for place in (coarse, finer))
    assert target.name == "forget05-10-epochs-finer-1e-4-searched"
    source.mkdir()
    (source / "settings.json").write_text('{"trials": 8, "matched": {"npo": "said"}}')
    (source / "trials.jsonl").write_text('{"method": "npo"}\n')
    words = ("--split", "forget05", "--epochs", "10", "--rates", "1e-4", "--unseen", "wrong")
    given = ("--data", str(tmp_path), "--output", str(tmp_path), *words, "--finer")
    for _ in range(2):
        assert study.main([*given, "--methods", "npo"]) == 0
        with (target / "trials.jsonl").open("a") as file:
            file.write('{"method": "pdu"}\n')  # and is not lost when the study goes on
    assert len(read_lines(target / "trials.jsonl")) == 3
    settings = json.loads((target / "settings.json").read_text())
    assert settings == {"trials": 8, "refine": REFINED, "matched": {}}
    for words in called:  # what is asked for was run with the coarse search
        assert words[words.index("--refine") + 1] == str(REFINED) and "--match" in words


def test_all_that_a_finer_search_has_tried_is_drawn_beside_what_was_asked(tmp_path: Path) -> None:
    finer = Place("forget05", methods=("npo", "pdu"), epochs=10, unseen="wrong", finer=True)
    seeds = [line("npo", seed, mu, 0.14) for seed, mu in enumerate((0.8, 0.81, 0.82))]
    kept(tmp_path, "1e-4", "searched", line("retain_only", 0, 0.95), *seeds, place=finer)
    asked = (line("npo+alm", 0, 0.9), line("pdu+alm", 0, 0.9))
    kept(tmp_path, "1e-4", "asked", *asked, place=finer)
    tried = [(0.5, 0.9, True), (0.1, 0.7, True), (0.2, 0.8, True), (0.3, 0.1, False)]
    rows = [line("npo", 9, mu, said) | {"evaluated": looked} for said, mu, looked in tried]
    write_lines(tmp_path / finer.folder("1e-4", "searched") / "trials.jsonl", rows)
    (axes,) = frontier.draw(tmp_path, finer, "1e-4").axes  # PDU was searched no further
    drawn = {str(found.get_label()): found for found in axes.get_lines()}
    points = {
        label: list(zip(found.get_xdata(), found.get_ydata(), strict=True))
        for label, found in drawn.items()
    }
    assert points["settings tried, another seed"] == [(0.1, 0.7), (0.2, 0.8), (0.5, 0.9)]
    assert points["the best of them"] == [(0.14, 0.8), (0.14, 0.81), (0.14, 0.82)]
    assert points["one, with +ALM"] == [(0.1, 0.9)]
    assert set(drawn["retain side alone"].get_ydata()) == {0.95}
    report.write(tmp_path)
    figure = tmp_path / f"{finer.name}-dark.png"
    assert not figure.exists()  # of one method
    results = tmp_path / finer.folder("1e-4", "searched") / "results.jsonl"
    write_lines(results, [*read_lines(results), line("pdu", 0, 0.8)])
    report.write(tmp_path)
    assert figure.exists()


def test_every_method_is_run_with_its_own_controlled_version(recorded: Path) -> None:
    assert {with_controller(key) for key in EVERY} <= set(names())
    plain = Place("forget01", methods=("saul_no_alm",), unseen="certified")
    assert with_controller("saul_no_alm") == "saul" and with_controller("blur") == "blur+alm"
    rows = [json.dumps(line("saul_no_alm", seed, 0.9)) for seed in range(2)]
    (recorded / plain.folder("3e-4", "searched") / "results.jsonl").write_text("\n".join(rows))
    assert not list(report.table(recorded, plain))  # searched, and not asked yet
    kept_at = recorded / plain.folder("3e-4", "asked")
    kept_at.mkdir()
    kept_at.joinpath("results.jsonl").write_text(json.dumps(line("saul", 0, 0.93)))
    assert [cells[5] for cells in report.table(recorded, plain)] == ["0.930"]
