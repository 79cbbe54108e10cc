"""What the site needs beyond its pages: shared texts, sources, examples, formulas.

README, CONTRIBUTING and CHANGELOG exist once, in the root of the repository, and become pages here.
Measured figures lie under `benchmarks/results/` and appear below `results/` here.
A line `::source FILE NAME` becomes the code of that function. Examples in docstrings become code
blocks. A fence marked `math` becomes MathML, which browsers draw by themselves.
"""

import ast
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}

SOURCE = re.compile(r"^::source (\S+) (\S+)$", re.MULTILINE)
# A line with a prompt, and what follows it down to an empty line.
EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1 *\S.*)*", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Teach the Markdown renderer the `math` fence."""
    fence = {"name": "math", "class": "math", "format": _mathml}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    config.watch.extend(str(ROOT / source) for source in PAGES.values())
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the shared texts as pages, and the measured figures."""
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=_as_page((ROOT / source).read_text())))
    for figure in sorted(RESULTS.rglob("*.png")):
        page = Path("results") / figure.relative_to(RESULTS)
        files.append(File.generated(config, page.as_posix(), abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the code in place of each `::source` line."""
    return SOURCE.sub(lambda match: _source(*match.groups()), markdown)


def _source(file: str, name: str) -> str:
    """The code of a function, `Class.method` included, as a block."""
    text = (ROOT / file).read_text()
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        node = next(child for child in node.body if getattr(child, "name", "") == part)
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    return "\n".join([f'```python title="{file}"', dedent("\n".join(lines)), "```"])


def _as_page(text: str) -> str:
    """Links that are right in the root of the repository, made right inside the site."""
    for page, source in PAGES.items():
        text = text.replace(f"]({source}", f"]({page}")
    return text.replace("](docs/", "](")


def _mathml(source: str, *_: Any, **__: Any) -> str:
    return convert(source, display="block")


class DocstringExamples(griffe.Extension):
    """Fence the `>>>` examples of a docstring: to Markdown, `>` alone begins a quotation."""

    def on_instance(self, *, obj: griffe.Object | griffe.Alias, **_: Any) -> None:
        """Called with every object that was read."""
        if not obj.is_alias and obj.docstring:
            text = obj.docstring.value
            obj.docstring.value = EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", text)
