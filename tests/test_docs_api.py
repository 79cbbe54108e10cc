"""Docstrings on the pages of the API: examples first, parameters grouped, formulas and papers."""

import inspect

import pytest

import torch_alm
from docs import docstrings, formulas, papers, reference

EVERY = [name for listing in reference.LISTS for name in reference.names(listing)]
TEXT = """Sum things.

    s = alpha * ||x||,   grad s <- retain(theta)

Args:
    first: one thing,
        said at length.
    second: another.

Cost: none.

Source: Foret et al. 2021; Zhang et al. 2024.

Example:
    >>> 1 + 1
    2
"""


@pytest.mark.parametrize(
    ("plain", "expected"),
    [
        ("lambda+ = [lambda + mu c]_+", r"\lambda^+ = [\lambda + \mu c]_+"),
        (
            "theta <- retain(theta, grad L_r)",
            r"\theta \leftarrow \text{retain}(\theta, \nabla L_r)",
        ),
        ("if lambda > 0:  r", r"\text{if }\lambda > 0:\qquad r"),
        ("g / (||g||_2 + eps)", r"g / (\|g\|_2 + \varepsilon)"),
        ("lambda  = 1      of a vector", r"\lambda = 1\qquad \text{of a vector}"),
    ],
)
def test_a_formula_in_words_becomes_symbols(plain: str, expected: str) -> None:
    found = formulas.latex(plain).removeprefix("\\begin{gathered}\n")
    squeezed = found.removesuffix("\n\\end{gathered}").replace(" ", "")
    assert squeezed == expected.replace(" ", "")


def test_symbols_in_prose_are_letters_and_names_stay() -> None:
    text = "lambda+ = [lambda + mu c]_+, see `mu`, grad c.\n\nArgs:\n    alpha: of theta^2.\n"
    expected = "λ⁺ = [λ + μ c]₊, see `mu`, ∇c.\n\nArgs:\n    alpha: of θ².\n"
    assert formulas.greek(text) == expected
    assert (
        formulas.greek("    >>> lambda mu: mu\n    >>> theta")
        == "    >>> lambda mu: mu\n    >>> theta"
    )


def test_the_example_comes_first_and_nothing_is_lost() -> None:
    found = docstrings.arranged(TEXT, "sum")
    order = ["```math", "Example:", "```pycon", "Args:", "second: another.", "Cost:", "Source:"]
    assert [found.index(part) for part in order] == sorted(found.index(part) for part in order)
    assert "[Foret et al. 2021](https://arxiv.org/abs/2010.01412)" in found
    assert "Zhang et al. 2024." in found, "two papers, and none is used for `sum`"


def test_parameters_are_listed_in_groups() -> None:
    found = docstrings.grouped(TEXT, {"Some": ("second",)})
    assert "Args: Some\n    second: another.\n" in found
    assert "Args: More\n    first: one thing,\n        said at length.\n" in found


@pytest.mark.parametrize("name", docstrings.GROUPS)
def test_groups_hold_every_parameter(name: str) -> None:
    text = reference.definition(f"torch_alm.{name}").docstring
    assert text
    found = docstrings.arranged(text.value, name)
    for parameter in inspect.signature(getattr(torch_alm, name)).parameters:
        assert found.count(f"\n    {parameter}: ") >= 1, parameter


def text_of(name: str) -> str:
    found = reference.definition(name)
    members = [found, *found.members.values()] if found.is_class else [found]
    return "\n".join(m.docstring.value for m in members if not m.is_alias and m.docstring)


def test_papers_of_one_name_are_told_apart_by_their_use() -> None:
    first = papers.linked("Source: Zhang et al. 2024.", "npo")
    second = papers.linked("Source: Zhang et al. 2024.", "min_k_plus_plus_score")
    assert "2404.05868" in first and "2404.02936" in second


def test_every_example_of_the_api_fits_its_page() -> None:
    lines = inspect.cleandoc("\n".join(map(text_of, EVERY))).splitlines()
    code = [line.strip() for line in lines if line.strip().startswith((">>> ", "... "))]
    assert len(code) > 100
    assert [line for line in code if len(line) > 80] == []


def test_every_example_of_the_api_stands_before_the_parameters() -> None:
    for name in EVERY:
        found = reference.definition(name)
        text = docstrings.arranged(found.docstring.value, found.name) if found.docstring else ""
        if ">>> " in text and "\nArgs:" in text:
            assert text.index(">>> ") < text.index("\nArgs:"), name
