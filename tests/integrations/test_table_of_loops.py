"""The table of docs/loops.md: each row has tests, and says with which versions they last ran."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs" / "loops.md").read_text().split("\n## What is tested\n")[1]
LINES = [line for line in SECTION.split("\n## ")[0].splitlines() if line.startswith("|")]
ROWS = [line.strip("| ").split(" | ") for line in LINES[2:]]
PINNED = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
)
FLOOR = re.findall(r'"(\w+)==([\d.]+)"', (ROOT / ".ci" / "constraints.py").read_text())


def test_the_table_has_a_row_for_every_loop() -> None:
    named = " ".join(row[0] for row in ROWS)
    for loop in ("Trainer", "OpenUnlearning", "TRL", "Lightning", "accelerate", "published"):
        assert loop in named


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_has_tests_and_the_versions_that_they_last_ran_with(row: list[str]) -> None:
    _, what, file, ran = row
    text = (Path(__file__).parent / f"test_{file.strip('`')}.py").read_text()
    assert what and len(re.findall(r"^def test_", text, re.MULTILINE)) >= 2
    versions = re.findall(r"([a-z]+) (\d+(?:\.\d+)+)", ran)
    assert versions, "of which package, in which version"
    if ("transformers", "4.45.1") in versions:
        assert ("transformers", "4.45.1") in FLOOR, "what published code pins, as the floor has it"
        return
    for name, version in versions:
        if name in PINNED:
            assert PINNED[name].split("+")[0].startswith(f"{version}."), "what CI has"
