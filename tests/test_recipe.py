"""One recipe: the same constraint and rates on every page, or a sentence that says why not."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_alm.command import arguments, train

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
QUICKSTART = (DOCS / "quickstart.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("notebooks/*.ipynb"))]
WITH_IT = "README quickstart compose loops trainer trl lightning accelerate engines deepspeed"
SETTINGS = ("alpha=4.0", "mu=0.01", "rules=[Leak(0.5)]")
CALL = re.compile(r"ALMConstraint(\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))")
RATE = re.compile(r"(?:retain|forget)=.*lr=([^,)]+)")
WHY = re.compile(
    r"differ[^.]*\[the recipe\]\([^)]*#the-recipe\)|\[the recipe\]\([^)]*#the-recipe\)[^|]*differ"
)


def text(page: Path) -> str:
    """A page, or what stands in the cells of a notebook."""
    written = page.read_text(encoding="utf-8")
    if page.suffix != ".ipynb":
        return written
    return "\n\n".join("".join(cell["source"]) for cell in json.loads(written)["cells"])


def others(page: Path) -> Iterator[str]:
    """Calls and learning rates of a page that are not those of the recipe."""
    for call in CALL.findall(re.sub(r"^[+-] ?", "", text(page), flags=re.MULTILINE)):
        if "alpha=" in call and not all(setting in call for setting in SETTINGS):
            yield call
    yield from (rate for rate in RATE.findall(text(page)) if rate != "1e-5")


def test_the_quickstart_has_the_recipe_in_four_lines() -> None:
    recipe = QUICKSTART.partition("## The recipe")[2].partition("\n## ")[0]
    assert recipe.count("=AdamW(params, lr=1e-5, weight_decay=0.0),") == 2
    assert "constraint=ALMConstraint(token_nll, alpha=4.0, mu=0.01, rules=[Leak(0.5)])," in recipe


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_with_other_numbers_says_why(page: Path) -> None:
    found = list(others(page))
    assert not found or WHY.search(text(page)), (
        f"{found} on {page.name}, where the recipe has {', '.join(SETTINGS)} and lr=1e-5. Is there "
        "a reason? Then write 'It differs from [the recipe](quickstart.md#the-recipe) because ...'."
    )


@pytest.mark.parametrize("name", WITH_IT.split())
def test_the_recipe_is_there(name: str) -> None:
    (page,) = [page for page in PAGES if page.stem == name]
    calls = CALL.findall(text(page))
    assert any(all(setting in call for setting in SETTINGS) for call in calls)


def test_the_command_begins_with_the_recipe(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("config.json", "forget.jsonl", "retain.jsonl")]
    for file in files:
        file.touch()
    paths = ["--model", tmp_path, "--forget", files[1], "--retain", files[2]]
    given = arguments.parse(["unlearn", *map(str, paths), "--output", str(tmp_path / "new")])
    assert (given.mu, train.LR) == (0.01, 1e-5)
