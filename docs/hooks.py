"""Hooks of the site: shared texts, sources, figures, the API, formulas.

README, CONTRIBUTING, CHANGELOG and the README of the benchmarks exist once, where they lie in the
repository, and become pages here. What was measured lies under `benchmarks/results/` and appears
below `results/` here; drawings are made by `docs/figures` while the site is built. In a page

- `::source FILE NAME` becomes the code of that function, `::source FILE` that of the whole file,
- `::figure NAME` a drawing, for a light page and for a dark one,
- `::gallery` a table of how the constrained examples end,
- `::page NAME`, below `docs/api`, a page of that name (`reference.py`).

A fence marked `math` becomes MathML, in the letters of KaTeX where scripts may run.
"""

import re
from html import escape
from os.path import normpath, relpath
from pathlib import Path, PurePosixPath
from typing import Any

from jinja2 import Environment
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from mkdocs_autorefs import AutorefsPlugin

import torch_alm
from benchmarks.studies.constrained import gallery
from docs import checks, inventory, notebook, reference, sources
from docs.figures import themes
from docs.figures.drawings import DRAWINGS

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
NOT_IN_NAV = InclusionLevel.NOT_IN_NAV
PAGES = {
    "index.md": "README.md",
    "benchmarks.md": "benchmarks/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}

# In a search answers come before reference, and reference before recorded tables.
BOOSTS = {
    "api": 0.3,
    "results": 0.1,
    "changelog.md": 0.1,
    "contributing.md": 0.1,
    "faq.md": 6.0,
    "glossary.md": 6.0,
    "troubleshooting.md": 9.0,
}

FIGURE = re.compile(r"^::figure (\S+)$", re.MULTILINE)
GALLERY = re.compile(r"^::gallery$", re.MULTILINE)
PICTURE = re.compile(
    r"^<picture>.*?images/(\w+)-light\.svg.*?^</picture>$", re.MULTILINE | re.DOTALL
)
LINK = re.compile(r"\[([^][]+)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Teach the Markdown renderer the `math` fence, and list the API in the navigation."""
    fence = {"name": "math", "class": "math", "format": _mathml}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    config.watch.extend(str(ROOT / source) for source in PAGES.values())
    if not config.repo_url:
        config.edit_uri = None
    config.copyright = f"torch-alm {torch_alm.__version__}, MIT licence"
    for section in config.nav or []:
        for page in next(iter(section.values())):
            if "API" in page:
                page["API"] = reference.navigation()
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the shared texts, the pages of the API, the measured figures and the drawings."""
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=_as_page(source, page)))
    for report in sorted(RESULTS.rglob("*.md")):
        page = report.relative_to(RESULTS.parent).as_posix()
        text = _as_page(report.relative_to(ROOT).as_posix(), page)
        files.append(File.generated(config, page, content=text, inclusion=NOT_IN_NAV))
    for path in notebook.paths():
        page = path.relative_to(ROOT / "docs").with_suffix(".md").as_posix()
        files.append(File.generated(config, page, content=notebook.page(path)))
    for page, text in reference.pages().items():
        files.append(File.generated(config, page, content=text))
    for figure in sorted(RESULTS.rglob("*.png")):
        page = Path("results") / figure.relative_to(RESULTS)
        files.append(File.generated(config, page.as_posix(), abs_src_path=str(figure)))
    for name, drawing in DRAWINGS.items():
        for theme in themes.COLOURS:
            text = themes.svg(drawing.figure, theme)
            files.append(File.generated(config, f"figures/{name}-{theme}.svg", content=text))
    return files


def on_env(env: Environment, *, config: MkDocsConfig, **_: Any) -> Environment:
    """Tell the cross-references where others document their types."""
    references = config.plugins["autorefs"]
    assert isinstance(references, AutorefsPlugin)
    for name, url in inventory.addresses().items():
        references.register_url(name, url)
    return env


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Put code, drawings and the names of the API where their lines stand."""
    path = PurePosixPath(page.file.src_uri)
    if path.parts[0] in ("results", "benchmarks.md", "metrics.md"):
        page.meta["hide"] = ["navigation", "toc"]  # their tables need the width
    page.meta["search"] = {"boost": BOOSTS.get(path.parts[0], 3.0)}
    if path.parent.name == "api":
        markdown = reference.with_links(markdown, path.stem)
    markdown = FIGURE.sub(lambda match: _figure(match.group(1)), markdown)
    markdown = GALLERY.sub(lambda _: gallery.table(), markdown)
    return sources.shown(markdown)


def on_post_build(*, config: MkDocsConfig) -> None:
    """Refuse a site with broken links, or one that fetches something from elsewhere."""
    if found := checks.problems(Path(config.site_dir)):
        raise PluginError("\n".join(found))


def _figure(name: str) -> str:
    """A drawing twice; the page shows the one that fits."""
    alt = DRAWINGS[name].alt()
    return "\n".join(f"![{alt}](figures/{name}-{t}.svg#only-{t})" for t in themes.COLOURS)


def _as_page(source: str, page: str) -> str:
    """A text of the repository: links between files made links between pages.

    What is no page of the site keeps its words and loses its link; a picture becomes a drawing.
    """
    folder = PurePosixPath(source).parent

    def link(match: re.Match[str]) -> str:
        words, target, anchor = match.group(1), match.group(2), match.group(3) or ""
        found = _page_of(normpath(folder / target))
        if found is None:
            return words
        return f"[{words}]({relpath(found, PurePosixPath(page).parent)}{anchor})"

    text = PICTURE.sub(r"::figure \1", (ROOT / source).read_text())
    return LINK.sub(link, text)


def _page_of(path: str) -> str | None:
    """Find the page of a file of the repository."""
    known = {origin: page for page, origin in PAGES.items()}
    shown = path.startswith(("docs/", "benchmarks/results/")) and path.endswith((".md", ".png"))
    if path in known or not shown or not (ROOT / path).is_file():
        return known.get(path)
    return path.removeprefix("docs/").removeprefix("benchmarks/")


def _mathml(source: str, *_: Any, **__: Any) -> str:
    """A formula as MathML, with its source for `katex/render.js`."""
    shown = convert(source, display="block")
    return f'<div class="formula" data-tex="{escape(source)}">{shown}</div>'
