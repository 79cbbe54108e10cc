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
    return [p for p in found if "__pycache__" not in p.parts]


def lines(*names: str) -> int:
    return sum(p.read_text().count("\n") for p in files(*names, ending=".py"))


def package(*names: str) -> int:
    return lines(*(f"torch_alm/{name}" for name in names))


def words(*names: str) -> int:
    return sum(len(p.read_text().split()) for p in files(*names, ending=".md"))


def tree() -> list[Path]:
    return files(*FOLDERS, *(p.name for p in ROOT.iterdir() if p.is_file()))


SIZES = {  # measured, the limit today, the budget
    "lines of the core": (package(*set(LIBRARY).difference(PARTS)), 4_960, 4_640),
    "lines of measures, checkpoint, thresholds": (package(*AROUND), 1_500, 1_500),
    "lines of language": (package("language"), 1_811, 1_530),
    "lines of integrations": (package("integrations"), 1_680, 1_680),
    "lines of the command": (package(*COMMAND), 4_960, 4_430),
    "lines of torch_alm": (lines("torch_alm"), 14_910, 13_800),
    "lines of benchmarks": (lines("benchmarks"), 7_190, 6_980),
    "lines of tests": (lines("tests"), 23_310, 22_000),
    "lines of Python in docs": (lines("docs"), 535, 540),
    "words of docs": (words("docs"), 18_000, 18_000),
    "words of README": (words("README.md"), 750, 750),
    "words of CONTRIBUTING": (words("CONTRIBUTING.md"), 1_100, 1_100),
    "words of CHANGELOG": (words("CHANGELOG.md"), 1_360, 1_200),
    "files": (len(tree()), 413, 415),
    "kilobytes": (sum(p.stat().st_size for p in tree()) // 1000, 3_730, 3_740),
}


@pytest.mark.parametrize("part", SIZES)
def test_no_part_grows(part: str) -> None:
    measured, limit, budget = SIZES[part]
    assert measured <= limit, (
        f"{measured:,} {part}, above the limit of {limit:,} (the budget is {budget:,}). Can what "
        "you add replace something, or do without? Else the limit in tests/test_sizes.py is a "
        "decision that your commit has to give a reason for."
    )
