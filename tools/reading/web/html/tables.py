"""Keep tables of data, whose cells are a line each, and take apart tables that only lay out a page.

Markdown's cells hold no lines. A table whose cells hold listings, headings, lists or several paragraphs becomes its
cells, one below the other; the names of its columns stand before them.
"""

import re
from collections.abc import Sequence

from toolgate.tools.reading.web.html.edit import HEADINGS, UNWRAP, Element, create_element, has_class, has_text

MAX_CELLS = 200  # in a table row: every row is padded to the longest
MAX_NAME = 60  # characters of a column's name
BLOCKS = ("table", "blockquote", "article", "section", "figure", "hr", "details", "form", "nav", *HEADINGS)
PARTS = frozenset(("p", "div", "ul", "ol", "dl", "center"))
LAYOUT_ROLES = frozenset(("presentation", "none"))
LAYOUT = re.compile(r"ltx_eqn_table|ltx_equation.*|layout|codehilitetable|highlighttable")
ROLES = {"cell": "td", "gridcell": "td", "columnheader": "th", "rowheader": "th"}
ROWS = "tr | thead/tr | tbody/tr | tfoot/tr"


def prepare_tables(part: Element) -> None:
    """Take apart tables that lay out a page, and leave one line in each cell of the others."""
    _name_parts(part)
    for table in reversed(list(part.iter("table"))):  # inner ones first
        rows = table.xpath(ROWS)
        cells = [[cell for cell in row if cell.tag in ("td", "th")] for row in rows]
        if _is_layout(table, cells):
            _take_apart(table, rows, cells)
        else:
            for row in rows:
                del row[MAX_CELLS:]
            for cell in (cell for row in cells for cell in row):
                _prepare_cell(cell)


def _name_parts(part: Element) -> None:
    """Make tables of the elements whose roles say that they are."""
    for table in part.xpath("descendant::*[not(self::table)][@role='table' or @role='grid' or @role='treegrid']"):
        rows = table.xpath("descendant::*[@role='row']")
        if not rows:
            continue
        for row in rows:
            for cell in row:
                cell.tag = ROLES.get(cell.get("role", ""), cell.tag)
            row.tag = "tr"
        for group in table.xpath("descendant::*[@role='rowgroup']"):
            group.tag = "tbody"
        table.tag = "table"


def _is_layout(table: Element, cells: Sequence[Sequence[Element]]) -> bool:
    if table.get("role", "").lower() in LAYOUT_ROLES or has_class(table, LAYOUT):
        return True
    is_data = _has_header(table, cells)
    if sum(map(len, cells)) <= 1:
        return True
    return any(_holds_blocks(cell, is_data=is_data) for row in cells for cell in row)


def _has_header(table: Element, cells: Sequence[Sequence[Element]]) -> bool:
    """Return whether a table says that it shows data: it has names of columns or rows."""
    if table.find("thead") is not None or table.find("caption") is not None:
        return True
    return any(cell.tag == "th" for row in cells[:3] for cell in row)


def _holds_blocks(cell: Element, *, is_data: bool) -> bool:
    """Return whether a cell holds what does not fit into a line. In a table of data, lists and paragraphs do."""
    for pre in cell.iter("pre"):
        if "\n" in "".join(pre.itertext()).strip():
            return True
    if is_data:
        return next(cell.iter("table"), None) is not None
    if next(cell.iter(*BLOCKS), None) is not None:
        return True
    parts = [each for each in cell if each.tag in PARTS and has_text(each)]
    return len(parts) > 1 or any(next(each.iter("ul", "ol", "dl"), None) is not None for each in parts)


def _take_apart(table: Element, rows: Sequence[Element], cells: Sequence[Sequence[Element]]) -> None:
    names = _find_names(table, cells)
    for row, row_cells in zip(rows, cells, strict=True):
        for number, cell in enumerate(row_cells):
            if names and row_cells is not cells[0] and number < len(names) and len(row_cells) == len(names):
                _begin_cell(cell, names[number])
            cell.tag = "div"
        section = row.getparent()
        if section is not table:
            section.tag = "div"
        row.tag = "div"
        if names and row_cells is cells[0]:
            row.clear(keep_tail=True)
    for caption in table.iterchildren("caption"):
        caption.tag = "p"
    table.tag = "div"


def _find_names(table: Element, cells: Sequence[Sequence[Element]]) -> list[str]:
    """Return the names of the columns, if the first row holds them alone."""
    if not cells or len(cells[0]) < 2 or len(cells) < 2 or table.get("role", "").lower() in LAYOUT_ROLES:
        return []
    if not all(cell.tag == "th" or cell.getparent().getparent().tag == "thead" for cell in cells[0]):
        return []
    names = [" ".join("".join(cell.itertext()).split()) for cell in cells[0]]
    return names if all(len(name) <= MAX_NAME for name in names) else []


def _begin_cell(cell: Element, name: str) -> None:
    """Write the name of the column before the content of a cell."""
    if not name or not has_text(cell):
        return
    label = create_element("strong")
    label.text = f"{name}:"
    label.tail = f" {(cell.text or '').lstrip()}"
    cell.text = None
    cell.insert(0, label)


def _prepare_cell(cell: Element) -> None:
    """Leave one line in a cell: blocks become lines of it, and headings strong."""
    for span in ("colspan", "rowspan"):
        if len(cell.get(span, "")) > 2:  # a hundred columns and more
            del cell.attrib[span]
    for heading in cell.iter(*HEADINGS):
        heading.tag = "strong"
    for pre in list(cell.iter("pre")):
        text = " ".join("".join(pre.itertext()).split("\n")).strip()
        pre.clear(keep_tail=True)
        pre.tag = "code"
        pre.text = text
    for line in list(cell.iter("hr")):
        line.tag = "br"
    for each in list(cell.iter("ul", "ol")):
        for number, item in enumerate(each.iterchildren("li"), 1):
            mark = "-" if each.tag == "ul" else f"{item.get('value') or number}."
            item.text = f"{mark} {(item.text or '').lstrip()}"
    for block in list(cell.iter("p", "div", "li", "ul", "ol", "dl", "dt", "dd", "center", "blockquote")):
        if block is not cell:
            _make_line(block)


def _make_line(block: Element) -> None:
    """Make a block a part of its line, with a break between it and what stands before it."""
    if block.tag not in ("ul", "ol", "dl") and _has_text_before(block):
        line_break = create_element("br")
        line_break.tail = block.text
        block.text = None
        block.insert(0, line_break)
    block.tag = UNWRAP


def _has_text_before(block: Element) -> bool:
    """Return whether something stands before a block in its cell."""
    while block.tag not in ("td", "th"):
        previous, parent = block.getprevious(), block.getparent()
        if previous is not None or (parent is not None and (parent.text or "").strip()):
            return True
        if parent is None:
            return False
        block = parent
    return False
