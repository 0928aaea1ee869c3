"""Find what is around each block: tags and roles that say what they hold, and names of noise."""

import msgspec

from toolgate.tools.reading.web.content.blocks import PageBlocks, RangeSums
from toolgate.tools.reading.web.content.names import has_noise_name, has_note_name
from toolgate.tools.reading.web.html.edit import Element

TAGS = frozenset(("nav", "footer", "aside", "form", "figure", "table", "li"))
ROLES = {"navigation": "nav", "contentinfo": "footer", "complementary": "aside"}
HIDDEN, NOTE = "hidden", "note"
PAGE_TAGS = frozenset(("aside", "form"))  # of old layouts, around a whole page
PAGE_SHARE = 0.85  # of a page's letters outside links
LEVELS = 6  # of elements whose names count: a block's own and five around it


class Place(msgspec.Struct, frozen=True):
    """The tags around a block, its own too; bit n of `noise` says whether level n above it has a name of noise."""

    tags: frozenset[str] = frozenset()
    noise: int = 0

    def is_in(self, *tags: str) -> bool:
        return not self.tags.isdisjoint(tags)

    def enter(self, element: Element, is_page: bool = False) -> "Place":
        """Return the place inside an element of this place. One that holds the page has its name from its layout
        ("has-sidebar"), and is no form or column."""
        tag: str = element.tag
        tags = TAGS & {ROLES.get(element.get("role") or "", tag)} - (PAGE_TAGS if is_page else frozenset())
        if element.get(HIDDEN) is not None:
            tags |= {HIDDEN}
        if has_note_name(element):
            tags = tags - {"aside"} | {NOTE}
        noise = (self.noise << 1) & (2**LEVELS - 1) | (not is_page and has_noise_name(element))
        if tags <= self.tags and noise == self.noise:
            return self
        return Place(self.tags | tags, noise)


def find_places(page: PageBlocks) -> list[Place]:
    """Return the place of each block."""
    inside: dict[int, Place] = {}
    prose = RangeSums(len(block.text) - block.link_letters for block in page.blocks)
    for region in page.regions:
        around = Place() if region.parent is None else inside[id(region.parent)]
        inside[id(region)] = around.enter(region.element, prose.over(region) > PAGE_SHARE * prose.total)
    places: list[Place] = []
    for block in page.blocks:
        place = inside[id(block.region)]
        is_element = len(block.elements) == 1 and not (block.is_run and (block.elements[0].tail or "").strip())
        places.append(place.enter(block.elements[0]) if is_element else place)
    return places
