"""Tables, example answers and figures, from rows whose answers are known."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from benchmarks import methods
from benchmarks.report import page
from benchmarks.report.figures import Axis
from benchmarks.report.page import Layout
from benchmarks.report.results import ResultsFolder
from benchmarks.report.tables import Column, markdown, table

COLUMNS = (Column("utility", "MU ↑"), Column("rouge", "ROUGE ↓", 3), Column("lambda", "λ", 1))
UTILITY = Axis("utility", "model utility")
LAYOUT = Layout(COLUMNS, Axis("rouge", "forget ROUGE-L"), UTILITY, {"rouge": False})


def row(method: str, seed: int = 0, **numbers: float | None) -> dict[str, Any]:
    return {"method": method, "seed": seed, **numbers}


ROWS = [
    row("saul", 0, utility=0.5, rouge=0.01, **{"lambda": 0.25}),
    row("saul", 1, utility=0.6, rouge=0.03, **{"lambda": 0.75}),
    row("original", utility=0.6, rouge=0.9),
    row("dual_adamw+alm", utility=0.554, rouge=0.02, **{"lambda": 2.0}),
    row("dual_adamw", utility=0.45, rouge=None),
]


def test_a_line_per_method_in_order_with_mean_and_sample_deviation() -> None:
    found = table(ROWS, COLUMNS)
    assert list(found.index) == ["Original model", "Dual AdamW", "Dual AdamW + ALM", "SAUL"]
    assert found["MU ↑"]["SAUL"] == "0.55 ± 0.07"
    assert found["ROUGE ↓"]["SAUL"] == "0.020 ± 0.014"
    assert found["λ"]["Dual AdamW + ALM"] == "2.0"
    assert found["ROUGE ↓"]["Dual AdamW"] == found["λ"]["Original model"] == "–"
    assert "| SAUL             | 0.55 ± 0.07 |" in markdown(found)


def answer(index: int, text: str, right: bool, subset: str = "forget") -> dict[str, Any]:
    said = {"question": f"q{index}?", "reference": "the truth", "generation": text}
    return {"subset": subset, "index": index, "rouge": 1.0 if right else 0.4, **said}


@pytest.mark.parametrize(
    ("alone", "said"),
    [(0.596, "The control holds"), (0.5, "**The control does not hold**"), (None, "No contr")],
)
def test_the_control_says_what_a_table_can_show(alone: float | None, said: str) -> None:
    rows = [row("original", utility=0.6), row(methods.CONTROL, utility=alone)]
    assert page.control(rows, UTILITY).startswith(said)


def test_publishing_writes_table_figures_and_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ResultsFolder(tmp_path)
    folder.claim({"methods": {}, "notes": {"saul": "read so and so"}})
    steps = [{"step": n, "lambda": 0.1 * n, "violation": 1.0 - n} for n in range(1, 4)]
    for run in ROWS:
        folder.write("traces", run["method"], run["seed"], steps if "+" in run["method"] else [])
        folder.write("answers", run["method"], run["seed"], [answer(0, run["method"], True)])
        folder.append(run)
    page.publish(folder, LAYOUT)
    assert "| SAUL " in capsys.readouterr().out
    text = (tmp_path / "report.md").read_text()
    assert "- SAUL: read so and so." in text
    assert "## How settings" not in text
    for name in ("training", "tradeoff"):
        assert imread(tmp_path / f"{name}.png").std() > 0.01
