"""What is shown is run: every Python block of README, CONTRIBUTING and docs.

A block stands alone (it needs its own imports), passes the linter, and prints exactly the lines
that follow its `print` calls as `#> ...` comments.
"""

import re
from pathlib import Path

import pytest
import torch
from pytest_examples import CodeExample, EvalExample, find_examples

import torch_alm
from torch_alm import language

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = list(find_examples(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs"))


def test_examples_are_found() -> None:
    assert any(example.path.name == "README.md" for example in EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.path.name}:{e.start_line}")
def test_example_runs_and_prints_what_it_says(
    example: CodeExample, eval_example: EvalExample
) -> None:
    torch.manual_seed(0)
    # A reader's ten lines need neither annotations nor docstrings.
    eval_example.set_config(ruff_ignore=["ANN", "D"], target_version="py310")
    eval_example.lint_ruff(example)
    eval_example.run_print_check(example)


def test_every_public_name_has_its_place_in_the_api_pages() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    shown = set(re.findall(r"^::: (\S+)$", pages, re.MULTILINE))
    public = {f"torch_alm.{name}" for name in torch_alm.__all__}
    for module in (torch_alm.measures, torch_alm.thresholds):
        public |= {f"{module.__name__}.{name}" for name in module.__all__}
    not_imported_by_itself = {"torch_alm.checkpoint", "torch_alm.checkpoint.DualState"}
    not_imported_by_itself |= {"torch_alm.language"} | {
        f"torch_alm.language.{name}"
        for name in language.__all__  # but for the names of types
        if getattr(getattr(language, name), "__module__", "").startswith("torch_alm.")
    }
    assert shown == public | not_imported_by_itself
