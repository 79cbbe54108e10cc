"""A warning of a constraint points at the line of the loop that called it."""

import inspect
import math
from typing import Any

import pytest

from torch_alm import ALMConstraint
from torch_alm.rules import Cap


@pytest.mark.parametrize(
    ("value", "given", "sentence"),
    [
        (math.nan, {}, "not finite"),
        (0.0, {"rules": [Cap(0.1)]}, "Cap"),
        (1e308, {"mu": 1e3, "sense": "<="}, "lambda"),
    ],
    ids=["not finite", "capped", "overflow"],
)
def test_a_warning_points_at_the_call_of_step(
    value: float, given: dict[str, Any], sentence: str
) -> None:
    c = ALMConstraint(None, **{"alpha": 1.0, "mu": 0.5, **given})
    c.observe(value)
    with pytest.warns(UserWarning, match=sentence) as found:
        c.step()
    lines, first = inspect.getsourcelines(test_a_warning_points_at_the_call_of_step)
    (call,) = (first + i for i, line in enumerate(lines) if line.strip() == "c.step()")
    assert [(w.filename, w.lineno) for w in found] == [(__file__, call)]


def test_a_warning_of_check_unwind_points_at_its_call() -> None:
    c = ALMConstraint(None, alpha=1.0, mu=1e-3, multiplier=1.0)
    c.observe(0.0)
    c.step()
    with pytest.warns(UserWarning, match="steps left") as found:
        c.check_unwind(9)
    lines, first = inspect.getsourcelines(test_a_warning_of_check_unwind_points_at_its_call)
    (call,) = (first + i for i, line in enumerate(lines) if line.strip() == "c.check_unwind(9)")
    assert [(w.filename, w.lineno) for w in found] == [(__file__, call)]
