"""Choose the main content of a prepared HTML page.

trafilatura finds the content's text, but loses code languages, numbered lists and the page's base. So its text only
locates the content; the located part of the original page is converted.
"""

import copy
import importlib
import logging
from bisect import bisect_left
from typing import Any

import msgspec

from toolgate.tools.web.html.edit import Element, apply_marks

log = logging.getLogger(__name__)

MAX_ELEMENTS = 30_000  # above, trafilatura takes seconds, and the page's own <main> is used
MAX_PIECES = 200  # of the content's text, searched for in the page's
COVERED = 0.97  # share of the content's text that the chosen part must hold
ENOUGH = 0.4  # share of the page's running text that it must hold, else it was not the content

AROUND = ("nav", "footer")


class TextSpan(msgspec.Struct):
    """The position of an element's text in the page's, without white space; `prose` is the part outside links."""

    element: Element
    depth: int
    start: int
    end: int = 0
    prose: int = 0


def choose_content(body: Element) -> Element:
    """Return the content of a prepared page (see `html.prepare`): at most the whole body. Changes the tree."""
    part = _find_main(body)
    if part is not body:
        apply_marks(part, *AROUND)
    return part


def _find_main(body: Element) -> Element:
    squeezed, spans = _spans(body)
    if not spans:
        return body
    if len(spans) <= MAX_ELEMENTS:
        part = _locate(_main_text(body), squeezed, spans)
    else:
        marked = [span for span in spans if span.element.tag in ("main", "article")]
        part = max(marked, key=lambda span: span.prose, default=None)
    return body if part is None or part.prose < ENOUGH * spans[0].prose else part.element


def _main_text(body: Element) -> str:
    trafilatura: Any = importlib.import_module("trafilatura")  # start-up; a third of a second
    try:
        text = trafilatura.extract(
            copy.deepcopy(body),
            output_format="txt",
            favor_recall=True,
            include_comments=False,
            include_tables=True,
            deduplicate=False,
        )
    except Exception:  # the page can be read without it
        log.info("trafilatura failed on a page", exc_info=True)
        return ""
    return text or ""


def _spans(body: Element) -> tuple[str, list[TextSpan]]:
    """Return the body's text without white space, and each element's position in it, in document order."""
    etree: Any = importlib.import_module("lxml.etree")
    pieces: list[str] = []
    spans: list[TextSpan] = []
    open_spans: list[TextSpan] = []
    position = prose = links = 0

    def take(text: str | None) -> None:
        nonlocal position, prose
        squeezed = "".join((text or "").split())
        pieces.append(squeezed)
        position += len(squeezed)
        prose += 0 if links else len(squeezed)

    for event, element in etree.iterwalk(body, events=("start", "end")):
        if event == "start":
            span = TextSpan(element, len(open_spans), position, prose=-prose)
            spans.append(span)
            open_spans.append(span)
            links += element.tag == "a"
            take(element.text)
        else:
            span = open_spans.pop()
            span.end = position
            span.prose += prose
            links -= element.tag == "a"
            if open_spans:
                take(element.tail)
    return "".join(pieces), spans


def _locate(text: str, squeezed: str, spans: list[TextSpan]) -> TextSpan | None:
    """Return the innermost element that holds nearly all of `text`."""
    positions, weights = _locate_lines(text, squeezed)
    if not positions:
        return None
    sums = [0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    needed = COVERED * sums[-1]
    holding = (
        span
        for span in spans
        if sums[bisect_left(positions, span.end)] - sums[bisect_left(positions, span.start)] >= needed
    )
    return max(holding, key=lambda span: span.depth, default=None)


def _locate_lines(text: str, squeezed: str) -> tuple[list[int], list[int]]:
    """Return the positions of the lines of `text` in the page's text, in order, and their weights."""
    lines = ["".join(line.split()).lstrip("-|")[:200] for line in text.splitlines()]
    lines = [line.split("|")[0] for line in lines]
    lines = [line for line in lines if len(line) >= 4]
    step = max(1, len(lines) // MAX_PIECES)
    positions: list[int] = []
    weights: list[int] = []
    cursor = 0
    for line in lines[::step]:
        at = squeezed.find(line, cursor)
        if at >= 0:
            positions.append(at)
            weights.append(len(line))
            cursor = at + len(line)
    return positions, weights
