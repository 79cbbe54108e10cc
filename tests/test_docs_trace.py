"""The trace from which the documentation draws a run."""

import json
from pathlib import Path

import pytest

from docs.record_trace import SETTINGS, main

ROWS = [
    {"step": 1, "forget_loss": 0.5, "retain_loss": 0.1, "weight": 0.2, "lambda": 0.2},
    {"step": 2, "forget_loss": 2.0, "retain_loss": 0.3, "weight": 0.0, "lambda": 0.0},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "traces").mkdir()
    traces = [json.dumps({**row, "violation": 1 - row["forget_loss"]}) for row in ROWS[:1]]
    traces.append(json.dumps(ROWS[1]))  # a step that did not measure has no violation
    (tmp_path / "traces" / "saul-seed3.jsonl").write_text("\n".join(traces))
    settings = {"data": "a private path", "benchmark": "tofu", "split": "forget01"}
    methods = {"saul": dict.fromkeys(SETTINGS, 1.0)}
    (tmp_path / "settings.json").write_text(json.dumps({**settings, "methods": methods}))
    return tmp_path


def test_numbers_per_step_and_settings_are_kept_and_nothing_else(folder: Path) -> None:
    main([str(folder), "saul", str(folder / "out.json"), "--seed", "3"])
    found = json.loads((folder / "out.json").read_text())
    assert found["steps"]["violation"] == [0.5, None]
    assert found["steps"]["lambda"] == [0.2, 0.0]
    assert found["settings"] == dict.fromkeys(SETTINGS, 1.0)
    assert "private" not in (folder / "out.json").read_text()
    assert not list(folder.glob(".out*"))


def test_a_run_that_is_not_there_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(folder), "saul", str(folder / "out.json")])
    assert "saul-seed0.jsonl does not exist" in capsys.readouterr().err
    assert not (folder / "out.json").exists()
