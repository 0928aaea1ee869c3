"""Read each page of the gold sets with each reader, and compare the answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.gold import scores, sets
from tests.bench.gold.readers import READABILITY, Reader, open_readers
from tests.bench.gold.scores import Overlap, Share
from tests.bench.gold.sets import ArticlePage, GoldPage, ManualPage, StringsPage

OPTIONS = {"articles": "--readability", "strings": "--trafilatura", "manuals": "--manuals"}
SOURCES = {
    "articles": "github.com/mozilla/readability",
    "strings": "github.com/adbar/trafilatura",
    "manuals": f"the Debian packages {', '.join(sets.MANUALS)}",
}
TOLD_EVERY = 50  # pages
NOTHING, NO_OVERLAP = Share(), Overlap(0.0, 0.0)  # of a page of another set
FOLDERS = {option: SOURCES[name] for name, option in OPTIONS.items()}


@dataclass(frozen=True)
class GoldFolders:
    """The folders of the sets; None leaves a set out."""

    readability: Path | None = None
    trafilatura: Path | None = None
    manuals: Path | None = None


@dataclass(frozen=True)
class Reading:
    """A reader's answer to a page, and its score by the page's set."""

    half: int
    length: int
    seconds: float
    overlap: Overlap = NO_OVERLAP
    wanted: Share = NOTHING
    unwanted: Share = NOTHING
    parts: Mapping[str, Share] = field(default_factory=dict)


@dataclass
class GoldFigures:
    """The readings of each set by reader, page by page, and a line about each thing that was left out."""

    readings: dict[str, dict[str, list[Reading]]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def measure(folders: GoldFolders, every: int, tell: Callable[[str], None]) -> GoldFigures:
    """Return the figures of each `every`-th page of the sets that have a folder."""
    figures = GoldFigures()
    pages: dict[str, Sequence[GoldPage]] = {}
    for name, folder, read in (
        ("articles", folders.readability, sets.read_articles),
        ("strings", folders.trafilatura, sets.read_strings),
        ("manuals", folders.manuals, sets.read_manuals),
    ):
        if folder is None:
            figures.left_out.append(f"{name}: {OPTIONS[name]} names no folder of {SOURCES[name]}")
        elif found := read(folder)[::every]:
            pages[name] = found
        else:
            figures.left_out.append(f"{name}: no page in {folder}")
    if pages:
        _read_all(pages, figures, tell)
    return figures


def _read_all(pages: Mapping[str, Sequence[GoldPage]], figures: GoldFigures, tell: Callable[[str], None]) -> None:
    with open_readers() as readers:
        if READABILITY not in readers:
            figures.left_out.append(f"{READABILITY}: install it with make peers")
        for name, some in pages.items():
            by_reader: dict[str, list[Reading]] = {reader: [] for reader in readers}
            for number, page in enumerate(some):
                if number % TOLD_EVERY == 0:
                    tell(f"gold, {name}: page {number + 1} of {len(some)}")
                for reader, read in readers.items():
                    by_reader[reader].append(read_page(page, read))
            figures.readings[name] = by_reader


def read_page(page: GoldPage, read: Reader) -> Reading:
    answer = read(page.body)
    common = (page.half, len(answer.raw), answer.seconds)
    match page:
        case ArticlePage():
            return Reading(*common, overlap=scores.compare_article(page, answer.text))
        case StringsPage():
            wanted, unwanted = scores.compare_strings(page, answer.text)
            return Reading(*common, wanted=wanted, unwanted=unwanted)
        case ManualPage():
            return Reading(*common, parts=scores.compare_manual(page, answer.text))
        case _:
            raise TypeError(page)
