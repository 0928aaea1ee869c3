"""Read the sets of pages with gold text from the folders of their makers.

- Articles: https://github.com/mozilla/readability, 130 pages with the HTML of their content.
- Strings: https://github.com/adbar/trafilatura, 990 pages with strings of their content and of what is around it.
- Manuals: the Debian packages of `MANUALS`, unpacked into one folder, for example by `dpkg -x`.
"""

import hashlib
import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.gold.text import element_text

MIN_SIZE, MAX_SIZE = 4_000, 400_000  # bytes of a manual's page
CONTENTS = ("index", "search", "contents", "toc", "bookindex", "modindex", "legalnotice")  # pages without text


@dataclass(frozen=True)
class GoldPage:
    """A page and the name that decides its half."""

    name: str
    body: bytes

    @property
    def half(self) -> int:
        return hashlib.sha256(self.name.encode()).digest()[0] & 1


@dataclass(frozen=True)
class ArticlePage(GoldPage):
    """A page and the text of its content."""

    text: str


@dataclass(frozen=True)
class StringsPage(GoldPage):
    """A page, strings of its content, and strings of what is around it."""

    wanted: tuple[str, ...]
    unwanted: tuple[str, ...]


@dataclass(frozen=True)
class ManualPage(GoldPage):
    """A page of a manual, and what its content holds, each as text."""

    codes: tuple[str, ...]
    cells: tuple[str, ...]
    paragraphs: tuple[str, ...]
    beginnings: tuple[str, ...]
    around: tuple[str, ...]


@dataclass(frozen=True)
class Manual:
    """A package: its pages by a pattern, how many are read, the content's XPath, and what is no content in it."""

    pattern: str
    count: int
    content: str
    around: str


MANUALS = {
    "git-doc": Manual("git-*.html", 60, "//body", ".//*[@id='footer']"),
    "postgresql-doc-15": Manual("*.html", 65, "//body", ".//*[@class='navheader' or @class='navfooter']"),
    "python3.11-doc": Manual("*.html", 65, "//div[@role='main']", "self::none"),
    "sqlite3-doc": Manual("*.html", 65, "//body", ".//*[contains(concat(' ', @class, ' '), ' nosearch ')]"),
    "erlang-doc": Manual("*.html", 65, "//div[@id='content']", ".//*[@class='footer']"),
}


def read_articles(folder: Path) -> list[ArticlePage]:
    """Return the pages of a checkout of mozilla/readability."""
    pages: list[ArticlePage] = []
    for source in sorted((folder / "test" / "test-pages").glob("*/source.html")):
        gold = parse((source.parent / "expected.html").read_bytes())
        pages.append(ArticlePage(source.parent.name, source.read_bytes(), element_text(gold)))
    return pages


def read_strings(folder: Path) -> list[StringsPage]:
    """Return the pages of a checkout of adbar/trafilatura."""
    pages: list[StringsPage] = []
    tests = folder / "tests"
    for url, row in json.loads((tests / "evaldata.json").read_text()).items():
        files = [path for path in (tests / "cache" / row["file"], tests / "eval" / row["file"]) if path.is_file()]
        if files:
            pages.append(StringsPage(url, files[0].read_bytes(), tuple(row["with"]), tuple(row["without"])))
    return pages


def read_manuals(folder: Path) -> list[ManualPage]:
    """Return pages of the packages unpacked in a folder."""
    pages: list[ManualPage] = []
    for package, manual in MANUALS.items():
        paths = sorted(path for path in _pages_of(folder, package) if path.match(manual.pattern) and _is_prose(path))
        step = max(1, len(paths) // manual.count)
        for path in paths[::step][: manual.count]:
            pages.append(_read_manual(str(path.relative_to(folder)), path.read_bytes(), manual))
    return pages


def _pages_of(folder: Path, package: str) -> Iterator[Path]:
    roots = {"sqlite3-doc": "sqlite3", "python3.11-doc": "python3.11"}
    for place in {package, roots.get(package, package)}:
        yield from (folder / "usr" / "share" / "doc" / place).rglob("*.html")


def _is_prose(path: Path) -> bool:
    named = any(word in path.stem.lower() for word in CONTENTS)
    return not named and not path.is_symlink() and MIN_SIZE <= path.stat().st_size <= MAX_SIZE


def _read_manual(name: str, body: bytes, manual: Manual) -> ManualPage:
    tree = parse(body)
    links = [element_text(link) for link in tree.iter("a")]
    content = next(iter(tree.xpath(manual.content)), tree)
    for element in content.xpath(manual.around):
        element.drop_tree()
    whole = element_text(content)
    paragraphs = [element_text(each) for each in content.iter("p")]
    first = [element_text(each) for each in content.iter("h1", "h2", "h3")][:1] + paragraphs[:1]
    cells = [
        each for each in content.iter("td", "th") if next(each.iter("table", "ul", "ol", "dl", "pre"), None) is None
    ]
    return ManualPage(
        name,
        body,
        tuple(element_text(each) for each in content.iter("pre")),
        tuple(element_text(each) for each in cells),
        tuple(text for text in paragraphs if sum(map(str.isalpha, text)) >= 30),
        tuple(text for text in first if text.strip()),
        tuple(text for text in links if sum(map(str.isalpha, text)) >= 8 and text not in whole),
    )


def parse(body: bytes) -> Any:
    lxml_html: Any = importlib.import_module("lxml.html")  # untyped
    parser = lxml_html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, huge_tree=True)
    return lxml_html.document_fromstring(body, parser=parser)
