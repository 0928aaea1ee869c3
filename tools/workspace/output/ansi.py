"""Clean a command's output for a model: no escape sequences, and only the last state of a progress meter.

Bytes arrive in pieces of any size; a piece may end inside a character, a sequence or a line. Such an end is held back,
up to a limit, until more arrives, and `used` leaves it out. The work is linear in the bytes.
Source: ECMA-48, 5.3 to 5.6; XTerm Control Sequences.
"""

import asyncio
import re
from collections.abc import Sequence

from toolgate.tools.workspace.output.decoder import OutputDecoder

PIECE = 32 * 2**10  # bytes cleaned in one turn: 10 ms for the worst meters
MANY_STATES = 2_000  # in a piece: such a one is cleaned in several turns
SMALL_PIECE = 4 * 2**10  # bytes of them in one turn
MAX_SEQUENCE = 16 * 2**10  # bytes of an unfinished sequence held back: titles and links are shorter
MAX_LINE = 16 * 2**10  # characters of an unfinished line in which `\r` and `\b` still have effect
MAX_BACKSPACES = 256  # at the end of a piece, with as many characters before them
MAX_CUT = 256  # bytes of a sequence before such a place
MAX_STRIKES = 20_000  # backspaces in a piece, besides bold and underline: 7 ms
MAX_STATES = 10_000  # states of a line compared in a piece: 30 ms; earlier ones are dropped
SHRINKS = 16  # characters by which a meter's state may be shorter than the one before, without blanks

# CSI, the control strings (OSC, DCS, APC, PM, SOS) to their terminator on the same line, and all other sequences. Of a
# malformed sequence only the introducer is removed. Bell, shifts and C1 are removed too. The quantifiers never
# backtrack. They are compiled when they are needed: start-up.
_SEQUENCES = (
    r"(?:\x1b++(?:\[[0-?]*+[ -/]*+[@-~]?|[\]PX^_][^\x07\x1b\x9c\n]*+(?:\x07|\x1b\\|\x9c)|[ -/]*+[0-~]?)"
    r"|\x9b[0-?]*+[ -/]*+[@-~]?|[\x07\x0e\x0f\x80-\x84\x86-\x9a\x9c-\x9f])++"
)
_UNFINISHED = rb"\x1b(?:\[[0-?]*+[ -/]*+|[\]PX^_][^\x07\x1b\n]*+\x1b?|[ -/]*+)?\Z"
_COLUMN_1 = r"(?:\x1b\[|\x9b)[01]?G"  # npm and yarn start each state so
_OVERSTRUCK = "(?:[^\b\n]\b(?=[^\b\n]))++"  # the overwritten characters of bold, underline or a spinner
_DIGITS = str.maketrans("123456789", "0" * 9)
_STRIKES = "[^\b]+|\b+"
# What a meter shows and rows of a file do not: shares, bars, rates, unknown times, spinners
_MARKS = (
    r"%|(?<![\d/])\d+ ?/ ?\d+(?![\d/])|[=#█▓▒░▏▎▍▌▋▊▉━─■]{3}|--:--|\w/s\b|\bETA\b|[\u2800-\u28ff]"
    r"|\d:\d\d:\d\d.*\d:\d\d:\d\d|^\W*[-\\|/]\W*$"
)
_FIELDS = r"\t|[^\s,;][,;][^\s,;]"  # between the columns of a table
_THOUSANDS = r"\b\d{1,3}(?:,\d{3})+\b"
_TOKENS = r"[^\W\d_]+|\d+(?:[.,]\d+)*+(.?)"


class OutputCleaner:
    """One stream of output. `used` counts the bytes whose text was returned."""

    def __init__(self) -> None:
        self.used = 0
        self._decoder = OutputDecoder()
        self._rest = b""  # bytes that are not text yet
        self._line = ""  # text that `\r` or `\b` may still change

    def feed(self, data: bytes) -> str:
        """Return the text that later output can't change."""
        data = self._rest + data if self._rest else data
        text, used = self._decoder.decode(data[: _count_settled(data)], final=False)
        self._rest = data[used:]
        self.used += used
        return self._take(_remove_sequences(text))

    def end(self, *, final: bool) -> str:
        """Return the unfinished line as it stands; if `final`, with everything held back."""
        text = ""
        if final and self._rest:
            text = self._decoder.decode(self._rest, final=True)[0]
            self.used += len(self._rest)
            self._rest = b""
        text = self._take(_remove_sequences(text + self._decoder.end()))
        line, self._line = self._line, ""
        return text + _clean_line(line)

    def _take(self, text: str) -> str:
        whole = self._line + text if self._line else text
        end = whole.rfind("\n") + 1
        kept, self._line = _compact(whole[end:])
        lines = _clean_lines(whole[:end]) + kept
        if len(self._line) <= MAX_LINE:
            return lines
        line, self._line = self._line, ""
        return lines + _clean_line(line)


async def clean_in_turns(data: bytes, *, final: bool) -> tuple[str, int]:
    """Clean like `clean_output`, and let other tasks run after each piece."""
    cleaner = OutputCleaner()
    text = await feed_in_turns(cleaner, data)
    return text + cleaner.end(final=final), cleaner.used


async def feed_in_turns(cleaner: OutputCleaner, data: bytes) -> str:
    """Feed like `cleaner.feed`, and let other tasks run after each piece."""
    texts: list[str] = []
    place = 0
    while place < len(data):
        if place:
            await asyncio.sleep(0)
        end = place + (SMALL_PIECE if data.count(b"\r", place, place + PIECE) > MANY_STATES else PIECE)
        texts.append(cleaner.feed(data[place:end]))
        place = end
    return "".join(texts)


def clean_output(data: bytes, *, final: bool) -> tuple[str, int]:
    """Return the clean text of `data`, and the bytes used: unless `final`, an unfinished end is left."""
    cleaner = OutputCleaner()
    return cleaner.feed(data) + cleaner.end(final=final), cleaner.used


def _count_settled(data: bytes) -> int:
    """Return how many bytes keep their meaning whatever follows."""
    floor = max(0, len(data) - MAX_SEQUENCE)
    last = data.rfind(b"\x1b", floor)
    if last >= 0:
        before = data.rfind(b"\x1b", floor, last)  # the terminator of a string begins with ESC, too
        for start in (before, last):
            if start >= 0 and re.compile(_UNFINISHED).match(data, start):
                return start
    if not data.endswith(b"\b"):
        return len(data)
    end = len(data.rstrip(b"\b"))
    strikes = len(data) - end
    if strikes > MAX_BACKSPACES:
        return len(data)
    place = _step_back(data, end, strikes)
    while (start := data.rfind(b"\x1b", max(floor, place - MAX_CUT), place)) >= 0:
        if not re.compile(_UNFINISHED).match(data, start, place):
            break
        place = _step_back(data, start, strikes)  # it would be cut in two, and none of it is a character on the line
    return place


def _step_back(data: bytes, end: int, characters: int) -> int:
    """Return the position of `characters` characters before `end`."""
    while characters and end:
        end -= 1
        characters -= data[end] & 0xC0 != 0x80
    return end


def _remove_sequences(text: str) -> str:
    if text.isascii() and not any(control in text for control in "\x1b\x07\x0e\x0f"):
        return text
    return re.sub(_SEQUENCES, "", re.sub(_COLUMN_1, "\r", text))


def _clean_lines(text: str) -> str:
    if "\r" in text:
        text = re.sub("\r\r+", "\r", text.replace("\r\n", "\n"))  # an empty state changes nothing
    text = _remove_overstruck(text)
    if "\r" not in text and "\b" not in text:
        return text
    return "\n".join(map(_rewrite_line, text.split("\n")))


def _clean_line(line: str) -> str:
    """Return the unfinished line in its final state."""
    return _rewrite_line(_remove_overstruck(line), is_complete=False)


def _remove_overstruck(text: str) -> str:
    if "\b" not in text:
        return text
    text = re.sub(_OVERSTRUCK, "", text)
    return text if text.count("\b") <= MAX_STRIKES else text.replace("\b", "")


def _rewrite_line(line: str, *, is_complete: bool = True) -> str:
    if "\r" not in line:
        return _apply_backspaces(line)
    kept, rows, state, _ = _split_states(line.split("\r"))
    if not is_complete or line.endswith("\r"):  # a meter concludes with a line end
        kept += rows
    return "\n".join(map(_apply_backspaces, [*kept, state]))


def _compact(line: str) -> tuple[str, str]:
    """Return the text that nothing changes any more, and the rest of the unfinished line that later output needs."""
    line = _remove_overstruck(line)
    if "\r" not in line:
        return "", line
    *states, last = line.split("\r")
    kept, rows, state, blanks = _split_states(states)
    if sum(map(len, rows)) > MAX_LINE // 2:
        kept, rows = [*kept, *rows], []
    return "".join(f"{_apply_backspaces(each)}\n" for each in kept), "\r".join([*rows, state, *blanks, last])


def _split_states(states: Sequence[str]) -> tuple[list[str], list[str], str, list[str]]:
    """Split a line at `\r` into the text that stays, the rows that stay unless a line end follows the last state, the
    last state, and the blanks after it.

    Of a meter only the last state stays. A state unlike the next one belongs to no meter: it is another program's or
    stream's text (curl writes its meter amid the body), or a file whose lines end in `\r`. States that are alike but
    show no measure are rows of such a file, or of a meter that concludes with a line end.
    """
    kept: list[str] = []
    rows: list[str] = []
    last, blanks = "", ""
    for state in states[-MAX_STATES:]:
        if not state.strip("\b \t\v\f"):
            if len(state) > len(blanks):
                blanks = state
            continue
        if not last or len(blanks) >= len(last):
            rows = []
        elif not _replaces(state, last):
            kept += [*rows, last]
            rows = []
        elif re.search(_MARKS, state) or re.search(_MARKS, last):
            rows = []
        else:
            rows.append(last)
        last, blanks = state, ""
    return kept, rows, last, [blanks] if blanks else []


def _replaces(state: str, last: str) -> bool:
    """Return whether `state` is the meter's next state after `last`."""
    if _is_row(state) and _is_row(last):
        return False
    if state.translate(_DIGITS) == last.translate(_DIGITS):  # nearly always, and far faster than their shapes
        return True
    if len(state) + SHRINKS < len(last.rstrip()):
        return False
    new, old = _shape(state), _shape(last)
    return new == old or (new[:1] == old[:1] and any(token[0] == "0" for token in old))


def _is_row(state: str) -> bool:
    """Return whether the text has columns, as a row of a table."""
    if not re.search(_FIELDS, state):
        return False
    return re.search(_FIELDS, re.sub(_THOUSANDS, "0", state)) is not None


def _shape(state: str) -> list[str]:
    """Return the words and numbers of a state; each number, with its unit, counts as 0."""
    return [f"0{found[1]}" if found[1] is not None else found[0] for found in re.finditer(_TOKENS, state)]


def _apply_backspaces(line: str) -> str:
    """Return a line with its backspaces applied: each moves back by one, and later text overwrites."""
    if "\b" not in line:
        return line
    cells: list[str] = []
    place = 0
    for found in re.finditer(_STRIKES, line):
        strike = found[0]
        if strike[0] == "\b":
            place = max(0, place - len(strike))
        else:
            cells[place : place + len(strike)] = strike
            place += len(strike)
    return "".join(cells)
