"""Every Python block of README, CONTRIBUTING and docs is run.

A block stands alone (it needs its own imports), passes the linter, and prints exactly the lines
that follow its `print` calls as `#> ...` comments.
"""

import inspect
import re
import subprocess
import sys
import warnings
from collections import defaultdict
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from pytest_examples import CodeExample, EvalExample, find_examples

import torch_alm
from docs import reference
from torch_alm import cli, filters, language, measures, rules, thresholds
from torch_alm.integrations import transformers

ROOT = Path(__file__).resolve().parent.parent
NO_EXTRAS = ("lightning", "trl")
EXAMPLES = list(find_examples(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs"))


def test_examples_are_found() -> None:
    assert any(example.path.name == "README.md" for example in EXAMPLES)


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """The linter's findings by the example's number, of a single run over all of them.

    A reader's ten lines need neither annotations nor docstrings.
    """
    folder = tmp_path_factory.mktemp("examples")
    for i, example in enumerate(EXAMPLES):
        (folder / f"example_{i}.py").write_text(example.source)
    linter = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise"]
    options = [f"--config={ROOT / 'pyproject.toml'}", "--ignore=E501,ANN,D,INP"]
    done = subprocess.run([*linter, *options, folder], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    found = defaultdict[int, list[str]](list)
    for line in re.finditer(r"^.*example_(\d+)\.py:(.*)$", done.stdout, re.MULTILINE):
        found[int(line[1])].append(line[2])
    assert bool(found) == bool(done.returncode), done.stdout
    return found


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.path.name}:{e.start_line}")
def test_example_runs_and_prints_what_it_says(
    example: CodeExample,
    eval_example: EvalExample,
    findings: dict[int, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    for name in NO_EXTRAS:
        if re.search(rf"^(import|from) {name}\b", example.source, re.MULTILINE):
            pytest.importorskip(name, reason=f"{name} is no extra of ours")
            warnings.simplefilter("ignore")  # its own: of workers, loggers and changes to come
    assert not findings[EXAMPLES.index(example)], "line:column in the example, and what is wrong"
    # A print is looked for in the frames above it, and not in the source of them all.
    monkeypatch.setattr(inspect, "stack", partial(inspect.stack, 0))
    eval_example.set_config(target_version="py310")
    eval_example.run_print_check(example)


def exported(module: ModuleType) -> set[str]:
    """The public names of a module, in full."""
    return {f"{module.__name__}.{name}" for name in module.__all__}


def test_every_public_name_has_a_page_of_its_own() -> None:
    modules = (torch_alm, filters, measures, rules, thresholds, language, transformers, cli)
    public = set().union(*(exported(module) for module in modules))
    public -= {module.__name__ for module in modules}  # which have a list each
    listed = [name for listing in reference.LISTS for name in reference.names(listing)]
    assert sorted(listed) == sorted(
        public | {f"torch_alm.checkpoint.{name}" for name in ("ConstraintState", "DualState")}
    )
    assert len(set(reference.pages())) == len(listed)


def test_the_pages_of_a_file_come_in_its_order() -> None:
    for listing in reference.LISTS:
        for block in re.findall(r"(?:^::page \S+\n)+", reference.text(listing), re.MULTILINE):
            found = [reference.definition(name) for name in reference.LINE.findall(block)]
            places = [(str(one.filepath), one.lineno or 0) for one in found]
            files = list(dict.fromkeys(file for file, _ in places))
            assert places == sorted(places, key=lambda place: (files.index(place[0]), place[1]))
