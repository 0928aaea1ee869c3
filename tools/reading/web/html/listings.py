"""Write code as text: its lines, without the tables, line numbers, links and colours that show it."""

import importlib
import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

from toolgate.tools.api.text.cleaning import clean_text
from toolgate.tools.reading.web.html.edit import (
    BLOCKS,
    REMOVE,
    UNWRAP,
    AttributeIndex,
    Element,
    create_element,
    has_any,
    has_class,
    text_of,
)

LANGUAGE = re.compile(r"(?:^|\s)(?:language-|lang-|highlight-source-|highlight-|brush:\s*)([A-Za-z][\w+#.-]{0,19})")
NO_LANGUAGE = frozenset({"default", "none", "notranslate", "highlight", "text", "plaintext"})
PREFORMATTED = ("xmp", "listing", "plaintext")
GUTTER = re.compile(
    r"gutter|gl|linenos?|linenodiv|line-?no|linenr|line-?nr|line-?num(?:ber)?s?(?:-rows|-container)?|(?:.*[_-])?line-?numbers?"
    r"|lnt|ln|ln-num|blob-num|(?:hljs-ln|crayon|code|rouge)-(?:numbers?|nums?|gutter|line-numbers?|n)|lineno.*|line_numbers?"
)
NUMBERS = re.compile(r"[\s\d.:]*")
CODE_CELL = re.compile(
    r"(?:blob-code(?:-inner)?|hljs-ln-code|line-content|code-line|line_content|(?:rouge|crayon)-code|code|diff-line-code)"
)
CODE_LINE = re.compile(r"(?:code-|token-|view-)?line|row|cl|hljs-ln-line")
EDITOR = re.compile(
    r"cm-content|view-lines|ace_text-layer|codemirror-code|react-code-lines|crayon-pre"
)  # lines as blocks
AS_TYPED = re.compile(r"white-space\s*:\s*(?:pre|break-spaces)\s*(?:;|!|$)", re.IGNORECASE)
WRAPPED = re.compile(r"white-space\s*:\s*pre-wrap", re.IGNORECASE)
LIKELY_TABLES = (
    "descendant::table[descendant::pre or descendant::code or ancestor::pre or ancestor::code"
    " or descendant::td[contains(@class, 'code') or contains(@class, 'line')]]"
)
MAX_DIGITS = 7  # of a line's number


def prepare_listings(body: Element, index: AttributeIndex) -> None:
    """Replace the tables that show code by the code, and remove line numbers."""
    for element in list(body.iter(*PREFORMATTED)):
        element.tag = "pre"
    for table in body.xpath(LIKELY_TABLES):
        _unwrap_code_table(table)
    styled = (each for each in index["style"] if "white-space" in each.get("style", ""))
    editors = (each for each in index["class"] if each.tag == "div" and EDITOR.search(each.get("class", "")))
    for element in dict.fromkeys((*body.iter("code"), *styled, *editors)):
        if _is_listing(element) and not _is_in_pre(element) and not has_any(element, ("pre",)):
            element.tag = "pre"
    for pre in [each for each in body.iter("pre") if not _is_in_pre(each)]:
        _remove_line_numbers(pre)


def _is_listing(element: Element) -> bool:
    """Return whether an element that is no `pre` shows its lines as they are."""
    style = element.get("style", "")
    if AS_TYPED.search(style) and element.tag in ("code", "div", "p", "span"):
        return "\n" in text_of(element).strip()
    if element.tag == "code":
        is_wrapped = WRAPPED.search(style) is not None and "\n" in text_of(element).strip()
        return is_wrapped or has_any(element, ("br", "p", "div", "ul", "ol", "tr"))
    return (
        element.tag == "div"
        and EDITOR.search(element.get("class", "")) is not None
        and has_any(element, ("div", "pre"))
    )


def write_listings(part: Element) -> None:
    """Leave the lines of each listing as its text alone, and its language as a class."""
    _name_languages(part)
    for pre in [each for each in part.iter("pre") if not _is_in_pre(each)]:
        text = read_lines(pre).strip("\n").replace("\u00a0", " ")
        language = pre.get("class", "")
        pre.clear(keep_tail=True)
        pre.set("class", language)
        code = create_element("code")
        code.set("class", language)
        code.text = clean_text(text)
        pre.append(code)


def read_lines(pre: Element) -> str:
    """Return the text of a listing as it is shown."""
    etree: Any = importlib.import_module("lxml.etree")  # start-up
    are_lines = "\n" not in text_of(pre).strip() and next(pre.iter("br"), None) is None
    pieces: list[str] = []
    begins: list[int] = []
    for event, element in etree.iterwalk(pre, events=("start", "end")):
        is_line = element is not pre and (
            element.tag in BLOCKS - {"td", "th", "pre"} or (are_lines and has_class(element, CODE_LINE))
        )
        if event == "start":
            if is_line:
                _end_line(pieces)
                begins.append(len(pieces))
            if element.tag == "br":
                pieces.append("\n")
            elif element.tag == "img":
                pieces.append(element.get("alt", ""))
            pieces.append(element.text or "")
            continue
        if is_line:
            begin = begins.pop()
            if not any(pieces[begin:]) and element.tag != "tbody":
                pieces.append("\n")
            _end_line(pieces)
        if element is not pre:
            pieces.append(element.tail or "")
    return "".join(pieces)


def _end_line(pieces: list[str]) -> None:
    last = next((piece for piece in reversed(pieces) if piece), "\n")
    if not last.endswith("\n"):
        pieces.append("\n")


def _is_in_pre(element: Element) -> bool:
    return any(each.tag == "pre" for each in element.iterancestors())


def _unwrap_code_table(table: Element) -> None:
    rows = table.xpath("tr | tbody/tr | thead/tr | tfoot/tr")
    cells = [[cell for cell in row if cell.tag in ("td", "th")] for row in rows]
    if not any(cells):
        return
    if any(each.tag in ("pre", "code") for each in islice(table.iterancestors(), 4)):
        for row in cells:
            _remove_gutter(row)
    elif all(any(map(_is_line_of_code, row)) or _is_numbered(row) for row in cells if row):
        _write_rows(table, cells)
    elif any(map(_has_numbered_code, cells)) and all(len(row) < 2 or _has_numbered_code(row) for row in cells):
        if len([row for row in cells if len(row) > 1]) > 1:
            _write_rows(table, cells)
            return
        for row in cells:
            _remove_gutter(row)
        _unwrap_rows(table, rows, cells)


def _is_numbered(row: Sequence[Element]) -> bool:
    """Return whether a cell of a row is said to be the number of its line."""
    is_numbered = len(row) > 1 and any(cell.get("data-line-number") is not None for cell in row)
    return is_numbered and not any(has_any(cell, ("pre", "table", "p")) for cell in row)


def _has_numbered_code(row: Sequence[Element]) -> bool:
    """Return whether a row is line numbers beside a listing."""
    numbers = [cell for cell in row if _is_gutter(cell)]
    return 0 < len(numbers) < len(row) and all(_holds_code(cell) for cell in row if cell not in numbers)


def _holds_code(cell: Element) -> bool:
    return has_class(cell, CODE_CELL) or has_any(cell, ("pre", "code"))


def _is_gutter(cell: Element) -> bool:
    text = "".join(islice(cell.itertext(), 2_000))
    if not NUMBERS.fullmatch(text):
        return False
    if has_class(cell, GUTTER) or cell.get("data-line-number") is not None:
        return True
    return has_any(cell, ("pre",)) and _count_up(text.split())


def _count_up(words: Sequence[str]) -> bool:
    """Return whether words are numbers that follow each other."""
    numbers = [int(word) for word in words if word.isdecimal() and len(word) < MAX_DIGITS]
    return len(numbers) == len(words) > 1 and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def _is_line_of_code(cell: Element) -> bool:
    return has_class(cell, CODE_CELL) and not has_any(cell, ("table", "p", "ul", "ol", "pre"))


def _remove_gutter(row: Sequence[Element]) -> None:
    for cell in row:
        if _is_gutter(cell):
            cell.tag = REMOVE


def _unwrap_rows(table: Element, rows: Sequence[Element], cells: Sequence[Sequence[Element]]) -> None:
    for row, row_cells in zip(rows, cells, strict=True):
        for cell in row_cells:
            if cell.tag != REMOVE:
                is_listing = len(row_cells) > 1 and not has_any(cell, ("pre",))
                cell.tag = "pre" if is_listing else "div"
        if row.getparent() is not table:
            row.getparent().tag = UNWRAP
        row.tag = UNWRAP
    for caption in table.iterchildren("caption"):
        caption.tag = "p"
    table.tag = "div"


def _write_rows(table: Element, cells: Sequence[Sequence[Element]]) -> None:
    """Write a table that has a line of code in each row as a listing."""
    parts = [cell for row in cells for cell in row if not _is_gutter(cell)]
    code = [cell for cell in parts if _is_line_of_code(cell)] or parts
    lines = [read_lines(cell).strip("\n") for cell in code]
    language = _language(table)
    table.clear(keep_tail=True)
    table.tag = "pre"
    table.text = clean_text("\n".join(lines))
    if language:
        table.set("class", f"language-{language}")


def _remove_line_numbers(pre: Element) -> None:
    around = (pre, *islice(pre.iterancestors(), 2))
    if any(has_class(each, GUTTER) for each in around) and NUMBERS.fullmatch(text_of(pre)):
        pre.tag = REMOVE
        return
    for element in list(pre.iterdescendants()):
        if _is_line_number(element):
            element.tag = REMOVE


def _is_line_number(element: Element) -> bool:
    if not isinstance(element.tag, str) or element.tag == REMOVE:
        return False
    leads_here = element.tag == "a" and (element.get("href") or "#").startswith("#")
    says_so = leads_here or has_class(element, GUTTER) or element.get("data-line-number") is not None
    if not says_so or NUMBERS.fullmatch("".join(islice(element.itertext(), 2_000))) is None:
        return False
    previous, parent = element.getprevious(), element.getparent()
    before = parent.text if previous is None else previous.tail
    return not (before or "").strip(" ") or (before or "").endswith("\n")


def _name_languages(part: Element) -> None:
    """Write the language as `language-…` on the <pre>, where the conversion looks for it."""
    languages: dict[Element, str] = {}  # an element may contain many <pre>
    for pre in part.iter("pre"):
        code = pre.find("code")
        language = ""
        for element in [*([] if code is None else [code]), pre, *islice(pre.iterancestors(), 2)]:
            if element not in languages:
                languages[element] = _language(element)
            language = languages[element]
            if language:
                break
        pre.set("class", f"language-{language}" if language else "")


def _language(element: Element) -> str:
    """Return the programming language that an element names, or ""."""
    label = element.get("data-lang") or element.get("data-language") or ""
    match = LANGUAGE.search(element.get("class", "")) or LANGUAGE.search(f"lang-{label}")
    return match[1] if match and match[1].lower() not in NO_LANGUAGE else ""
