"""Vote on blocks by the points that paragraphs give to the elements around them, as readers of articles do."""

import re

from toolgate.tools.reading.web.content.blocks import PageBlock, PageBlocks, RangeSums, Region

PARAGRAPH_TAGS = frozenset(("p", "pre", "td", "div", "section", "article", "blockquote", "li", "dd", "main", "body"))
PARAGRAPH = 25  # letters; shorter blocks give no points
LONG_PARAGRAPH = 80  # letters of a paragraph that belongs to the best region beside it
FEW_LINKS = 0.33  # share of links in such a paragraph
POINT_LENGTH = 100  # letters that give a point
MAX_LENGTH_POINTS = 3
BESIDE = 0.2  # share of the best region's points that a region beside it needs
LEAST_BESIDE = 10  # points
CLAUSES = re.compile("[,،、，;；。]")


def vote_by_points(page: PageBlocks) -> list[float]:
    """Return 1 for the blocks of the region with most points and of those like it beside it, else 0. A paragraph gives
    its points to its region, and half of them to the region around that. Links take points away."""
    points = _weigh_regions(page)
    votes = [0.0] * len(page.blocks)
    best = max(page.regions, key=lambda region: points.get(id(region), 0.0))
    most = points.get(id(best), 0.0)
    if most <= 0:
        return votes
    for region in page.regions:
        is_like = region.parent is best.parent and points.get(id(region), 0.0) >= max(LEAST_BESIDE, BESIDE * most)
        if region is best or is_like:
            votes[region.start : region.end] = [1.0] * (region.end - region.start)
    for number, block in enumerate(page.blocks):
        if block.region is best.parent and len(block.text) > LONG_PARAGRAPH and _link_share(block) < FEW_LINKS:
            votes[number] = 1.0
    return votes


def _weigh_regions(page: PageBlocks) -> dict[int, float]:
    """Return the points of regions by their id, less for their links."""
    points: dict[int, float] = {}
    for block in page.blocks:
        if len(block.text) >= PARAGRAPH and block.tag in PARAGRAPH_TAGS:
            given = _count_points(block)
            _add_points(points, block.region, given)
            _add_points(points, block.region.parent, given / 2)
    letters = RangeSums(len(block.text) for block in page.blocks)
    links = RangeSums(block.link_letters for block in page.blocks)
    for region in page.regions:
        if id(region) in points:
            points[id(region)] *= 1 - links.over(region) / letters.over(region)
    return points


def _count_points(block: PageBlock) -> float:
    length = min(len(block.text) / POINT_LENGTH, MAX_LENGTH_POINTS)
    return (1 + len(CLAUSES.findall(block.text)) + length) * (1 - _link_share(block))


def _add_points(points: dict[int, float], region: Region | None, count: float) -> None:
    if region is not None:
        points[id(region)] = points.get(id(region), 0.0) + count


def _link_share(block: PageBlock) -> float:
    return block.link_letters / len(block.text)
