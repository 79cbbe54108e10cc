"""A docstring's first words say what to expect of a part: an order, or the name of a thing."""

import ast
import re
from pathlib import Path

import benchmarks

QUESTION = re.compile(r"(What|Whether|How|Those|The same|That|Which|Where|When)\b")


def test_no_summary_begins_as_a_question_does() -> None:
    found = [
        (path.name, text.splitlines()[0])
        for path in Path(benchmarks.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and (text := ast.get_docstring(node))
    ]
    assert len(found) > 500
    assert not [(name, summary) for name, summary in found if QUESTION.match(summary)]
