"""A release describes itself in one place, and the forge runs what developers run."""

import os
import re
import runpy
from pathlib import Path

import pytest
import yaml

import torch_alm

ROOT = Path(__file__).resolve().parent.parent
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
JOB = WORKFLOW["jobs"]["run"]
ROWS = [(row["python"], row["versions"]) for row in JOB["strategy"]["matrix"]["include"]]
COMMANDS = [step["run"] for step in JOB["steps"] if "run" in step]
CONSTRAINTS = runpy.run_path(str(ROOT / ".ci/constraints.py"))


def read(name: str) -> str:
    return (ROOT / name).read_text()


# The workflow puts other constraints in the place of those that these tests are about.
needs_pinned = pytest.mark.skipif(
    CONSTRAINTS["MADE"] in (ROOT / "constraints.txt").read_text(),
    reason="constraints.txt is not the one in the repository",
)


def pins(which: str) -> dict[str, str]:
    lines = [line for line in CONSTRAINTS["main"](which).splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def test_the_version_is_written_once_and_the_others_agree() -> None:
    assert 'dynamic = ["version"]' in read("pyproject.toml")
    released = re.findall(r"^## \[(\d\S*)\] - (\S+)$", read("CHANGELOG.md"), re.MULTILINE)
    assert released[0][0] == torch_alm.__version__
    cited = yaml.safe_load(read("CITATION.cff"))
    assert (cited["version"], str(cited["date-released"])) == released[0]


@needs_pinned
def test_readme_names_the_torch_of_the_constraints() -> None:
    assert f"torch {pins('pinned')['torch']}" in read("README.md")


def test_changelog_has_the_sections_of_keep_a_changelog_only() -> None:
    changelog = read("CHANGELOG.md")
    assert changelog.index("## [Unreleased]") < changelog.index("## [0.1.0]")
    sections = set(re.findall(r"^### (.*)$", changelog, re.MULTILINE))
    assert sections <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_workflow_types_no_check_of_its_own() -> None:
    """So nothing can be checked on the forge and not by `.ci/run`, or the other way round."""
    assert COMMANDS == [
        "python3 .ci/constraints.py ${{ matrix.versions }} > constraints.new",
        "mv constraints.new constraints.txt",
        ".ci/run",
    ]
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_ci_run_types_what_contributing_tells_developers_to_type() -> None:
    checks = {"ruff check .", "pyright", "lint-imports"}
    script = {line.strip() for line in read(".ci/run").splitlines()}
    assert checks <= script
    assert all(f"`{check}`" in read("CONTRIBUTING.md") for check in checks)
    assert CONSTRAINTS["MADE"] in read(".ci/run"), "types are those of the pinned torch"
    for helper in re.findall(r"\.ci/\w+\.py", read(".ci/run")):
        assert (ROOT / helper).is_file()


def test_the_forge_runs_every_python_and_both_ends_of_torch() -> None:
    oldest = re.search(r'requires-python = ">=([\d.]+)"', read("pyproject.toml"))
    assert oldest is not None
    minors = [int(python.partition(".")[2]) for python, _ in ROWS]
    assert sorted(set(minors)) == [*range(int(oldest[1].partition(".")[2]), 14)]
    assert {"oldest-torch", "newest-torch", "oldest"} <= {versions for _, versions in ROWS}


@needs_pinned
@pytest.mark.parametrize("row", ROWS)
def test_each_row_differs_in_one_thing_from_another(row: tuple[str, str]) -> None:
    others = [other for other in ROWS if other != row]
    assert any(sum(a != b for a, b in zip(row, other, strict=True)) == 1 for other in others)
    assert pins(row[1]) or row[1] == "newest-torch"


@needs_pinned
def test_other_versions_differ_from_the_pinned_ones_in_what_they_say() -> None:
    pinned = pins("pinned")
    without = {name: pin for name, pin in pinned.items() if name not in ("torch", "sympy")}
    assert pins("free") == {"torch": pinned["torch"]}
    assert pins("newest-torch") == without
    assert pins("oldest-torch") == without | {"torch": "2.8"}
    bound = re.findall(r'^  "torch>=([\d.]+)"', read("pyproject.toml"), re.MULTILINE)
    assert pins("floor")["torch"] == f"{bound[0]}.*"


@needs_pinned
def test_every_library_of_the_extras_has_a_lower_bound_and_the_oldest_row_uses_it() -> None:
    bounds = {name: bound for extra in ("bench", "hf", "test") for name, bound in listed(extra)}
    assert all(bounds.values()), bounds
    found = pins("oldest")
    assert found.pop("torch") == pins("pinned")["torch"]
    assert found == bounds


def listed(extra: str) -> list[tuple[str, str]]:
    """Each library in an extra, and what follows `>=`."""
    text = read("pyproject.toml").partition(f"\n{extra} = [\n")[2].partition("\n]")[0]
    found = re.findall(r'^  "([\w-]+)(?:>=([\d.]+))?"', text, re.MULTILINE)
    return [(name, bound) for name, bound in found if name != "torch-alm"]
