"""Vote on blocks by the text that trafilatura finds in the page."""

import copy
import importlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from toolgate.tools.reading.web.content.blocks import PageBlock
from toolgate.tools.reading.web.html.edit import Element

log = logging.getLogger(__name__)

SHORT = 20  # letters: a line such as "Share" is searched for near the last line alone
NEAR = 500  # letters
PIECE = 24  # letters of a line that is not found whole
MAX_SEARCHES = 200  # of the whole page: each may take as long as the page is


def vote_by_text(body: Element, blocks: Sequence[PageBlock]) -> list[float]:
    """Return the share of each block's letters that trafilatura finds."""
    return find_shares(extract_text(body), blocks)


def extract_text(body: Element) -> str:
    trafilatura: Any = importlib.import_module("trafilatura")  # start-up; a third of a second
    try:
        text = trafilatura.extract(copy.deepcopy(body), fast=True, include_comments=False, include_tables=True)
    except Exception:  # the page can be read without it
        log.info("trafilatura failed on a page", exc_info=True)
        return ""
    return text or ""


def find_shares(text: str, blocks: Sequence[PageBlock]) -> list[float]:
    """Return the share of each block's letters that stand in the text."""
    page = "".join(block.text for block in blocks)
    marks = bytearray(len(page))
    for start, end in _locate(text, page):
        marks[start:end] = b"\1" * (end - start)
    shares: list[float] = []
    position = 0
    for block in blocks:
        end = position + len(block.text)
        shares.append(marks.count(1, position, end) / len(block.text) if block.text else 0.0)
        position = end
    return shares


def _locate(text: str, page: str) -> Iterator[tuple[int, int]]:
    """Return where the lines of a text stand in the page's text, in order."""
    cursor = searches = 0
    for line in _squeeze_lines(text):
        near = cursor + NEAR + len(line)
        start = page.find(line, cursor, near)
        if start < 0 and len(line) >= SHORT and searches < MAX_SEARCHES:
            searches += 1
            start = page.find(line, near - len(line))
        if start >= 0:
            cursor = start + len(line)
            yield start, cursor
        elif len(line) > PIECE:
            for at in range(0, len(line), PIECE):
                start = page.find(line[at : at + PIECE], cursor, cursor + NEAR)
                if start >= 0:
                    cursor = start + len(line[at : at + PIECE])
                    yield start, cursor


def _squeeze_lines(text: str) -> Iterator[str]:
    """Return the lines and cells of a text without white space."""
    for line in text.splitlines():
        for cell in line.removeprefix("- ").split("|"):
            squeezed = "".join(cell.split())
            if squeezed:
                yield squeezed
