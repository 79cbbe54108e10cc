"""The comparison of controllers compares like with like."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

pytest.importorskip("cooper", reason="compares with cooper-optim, which is not installed")
pytest.importorskip(
    "humancompatible.train", reason="compares with humancompatible-train, which is not installed"
)

from benchmarks.studies.code_lines import code_lines
from benchmarks.studies.controllers.__main__ import (
    LIBRARIES,
    filtered_noise,
    resumes,
    solve,
    survives_nan,
)
from benchmarks.studies.controllers.problems import EASY
from benchmarks.studies.controllers.snippets import LINES, SNIPPETS

PROBLEMS = {problem.name: problem for problem in EASY}


@pytest.mark.parametrize("name", ["HS14", "HS22"])
def test_all_take_the_same_path_with_a_slow_dual(name: str) -> None:
    ends = [solve(library, PROBLEMS[name], 50, 300) for library in LIBRARIES.values()]
    assert ends[1] == pytest.approx(ends[0], abs=1e-9)
    assert ends[2] == pytest.approx(ends[0], abs=1e-9)


def test_the_snippets_do_the_same() -> None:
    ends = []
    for snippet in SNIPPETS.values():
        x = nn.Parameter(torch.zeros(1))
        args = (lambda x: x.square().sum(), lambda x: x.sum(), 1.0, SGD([x], lr=0.05))
        ends.append((snippet(x, *args, 200), x.item()))
    assert ends[1] == pytest.approx(ends[0], rel=1e-5)
    assert ends[2] == pytest.approx(ends[0], rel=1e-5)


def test_lines_are_counted_without_signatures() -> None:
    def three(
        a: int,
    ) -> int:
        b = a

        b += 1
        return b

    assert code_lines(three) == 3
    assert LINES["torch-alm"] == min(LINES.values())


def test_ours_survives_and_resumes() -> None:
    ours = LIBRARIES["torch-alm"]
    assert survives_nan(ours) and resumes(ours, trials=1) == 1


def test_the_filter_keeps_the_gate_closed() -> None:
    mean, stored, acting = filtered_noise(5_000)
    assert mean <= 0.05 and stored <= 0.15 and acting <= 0.15
