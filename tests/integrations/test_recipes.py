"""The differences of docs/loops.md, applied to checkouts of the published loops.

`LOOPS` points to a folder with the checkouts, under the names below.
"""

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from torch_alm import ALMConstraint

LOOPS = Path(os.environ.get("LOOPS", ""))
PAGE = Path(__file__).parents[2] / "docs" / "loops.md"
CHECKOUTS = {"locuslab/tofu": "tofu", "licong-lin/negative-preference-optimization": "npo"}
CHECKOUTS |= {"swj0419/muse_bench": "muse", "OPTML-Group/Unlearn-Smooth": "smooth"}
CHECKOUTS |= {"HaoranTang/sharp-unlearn": "sharp", "centerforaisafety/wmdp": "wmdp"}

here = pytest.mark.skipif(
    not os.environ.get("LOOPS"), reason="LOOPS does not point to checkouts of the published loops"
)


def diff(repository: str) -> str:
    section = PAGE.read_text().split(f"({repository})")[1]
    return re.findall(r"```diff\n(.*?)```", section, re.DOTALL)[0]


def recipe(repository: str) -> dict[str, list[tuple[str, str]]]:
    """Each file, with its hunks as what stands there and what takes its place."""
    files: dict[str, list[tuple[str, str]]] = {}
    for part in re.split(r"^--- ", diff(repository), flags=re.MULTILINE)[1:]:
        path, *hunks = part.split("\n@@\n")
        files[path] = []
        for hunk in hunks:
            lines = hunk.rstrip("\n").split("\n")
            sides = ([line[1:] for line in lines if line[:1] != mark] for mark in "+-")
            before, after = ("\n".join(side) + "\n" for side in sides)
            files[path].append((before, after))
    return files


def patched(repository: str, place: int) -> str:
    """The text of a file with the difference in it."""
    path, pairs = list(recipe(repository).items())[place]
    text = (LOOPS / CHECKOUTS[repository] / path).read_text()
    for before, after in pairs:
        assert before in text, f"{path} of {repository} has changed: {before}"
        text = text.replace(before, after)
    return text


def test_a_checkpoint_that_methods_share_has_a_multiplier_where_there_is_one() -> None:
    """Without a checkout: the function that all of its methods save with."""
    ((_, after),) = recipe("HaoranTang/sharp-unlearn")["unlearn/impl.py"]
    scope: dict[str, Any] = {}
    exec(f"def save(model, evaluation_result, args):\n{after}    return state", scope)
    model, constraint = nn.Linear(2, 2), ALMConstraint(None, 1.0, 1.0)
    other = scope["save"](model, None, SimpleNamespace())
    mine = scope["save"](model, None, SimpleNamespace(constraint=constraint))
    assert other.keys() == {"state_dict", "evaluation_result"}
    assert mine["constraint"] == constraint.state_dict()


@here
@pytest.mark.parametrize("repository", CHECKOUTS)
def test_a_recipe_fits_the_published_file_and_gives_python(repository: str) -> None:
    if not (LOOPS / CHECKOUTS[repository]).is_dir():
        pytest.skip(f"LOOPS has no checkout of {repository}")
    for place, path in enumerate(recipe(repository)):
        compile(patched(repository, place), path, "exec")
