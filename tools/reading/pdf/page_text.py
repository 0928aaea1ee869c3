"""Write the text of a page: its rows, with the targets of links and the values of form fields in their places."""

import re
from collections.abc import Sequence
from itertools import groupby

from toolgate.tools.reading.pdf.page import Field, Link, PdfPage
from toolgate.tools.reading.pdf.rows import arrange
from toolgate.tools.reading.pdf.runs import join_words
from toolgate.tools.reading.pdf.segments import Piece, Segment, join_runs
from toolgate.tools.reading.pdf.writing import write_rows

FIELD_SIZE = 12.0  # points: the usual height of a line of a form
FIELD_LEVEL = 0.8  # share of the size by which a label's baseline may differ from its field's
DOTS = re.compile(r"(?: \|)? ?(?:[.·…] ?){5,}(?:\| )?")  # that lead from a title to its page's number
LINE_END = Piece("\n")


def read_page_text(page: PdfPage) -> str:
    """Return the text of a page, "" if it has none."""
    links = page.read_links()
    segments = list(join_runs(join_words(page.read_words(splits_phrases=bool(links)), links)))
    left_over = [field for field in page.read_fields() if not _place_field(field, segments)]
    lines = [*write_rows(arrange(segments)), *([Piece(_name_field(field))] for field in left_over)]
    pieces = [piece for line in lines for piece in (*line, LINE_END)]
    text = DOTS.sub(" … ", _write_links(pieces)).strip("\n")
    return "\n".join(filter(None, [text, *_list_other_links(links, pieces)]))


def _place_field(field: Field, segments: list[Segment]) -> bool:
    """Insert a field's value beside the text on its line. Return whether there is such a text."""
    size = min(FIELD_SIZE, max(1.0, field.box.top - field.box.bottom))
    middle = (field.box.top + field.box.bottom) / 2 - size / 3
    value = Segment([Piece(field.value)], field.box.left, field.box.right, middle, size, 0.0)
    level = [
        (index, segment)
        for index, segment in enumerate(segments)
        if segment.angle == 0.0 and abs(segment.base - middle) <= FIELD_LEVEL * max(size, segment.size)
    ]
    if not level:
        return False
    before = [(segment.right, index) for index, segment in level if segment.right <= field.box.left + size / 2]
    index = max(before)[1] if before else min(index for index, _ in level) - 1
    nearest = segments[index if before else index + 1]
    value.base, value.size = nearest.base, nearest.size
    segments.insert(index + 1, value)
    return True


def _name_field(field: Field) -> str:
    return f"{field.name}: {field.value}" if field.name else field.value


def _write_links(pieces: Sequence[Piece]) -> str:
    """Return the text of the pieces with each link's target behind its text, as in Markdown."""
    texts: list[str] = []
    for link, group in groupby(_join_links(pieces), key=lambda piece: piece.link):
        text = "".join(piece.text for piece in group)
        texts.append(f"[{text}]({link})" if link and not _is_address(text, link) else text)
    return "".join(texts)


def _join_links(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces with white space inside a link as a part of it."""
    joined: list[Piece] = []
    for index, piece in enumerate(pieces):
        following = pieces[index + 1].link if index + 1 < len(pieces) else ""
        is_inside = piece.text.isspace() and joined and joined[-1].link == following
        joined.append(Piece(piece.text, following) if is_inside else piece)
    return joined


def _is_address(text: str, link: str) -> bool:
    """Return whether a link's text says its target."""
    plain = link.removeprefix("https://").removeprefix("http://").removeprefix("mailto:").rstrip("/")
    said = "".join(text.split()).removeprefix("https://").removeprefix("http://").rstrip("/")
    return said.casefold() == plain.casefold()


def _list_other_links(links: Sequence[Link], pieces: Sequence[Piece]) -> list[str]:
    """Return the targets of links on pictures."""
    shown = {piece.link for piece in pieces}
    return [f"<{target}>" for target in dict.fromkeys(link.target for link in links) if target not in shown]
