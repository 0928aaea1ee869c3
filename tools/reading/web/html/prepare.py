"""Prepare the body of a page for the choice of its content: formulas, code, panels and boxes as plain elements."""

import importlib
import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from toolgate.tools.reading.web.html.edit import (
    UNWRAP,
    Element,
    apply_marks,
    create_element,
    has_any,
    has_class,
    has_text,
    index_attributes,
)
from toolgate.tools.reading.web.html.formulas import write_formulas
from toolgate.tools.reading.web.html.labels import CONTROLS, keep_labels
from toolgate.tools.reading.web.html.links import take_fallback_pictures
from toolgate.tools.reading.web.html.listings import prepare_listings
from toolgate.tools.reading.web.html.lists import write_checkboxes
from toolgate.tools.reading.web.html.panels import reveal_waiting, show_panels
from toolgate.tools.reading.web.html.parse import join_text

MAX_FRAMES = 50
LITTLE = 200  # characters: a shorter page was likely to be filled by scripts

ATTRIBUTES = (
    *("aria-controls", "aria-expanded", "aria-hidden", "aria-labelledby", "class", "data-bs-toggle", "data-tab"),
    *("data-target", "data-toggle", "hidden", "id", "onclick", "role", "style"),
)
UNREADABLE = ("script", "style", "template", "svg", "math", "canvas", "head")
FALLBACK = (
    "embed",
    "object",
    "applet",
    "source",
    "track",
    "param",
    "bgsound",
    "keygen",
    "command",
    "menuitem",
    "noembed",
)
BREAKS_OUT = ("p", "div", "h1", "h2", "h3", "h4", "ul", "ol", "dl", "table", "pre", "blockquote")  # of SVG and MathML
NOTES = re.compile(r".*(?:footnote|endnote|reference|bibliograph|citation|notes?).*|sources")
NOTE_ROLES = frozenset(("doc-endnotes", "doc-footnote", "doc-bibliography", "note"))


def prepare(tree: Element) -> Element:
    """Return the body of a page, ready for the choice of its content. Changes the tree.

    What a click shows is shown, and the attribute `hidden` marks what nobody sees. Formulas are text. The listings of
    code stand in `pre`, without line numbers. Scripts, controls and pictures without text are gone.
    """
    body = _find_body(tree)
    is_for_scripts = _is_for_scripts(body)
    _write_frames(tree, body, ("frame", "iframe") if is_for_scripts else ("frame",))
    if is_for_scripts:
        for noscript in list(body.iter("noscript")):
            noscript.tag = "div"
    take_fallback_pictures(body)
    index = index_attributes(body, ATTRIBUTES)
    _unwrap_fallbacks(body)
    write_formulas(body, index)
    show_panels(body, index)
    write_checkboxes(body)
    keep_labels(body, index)
    _keep_notes(body)
    prepare_listings(body, index)
    apply_marks(body, *UNREADABLE, *CONTROLS, "noscript")
    body = _find_body(join_text(body))
    reveal_waiting(body)
    return body


def _find_body(tree: Element) -> Element:
    body = tree.find("body") if tree.tag == "html" else tree
    return tree if body is None else body


def _is_for_scripts(body: Element) -> bool:
    etree: Any = importlib.import_module("lxml.etree")
    seen = 0
    walk = etree.iterwalk(body, events=("start", "end"))
    for event, element in walk:
        if event == "end":
            seen += 0 if element is body else len((element.tail or "").strip())
        elif element.tag in ("script", "style", "noscript"):
            walk.skip_subtree()
        else:
            seen += len((element.text or "").strip())
        if seen >= LITTLE:
            return False
    return True


def _write_frames(tree: Element, body: Element, tags: Sequence[str]) -> None:
    """Name the pages that a page shows in frames."""
    frames = islice(tree.iter(*tags), MAX_FRAMES)
    named = [frame for frame in frames if frame.get("src", "").strip()]
    if not named:
        return
    entries = create_element("ul")
    for frame in named:
        entry, link = create_element("li"), create_element("a")
        source = frame.get("src", "").strip()
        link.set("href", source)
        link.text = f"Frame {frame.get('name') or frame.get('title') or source}"
        entry.append(link)
        entries.append(entry)
    body.append(entries)


def _unwrap_fallbacks(body: Element) -> None:
    """Unwrap elements without content of their own: lxml takes what follows some of them for their content."""
    for element in list(body.iter(*FALLBACK)):
        element.tag = UNWRAP
    for element in body.xpath("descendant::template[@shadowrootmode or @shadowroot]"):
        element.tag = UNWRAP
    for element in list(body.iter("svg", "math", "canvas")):
        if has_any(element, BREAKS_OUT) and next(element.iter("foreignobject"), None) is None:
            element.tag = UNWRAP


def _keep_notes(body: Element) -> None:
    """Keep the footer of a quotation, which names its source, and an article's notes."""
    for footer in list(body.iter("footer")):
        around = [each.tag for each in islice(footer.iterancestors(), 12)]
        is_source = any(tag in ("blockquote", "q", "figure") for tag in around[:4])
        if is_source or (any(tag in ("article", "main", "section") for tag in around) and _holds_notes(footer)):
            footer.tag = "div"


def _holds_notes(footer: Element) -> bool:
    if next(footer.iter("ol"), None) is not None and has_text(footer):
        return True
    parts = footer.iter("footer", "section", "div", "ul", "aside", "h2", "h3", "h4", "p")
    return any(has_class(each, NOTES) or each.get("role", "") in NOTE_ROLES for each in islice(parts, 50))
