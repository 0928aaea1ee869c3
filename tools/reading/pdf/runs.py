"""Join the words of a page to runs: text of one size on one baseline, without a gap as wide as a column's.

Coordinates of a run are along its baseline, so turned text and turned pages read as upright ones.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from toolgate.tools.reading.pdf.library import Box
from toolgate.tools.reading.pdf.page import Link, Word

# Shares of the font's size
SPACE = 0.25  # a wider gap is a space, also if the file has none
GUESSED_SPACE = 0.1  # the same where PDFium sees one
DOUBTFUL = 0.6  # a wider gap may separate columns, if the rows around have one there
COLUMN = 1.0  # a wider gap separates columns
COLUMN_OF_WORDS = 2.0  # the same in justified text: where spaces stand in the gap, or a sentence ends
BACK = 0.6  # how far a word may lie over the one before, as accents do
LEVEL = 0.08  # how far two baselines of one line may differ
FARTHEST_BELOW = 2.5  # how far below the next word of vertical text lies
FIXED_WIDTH = 0.6  # of a character of a fixed pitch, in nearly all fonts
WIDEST_CODE = 60.0  # gap within a line of code
SENTENCE_ENDS = (".", ":", "?", "!")
LEFTWARD = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")
STRIP = 20.0  # points: about as high as a line
MAX_STRIPS = 200  # of a link; a page has about 40
RIGHT_ANGLE = math.pi / 2
UPRIGHT = 0.02  # radians that a scan may be askew
LIGATURES = {  # Unicode's presentation forms of letters
    "ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl", "ﬅ": "ft", "ﬆ": "st",
    "ﬓ": "մն", "ﬔ": "մե", "ﬕ": "մի", "ﬖ": "վն", "ﬗ": "մխ",
}  # fmt: skip
LIGATURE = re.compile(f"[{''.join(LIGATURES)}]")


class TextRun(msgspec.Struct):
    """Text on one baseline, from `left` to `right`.

    - `base`: the height of the baseline
    - `angle`: how the baseline is turned on the page; runs of different angles can't be compared
    - `link`: the target of the link that it is part of, or ""
    - `after_space`: a space stands before it
    - `is_vertical`: it is written downwards
    - `is_fixed`: all its characters are equally wide, as in code
    - `is_leftward`: it is written from the right, as Hebrew and Arabic are
    """

    text: str
    left: float
    right: float
    base: float
    size: float
    angle: float
    link: str
    after_space: bool
    is_vertical: bool
    is_fixed: bool
    is_leftward: bool
    owner: int
    last_base: float


def join_words(words: Iterable[Word], links: Sequence[Link]) -> Iterator[TextRun]:
    """Yield the runs of a page in the order in which they are drawn."""
    run: TextRun | None = None
    shelves = _shelve_links(links)
    for word in words:
        new = _start_run(word, _find_link(word, shelves))
        if run is None or not _join(run, new):
            if run is not None:
                yield run
            run = new
    if run is not None:
        yield run


def _shelve_links(links: Sequence[Link]) -> dict[int, list[Link]]:
    """Return the links by the strips of the page that they touch."""
    shelves: dict[int, list[Link]] = {}
    for link in links:
        first = int(link.box.bottom // STRIP)
        for number in range(first, min(int(link.box.top // STRIP), first + MAX_STRIPS) + 1):
            shelves.setdefault(number, []).append(link)
    return shelves


def _find_link(word: Word, shelves: dict[int, list[Link]]) -> str:
    if not shelves:
        return ""
    x, y = (word.first.left + word.last.right) / 2, (word.y + word.last_y) / 2 + word.size / 4
    return next((link.target for link in shelves.get(int(y // STRIP), ()) if link.box.contains(x, y)), "")


def _start_run(word: Word, link: str) -> TextRun:
    text = LIGATURE.sub(lambda found: LIGATURES[found[0]], word.text)
    angle = 0.0 if abs(word.angle) < UPRIGHT else word.angle
    if angle == 0.0:
        left, right = min(word.first.left, word.last.left), max(word.first.right, word.last.right)
        base, last_base = word.y, word.last_y
    else:
        left, right, base = _turn(word, angle)
        last_base = base
    size = word.size or max(0.1, word.first.top - word.first.bottom)
    is_vertical = abs(last_base - base) > size / 2
    is_leftward, space = LEFTWARD.search(text) is not None, word.after_space
    return TextRun(
        text,
        left,
        right,
        base,
        size,
        angle,
        link,
        space,
        is_vertical,
        word.is_fixed,
        is_leftward,
        word.owner,
        last_base,
    )


def _turn(word: Word, angle: float) -> tuple[float, float, float]:
    """Return the left and the right end and the baseline's height of a word, along its baseline."""
    cosine, sine = math.cos(angle), math.sin(angle)
    start = word.x * cosine + word.y * sine
    base = word.y * cosine - word.x * sine
    if abs(math.remainder(angle, RIGHT_ANGLE)) > UPRIGHT:  # a box is wider than its character
        return start, start + len(word.text) * word.size / 2, base
    corners = [corner for box in (word.first, word.last) for corner in _corners(box)]
    ends = [x * cosine + y * sine for x, y in corners]
    return min(ends), max(ends), base


def _corners(box: Box) -> tuple[tuple[float, float], tuple[float, float]]:
    return (box.left, box.bottom), (box.right, box.top)


def _join(run: TextRun, new: TextRun) -> bool:
    """Add a word to a run, unless it starts another."""
    if new.angle != run.angle or new.link != run.link or abs(new.size - run.size) > LEVEL * run.size:
        return False
    if run.is_vertical or new.is_vertical or abs(new.base - run.base) > LEVEL * run.size:
        return new.owner == run.owner and _join_below(run, new)
    if new.is_leftward != run.is_leftward:
        return False
    is_before = run.is_leftward and new.left < run.left
    gap = run.left - new.right if is_before else new.left - run.right
    if new.is_fixed and run.is_fixed and SPACE * run.size < gap <= WIDEST_CODE * run.size:
        _append(run, new, write_gap(gap, run))
        return True
    is_in_text = new.owner == run.owner and new.after_space
    widest = COLUMN_OF_WORDS if is_in_text else widest_gap(run.text)
    if not -BACK * run.size <= gap <= widest * run.size:
        return False
    if new.owner != run.owner and gap > DOUBTFUL * run.size:
        return False
    is_apart = is_in_text or (new.owner != run.owner and has_space(gap / run.size, after_space=new.after_space))
    _append(run, new, " " if is_apart else "")
    return True


def write_gap(gap: float, run: TextRun) -> str:
    """Return the spaces of a gap in text of a fixed pitch: columns of code stay below each other."""
    return " " * max(1, round(gap / (FIXED_WIDTH * run.size)))


def has_space(gap: float, *, after_space: bool) -> bool:
    """Return whether a space stands in a gap between two operators' texts, in shares of the size."""
    return gap > (GUESSED_SPACE if after_space else SPACE)


def widest_gap(text: str) -> float:
    """Return the widest gap behind a text that separates no columns, in shares of the size."""
    return COLUMN_OF_WORDS if text.endswith(SENTENCE_ENDS) else COLUMN


def _join_below(run: TextRun, new: TextRun) -> bool:
    """Add the next word of vertical text."""
    is_below = 0 < run.last_base - new.base <= FARTHEST_BELOW * run.size
    is_same_column = abs(new.left + new.right - run.left - run.right) < run.size
    if not (is_below and is_same_column):
        return False
    run.is_vertical = True
    _append(run, new, " " if new.after_space else "")
    return True


def _append(run: TextRun, new: TextRun, separator: str) -> None:
    if run.is_leftward and new.left > run.left:
        run.text = new.text + separator + run.text
    else:
        run.text += separator + new.text
    run.left, run.right, run.last_base = min(run.left, new.left), max(run.right, new.right), new.last_base
