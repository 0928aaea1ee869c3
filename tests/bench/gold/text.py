"""Bring answers and gold text into one form: lines without markup."""

import html
import re
from typing import Any

BLOCKS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "body", "br", "caption", "center", "dd", "details", "div", "dl"),
        *("dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header"),
        *("hr", "li", "main", "nav", "ol", "p", "pre", "section", "summary", "table", "tbody", "td", "tfoot", "th"),
        *("thead", "tr", "ul"),
    )
)
UNSEEN = frozenset(("script", "style", "template", "head", "noscript"))
TARGET = r"\((?:<[^<>\n]*>|(?:[^()\s\\]|\\.|\((?:[^()\s]|\([^()\s]*\))*\))*)(?:\s+\"(?:[^\"\\]|\\.)*\")?\)"
PICTURE = re.compile(r"!\[(?:[^\[\]\\]|\\.|\[[^\[\]]*\])*\]" + TARGET)
LINK = re.compile(r"\[((?:[^\[\]\\]|\\.|\[(?:[^\[\]\\]|\\.)*\])*)\]" + TARGET)
MARKS = (
    (re.compile(r"^\s*(?:```|~~~).*$", re.MULTILINE), ""),
    (re.compile(r"^(?:\s*>)+ ?", re.MULTILINE), ""),
    (re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+", re.MULTILINE), ""),
    (re.compile(r"^\s*#{1,6} ", re.MULTILINE), ""),
    (re.compile(r"^\s*\|?(?:\s*:?-{3,}:?\s*\|)+\s*(?::?-{3,}:?)?\s*$", re.MULTILINE), ""),
    (re.compile(r"<br ?/?>"), " "),
    (re.compile(r"\*\*|~~|`"), ""),
    (re.compile(r"(?<!\\)\|"), " "),
    (re.compile(r"(?<![\w\\])[*_]+(?=\w)|(?<=\w)[*_]+(?!\w)"), ""),
    (re.compile(r"\\([!-/:-@\[-`{-~])"), r"\1"),
)


def element_text(root: Any) -> str:
    """Return the text of a tree with a line break around each block."""
    parts: list[str] = []
    stack: list[Any] = [root]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            parts.append(part)
            continue
        is_seen = isinstance(part.tag, str) and part.tag not in UNSEEN
        edge = "\n" if part.tag in BLOCKS else ""
        stack += [part.tail or "" if part is not root else "", edge]
        if is_seen:
            stack += [*reversed(list(part)), part.text or "", edge]
    return "".join(parts)


def markdown_text(markdown: str) -> str:
    """Return the text of markdown without its syntax: no pictures, and links as their text."""
    text = PICTURE.sub("", markdown)
    while text != (text := LINK.sub(r"\1", PICTURE.sub("", text))):  # a picture in a link in a link
        continue
    for pattern, mark in MARKS:
        text = pattern.sub(mark, text)
    return html.unescape(text)


def join_words(text: str) -> str:
    """Return a text with single spaces."""
    return " ".join(text.split())


def letters(text: str) -> str:
    """Return the letters and digits of a text."""
    return "".join(filter(str.isalnum, text))
