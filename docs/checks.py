"""Checks of the built site: links lead somewhere, nothing is fetched from elsewhere.

Types in signatures are links. Pictures say in words what they show, and each exists for a light
page and for a dark one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from docs import inventory

FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
NOT_FETCHED = {"canonical", "prev", "next", "alternate"}
IN_STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)")


@dataclass
class Page(HTMLParser):
    """Anchors, links, pictures, fetched files and types without a link of a page."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    pictures: list[tuple[str, str]] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Prepare the parser."""
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag names."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "img":
            self.pictures.append((given.get("src", ""), given.get("alt", "")))
        if FETCHED.get(tag) in given and given.get("rel") not in NOT_FETCHED:
            self.fetched.append(given[FETCHED[tag]])


def problems(site: Path) -> list[str]:
    """A sentence per fault; none if the site is sound."""
    pages = {path: read(path) for path in sorted(site.rglob("*.html"))}
    found = [f for path, page in pages.items() for f in faults(site, path, page, pages)]
    for path in sorted(site.rglob("*.css")):
        found += [f"{path.name} fetches {url}" for url in IN_STYLES.findall(path.read_text())]
    return found


def read(path: Path) -> Page:
    """The parsed page."""
    page = Page()
    text = path.read_text()
    page.feed(text)
    page.unknown = inventory.without_a_link(text)
    return page


def faults(site: Path, path: Path, page: Page, pages: dict[Path, Page]) -> list[str]:
    """List what is wrong with one page."""
    here = path.relative_to(site).as_posix()
    inside = [url for url in [*page.links, *page.fetched] if not is_elsewhere(url)]
    lost = [url for url in inside if not leads_somewhere(url, path, site, pages)]
    found = [f"{here} fetches {url}" for url in page.fetched if is_elsewhere(url)]
    found += [f"{here} links to {url}, which is not there" for url in lost]
    found += [f"{here} names the type {name} without a link" for name in page.unknown]
    sources = {src for src, _ in page.pictures}
    for src, alt in page.pictures:
        if not alt.strip():
            found.append(f"{here} shows {src} without a text for those who cannot see it")
        for one, other in (("light", "dark"), ("dark", "light")):
            twin = src.replace(f"-{one}.", f"-{other}.").replace(f"#only-{one}", f"#only-{other}")
            if f"#only-{one}" in src and twin not in sources:
                found.append(f"{here} shows {src} but not {twin}")
    return found


def is_elsewhere(url: str) -> bool:
    """Tell whether a URL leaves the site."""
    parts = urlsplit(url)
    return bool(parts.netloc) or parts.scheme not in ("", "file")


def leads_somewhere(url: str, path: Path, site: Path, pages: dict[Path, Page]) -> bool:
    """Tell whether the file is there, and the anchor in it."""
    parts = urlsplit(url)
    name = unquote(parts.path)
    start = site if name.startswith("/") else path.parent
    target = (start / name.lstrip("/")).resolve() if name else path
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return False
    anchors = pages[target].anchors if target in pages else set()
    return not parts.fragment or target not in pages or unquote(parts.fragment) in anchors
