"""Choose the content of a page, and cut the rest from its tree."""

from itertools import accumulate

from toolgate.tools.reading.web.content import rules
from toolgate.tools.reading.web.content.blocks import PageBlock, PageBlocks, divide
from toolgate.tools.reading.web.content.documentation import is_documentation
from toolgate.tools.reading.web.content.rules import Choice
from toolgate.tools.reading.web.content.signs import Evidence, describe, gather_evidence
from toolgate.tools.reading.web.content.text_vote import vote_by_text
from toolgate.tools.reading.web.content.weights import THRESHOLD, weigh
from toolgate.tools.reading.web.html.edit import REMOVE, Element, apply_marks

MAX_ELEMENTS = 30_000  # above, trafilatura takes seconds, and the rules for documentation decide alone


def choose_content(body: Element, generator: str = "") -> Element:
    """Return the body of a prepared page (see `html.prepare`) without what is around its content. Changes the tree.

    `generator` names the program that made the page (`documentation.find_generator`).
    """
    page = divide(body)
    if sum(1 for _ in body.iter()) > MAX_ELEMENTS:
        nothing = [0.0] * len(page.blocks)
        stays = choose_blocks(gather_evidence(page, nothing), nothing, True)
    else:
        evidence = gather_evidence(page, vote_by_text(body, page.blocks))
        scores = [weigh(signs) for signs in describe(evidence)]
        stays = choose_blocks(evidence, scores, is_documentation(body, page, generator))
    cut_blocks(page, stays)
    apply_marks(body)
    return body


def choose_blocks(evidence: Evidence, scores: list[float], is_manual: bool) -> list[bool]:
    """Return which blocks are content, by their scores from 0 to 1 and the rules."""
    choice: Choice = rules.start_choice(evidence, [score > THRESHOLD for score in scores])
    if is_manual:
        rules.keep_all_but_around(choice)
    else:
        rules.join_lists(choice)
        rules.follow_headings(choice)
        rules.join_cards(choice)
    rules.keep_code(choice)
    rules.keep_notes(choice)
    rules.keep_prose(choice)
    rules.keep_beginning(choice)
    rules.keep_least(choice)
    rules.keep_pictures(choice)
    return choice.stays


def cut_blocks(page: PageBlocks, stays: list[bool]) -> None:
    """Mark the highest elements in which no block stays, and empty the runs that go."""
    staying = list(accumulate(stays, initial=0))
    marked: set[int] = set()
    for region in page.regions[1:]:
        is_empty = region.end > region.start and staying[region.end] == staying[region.start]
        if id(region.parent) in marked:
            marked.add(id(region))
        elif is_empty:
            marked.add(id(region))
            _mark(region.element)
    for block, is_content in zip(page.blocks, stays, strict=True):
        if not is_content and id(block.region) not in marked:
            _mark_block(block)


def _mark_block(block: PageBlock) -> None:
    if not block.is_run:
        _mark(block.elements[0])
        return
    for element in block.elements:
        element.tag = REMOVE
        element.tail = None
    if block.before is None:
        block.region.element.text = None
    else:
        block.before.tail = None


def _mark(element: Element) -> None:
    """Mark an element to be removed. Where text follows, an empty one stays, so that no words meet."""
    if (element.tail or "").strip():
        element.clear(keep_tail=True)
        element.tag = "div"
    else:
        element.tag = REMOVE
