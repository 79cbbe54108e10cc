"""The precision benchmark: wide weights hold the move, narrow ones lose it, and it says so."""

import json
from pathlib import Path

import pytest

from benchmarks.studies import precision


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_what_each_way_holds_is_measured_and_written(tmp_path: Path, shared_models: Path) -> None:
    folders = ["--cache", str(shared_models), "--output", str(tmp_path)]
    arguments = ["--quick", "--rho", "0.01", *folders]
    assert precision.main(arguments) == 0
    rows = {
        row["way"]: row for row in json.loads((tmp_path / "precision.json").read_text())["rows"]
    }
    assert {*rows} == {way.name for way in precision.WAYS}
    for way in precision.WAYS:
        row = rows[way.name]
        if "float32" in way.name:
            assert row["stored"] > 0.98 and 0.95 < row["length"] < 1.05
    nearest = rows["bfloat16 weights"]
    assert nearest["length"] < 0.5 and nearest["delta"] < 0.5
    assert rows["bfloat16 weights, stochastic rounding"]["stored"] > nearest["stored"]
    assert rows["bfloat16 norm weights only"]["length"] == 0
    assert rows["bfloat16 norm weights only"]["delta"] is None
    assert "| none |" in (tmp_path / "precision.md").read_text()
