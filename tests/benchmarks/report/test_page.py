"""Tables, example answers and figures, from rows whose answers are known."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from benchmarks.report import figures, page
from benchmarks.report.examples import examples
from benchmarks.report.latex import latex_table
from benchmarks.report.layout import Layout
from benchmarks.report.results import ResultsFolder
from benchmarks.report.tables import Column, emphasis, lines, markdown_table, text_table
from benchmarks.tasks.muse import layout as muse
from benchmarks.tasks.tofu import layout as tofu
from benchmarks.tasks.tofu.layout import JUDGED, LAYOUT, UNJUDGED
from benchmarks.tasks.wmdp import layout as wmdp

COLUMNS = (
    Column("utility", "Automatic", "MU", better=1),
    Column("rouge", "Automatic", "F_ROUGE", digits=3, better=-1),
    Column("retain", "Judge", "Retain", digits=1, better=1, percent=True),
    Column("lambda", "", "λ"),
)


def row(method: str, seed: int = 0, **numbers: float | None) -> dict[str, Any]:
    return {"method": method, "seed": seed, **numbers}


ROWS = [
    row("original", utility=0.6, rouge=0.9, retain=0.95),
    row("saul", 0, utility=0.5, rouge=0.01, retain=0.5, **{"lambda": 0.25}),
    row("saul", 1, utility=0.6, rouge=0.03, retain=0.7, **{"lambda": 0.75}),
    row("dual_adamw+alm", utility=0.554, rouge=0.02, retain=0.4, **{"lambda": 2.0}),
    row("dual_adamw", utility=0.45, rouge=0.5, retain=0.9),
]


def test_lines_stand_in_the_papers_order_with_mean_and_sample_deviation() -> None:
    table = lines(ROWS, COLUMNS)
    assert [line.method for line in table] == ["original", "dual_adamw", "dual_adamw+alm", "saul"]
    saul = table[-1]
    assert [cell.mean for cell in saul.cells] == pytest.approx([0.55, 0.02, 60.0, 0.5])
    assert saul.cells[0].deviation == pytest.approx(0.05 * 2**0.5)
    assert table[1].cells[0].deviation is None


def test_a_number_missing_for_one_seed_is_missing() -> None:
    rows = [row("saul", 0, utility=0.5), row("saul", 1, utility=None)]
    assert lines(rows, COLUMNS[:1])[0].cells[0].text(2) == "–"


def test_the_best_values_are_those_of_methods_that_have_unlearned() -> None:
    table = lines(ROWS, COLUMNS)
    assert emphasis(table, COLUMNS) == [[0] * 4, [2, 2, 1, 0], [1, 1, 0, 0], [1, 1, 2, 0]]
    assert emphasis(table, COLUMNS, {"dual_adamw"})[1:] == [
        [0, 0, 0, 0],
        [1, 1, 2, 0],
        [1, 1, 1, 0],
    ]


def test_where_neither_direction_is_better_the_nearest_value_is() -> None:
    column = Column("privleak", "", "PrivLeak", digits=1, nearest=0.0)
    values = {"saul": -16.0, "npo": 20.0, "blur": 15.96, "dual_adamw": -90.0}
    table = lines([row(method, privleak=value) for method, value in values.items()], [column])
    ranks = {line.method: r for line, (r,) in zip(table, emphasis(table, [column]), strict=True)}
    assert ranks == {"saul": 1, "blur": 1, "npo": 2, "dual_adamw": 0}
    assert "PrivLeak→0" in text_table(table, [column])
    assert r"PrivLeak$\rightarrow 0$" in latex_table(table, [column], "")


def test_a_value_at_the_smallest_possible_one_is_shown_as_a_bound() -> None:
    columns = (Column("p", "", "p", digits=1, better=1, floor="least"),)
    rows = [
        {"method": "npo", "seed": 0, "p": -22.7, "least": -22.7},
        {"method": "npo", "seed": 1, "p": -20.7, "least": -22.7},
        {"method": "saul", "seed": 0, "p": -22.5, "least": -22.7},
        {"method": "pdu", "seed": 0, "p": -22.7},
    ]
    shown = {line.method: line.cells[0].text(1) for line in lines(rows, columns)}
    assert shown == {"npo": "≤-21.7 ± 1.4", "saul": "-22.5", "pdu": "-22.7"}


def test_text_table_is_aligned() -> None:
    text = text_table(lines(ROWS, COLUMNS), COLUMNS).splitlines()
    assert text[0].split() == ["Automatic", "Judge"]
    assert len({len(line) for line in text[1:]}) == 1
    assert "0.55 ± 0.07" in text[-1]
    assert text[0].index("Judge") <= text[1].index("Retain") + len("Retain↑")


def test_markdown_table_has_as_many_cells_as_columns() -> None:
    table = markdown_table(lines(ROWS, COLUMNS), COLUMNS, {"dual_adamw"}).splitlines()
    assert {line.count("|") for line in table} == {len(COLUMNS) + 2}
    assert table[2].startswith("| Original model | 0.60 |")
    assert table[3].startswith("| ~~Dual AdamW~~ | 0.45 |")
    assert "**0.55 ± 0.07**" in table[-1]


def test_latex_table_marks_best_second_and_red() -> None:
    text = latex_table(lines(ROWS, COLUMNS), COLUMNS, "100 % & more", {"dual_adamw"})
    assert r"\caption{100 \% \& more}" in text
    assert r"\multicolumn{2}{c}{\textbf{Automatic}} & \multicolumn{1}{c}{\textbf{Judge}}" in text
    assert r"F\_ROUGE$\downarrow$" in text
    assert r"\textbf{0.55 {\scriptsize $\pm$ 0.07}}" in text
    assert r"Dual AdamW & \textcolor{red}{0.45}" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count(" & ") for line in body[1:]} == {len(COLUMNS)}
    assert text.count("{") == text.count("}")


def answer(index: int, generation: str, right: bool, subset: str = "forget") -> dict[str, Any]:
    shared = {"subset": subset, "index": index, "question": f"q{index}?", "reference": "truth"}
    return {**shared, "generation": generation, "rouge": 1.0 if right else 0.4}


def test_examples_are_known_questions_on_which_the_methods_differ() -> None:
    original = [answer(0, "truth", True), answer(1, "truth", True), answer(2, "no", False)]
    saul = [answer(0, "truth", True), answer(1, "some|thing", False), answer(2, "x", False)]
    text = examples({"original": original, "saul": saul}, "forget", count=1)
    assert "q1?" in text
    assert "q0?" not in text
    assert "| Original model | ✓ | truth |" in text
    assert r"| SAUL | ✗ | some\|thing |" in text


def test_examples_of_a_subset_nobody_answered_are_none() -> None:
    assert examples({"original": [answer(0, "a", True)]}, "retain") == ""


FULL = {
    "forget_rouge": 0.1, "forget_probability": 0.1, "forget_exact_match": 0.0, "certificate": 1.0,
    "retain_probability": 0.8, "retain_rouge": 0.8, "retain_exact_match": 0.7,
    "real_authors_rouge": 0.6, "world_facts_rouge": 0.4, "model_utility": 0.5,
    "forget_quality_log10": -1.0, "gate_open": 0.5, "lambda": 0.1, "seconds": 2.0,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> ResultsFolder:
    """A finished run of the original and retrained models and three methods."""
    folder = ResultsFolder(tmp_path)
    folder.claim(
        {
            "benchmark": "tofu",
            "split": "forget01",
            "notes": {"saul": "read so and so"},
            "methods": {},
        }
    )
    steps = [
        {"step": n, "lambda": 0.1 * n, "violation": 1.0 - n, "forget_loss": n, "retain_loss": 0.1}
        for n in range(1, 4)
    ]
    for method, rouge in (
        ("original", 0.9), ("retrained", 0.4), ("dual_adamw", 0.5),
        ("dual_adamw+alm", 0.1), ("saul", 0.1),
    ):  # fmt: skip
        trained = method not in ("original", "retrained")
        folder.write_trace(method, 0, steps if trained else [])
        folder.write_answers(method, 0, [answer(0, method, True), answer(0, "r", True, "retain")])
        folder.append({"method": method, "seed": 0, **FULL, "forget_rouge": rouge})
    return folder


def test_a_judge_fills_the_papers_columns(folder: ResultsFolder) -> None:
    names = ("retain", "world_facts", "real_authors", "hm", "forget")
    rows = [row | {f"judge_{name}": 50.0 for name in names} for row in folder.rows()]
    assert page.paper_columns(rows, LAYOUT) is JUDGED
    assert page.paper_columns([*rows, *folder.rows()], LAYOUT) is UNJUDGED


def test_harmonic_mean_of_the_utility_rouges(folder: ResultsFolder) -> None:
    found = LAYOUT.derive(folder.rows()[0])["rouge_hm"]
    assert found == pytest.approx(3 / (1 / 0.8 + 1 / 0.6 + 1 / 0.4))


def test_without_a_limit_no_method_is_struck_out(folder: ResultsFolder) -> None:
    assert page.not_unlearned(folder.rows(), LAYOUT) == {"dual_adamw"}
    assert page.not_unlearned(folder.rows(), replace(LAYOUT, limit=None)) == set()


def test_a_baseline_and_its_alm_share_a_colour_and_no_two_baselines_do() -> None:
    assert figures.colour("npo") == figures.colour("npo+alm")
    from benchmarks import methods

    plain = [key for key in methods.names() if not key.endswith("+alm")]
    assert len({figures.colour(key) for key in plain}) == len(plain)


def test_several_splits_share_one_figure(folder: ResultsFolder, tmp_path: Path) -> None:
    rows = folder.rows()
    splits = {"forget01": rows, "forget05": rows}
    figures.utility_per_split(splits, tmp_path / "both.png", y=LAYOUT.utility)
    figures.utility_per_split({"forget01": rows}, tmp_path / "one.png", y=LAYOUT.utility)
    both, one = imread(tmp_path / "both.png"), imread(tmp_path / "one.png")
    assert both.shape[1] > one.shape[1]


def test_every_printed_name_of_a_column_is_explained() -> None:
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    headers = {column.header for column in (*LAYOUT.numbers, *LAYOUT.paper, *JUDGED)}
    plain = {"ROUGE-L", "Retain", "World facts", "Real authors", "Forget", "Forget ROUGE"}
    assert [name for name in sorted(headers - plain) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("layout", [tofu.LAYOUT, muse.LAYOUT, wmdp.LAYOUT])
def test_a_report_says_what_its_columns_are(layout: Layout) -> None:
    topics = {column.header for column in wmdp.TOPICS}
    headers = {column.header for column in layout.numbers}
    assert headers - topics == set(layout.columns)
    text = page.meanings(layout.numbers, layout.columns)
    assert text.splitlines()[-1] == "- s: seconds of training."
    assert len(text.splitlines()) == len(layout.columns)


def test_marks_and_lines_tell_who_has_the_controller() -> None:
    with_it = ("npo+alm", "saul_no_sam")
    assert all(figures.marker(key) == "^" and figures.dash(key) == "-" for key in with_it)
    without = ("npo", "saul_no_alm")
    assert all(figures.marker(key) == "o" and figures.dash(key) == "--" for key in without)
    references = [figures.marker(key) for key in ("original", "retrained", "retain_only")]
    assert len({*references, figures.marker("saul"), "^", "o"}) == 6
