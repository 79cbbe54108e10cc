"""The findings of `docs/checks.py` in a site, and none in a sound one."""

import pydoc
from pathlib import Path

import pytest

from docs.checks import problems
from docs.inventory import addresses

SOUND = """<link rel="stylesheet" href="style.css"><link rel="canonical" href="https://a.b/">
<a href="two.html#there">x</a> <a href="https://a.b/c">out</a> <a href="#here" id="here">y</a>
<img alt="a cat" src="cat-light.svg#only-light"><img alt="a cat" src="cat-dark.svg#only-dark">"""


def site(folder: Path, page: str = SOUND, style: str = "a { color: red }") -> Path:
    (folder / "index.html").write_text(page)
    (folder / "two.html").write_text('<h2 id="there">There</h2>')
    (folder / "style.css").write_text(style)
    for name in ("cat-light.svg", "cat-dark.svg"):
        (folder / name).write_text("<svg/>")
    return folder


def test_the_bold_name_of_a_field_needs_no_link(tmp_path: Path) -> None:
    page = '<b><code><span title="torch_alm.Losses.retain">retain</span></code></b>'
    assert problems(site(tmp_path, SOUND + page)) == []


@pytest.mark.parametrize("name", [n for n in addresses() if not n.startswith("transformers")])
def test_a_name_of_the_inventory_is_one_of_its_library(name: str) -> None:
    assert pydoc.locate(name) is not None


def test_a_sound_site_has_no_problems(tmp_path: Path) -> None:
    assert problems(site(tmp_path)) == []


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ('<a href="three.html">x</a>', "links to three.html, which is not there"),
        ('<a href="two.html#elsewhere">x</a>', "links to two.html#elsewhere, which"),
        ('<a href="#nowhere">x</a>', "links to #nowhere, which is not there"),
        ('<script src="https://a.b/c.js"></script>', "fetches https://a.b/c.js"),
        ('<link rel="icon" href="//a.b/c.png">', "fetches //a.b/c.png"),
        ('<link rel="stylesheet" href="gone.css">', "links to gone.css, which is not there"),
        ('<img src="cat-light.svg" alt=" ">', "without a text"),
        ('<img src="cat-light.svg#only-light" alt="cat">', "not cat-dark.svg#only-dark"),
        ('<img src="cat-dark.svg#only-dark" alt="cat">', "not cat-light.svg#only-light"),
        ('<code><span title="abc.Sized">Sized</span></code>', "the type abc.Sized without a link"),
    ],
)
def test_each_fault_is_named(tmp_path: Path, page: str, said: str) -> None:
    found = problems(site(tmp_path, page))
    assert len(found) == 1
    assert found[0].startswith("index.html") and said in found[0]


@pytest.mark.parametrize("style", ['@import "https://a.b/c.css"', "a { b: url(//a.b/c.woff2) }"])
def test_a_style_that_fetches_is_named(tmp_path: Path, style: str) -> None:
    (found,) = problems(site(tmp_path, style=style))
    assert found.startswith("style.css fetches ") and "//a.b/c." in found
