"""Arrange the segments of a page in rows: lines of prose, and rows of tables with their cells.

The order of the file decides what belongs together, as nearly all programs write tables row by row and columns of
prose one after the other. Only a segment beside the ones before it is taken for a cell.
"""

from collections.abc import Iterable
from itertools import pairwise

import msgspec

from toolgate.tools.reading.pdf.segments import Segment

# Shares of the font's size
SAME_LINE = 0.45  # how far the baselines of two cells of a row may differ
TIGHT = 1.4  # a larger distance of two baselines separates rows, not the lines of a cell
NEAR = 2.5  # how far a cell's first line may stand above its neighbour's
EDGE = 0.3  # how far a cell may reach into its neighbour
MAX_CELL_LINES = 8  # a taller "cell" is a column of prose
PROSE_LINES, PROSE = 4, 30  # lines, and characters of a line, that all cells have if they are columns of prose
LOOK_BACK = 60  # rows in which the row of a segment is looked for
MAX_CELL = 24  # characters of the average cell in a table that is written column by column


class Cell(msgspec.Struct):
    """The lines of a cell, from the top."""

    lines: list[Segment]

    @property
    def left_edge(self) -> float:
        return min(line.left for line in self.lines)

    @property
    def right_edge(self) -> float:
        return max(line.right for line in self.lines)

    @property
    def is_prose(self) -> bool:
        return len(self.lines) >= PROSE_LINES and sum(line.length for line in self.lines) >= PROSE * len(self.lines)

    @property
    def size(self) -> float:
        return self.lines[0].size


class TextRow(msgspec.Struct):
    """A line, or a row of a table."""

    cells: list[Cell]

    @property
    def first(self) -> Segment:
        return self.cells[0].lines[0]

    @property
    def is_prose(self) -> bool:
        """Return whether its cells are columns of prose."""
        is_tall = any(len(cell.lines) > MAX_CELL_LINES for cell in self.cells)
        return is_tall or (len(self.cells) > 1 and all(cell.is_prose for cell in self.cells))

    @property
    def is_line(self) -> bool:
        """Return whether it is a single piece of a single line."""
        return len(self.cells) == 1 and len(self.cells[0].lines) == 1

    @property
    def left_edge(self) -> float:
        return min(cell.left_edge for cell in self.cells)

    @property
    def right_edge(self) -> float:
        return max(cell.right_edge for cell in self.cells)


def arrange(segments: Iterable[Segment]) -> list[TextRow]:
    """Return the rows of a page in their order."""
    rows: list[TextRow] = []
    for segment in segments:
        if not (rows and _add(rows, segment)):
            rows.append(TextRow([Cell([segment])]))
    return rows


def _add(rows: list[TextRow], segment: Segment) -> bool:
    """Add a segment to the rows, unless it starts a new one."""
    row = rows[-1]
    if segment.is_vertical or row.first.is_vertical or row.first.angle != segment.angle:
        return False
    if _is_level(row.first, segment) and _add_level(row, segment):
        return True
    if len(row.cells) > 1 and (_continues_cell(row, segment) or _add_beside(rows, segment)):
        return True
    return _add_to_column(rows, segment)


def _is_level(one: Segment, other: Segment) -> bool:
    return abs(one.base - other.base) <= SAME_LINE * min(one.size, other.size)


def _add_level(row: TextRow, segment: Segment) -> bool:
    """Add a cell on the first line of a row, in its place from the left."""
    edge = EDGE * segment.size
    place = sum(cell.left_edge < segment.left for cell in row.cells)
    is_free = all(
        segment.right <= cell.left_edge + edge or segment.left >= cell.right_edge - edge for cell in row.cells
    )
    if not is_free:
        return False
    row.cells.insert(place, Cell([segment]))
    return True


def _continues_cell(row: TextRow, segment: Segment) -> bool:
    """Add the next line of the row's last cell."""
    cell, before = row.cells[-1], row.cells[-2]
    last = cell.lines[-1]
    step = last.base - segment.base
    is_next = 0 < step <= TIGHT * max(last.size, segment.size)
    is_within = segment.left >= before.right_edge - EDGE * segment.size and segment.left < cell.right_edge
    if is_next and is_within:
        cell.lines.append(segment)
    return is_next and is_within


def _add_beside(rows: list[TextRow], segment: Segment) -> bool:
    """Add a cell beside the last row, whose cells have several lines, or whose place is beside the cell's middle."""
    row = rows[-1]
    top = max(cell.lines[0].base for cell in row.cells)
    bottom = min(cell.lines[-1].base for cell in row.cells)
    has_other_row = any(_is_level(other.first, segment) for other in rows[-LOOK_BACK:-1])
    above, below = (SAME_LINE if has_other_row else NEAR) * segment.size, SAME_LINE * segment.size
    is_beside = segment.left >= row.right_edge - EDGE * segment.size and bottom - below <= segment.base <= top + above
    if is_beside:
        row.cells.append(Cell([segment]))
    return is_beside


def _add_to_column(rows: list[TextRow], segment: Segment) -> bool:
    """Add a cell to a row further up, or make the lines up to there the first cell of a row."""
    start = _find_beside(rows, segment)
    if start is None:
        return False
    lines = [row.first for row in rows[start:]]
    if len(lines) <= MAX_CELL_LINES and all(row.is_line for row in rows[start:]) and _are_tight(lines):
        rows[start:] = [TextRow([Cell(lines), Cell([segment])])]
        return True
    level = next((row for row in rows[start:] if _is_level(row.first, segment)), None)
    is_table = not _are_tight(lines) and sum(line.length for line in lines) <= MAX_CELL * len(lines)
    return level is not None and is_table and _add_level(level, segment)


def _find_beside(rows: list[TextRow], segment: Segment) -> int | None:
    """Return the index of the highest row that the segment stands beside, with all rows from there to the last."""
    edge, start = EDGE * segment.size, None
    for index in range(len(rows) - 1, max(-1, len(rows) - 1 - LOOK_BACK), -1):
        row = rows[index]
        if row.first.angle != segment.angle or row.right_edge > segment.left + edge:
            break
        if row.first.base > segment.base + SAME_LINE * segment.size:
            break
        start = index
    is_near = start is not None and segment.base - rows[start].first.base <= NEAR * segment.size
    return start if is_near else None


def _are_tight(lines: list[Segment]) -> bool:
    steps = ((upper.base - lower.base, max(upper.size, lower.size)) for upper, lower in pairwise(lines))
    return all(0 < step <= TIGHT * size for step, size in steps)
