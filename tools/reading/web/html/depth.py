"""Flatten the markup of a page that nests its elements too deep to be parsed."""

import re

from toolgate.tools.reading.web.html.edit import BLOCKS

MAX_LEVELS = 100  # elements that stay around a text
INLINE = re.compile(r"</?(?:span|font|b|i|u|s|em|strong|small|big|abbr|acronym|nobr|ins|del|mark)(?:\s[^<>]*)?>", re.I)
TAG = re.compile(r"<(/?)([a-zA-Z][^\s/<>]*)[^<>]*>")
RAW = frozenset(("script", "style", "textarea", "title"))  # what stands in them is no markup
VOID = frozenset(
    (
        *("area", "base", "basefont", "bgsound", "br", "col", "embed", "frame", "hr", "img", "input", "keygen", "link"),
        *("meta", "param", "source", "track", "wbr"),
    )
)
# An open element that ends where one of the others begins
ENDED_BY = {
    "p": BLOCKS,
    "li": frozenset({"li"}),
    "dt": frozenset({"dt", "dd"}),
    "dd": frozenset({"dt", "dd"}),
    "td": frozenset({"td", "th", "tr", "tbody", "tfoot"}),
    "th": frozenset({"td", "th", "tr", "tbody", "tfoot"}),
    "tr": frozenset({"tr", "tbody", "tfoot"}),
    "option": frozenset({"option", "optgroup"}),
}


def remove_inline_tags(html: str) -> str:
    """Return the markup without tags of formatting, which old pages forget to close."""
    return INLINE.sub("", html)


def flatten_markup(html: str, max_levels: int = MAX_LEVELS) -> str:
    """Return the markup without the tags deeper than `max_levels`. A deeper block becomes a line break."""
    pieces: list[str] = []
    levels: list[str] = []
    position = 0
    raw_end = 0
    lower = html.lower()
    for tag in TAG.finditer(html):
        if tag.start() < raw_end:
            continue
        pieces.append(html[position : tag.start()])
        position = tag.end()
        name = tag[2].lower()
        if name in RAW:
            pieces.append(tag[0])
            end = -1 if tag[1] else lower.find(f"</{name}", position)
            raw_end = len(html) if end < 0 and not tag[1] else end
        elif tag[1]:
            pieces.append(_close(levels, name, tag[0], max_levels))
        else:
            pieces.append(_open(levels, name, tag[0], max_levels))
    pieces.append(html[position:])
    return "".join(pieces)


def _open(levels: list[str], name: str, tag: str, most: int) -> str:
    if name in VOID:
        return tag
    while levels and name in ENDED_BY.get(levels[-1], ()):
        levels.pop()
    levels.append(name)
    return tag if len(levels) <= most else _break(name)


def _close(levels: list[str], name: str, tag: str, most: int) -> str:
    """Close the nearest open element of that name, as far as the levels that are left out reach; see `_open`."""
    depth = next((at for at in range(len(levels) - 1, max(-1, len(levels) - 1 - most), -1) if levels[at] == name), -1)
    if depth < 0:
        return ""
    del levels[depth:]
    return tag if depth < most else _break(name)


def _break(name: str) -> str:
    return "<br>" if name in BLOCKS else ""


def remove_tags(html: str) -> str:
    """Return the text of a page with line breaks, for one whose tags don't match."""
    return flatten_markup(html, max_levels=0)
