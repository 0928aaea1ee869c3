"""Write superscripts and subscripts as text: 2^32, 10^-6, x^(n+1), x₁, H₂O, x_max.

A superscript follows `^`, a subscript `_`, in parentheses if it is more than a number or a word. A subscript of digits
is written with Unicode's. Marks of footnotes and ordinals stay as they are: word[1], 1st.
"""

import re

from toolgate.tools.web.html.edit import UNWRAP, Element, replace_by_text, text_of

SUBSCRIPTS = str.maketrans("0123456789+-−=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎")
LONGEST = 40  # characters; a longer one is a note
SIMPLE = re.compile(r"[+\-−]?\w+(?:[.,]\d+)?|\d+[+\-−]")
ORDINAL = re.compile(r"st|nd|rd|th|ers?|re|ère|e|è?me|nde?", re.IGNORECASE)
MARKS = re.compile(r"\W*|tm|sm", re.IGNORECASE)
NOTE = re.compile(r"[\[(].*[\])]", re.DOTALL)
KEPT_INSIDE = ("img", "picture", "br", "table", "p", "div", "ul", "ol", "pre", "code")


def write_scripts(part: Element) -> None:
    """Replace `<sup>` and `<sub>` by text. Those inside another come first."""
    for element in reversed(list(part.iter("sup", "sub"))):
        write = _write_superscript if element.tag == "sup" else _write_subscript
        write(element)


def _write_superscript(element: Element) -> None:
    text = " ".join(text_of(element).split())
    link = element.find(".//a")
    if link is not None and text == " ".join(text_of(link).split()) and not NOTE.fullmatch(text):
        _write_reference(element, link, text)
    elif _stays(element, text) or (ORDINAL.fullmatch(text) and _character_before(element).isdigit()):
        element.tag = UNWRAP
    else:
        replace_by_text(element, f"^{_group(text)}")


def _write_reference(element: Element, link: Element, text: str) -> None:
    """Write the number of a footnote, whose link leads within the page, in brackets."""
    if not text or len(text) > LONGEST or not link.get("href", "").startswith("#"):
        element.tag = UNWRAP
    else:
        replace_by_text(element, f"[{text}]")


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
    return text if SIMPLE.fullmatch(text) else f"({text})"


def _character_before(element: Element) -> str:
    """Return the character before an element, or ""."""
    previous = element.getprevious()
    parent = element.getparent()
    text = previous.tail if previous is not None else (parent.text if parent is not None else "")
    if not text and previous is not None:
        text = text_of(previous)
    return (text or "")[-1:]
