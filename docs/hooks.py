"""Pages that exist once, elsewhere in the repository: README and its kin, notebooks, docstrings.

Links between files become links between pages, and `<picture>` the two images of the site.
"""

import re
from os.path import normpath, relpath
from pathlib import Path, PurePosixPath
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import torch_alm
from docs import notebook

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "index.md",
    "benchmarks/README.md": "benchmarks.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
MODULES = ("checkpoint", "filters", "language", "rules", "thresholds")  # no word to add
REFERENCE = "---\nsearch: {{ boost: 0.3 }}\n---\n\n::: torch_alm.{}\n"
LINK = re.compile(r"\[([^][]+)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)]*)?\)")
PICTURE = re.compile(
    r'<picture>.*?docs/(images/[\w-]+?)-light\.svg" alt="([^"]*)".*?</picture>', re.DOTALL
)
# A line with a prompt, and what follows it down to an empty line.
PROMPT = re.compile(r"^( *)>>> .*(?:\n\1 *\S.*)*", re.MULTILINE)


class Fences(griffe.Extension):
    """Put each example of a docstring between fences: in Markdown `>>>` begins a quotation."""

    def on_instance(self, *, obj: griffe.Object | griffe.Alias, **_: Any) -> None:
        """Rewrite the docstring of an object that was read."""
        if not obj.is_alias and obj.docstring:
            obj.docstring.value = PROMPT.sub(r"\1```pycon\n\g<0>\n\1```", obj.docstring.value)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Reload where a shared text changes; show a pencil only where there is a repository."""
    config.watch.extend(str(ROOT / source) for source in PAGES)
    config.copyright = f"torch-alm {torch_alm.__version__}, MIT licence"
    if not config.repo_url:
        config.edit_uri = None
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the shared texts, the notebooks, and a page for each module."""
    pages = {page: as_page(source, page) for source, page in PAGES.items()}
    pages |= {f"api/{name}.md": REFERENCE.format(name) for name in MODULES}
    for path in notebook.paths():
        pages[f"notebooks/{path.stem}.md"] = notebook.page(path)
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    return files


def as_page(source: str, page: str) -> str:
    """Read a text of the repository; links to what is no page of the site keep their words only."""

    def link(match: re.Match[str]) -> str:
        words, target, anchor = match.group(1), match.group(2), match.group(3) or ""
        path = normpath(PurePosixPath(source).parent / target)
        found = PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        return (
            f"[{words}]({relpath(found, PurePosixPath(page).parent)}{anchor})" if found else words
        )

    images = r"![\2](\1-light.svg#only-light)\n![\2](\1-dark.svg#only-dark)"
    return PICTURE.sub(images, LINK.sub(link, (ROOT / source).read_text(encoding="utf-8")))
