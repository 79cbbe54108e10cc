"""The API: one page per public name, listed by the pages in `docs/api`.

There a line `::page NAME` stands for a name: it makes the page, its place in the navigation and,
where the line stands, a link with the first line of the docstring.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parent.parent
INDEXES = ROOT / "docs" / "api"
LISTS = (
    "index",
    "filters",
    "rules",
    "measures",
    "thresholds",
    "checkpoint",
    "language",
    "transformers",
    "openunlearning",
    "command",
)
LINE = re.compile(r"^::page (\S+)$", re.MULTILINE)

WRAPPED = ["add_param_group", "backward", "load_state_dict", "perturbed", "state_dict", "step"]
INHERITED = {
    "torch_alm.ALMConstraint": [
        "check_state_dict",
        "discard",
        "load_state_dict",
        "mu",
        "multiplier",
        "observed",
        "skipped",
        "state_dict",
        "weight",
    ],
    "torch_alm.SAM": WRAPPED,
    "torch_alm.ReverseSAM": WRAPPED,
    "torch_alm.DualOptimizer": ["load_state_dict", "state_dict"],
}
"""Members of the bases, which are no names of their own, that a page shows."""


def text(listing: str) -> str:
    """A page in `docs/api` as it is written."""
    return (INDEXES / f"{listing}.md").read_text()


def names(listing: str) -> list[str]:
    """The names it lists, in its order."""
    return LINE.findall(text(listing))


def path(name: str, listing: str) -> str:
    """Find the page of a name."""
    folder = "api" if listing == "index" else f"api/{listing}"
    return f"{folder}/{name.rpartition('.')[2]}.md"


def pages() -> dict[str, str]:
    """The text of every page, by path."""
    return {path(name, listing): _page(name) for listing in LISTS for name in names(listing)}


def navigation() -> list[Any]:
    """The part of the navigation below *API*: a section per list, after its page."""

    def listed(listing: str) -> list[Any]:
        return [{name.rpartition(".")[2]: path(name, listing)} for name in names(listing)]

    sections = [{one: [{"Overview": f"api/{one}.md"}, *listed(one)]} for one in LISTS[1:]]
    return ["api/index.md", *listed("index"), *sections]


def with_links(markdown: str, listing: str) -> str:
    """Each `::page NAME` as an item of a list: the name, and what it is in a line."""

    def item(match: re.Match[str]) -> str:
        name = match.group(1)
        target = path(name, listing).removeprefix("api/")
        return f"- [`{name.rpartition('.')[2]}`]({target}): {summary(name)}"

    return LINE.sub(item, markdown)


def summary(name: str) -> str:
    """The first line of the docstring."""
    found = definition(name)
    return found.docstring.value.splitlines()[0] if found.docstring else ""


def definition(name: str) -> griffe.Object:
    """Find the definition of a public name."""
    found = _package()[name.removeprefix("torch_alm.")]
    return found.final_target if isinstance(found, griffe.Alias) else found


@cache
def _package() -> griffe.Object:
    loader = griffe.GriffeLoader(search_paths=[ROOT])
    package = loader.load("torch_alm")
    loader.resolve_aliases()
    assert isinstance(package, griffe.Object)
    return package


def _page(name: str) -> str:
    lines = [f"::: {name}"]
    if name in INHERITED:
        lines += ["    options:", f"      inherited_members: [{', '.join(INHERITED[name])}]"]
    return "\n".join(lines) + "\n"
