"""Write superscripts and subscripts as text: 2^32, 10^-6, x^(n+1), x₁, H₂O, x_max.

A superscript follows `^`, a subscript `_`, in parentheses if it is more than a number or a word. A subscript of digits
is written with Unicode's. Marks of footnotes and ordinals stay as they are: word[1], 1st.
"""

import re

from toolgate.tools.reading.web.html.edit import UNWRAP, Element, has_class, replace_by_text, text_of

SUBSCRIPTS = str.maketrans("0123456789+-−=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎")
LONGEST = 40  # characters; a longer one is a note
SIMPLE = re.compile(r"[+\-−]?\w+(?:[.,]\d+)?|\d+[+\-−]")
ORDINAL = re.compile(r"st|nd|rd|th|ers?|re|ère|e|è?me|nde?", re.IGNORECASE)
MARKS = re.compile(r"\W*|tm|sm", re.IGNORECASE)
NOTE = re.compile(r"\[.*\]", re.DOTALL)
GROUPED = re.compile(r"\([^()]*\)")
RAISED = re.compile(r"vertical-align\s*:\s*(super|sub)\b", re.IGNORECASE)
SUPERSCRIPT = re.compile(r"superscript|sup|exponent")
SUBSCRIPT = re.compile(r"subscript|sub")
KEPT_INSIDE = ("img", "picture", "br", "table", "p", "div", "ul", "ol", "pre", "code")


def write_scripts(part: Element) -> None:
    """Replace `<sup>` and `<sub>` by text. Those inside another come first."""
    for element in part.xpath("descendant::span[contains(@style, 'vertical-align') or @class]"):
        _name_script(element)
    for element in part.iter("sup"):
        _write_fraction(element)
    for element in reversed(list(part.iter("sup", "sub"))):
        write = _write_superscript if element.tag == "sup" else _write_subscript
        write(element)


def _name_script(element: Element) -> None:
    """Name what a style raises or lowers."""
    raised = RAISED.search(element.get("style", ""))
    if (raised and raised[1].lower() == "super") or has_class(element, SUPERSCRIPT):
        element.tag = "sup"
    elif raised or has_class(element, SUBSCRIPT):
        element.tag = "sub"


def _write_fraction(element: Element) -> None:
    """Write a fraction, such as 1/2, in one line."""
    below = element.getnext()
    if below is None or below.tag != "sub" or (element.tail or "").strip() not in ("/", "⁄"):
        return
    if _character_before(element).isdigit():
        element.text = f" {element.text or ''}"
    element.tail = "/"
    element.tag = below.tag = UNWRAP


def _write_superscript(element: Element) -> None:
    text = " ".join(text_of(element).split())
    links = list(element.iter("a"))
    if links and text and all(link.get("href", "#").startswith("#") for link in links) and len(text) <= LONGEST:
        replace_by_text(element, text if NOTE.fullmatch(text) else f"[{text}]")
    elif _stays(element, text) or (ORDINAL.fullmatch(text) and _character_before(element).isdigit()):
        element.tag = UNWRAP
    else:
        replace_by_text(element, f"^{_group(text)}")


def _write_subscript(element: Element) -> None:
    text = " ".join(text_of(element).split())
    if _stays(element, text):
        element.tag = UNWRAP
    elif re.fullmatch(r"[\d+\-−=()]+", text):
        replace_by_text(element, text.translate(SUBSCRIPTS))
    else:
        replace_by_text(element, f"_{_group(text)}")


def _stays(element: Element, text: str) -> bool:
    return (
        len(text) > LONGEST
        or MARKS.fullmatch(text) is not None
        or NOTE.fullmatch(text) is not None
        or next(element.iter("a", *KEPT_INSIDE), None) is not None
    )


def _group(text: str) -> str:
    return text if SIMPLE.fullmatch(text) or GROUPED.fullmatch(text) else f"({text})"


def _character_before(element: Element) -> str:
    """Return the character before an element, or ""."""
    previous = element.getprevious()
    parent = element.getparent()
    text = previous.tail if previous is not None else (parent.text if parent is not None else "")
    if not text and previous is not None:
        text = text_of(previous)
    return (text or "")[-1:]
