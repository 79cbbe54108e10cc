"""The page of evidence is written from recorded lines, and recorded lines hold no texts."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.studies.evidence import __main__ as evidence
from benchmarks.studies.evidence import page as evidence_page
from benchmarks.studies.evidence import tables as evidence_tables
from benchmarks.studies.evidence.plan import PLAN
from benchmarks.studies.evidence.rates import rates
from benchmarks.studies.evidence.recorded import Recorded, read

PAGE = evidence_page.PAGE
RECORDED = evidence.KEPT


def line(method: str, seed: int, utility: float, **more: Any) -> dict[str, Any]:
    return {"method": method, "seed": seed, "model_utility": utility, "forget_rouge": 0.1, **more}


def recorded(lines: Sequence[dict[str, Any]], stage: str = "forget01-matched") -> Recorded:
    names = [one.name for one in PLAN]
    return Recorded(
        {name: list(lines) if name == stage else [] for name in names},
        {name: [] for name in names},
    )


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A run's output: numbers, what the model said, and the steps of its controller."""
    folder = tmp_path / "out" / "forget01-recommended"
    for name in ("traces", "answers"):
        (folder / name).mkdir(parents=True)
    rows = [line("saul", 0, 0.5), line("dual_adamw", 0, 0.4)]
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "settings.json").write_text(json.dumps({"data": "/home/me/tofu", "methods": {}}))
    (folder / "answers" / "saul-seed0.jsonl").write_text('{"generation": "a secret"}\n')
    (folder / "report.md").write_text("a secret")
    steps = [
        {"step": 1, "lambda": 0.123456, "weight": 0.2, "violation": 1.0},
        {"step": 2, "lambda": 0.0, "weight": 0.0, "violation": None},
    ]
    trace = "".join(json.dumps(step) + "\n" for step in steps)
    (folder / "traces" / "saul-seed0.jsonl").write_text(trace)
    (folder / "traces" / "dual_adamw-seed0.jsonl").write_text('{"step": 1, "retain_loss": 1.0}\n')
    return folder.parent


def test_a_difference_is_taken_seed_by_seed_on_the_seeds_both_have() -> None:
    lines = [line("npo", s, u) for s, u in ((0, 0.5), (1, 0.7), (2, 0.9))]
    lines += [line("npo+alm", s, u) for s, u in ((1, 0.8), (0, 0.4), (3, 0.0))]
    table = evidence_tables.pairs_at("matched")(recorded(lines)).splitlines()
    assert len(table) == 3
    cells = [cell.strip() for cell in table[2].strip("|").split("|")]
    # seeds 0 and 1: -0.1 and +0.1; means 0.6 and 0.6, deviation of (0.5, 0.7) 0.1414
    assert cells[:7] == [
        *("NPO", "forget01", "2", "0.600 ± 0.141", "0.600 ± 0.283"),
        *("+0.000 ± 0.141", "1 of 2"),
    ]


def test_a_harmonic_mean_of_nothing_counts_as_zero() -> None:
    assert evidence_tables.mu([{"model_utility": None}, {"model_utility": 0.25}]) == [0.0, 0.25]


def test_forget_quality_is_marked_beyond_the_guard_and_at_its_smallest_value() -> None:
    floor = math.log10(2 / math.comb(80, 40))
    rows = [
        line("npo", 0, 0.5, forget_quality_log10=floor, forget_loss=50.0),
        line("pdu", 0, 0.5, forget_quality_log10=-20.0, forget_loss=23.1),
        line("saul", 0, 0.5, forget_quality_log10=-1.0, forget_loss=23.0),
        line("blur", 0, 0.5),
    ]
    cells = [evidence_tables.numbers([row], "forget_quality_log10", 1) for row in rows]
    assert cells == ["≤-22.7 †", "-20.0 †", "-1.0", "–"]
    assert evidence_tables.guard(recorded(rows)).splitlines()[2:] == [
        "| forget01-matched | 3 | 2 | 1 |"
    ]


def test_a_gate_that_opens_again_is_not_closed_for_good() -> None:
    assert evidence_tables.last_open([1.0, 0.0, None, 0.5, 0.0]) == 4
    assert evidence_tables.last_open([0.0, None]) == 0


def test_time_is_relative_to_the_same_seed() -> None:
    lines = [line("dual_adamw", s, 0.5, seconds=10.0 * (s + 1)) for s in range(3)]
    lines += [line("saul", s, 0.5, seconds=x) for s, x in enumerate((20.0, 60.0, 60.0))]
    table = evidence_tables.cost(recorded(lines, "forget01-recommended"))
    assert "| SAUL | 2.00 | 3 |" in table


def test_an_attack_is_told_by_what_it_leaves() -> None:
    left = {"before": {"loss": 9.0, "rouge": 0.0}, "after": {"loss": 2.0, "rouge": 0.25}}
    kept = {"loss": 0.5, "exact_match": 1.0}  # of the retain set, which is not attacked
    row = {"method": "saul", "seed": 0, "attacks": {"retain": kept, "int4": left}}
    table = evidence_tables.attacks(recorded([row], "forget01-attacks"))
    assert table.splitlines()[0] == "| loss; ROUGE-L | seeds | int4 |"
    assert table.splitlines()[2] == "| SAUL | 1 | 2.00; 0.25 |"


def test_numbers_and_steps_are_recorded_and_no_texts(output: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    evidence.record(output / "forget01-recommended", kept)
    names = {path.name for path in kept.iterdir()}
    assert names == {"results.jsonl", "settings.json", "control.jsonl"}
    assert all("secret" not in path.read_text() for path in kept.iterdir())
    assert json.loads((kept / "settings.json").read_text())["data"] == "tofu"
    (steps,) = (json.loads(row) for row in (kept / "control.jsonl").read_text().splitlines())
    assert steps == {
        "method": "saul",
        "seed": 0,
        "lambda": [0.1235, 0.0],
        "weight": [0.2, 0.0],
        "violation": [1.0, None],
    }


def test_what_was_not_run_is_not_recorded(tmp_path: Path) -> None:
    evidence.record(tmp_path / "nothing", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_every_table_is_run_by_its_script_with_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, list[str]]] = []
    scripts = {name: lambda a, name=name: calls.append((name, a)) for name in evidence.SCRIPTS}
    monkeypatch.setattr(evidence, "SCRIPTS", scripts)
    monkeypatch.setattr(evidence, "KEPT", tmp_path / "recorded")
    monkeypatch.setattr(evidence_page, "PAGE", tmp_path / "README.md")
    (tmp_path / "README.md").write_text("words\n")
    assert evidence.main(["--data", "files", "--output", str(tmp_path / "out")]) == 0
    assert [name for name, _ in calls] == [stage.script for stage in PLAN]
    assert all(arguments[:2] == ["--data", "files"] for _, arguments in calls)
    outputs = [arguments[arguments.index("--output") + 1] for _, arguments in calls]
    assert len(set(outputs)) == len(PLAN)


def test_the_commands_are_those_that_are_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert evidence.main(["--list", "--only", "forget05-matched"]) == 0
    (shown,) = capsys.readouterr().out.splitlines()
    assert shown.startswith("forget05-matched: python benchmarks/tofu.py --data DIR")
    assert "--match forget_rouge=0.15" in shown and "--epochs 2" in shown
    assert evidence.main(["--list", "--only", "forget01-attacks"]) == 0
    assert "python -m benchmarks.studies.attacks --data DIR" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--only", "forget02", "--page"], "did you mean forget01-"), ([], "--data is missing")],
)
def test_bad_requests_are_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        evidence.main(arguments)
    assert said in " ".join(capsys.readouterr().err.split())


def test_the_page_is_written_from_what_is_recorded() -> None:
    found = read(RECORDED, [stage.name for stage in PLAN])
    text = PAGE.read_text(encoding="utf-8")
    assert evidence_page.filled(text, found) == text
    for path in RECORDED.glob("*/*"):
        assert path.name in {*evidence.NUMBERS, "settings.json", "control.jsonl"}


def test_an_unknown_table_is_named() -> None:
    with pytest.raises(ValueError, match="'nonsense'"):
        evidence_page.filled("<!-- table: nonsense -->\n<!-- end -->", recorded([]))


def test_changes_stand_beside_what_was_changed_for_each_method() -> None:
    names = [one.name for one in PLAN]
    lines = {name: [] for name in names}
    for what, utility in (("nothing", 0.5), ("cadence", 0.25)):
        rows = [line(m, 10, utility, status="released") for m in ("saul", "pdu+alm")]
        lines[f"forget05-varied-{what}"] = [line("original", 10, 0.9), *rows]
    table = evidence_tables.varied(Recorded(lines, {name: [] for name in names}))
    told = [[cell.strip() for cell in row.strip("|").split("|")][:4] for row in table.split("\n")]
    assert told[2:] == [
        ["SAUL", "nothing", "1", "0.500"],
        ["SAUL", "λ updated every fifth step", "1", "0.250"],
        ["PDU + ALM", "nothing", "1", "0.500"],
        ["PDU + ALM", "λ updated every fifth step", "1", "0.250"],
    ]


def test_a_search_among_words_stands_below_the_one_before_it_and_needs_no_controller() -> None:
    names = [one.name for one in PLAN]
    lines: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for stage, methods, utility in (
        ("matched8", ("saul", "pdu"), 0.25),
        ("words-certified", ("saul",), 0.5),
        ("words-missed", ("pdu",), 0.75),
    ):
        lines[f"forget05-{stage}"] = [line(method, 20, utility) for method in methods]
    table = evidence_tables.words(Recorded(lines, {name: [] for name in names}))
    told = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.split("\n")[2:]]
    assert [row[:4] for row in told] == [
        ["SAUL", "those of the preset", "1", "0.250"],
        ["SAUL", "words, λ on the step", "1", "0.500"],
        ["PDU", "those of the preset", "1", "0.250"],
        ["PDU", "words", "1", "0.750"],
    ]
    assert {tuple(row[-3:]) for row in told} == {("–", "–", "–")}


def test_runs_of_the_control_alone_are_counted_where_they_are_what_was_planned() -> None:
    runs = [line("original", 0, 0.9), line("retain_only", 0, 0.9)]
    told = evidence_tables.commands(recorded(runs, "forget01-control-paper")).splitlines()
    (row,) = [each for each in told if each.startswith("| forget01-control-paper")]
    assert row.endswith("| 1 | 1 of 5 |")
    told = evidence_tables.commands(recorded(runs, "forget01-preset")).splitlines()
    (row,) = [each for each in told if each.startswith("| forget01-preset")]
    assert row.endswith("| 0 | 0 of 5 |"), "beside methods it is none of them"


def test_the_control_stands_at_each_rate_beside_what_a_search_chose_there() -> None:
    lines = {one.name: [] for one in PLAN}
    lines["forget05-control-4e-3"] = [line("retain_only", seed, 0.25) for seed in (0, 1)]
    lines["forget05-control-recommended"] = [line("retain_only", 0, 0.75)]
    chosen = {
        "saul": "... changed from the preset: {'lr': 0.004, 'rho_forget': 0.001}.",
        "pdu": "... changed from the preset: {'forget_lr': 0.004}.",
        "blur": "... changed from the preset: nothing.",
    }
    table = rates(Recorded(lines, {}, {"forget05-matched": chosen}))
    told = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.split("\n")[2:]]
    of = {(row[0], row[1]): (row[2], row[3], row[-1]) for row in told}
    assert of["forget05", "4e-3"] == ("2", "0.250 ± 0.000", "SAUL")
    assert of["forget05", "1e-3"] == ("1", "0.750", "PDU, BLUR")
    assert of["forget10", "4e-3"] == ("0", "–", "nothing")
