"""Edit a tree in linear time: mark elements, and apply all marks at once.

An element that is removed leaves two adjacent pieces of text. lxml joins such pieces on each read, so a page with many
of them takes quadratic time. Marks leave the text alone until the tree is written.
"""

import importlib
import re
from collections.abc import Iterable
from typing import Any

from toolgate.tools.api.text.cleaning import clean_text

Element = Any  # lxml has no types

REMOVE = "toolgate-remove"  # the tag of elements whose text goes, too
UNWRAP = "toolgate-unwrap"  # the tag of elements whose content stays
AttributeIndex = dict[str, list[Element]]  # the elements that have an attribute
MAX_ATTRIBUTE = 1_000  # characters; lookups of ancestors read long ones again and again
ADDRESSES = frozenset({"href", "src", "data-src"})
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
BLOCKS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "center", "details", "dd", "div", "dl", "dt", "fieldset"),
        *("figcaption", "figure", "footer", "form", "header", "hr", "li", "main", "nav", "ol", "p", "pre"),
        *("section", "summary", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "ul", *HEADINGS),
    )
)


def index_attributes(body: Element, names: Iterable[str]) -> AttributeIndex:
    """Return the elements inside that have each attribute, in their order. Attributes too long to be read go."""
    index: AttributeIndex = {name: [] for name in names}
    for element in body.iter(importlib.import_module("lxml.etree").Element):
        for name, value in element.items():
            if len(value) > MAX_ATTRIBUTE and name not in ADDRESSES:
                del element.attrib[name]
            elif name in index:
                index[name].append(element)
    return index


def replace_by_text(element: Element, text: str, tag: str = UNWRAP) -> None:
    """Replace an element by a text, or by another element with that text. The text behind it stays."""
    element.clear(keep_tail=True)
    element.tag = tag
    element.text = clean_text(text)  # lxml refuses control characters


def apply_marks(part: Element, *removed_tags: str) -> None:
    """Remove the marked elements and those with these tags, but not the text behind them."""
    etree: Any = importlib.import_module("lxml.etree")  # start-up
    etree.strip_elements(part, REMOVE, *removed_tags, with_tail=False)
    etree.strip_tags(part, UNWRAP)


def class_words(element: Element) -> list[str]:
    return [word.lower() for word in element.get("class", "").split()]


def has_class(element: Element, pattern: re.Pattern[str]) -> bool:
    """Return whether a word of the element's class matches in full."""
    return any(pattern.fullmatch(word) for word in class_words(element))


def text_of(element: Element) -> str:
    """Return the text inside an element."""
    text: str = element.xpath("string()")
    return text


def has_text(element: Element) -> bool:
    return any(piece.strip() for piece in element.itertext())


def has_any(element: Element, tags: Iterable[str]) -> bool:
    """Return whether an element with one of these tags is inside."""
    return next((each for each in element.iter(*tags) if each is not element), None) is not None


def create_element(tag: str) -> Element:
    etree: Any = importlib.import_module("lxml.etree")  # start-up
    return etree.Element(tag)
