"""Docstrings as the pages of the API show them.

The example comes before the parameters, these come in groups, formulas are typeset, and the papers
of a *Source:* are linked.
"""

import re
from typing import Any

import griffe

from docs import formulas, papers

# A line with a prompt, and what follows it down to an empty line.
PROMPT = re.compile(r"^( *)>>> .*(?:\n\1 *\S.*)*", re.MULTILINE)
EXAMPLE = re.compile(r"\n\n(?:Example:\n(?: .*(?:\n|$)|\n(?= ))+|>>> (?s:.*)$)")
SECTION = re.compile(r"^(?:Args|Raises|Attributes|Shape|Warns|Cost|Returns):", re.MULTILINE)
ARGS = re.compile(r"^Args:\n((?: .*\n|\n(?= ))+)", re.MULTILINE)
ARGUMENT = re.compile(r"^    (\w+): .*\n(?: {5,}.*\n|\n(?= {5,}))*", re.MULTILINE)

GROUPS = {
    "ALMConstraint": {
        "What is asked": ("measure", "alpha", "sense", "tolerance"),
        "How the multiplier moves": ("mu", "multiplier", "every"),
        "Noise, wind-up and faults": ("filter", "rules", "nonfinite"),
    },
    "DualOptimizer": {
        "The two sides": ("retain", "forget", "constraint"),
        "How they act": ("scale", "probe_every"),
        "Engines": ("backward", "reshard"),
    },
}


class DocstringExamples(griffe.Extension):
    """Bring a docstring into the order and the shape of a page."""

    def on_instance(self, *, obj: griffe.Object | griffe.Alias, **_: Any) -> None:
        """Called with every object that was read."""
        if not obj.is_alias and obj.docstring:
            obj.docstring.value = arranged(obj.docstring.value, obj.name)


def arranged(text: str, name: str) -> str:
    """Rewrite the docstring of an object of this name."""
    text = grouped(example_first(formulas.typeset(text)), GROUPS.get(name, {}))
    text = papers.linked(formulas.greek(text), name)
    return PROMPT.sub(r"\1```pycon\n\g<0>\n\1```", text)  # `>` alone begins a quotation


def example_first(text: str) -> str:
    """Move an example from the end to the place before the first section."""
    found, first = EXAMPLE.search(text), SECTION.search(text)
    if not found or not first or first.start() > found.start():
        return text
    head, rest = text[: first.start()], text[first.start() : found.start()]
    return f"{head}{found.group().strip()}\n\n{rest}\n{text[found.end() :]}"


def grouped(text: str, groups: dict[str, tuple[str, ...]]) -> str:
    """Split the list of parameters into titled lists; one that is in none comes last."""
    found = ARGS.search(text)
    if not found or not groups:
        return text
    lines = {line.group(1): line.group() for line in ARGUMENT.finditer(found.group(1))}
    named = {name for names in groups.values() for name in names}
    more = tuple(name for name in lines if name not in named)
    lists = [
        f"Args: {title}\n{''.join(lines[name] for name in names if name in lines)}"
        for title, names in {**groups, "More": more}.items()
        if names
    ]
    return text[: found.start()] + "\n".join(lists) + text[found.end() :]
