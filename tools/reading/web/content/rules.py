"""Correct a choice of blocks by what belongs together: lists, headings, code, the beginning, pictures."""

import msgspec

from toolgate.tools.reading.web.content.blocks import PageBlock, PageBlocks, RangeSums, Region
from toolgate.tools.reading.web.content.names import is_caption
from toolgate.tools.reading.web.content.places import HIDDEN, NOTE, Place
from toolgate.tools.reading.web.content.signs import SENTENCE_ENDS, Evidence

VOTE = 0.3  # of either kind: less is none
BRIEF = 40  # letters of a block that is a menu's if it is mostly links
MENU_LINKS = 0.6  # share of links
WHOLE_LIST, NO_LIST = 0.6, 0.2  # shares of a list's letters: from the first all of it stays, below the other nothing
DATA_CELLS = 0.7  # share of blocks that are cells in a table of data; one that lays out a page has more others
PROSE = 40  # letters
SENTENCE = 12  # letters of one at a page's beginning
MAX_BEGINNING = 6  # blocks
PROSE_LINKS = 0.3  # share of links
LITTLE_PROSE = 0.2  # share of a page's prose: a choice of less has missed the content
LEAST = 60  # letters: of a page with less, all stays that is not around
FEW = 30  # letters: then all but menus stays
MIN_AROUND = 200  # letters around a picture: fewer may be its caption
NEAR_NOTE = 3  # blocks between a note and the content
LEVELS = 7
AROUND = ("nav", "footer", HIDDEN)
LIST_TAGS = ("ul", "ol", "dl")


class Choice(msgspec.Struct):
    """Which blocks stay, and which are around the content."""

    evidence: Evidence
    stays: list[bool]
    is_around: list[bool]

    @property
    def page(self) -> PageBlocks:
        return self.evidence.page

    def sum_staying(self) -> RangeSums:
        return self.evidence.sum_letters([float(stays) for stays in self.stays])


def is_around(block: PageBlock, place: Place, has_vote: bool) -> bool:
    """Return whether a block is a menu, a footer, hidden, or without a vote and named or built like one."""
    if place.is_in(*AROUND):
        return True
    is_menu = len(block.text) < BRIEF and block.link_letters > MENU_LINKS * len(block.text)
    return not has_vote and (place.is_in("aside") or place.noise > 0 or is_menu)


def start_choice(evidence: Evidence, stays: list[bool]) -> Choice:
    votes = zip(evidence.text_votes, evidence.point_votes, strict=True)
    around = [
        is_around(block, place, max(both) > VOTE)
        for block, place, both in zip(evidence.page.blocks, evidence.places, votes, strict=True)
    ]
    return Choice(evidence, stays, around)


def keep_all_but_around(choice: Choice) -> None:
    choice.stays = [stays or not around for stays, around in zip(choice.stays, choice.is_around, strict=True)]


def join_lists(choice: Choice) -> None:
    """Keep a list or a table of data as a whole if most of it stays, and cut it if little does."""
    letters, staying = choice.evidence.sum_letters(), choice.sum_staying()
    for region in choice.page.regions:
        total = letters.over(region)
        if total and (region.element.tag in LIST_TAGS or _is_data(choice.page, region)):
            share = staying.over(region) / total
            if share >= WHOLE_LIST or share < NO_LIST:
                choice.stays[region.start : region.end] = [share >= WHOLE_LIST] * (region.end - region.start)


def _is_data(page: PageBlocks, region: Region) -> bool:
    if region.element.tag != "table":
        return False
    blocks = page.blocks[region.start : region.end]
    cells = sum(not block.is_run and block.tag in ("td", "th") for block in blocks)
    return cells >= DATA_CELLS * len(blocks)


def follow_headings(choice: Choice) -> None:
    """Keep a heading if something under it stays, and cut it otherwise."""
    has_content = [False] * LEVELS  # by the level of a heading before this block
    for number in reversed(range(len(choice.stays))):
        level = choice.page.blocks[number].heading_level
        if level:
            choice.stays[number] = has_content[level]
            has_content[level:] = [False] * (LEVELS - level)
        elif choice.stays[number]:
            has_content = [True] * LEVELS


def join_cards(choice: Choice) -> None:
    """Keep a link around blocks as a whole if its heading stays."""
    blocks = choice.page.blocks
    for region in choice.page.regions:
        inside = range(region.start, region.end)
        if region.element.tag == "a" and any(choice.stays[each] and blocks[each].heading_level for each in inside):
            choice.stays[region.start : region.end] = [True] * len(inside)


def keep_code(choice: Choice) -> None:
    """Keep all code, also in a column beside the text, or of links alone."""
    for number, place in enumerate(choice.evidence.places):
        if choice.page.blocks[number].tag == "pre" and not place.is_in(*AROUND):
            choice.stays[number] = True


def keep_notes(choice: Choice) -> None:
    """Keep the notes and warnings that stand at the content."""
    for number, place in enumerate(choice.evidence.places):
        if place.is_in(NOTE) and not choice.is_around[number]:
            near = choice.stays[max(0, number - NEAR_NOTE) : number + NEAR_NOTE]
            choice.stays[number] = choice.stays[number] or any(near)


def keep_prose(choice: Choice) -> None:
    """Keep all prose of a page if the choice has missed nearly all of it."""
    prose = [number for number in range(len(choice.stays)) if _is_prose(choice, number, PROSE)]
    lengths = {number: len(choice.page.blocks[number].text) for number in prose}
    if sum(lengths[number] for number in prose if choice.stays[number]) < LITTLE_PROSE * sum(lengths.values()):
        for number in prose:
            choice.stays[number] = True


def keep_beginning(choice: Choice) -> None:
    """Keep the title above the first text that stays, and between them prose, sentences and whole sections."""
    blocks = choice.page.blocks
    texts = (number for number, block in enumerate(blocks) if block.text and not block.heading_level)
    first = next((number for number in texts if choice.stays[number]), 0)
    title = _find_title(choice, first)
    if title is None:
        return
    choice.stays[title] = True
    heading: int | None = None
    for number in range(title + 1, first):
        if blocks[number].heading_level and not choice.is_around[number]:
            heading = number
        elif _is_beginning(choice, number, first - title <= MAX_BEGINNING, heading is not None):
            choice.stays[number] = True
            choice.stays[title if heading is None else heading] = True


def _is_beginning(choice: Choice, number: int, is_near: bool, is_section: bool) -> bool:
    block = choice.page.blocks[number]
    if choice.evidence.places[number].is_in("figure") or is_caption(block):
        return False
    if _is_prose(choice, number, PROSE):
        return True
    is_text = is_section or block.text.endswith(SENTENCE_ENDS)
    return is_near and is_text and _is_prose(choice, number, SENTENCE)


def _find_title(choice: Choice, first: int) -> int | None:
    """Return the nearest h1 above a block, or the h2 or h3 directly above it, or None."""
    blocks = choice.page.blocks
    headings = [
        number for number in reversed(range(first)) if blocks[number].heading_level and not choice.is_around[number]
    ]
    near = (number for number in headings if number == first - 1 and blocks[number].heading_level <= 3)
    return next((number for number in headings if blocks[number].heading_level == 1), next(near, None))


def _is_prose(choice: Choice, number: int, least: int) -> bool:
    block = choice.page.blocks[number]
    has_few_links = block.link_letters < PROSE_LINKS * len(block.text)
    return len(block.text) >= least and has_few_links and not choice.is_around[number]


def keep_least(choice: Choice) -> None:
    """Keep what is not around of a page if hardly anything stays, or all but menus and hidden parts."""
    if choice.sum_staying().total < LEAST:
        keep_all_but_around(choice)
    if choice.sum_staying().total < FEW:
        choice.stays = [not place.is_in("nav", HIDDEN) for place in choice.evidence.places]


def keep_pictures(choice: Choice) -> None:
    """Keep a picture if most of the text around it stays, its caption apart."""
    letters, staying = choice.evidence.sum_letters(), choice.sum_staying()
    for number, block in enumerate(choice.page.blocks):
        if block.text:
            continue
        region: Region | None = block.region
        while region is not None and letters.over(region) < MIN_AROUND:
            region = region.parent
        if region is None:
            region = choice.page.regions[0]
        mostly = staying.over(region) >= 0.5 * letters.over(region)
        choice.stays[number] = mostly and not choice.evidence.places[number].is_in(*AROUND)
