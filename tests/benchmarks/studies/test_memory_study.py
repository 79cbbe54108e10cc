"""The record of memory, a line per case."""

import json
from pathlib import Path

import pytest

from benchmarks.studies import memory
from tests.benchmarks.engine.test_memory import CONFIG


def test_the_record_is_written_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = [case._replace(tokens=(1, 4)) for case in memory.cases()[:2]]
    monkeypatch.setattr(memory, "cases", lambda: short)
    monkeypatch.setattr(memory, "MistralConfig", lambda **_: CONFIG)
    for only in ("dual", "rmu"):
        assert memory.main(["--quick", "--output", str(tmp_path), "--only", only]) == 0
    lines = json.loads((tmp_path / "memory.json").read_text())["lines"]
    assert [line["method"] for line in lines.values()] == ["dual_adamw+alm", "rmu"]
    table = (tmp_path / "memory.md").read_text()
    assert "| WMDP, RMU's parameters | Dual AdamW + ALM | 1 x 4 |" in table
    assert "GB at most" in capsys.readouterr().out
