"""Write rows as lines of text: cells apart by bars, in the columns of their table, and code with its indentation."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import msgspec

from toolgate.tools.reading.pdf.rows import Cell, TextRow
from toolgate.tools.reading.pdf.runs import COLUMN, FIXED_WIDTH, has_space
from toolgate.tools.reading.pdf.segments import Gap, Piece

LABEL = re.compile(r"(?:[\dA-Z]{1,3}(?:\.\d{1,3})*[.)]?|\(?[a-z\d]{1,3}[.)]|[•●○▪◦‣·*–—-])")  # of a heading or an item
NEAR_LABEL = 4.0  # gap behind a label, in shares of the size
ALIGNED = 0.4  # how far the cells of a column may differ, in shares of the size
MAX_INDENT = 60  # characters
MAX_COLUMNS = 50  # of a table whose empty cells are shown
BETWEEN = Piece(" | ")


def write_rows(rows: Sequence[TextRow]) -> Iterator[list[Piece]]:
    """Yield the lines of a page, each as pieces."""
    kinds = [_find_kind(row) for row in rows]
    for order in (range(1, len(rows)), range(len(rows) - 2, -1, -1)):
        for index in order:
            if kinds[index] in ("label", "pair") and kinds[index - order.step] == "table":
                kinds[index] = "table"
    for kind, group in groupby(zip(kinds, rows, strict=True), key=lambda pair: pair[0]):
        yield from WRITERS[kind]([row for _, row in group])


def _find_kind(row: TextRow) -> str:
    """Return the kind of a row. A "label" and a "pair" belong to the table that they stand beside."""
    if row.is_line:
        return "code" if row.first.is_fixed else "line"
    if row.is_prose:
        return "columns"
    cells = _join_words(row)
    if len(cells) == 2:
        gap = (cells[1][0].left_edge - cells[0][0].right_edge) / cells[1][0].size
        is_label = LABEL.fullmatch("".join(piece.text for piece in cells[0][1])) is not None
        return "label" if is_label and gap <= NEAR_LABEL else "pair"
    return "line" if len(cells) == 1 else "table"


def _write_code(rows: list[TextRow]) -> Iterator[list[Piece]]:
    """Yield lines of code, indented from the first column of all."""
    left = min(row.first.left for row in rows)
    for row in rows:
        indent = round((row.first.left - left) / (FIXED_WIDTH * row.first.size))
        yield [*([Piece(" " * indent)] if 0 < indent <= MAX_INDENT else []), *row.first.pieces]


def _write_columns(rows: list[TextRow]) -> Iterator[list[Piece]]:
    """Yield the lines of columns of prose."""
    yield from (line.pieces for row in rows for cell in row.cells for line in cell.lines)


def _write_lines(rows: list[TextRow]) -> Iterator[list[Piece]]:
    for row in rows:
        yield _write_cells([pieces for _, pieces in _join_words(row)], Piece(" "))


def _write_table(rows: list[TextRow]) -> Iterator[list[Piece]]:
    """Yield the rows of a table, with a bar for each empty cell before the last one that is not."""
    tables = [_join_words(row) for row in rows]
    width = max(map(len, tables))
    whole = [[cell for cell, _ in cells] for cells in tables if len(cells) == width]
    columns = list(zip(*whole, strict=True)) if 2 < width <= MAX_COLUMNS else []
    for cells in tables:
        if len(cells) < width:
            cells = [part for cell, pieces in cells for part in _split_cell(cell, pieces, columns)]
        places = [_find_column(cell, columns) for cell, _ in cells]
        if len(cells) < width and None not in places and len(set(places)) == len(places):
            by_place = dict(zip(places, (pieces for _, pieces in cells), strict=True))
            last = max(place for place in places if place is not None)
            yield _write_cells([by_place.get(place, []) for place in range(last + 1)], BETWEEN)
        else:
            yield _write_cells([pieces for _, pieces in cells], BETWEEN)


def _split_cell(
    cell: Cell, pieces: list[Piece], columns: Sequence[Sequence[Cell]]
) -> Iterator[tuple[Cell, list[Piece]]]:
    """Yield the parts of a cell that has a doubtful gap where the columns have theirs."""
    line = cell.lines[0]
    begin, left = 0, line.left
    for gap in line.gaps if len(cell.lines) == 1 and pieces == line.pieces else []:
        if any(_is_between(gap, one, other) for one, other in pairwise(columns)):
            part = msgspec.structs.replace(line, pieces=pieces[begin : gap.place], left=left, right=gap.left)
            yield Cell([part]), part.pieces
            begin, left = gap.place + 1, gap.right
    rest = msgspec.structs.replace(line, pieces=pieces[begin:], left=left) if begin else line
    yield (Cell([rest]), rest.pieces) if begin else (cell, pieces)


def _is_between(gap: Gap, one: Sequence[Cell], other: Sequence[Cell]) -> bool:
    """Return whether a gap stands between two columns."""
    end, start = max(cell.right_edge for cell in one), min(cell.left_edge for cell in other)
    return end < gap.right and start > gap.left and max(end, gap.left) < min(start, gap.right)


def _find_column(cell: Cell, columns: Sequence[Sequence[Cell]]) -> int | None:
    """Return the column whose cells stand on the left, the right or the middle of a cell, or None."""
    reach = ALIGNED * cell.size
    ends = (cell.left_edge, cell.right_edge, (cell.left_edge + cell.right_edge) / 2)
    for place, column in enumerate(columns):
        for other in column:
            others = (other.left_edge, other.right_edge, (other.left_edge + other.right_edge) / 2)
            if any(abs(end - another) <= reach for end, another in zip(ends, others, strict=True)):
                return place
    return None


def _write_cells(cells: list[list[Piece]], separator: Piece) -> list[Piece]:
    written = list(cells[0])
    for pieces in cells[1:]:
        written += [separator, *pieces]
    return written


def _join_words(row: TextRow) -> list[tuple[Cell, list[Piece]]]:
    """Return the cells with their pieces. Cells without a wide gap are words that were drawn out of order."""
    joined: list[tuple[Cell, list[Piece]]] = []
    for cell in row.cells:
        pieces = _write_cell(cell)
        gap = (cell.left_edge - joined[-1][0].right_edge) / cell.size if joined else COLUMN + 1
        if gap > COLUMN:
            joined.append((cell, pieces))
        else:
            before, written = joined[-1]
            separator = Piece(" " if has_space(gap, after_space=True) else "")
            joined[-1] = Cell([*before.lines, *cell.lines]), [*written, separator, *pieces]
    return joined


def _write_cell(cell: Cell) -> list[Piece]:
    return _write_cells([line.pieces for line in cell.lines], Piece(" "))


WRITERS = {
    "code": _write_code,
    "columns": _write_columns,
    "label": _write_lines,
    "line": _write_lines,
    "pair": _write_table,
    "table": _write_table,
}
