"""Divide a page into blocks, the smallest parts that stay or are cut, and regions, the elements around them.

A block is an element of its own line (a paragraph, a heading, a cell) with no such element in it, or a run: the text
and inline elements that stand beside such elements. Blocks are in document order, so those of a region are a range.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate

import msgspec

from toolgate.tools.reading.web.html.edit import BLOCKS, HEADINGS, Element

BLOCK_TAGS = BLOCKS | {"body", "caption", "dialog", "dir", "hgroup", "menu"}
MEDIA = ("img", "picture", "video", "audio", "iframe")


class Region(msgspec.Struct, eq=False):
    """An element with blocks in it: those from `start` to before `end`."""

    element: Element
    parent: "Region | None"
    start: int
    end: int = 0
    is_link: bool = False


class PageBlock(msgspec.Struct, eq=False):
    """A part of a page, in `region`. Its text has no white space. `elements` are its element, or those of a run, whose
    text also stands behind `before`, or at the region's beginning if that is None."""

    region: Region
    elements: list[Element]
    is_run: bool
    before: Element | None = None
    text: str = ""
    link_letters: int = 0
    has_media: bool = False

    @property
    def tag(self) -> str:
        """Return the tag of its element, or of the element that a run is in."""
        tag: str = self.region.element.tag if self.is_run else self.elements[0].tag
        return tag

    @property
    def heading_level(self) -> int:
        """Return 1 to 6, or 0 for what is no heading."""
        return int(self.tag[1]) if self.tag in HEADINGS else 0


class PageBlocks(msgspec.Struct):
    """The blocks of a page, and its regions, each after the one around it."""

    blocks: list[PageBlock]
    regions: list[Region]


class RangeSums:
    """The sums of numbers over ranges of blocks."""

    def __init__(self, numbers: Iterable[float]) -> None:
        self._sums = list(accumulate(numbers, initial=0.0))

    @property
    def total(self) -> float:
        return self._sums[-1]

    def over(self, region: Region) -> float:
        return self._sums[region.end] - self._sums[region.start]


def divide(body: Element) -> PageBlocks:
    """Return the blocks and the regions of a page."""
    around = _find_regions(body)
    page = PageBlocks([], [Region(body, None, 0)])
    stack: list[tuple[Region, Iterator[Element]]] = [(page.regions[0], iter(body))]
    runs = [PageBlock(page.regions[0], [], True)]  # the run that each region of the stack is at
    while stack:
        region, children = stack[-1]
        child = next(children, None)
        if child is None:
            _add_run(page.blocks, runs.pop())
            stack.pop()
            region.end = len(page.blocks)
        elif child in around:
            _add_run(page.blocks, runs[-1])
            runs[-1] = PageBlock(region, [], True, child)
            inner = Region(child, region, len(page.blocks), is_link=region.is_link or child.tag == "a")
            page.regions.append(inner)
            stack.append((inner, iter(child)))
            runs.append(PageBlock(inner, [], True))
        elif child.tag in BLOCK_TAGS:
            _add_run(page.blocks, runs[-1])
            runs[-1] = PageBlock(region, [], True, child)
            _add(page.blocks, PageBlock(region, [child], False))
        else:
            runs[-1].elements.append(child)
    return page


def _find_regions(body: Element) -> set[Element]:
    """Return the elements around block elements; code is one block, whatever divides its lines."""
    around: set[Element] = set()
    in_code: set[Element] = set()
    for element in body.iter():
        parent = element.getparent()
        if element is body:
            continue
        if parent in in_code or parent.tag == "pre":
            in_code.add(element)
        elif element.tag in BLOCK_TAGS:
            while parent is not None and parent not in around:
                around.add(parent)
                parent = None if parent is body else parent.getparent()
    return around


def _add_run(blocks: list[PageBlock], run: PageBlock) -> None:
    lead = run.region.element.text if run.before is None else run.before.tail
    if run.elements or (lead and not lead.isspace()):
        _add(blocks, run, lead or "")


def _add(blocks: list[PageBlock], block: PageBlock, lead: str = "") -> None:
    """Add a block that shows a text or a picture."""
    texts = [lead]
    links = 0
    for element in block.elements:
        texts.extend(element.itertext())
        if block.is_run:
            texts.append(element.tail or "")
        for link in element.iter("a"):
            links += _count_letters(link.itertext())
        block.has_media = block.has_media or next(element.iter(*MEDIA), None) is not None
    block.text = "".join("".join(texts).split())
    block.link_letters = len(block.text) if block.region.is_link else min(links, len(block.text))
    if block.text or block.has_media:
        blocks.append(block)


def _count_letters(texts: Iterable[str]) -> int:
    return sum(len(word) for text in texts for word in text.split())
