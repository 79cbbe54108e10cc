"""Pages that exist once, elsewhere in the repository: README and its kin, and the notebooks.

Links between files become links between pages, and `<picture>` the two images of the site.
"""

import re
from os.path import normpath, relpath
from pathlib import Path, PurePosixPath

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
LINK = re.compile(r"\[([^][]+)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)]*)?\)")
PICTURE = re.compile(
    r'<picture>.*?docs/(images/[\w-]+?)-light\.svg" alt="([^"]*)".*?</picture>', re.DOTALL
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Reload where a shared text changes; show a pencil only where there is a repository."""
    config.watch.extend(str(ROOT / source) for source in PAGES)
    config.copyright = f"torch-alm {torch_alm.__version__}, MIT licence"
    if not config.repo_url:
        config.edit_uri = None
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the shared texts and the notebooks."""
    pages = {page: as_page(source, page) for source, page in PAGES.items()}
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
