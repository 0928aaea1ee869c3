"""Join runs to segments: what a reader sees as one piece of a line, with its superscripts and subscripts."""

from collections.abc import Iterable, Iterator

import msgspec

from toolgate.tools.reading.pdf.runs import (
    COLUMN,
    DOUBTFUL,
    LEVEL,
    WIDEST_CODE,
    TextRun,
    has_space,
    widest_gap,
    write_gap,
)

# Shares of the size of the text that a script belongs to
SMALLER = 0.86  # a script is at most so large,
SMALLEST = 0.4  # and at least so: a large initial is no text with a superscript
RAISED = (0.12, 1.0)
LOWERED = (0.05, 0.6)
NEAR = 0.5  # gap before a script
OVER = 1.6  # how far a script may lie back over another one
SHORT = 6  # characters of a script that is as large as its text
ORDINALS = frozenset({"st", "nd", "rd", "th"})
SUPERSCRIPTS = str.maketrans("0123456789+-−–=()ni", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻⁼⁽⁾ⁿⁱ")
SUBSCRIPTS = str.maketrans("0123456789+-−–=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₋₌₍₎")
SUPERSCRIPT_LETTERS, SUBSCRIPT_LETTERS = frozenset("0123456789+-−–=()ni"), frozenset("0123456789+-−–=()")


class Piece(msgspec.Struct, frozen=True):
    """Text with the target of its link, or ""."""

    text: str
    link: str = ""


class Gap(msgspec.Struct, frozen=True):
    """A gap in a line that may separate columns, and the number of pieces before it."""

    left: float
    right: float
    place: int


class Segment(msgspec.Struct):
    """A piece of a line. `size` and `base` are those of its text, not of its scripts; `gaps` are doubtful ones."""

    pieces: list[Piece]
    left: float
    right: float
    base: float
    size: float
    angle: float
    is_vertical: bool = False
    is_fixed: bool = False
    is_leftward: bool = False
    has_script: bool = False
    gaps: list[Gap] = msgspec.field(default_factory=list)

    @property
    def length(self) -> int:
        return sum(len(piece.text) for piece in self.pieces)


def join_runs(runs: Iterable[TextRun]) -> Iterator[Segment]:
    """Yield the segments of a page in the order in which they are drawn."""
    segment: Segment | None = None
    for run in runs:
        if segment is None or not _join(segment, run):
            if segment is not None:
                yield segment
            segment = _start_segment(run)
    if segment is not None:
        yield segment


def _start_segment(run: TextRun) -> Segment:
    pieces = [Piece(run.text, run.link)]
    return Segment(
        pieces, run.left, run.right, run.base, run.size, run.angle, run.is_vertical, run.is_fixed, run.is_leftward
    )


def _join(segment: Segment, run: TextRun) -> bool:
    """Add a run to a segment, unless it starts another."""
    if segment.is_vertical or run.is_vertical or run.angle != segment.angle:
        return False
    gap, rise = run.left - segment.right, run.base - segment.base
    larger = max(segment.size, run.size)
    if abs(rise) <= LEVEL * larger:
        return _join_level(segment, run, gap)
    if _is_script(run.size, segment.size, len(run.text)) and -OVER * segment.size <= gap <= NEAR * segment.size:
        return _join_script(segment, run, rise)
    is_after_script = len(segment.pieces) == 1 and _is_script(segment.size, run.size, segment.length)
    if is_after_script and segment.size < run.size and -NEAR * run.size <= gap <= NEAR * run.size:
        return _join_after_script(segment, run, -rise)
    return False


def _join_level(segment: Segment, run: TextRun, gap: float) -> bool:
    size = min(segment.size, run.size)
    lies_back = OVER if segment.has_script else NEAR
    if run.is_leftward and not segment.is_leftward:
        segment.is_leftward = not any(piece.text.upper() != piece.text.lower() for piece in segment.pieces)
    if segment.is_leftward and run.left < segment.left:
        gap = segment.left - run.right
    if run.is_fixed and segment.is_fixed and COLUMN * size < gap <= WIDEST_CODE * size:
        _append(segment, run, run.text, write_gap(gap, run))
        return True
    if not -lies_back * size <= gap <= widest_gap(segment.pieces[-1].text) * size:
        return False
    segment.is_fixed = segment.is_fixed and run.is_fixed
    if gap > DOUBTFUL * size and not segment.is_leftward:
        segment.gaps.append(Gap(segment.right, run.left, len(segment.pieces)))
    _append(segment, run, run.text, " " if has_space(gap / size, after_space=run.after_space) else "")
    return True


def _is_script(size: float, base_size: float, length: int) -> bool:
    return SMALLEST * base_size <= size <= SMALLER * base_size or (length <= SHORT and size <= base_size)


def _join_script(segment: Segment, run: TextRun, rise: float) -> bool:
    if RAISED[0] * segment.size <= rise <= RAISED[1] * segment.size:
        text = _raise_text(run.text)
    elif LOWERED[0] * segment.size <= -rise <= LOWERED[1] * segment.size:
        text = _lower_text(run.text)
    else:
        return False
    _append(segment, run, text, "")
    segment.has_script = True
    return True


def _join_after_script(segment: Segment, run: TextRun, rise: float) -> bool:
    """Add a run to a segment that is a superscript before it, as the sign of a footnote is."""
    if not RAISED[0] * run.size <= rise <= RAISED[1] * run.size:
        return False
    segment.pieces[0] = Piece(_raise_text(segment.pieces[0].text), segment.pieces[0].link)
    segment.base, segment.size, segment.has_script = run.base, run.size, True
    is_apart = has_space((run.left - segment.right) / run.size, after_space=run.after_space)
    _append(segment, run, run.text, " " if is_apart else "")
    return True


def _append(segment: Segment, run: TextRun, text: str, separator: str) -> None:
    pieces = [*([Piece(separator)] if separator else []), Piece(text, run.link)]
    if segment.is_leftward and run.left > segment.left:
        segment.pieces[:0] = reversed(pieces)
    else:
        segment.pieces += pieces
    segment.left, segment.right = min(segment.left, run.left), max(segment.right, run.right)


def _raise_text(text: str) -> str:
    if text in ORDINALS:
        return text
    return text.translate(SUPERSCRIPTS) if SUPERSCRIPT_LETTERS.issuperset(text) else f"^{_group(text)}"


def _lower_text(text: str) -> str:
    return text.translate(SUBSCRIPTS) if SUBSCRIPT_LETTERS.issuperset(text) else f"_{_group(text)}"


def _group(text: str) -> str:
    return text if len(text) == 1 else f"{{{text}}}"
