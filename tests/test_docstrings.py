"""The first line of a docstring says what to do, or names the thing, in all Python here."""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = sorted(
    p
    for folder in (".ci", "benchmarks", "docs", "tests", "torch_alm")
    for p in (ROOT / folder).rglob("*.py")
)

# Questions, pronouns, and verbs in the third person: neither an instruction nor a name.
OPENING = re.compile(
    r"(The same|What|Whatever|Whether|How|Where|When|Which|Who|Why|That|This|These|Those|It|There"
    r"|Is|Are|If|As|Likewise|Adds|Announces|Applies|Asks|Builds|Compares|Computes|Converts"
    r"|Counts|Descends|Does|Draws|Ends|Gives|Keeps|Loads|Makes|Measures|Pads|Raises|Reads|Removes"
    r"|Returns|Saves|Says|Stacks|Takes|Tells|Trains|Watches|Writes)\b"
)


def documented(tree: ast.Module) -> Iterator[tuple[str, str | None]]:
    """Each module, class, function and assignment of a file, with the string that describes it."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        yield getattr(node, "name", "the module"), ast.get_docstring(node)
        for before, after in itertools.pairwise(node.body):
            match before, after:
                case ast.Assign() | ast.AnnAssign(), ast.Expr(ast.Constant(str(text))):
                    yield ast.unparse(before), text


def summaries(source: str) -> Iterator[tuple[str, str]]:
    for name, text in documented(ast.parse(source)):
        if text:
            yield name, text.partition("\n")[0]


def opens_badly(summary: str) -> bool:
    return OPENING.match(summary) is not None


def test_the_rule_knows_a_question_from_a_name() -> None:
    assert opens_badly("Whether the gate is open.")
    assert opens_badly("The same for vectors.")
    assert opens_badly("Reads a file.")
    assert not opens_badly("Read a file.")
    assert not opens_badly("The weight that acts.")
    assert not opens_badly("`measure(...) >= alpha`.")


def test_whatever_may_have_a_docstring_is_read() -> None:
    source = """'m'
x = 1
'a constant'


class C:
    'c'

    y: int = 2
    'a field'

    def f(self):
        'f'
"""
    assert sorted(text for _, text in summaries(source)) == ["a constant", "a field", "c", "f", "m"]


def test_a_summary_is_an_instruction_or_a_name() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}: {summary}"
        for path in SOURCES
        for name, summary in summaries(path.read_text())
        if opens_badly(summary)
    ]
    assert not found, "\n".join(found)
