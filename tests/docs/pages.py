"""Read the pages for people, README.md and its like and docs/: their blocks of code, links and headings.

The line that opens a block says how it is tested. After the language may follow

file=NAME       the text is saved under that name before what follows runs no-run: WHY     it can't be run where the
tests are; it is still checked for what can be checked"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.clients.raw_client import ROOT

FENCE = re.compile(r"^```(\S*)[ ]?(.*)$")
CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A block of code. `note` is the text after the language. `after` is the line of a preceding block's end if nothing
    lies between, else None."""

    page: "Page"
    line: int
    language: str
    note: str
    text: str
    follows: "Block | None"

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def file(self) -> str | None:
        return self.note.removeprefix("file=") if self.note.startswith("file=") else None

    @property
    def excuse(self) -> str | None:
        """The reason why it is not run, or None."""
        return self.note.removeprefix("no-run:").strip() if self.note.startswith("no-run") else None


class Page:
    """One page; `name` is its path in the repository."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path.relative_to(ROOT))
        self.text = path.read_text()
        self.blocks, self.prose = _parted(self)

    def __repr__(self) -> str:
        return self.name

    def of(self, *languages: str) -> list[Block]:
        return [block for block in self.blocks if block.language in languages]

    @property
    def links(self) -> list[str]:
        return LINK.findall(CODE.sub("", self.prose))

    @property
    def code(self) -> list[str]:
        """Return the texts between backticks."""
        return [found[1] for found in CODE.findall(self.prose)]

    @property
    def anchors(self) -> set[str]:
        """Return the valid link targets after "#": headings as GitHub spells them."""
        headings = re.findall(r"^#+ (.+)$", self.prose, re.M)
        return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@cache
def pages() -> tuple[Page, ...]:
    return tuple(
        map(
            Page,
            [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
            + sorted((ROOT / "docs").glob("*.md")),
        )
    )


@cache
def page(name: str) -> Page:
    return next(page for page in pages() if page.name == name)


def _parted(page: Page) -> tuple[list[Block], str]:
    """Return the blocks, and the text without them, line for line."""
    blocks: list[Block] = []
    prose: list[str] = []
    lines = enumerate(page.text.splitlines(), 1)
    before: Block | None = None
    for number, line in lines:
        opening = FENCE.match(line)
        if opening is None:
            prose.append(line)
            before = None if line.strip() else before
            continue
        text = "".join(f"{inside}\n" for inside in _inside(lines))
        before = Block(page, number, opening[1], opening[2].strip(), text, before)
        blocks.append(before)
        prose += [""] * (text.count("\n") + 2)
    return blocks, "\n".join(prose)


def _inside(lines: Iterator[tuple[int, str]]) -> Iterator[str]:
    for _, line in lines:
        if line.startswith("```"):
            return
        yield line
    raise AssertionError("a block has no end")
