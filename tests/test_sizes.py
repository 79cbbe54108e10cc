"""Sizes cannot creep back: who makes a part smaller lowers its limit here, down to the budget."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (".ci", ".github", "benchmarks", "docs", "tests", "torch_alm")
AROUND = ["checkpoint.py", "thresholds.py", "measures"]
COMMAND = ["command", "unlearning"]
PARTS = ["language", "integrations", *AROUND, *COMMAND]
LIBRARY = [p.name for p in (ROOT / "torch_alm").iterdir()]


def files(*names: str, ending: str = "") -> list[Path]:
    """List the files with that ending, in folders or named themselves."""
    every = [p for name in names for p in [ROOT / name, *(ROOT / name).rglob("*")]]
    found = [p for p in every if p.is_file() and p.name.endswith(ending)]
    return [p for p in found if "cache" not in str(p.relative_to(ROOT))]


def lines(*names: str) -> int:
    return sum(p.read_text().count("\n") for p in files(*names, ending=".py"))


def package(*names: str) -> int:
    return lines(*(f"torch_alm/{name}" for name in names))


def words(*names: str) -> int:
    return sum(len(p.read_text().split()) for p in files(*names, ending=".md"))


def tree() -> list[Path]:
    return files(*FOLDERS, *(p.name for p in ROOT.iterdir() if p.is_file()))


SIZES = {  # measured, the limit today, the budget
    "lines of the core": (package(*set(LIBRARY).difference(PARTS)), 4_640, 4_200),
    "lines of measures, checkpoint, thresholds": (package(*AROUND), 1_500, 1_300),
    "lines of language": (package("language"), 1_530, 1_000),
    "lines of integrations": (package("integrations"), 1_680, 1_600),
    "lines of the command": (package(*COMMAND), 4_430, 2_400),
    "lines of torch_alm": (lines("torch_alm"), 13_780, 10_500),
    "lines of benchmarks": (lines("benchmarks"), 6_990, 6_500),
    "lines of tests": (lines("tests"), 22_980, 20_000),
    "lines of Python in docs": (lines("docs"), 550, 550),
    "words of docs": (words("docs"), 18_000, 18_000),
    "words of README": (words("README.md"), 750, 750),
    "words of CONTRIBUTING": (words("CONTRIBUTING.md"), 900, 900),
    "words of CHANGELOG": (words("CHANGELOG.md"), 1_200, 1_200),
    "files": (len(tree()), 439, 420),
    "kilobytes": (sum(p.stat().st_size for p in tree()) // 1000, 3_800, 5_000),
}


@pytest.mark.parametrize("part", SIZES)
def test_no_part_grows(part: str) -> None:
    measured, limit, budget = SIZES[part]
    assert measured <= limit, (
        f"{measured:,} {part}, above the limit of {limit:,} (the budget is {budget:,}). Can what "
        "you add replace something, or do without? Else the limit in tests/test_sizes.py is a "
        "decision that your commit has to give a reason for."
    )
