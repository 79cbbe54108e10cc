"""The first line of a docstring says what to do, or names the thing."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    p
    for folder in (".ci", "benchmarks", "docs", "torch_alm")
    for p in (ROOT / folder).rglob("*.py")
)

# Questions, pronouns, and verbs in the third person: neither an instruction nor a name.
OPENING = re.compile(
    r"(The same|What|Whatever|Whether|How|Where|When|Which|Who|Why|That|This|These|Those|It|There"
    r"|Is|Are|If|As|Likewise|Adds|Announces|Applies|Asks|Builds|Compares|Computes|Converts|Draws"
    r"|Ends|Gives|Keeps|Loads|Makes|Measures|Pads|Raises|Reads|Removes|Returns|Saves|Says|Stacks"
    r"|Takes|Tells|Trains|Watches|Writes)\b"
)


def summaries(path: Path) -> Iterator[tuple[str, str]]:
    """Every documented module, class and function of a file, with its first line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", path.stem), text.partition("\n")[0]


def opens_badly(summary: str) -> bool:
    return OPENING.match(summary) is not None


def test_the_rule_knows_a_question_from_a_name() -> None:
    assert opens_badly("Whether the gate is open.")
    assert opens_badly("The same for vectors.")
    assert opens_badly("Reads a file.")
    assert not opens_badly("Read a file.")
    assert not opens_badly("The weight that acts.")
    assert not opens_badly("`measure(...) >= alpha`.")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_summary_is_an_instruction_or_a_name(path: Path) -> None:
    found = [f"{name}: {line}" for name, line in summaries(path) if opens_badly(line)]
    assert not found, "\n".join(found)
