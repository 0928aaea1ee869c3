"""Clean a command's output for a model: no escape sequences, and of a progress meter its last state alone.

Bytes come in pieces of any size, and a piece may end inside a character, a sequence or a line. What such an end means
is not known before more has come: it is held back, up to a limit, and `used` leaves it out. The work is linear in the
bytes, whatever they are. Source: ECMA-48, 5.3 to 5.6; XTerm Control Sequences.
"""

import codecs
import re
from collections.abc import Sequence

MAX_SEQUENCE = 16 * 2**10  # bytes of an unfinished sequence that are held back: titles and links are shorter
MAX_LINE = 16 * 2**10  # characters of an unfinished line in which `\r` and `\b` still have effect
MAX_BACKSPACES = 256  # at the end of a piece, with as many characters before them
MAX_CUT = 256  # bytes of a sequence before such a place
MAX_STRIKES = 20_000  # backspaces in a piece, those of bold and underline apart: 7 ms
MAX_STATES = 10_000  # of a line in a piece that are compared: 30 ms; of those before nothing stays
SHRINKS = 16  # characters that a state of a meter may be shorter than the one before, without blanks over the rest

# CSI, the control strings (OSC, DCS, APC, PM, SOS) to their terminator on the same line, and all other sequences. What
# is malformed loses what introduces it. Bell, shifts and C1 go too. The quantifiers give nothing back.
_SEQUENCES = re.compile(
    r"(?:\x1b++(?:\[[0-?]*+[ -/]*+[@-~]?|[\]PX^_][^\x07\x1b\x9c\n]*+(?:\x07|\x1b\\|\x9c)|[ -/]*+[0-~]?)"
    r"|\x9b[0-?]*+[ -/]*+[@-~]?|[\x07\x0e\x0f\x80-\x84\x86-\x9a\x9c-\x9f])++"
)
_UNFINISHED = re.compile(rb"\x1b(?:\[[0-?]*+[ -/]*+|[\]PX^_][^\x07\x1b\n]*+\x1b?|[ -/]*+)?\Z")
_COLUMN_1 = re.compile(r"(?:\x1b\[|\x9b)[01]?G")  # npm and yarn begin a state so
_OVERSTRUCK = re.compile("(?:[^\b\n]\b(?=[^\b\n]))++")  # of bold, underline or a spinner, what is written over
_STRIKES = re.compile("[^\b]+|\b+")
_TOKENS = re.compile(r"[^\W\d_]+|\d+(?:[.,]\d+)*+(.?)")


class OutputCleaner:
    """One stream of output. `used` counts the bytes whose text was given."""

    def __init__(self) -> None:
        self.used = 0
        self._rest = b""  # bytes that are not text yet
        self._line = ""  # text that `\r` or `\b` may still change

    def feed(self, data: bytes) -> str:
        """Return the text that no later output changes."""
        data = self._rest + data if self._rest else data
        text, used = _decode(data[: _count_settled(data)], final=False)
        self._rest = data[used:]
        self.used += used
        return self._take(_remove_sequences(text))

    def end(self, *, final: bool) -> str:
        """Return the unfinished line as it stands; if `final`, with all that was held back."""
        text = ""
        if final and self._rest:
            text = self._take(_remove_sequences(_decode(self._rest, final=True)[0]))
            self.used += len(self._rest)
            self._rest = b""
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


def clean_output(data: bytes, *, final: bool) -> tuple[str, int]:
    """Return the clean text of `data`, and how many bytes that took: unless `final`, an unfinished end is left."""
    cleaner = OutputCleaner()
    return cleaner.feed(data) + cleaner.end(final=final), cleaner.used


def _decode(data: bytes, *, final: bool) -> tuple[str, int]:
    """The text of `data`, and how many bytes that took: unless `final`, a character cut short at the end is left."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final)
    return text, len(data) - len(decoder.getstate()[0])


def _count_settled(data: bytes) -> int:
    """How many bytes mean the same whatever comes after them."""
    floor = max(0, len(data) - MAX_SEQUENCE)
    last = data.rfind(b"\x1b", floor)
    if last >= 0:
        before = data.rfind(b"\x1b", floor, last)  # the terminator of a string begins with ESC, too
        for start in (before, last):
            if start >= 0 and _UNFINISHED.match(data, start):
                return start
    if not data.endswith(b"\b"):
        return len(data)
    end = len(data.rstrip(b"\b"))
    strikes = len(data) - end
    if strikes > MAX_BACKSPACES:
        return len(data)
    place = _step_back(data, end, strikes)
    while (start := data.rfind(b"\x1b", max(floor, place - MAX_CUT), place)) >= 0:
        if not _UNFINISHED.match(data, start, place):
            break
        place = _step_back(data, start, strikes)  # it would be cut in two, and none of it is a character on the line
    return place


def _step_back(data: bytes, end: int, characters: int) -> int:
    """Where so many characters before `end` begin."""
    while characters and end:
        end -= 1
        characters -= data[end] & 0xC0 != 0x80
    return end


def _remove_sequences(text: str) -> str:
    if text.isascii() and not any(control in text for control in "\x1b\x07\x0e\x0f"):
        return text
    return _SEQUENCES.sub("", _COLUMN_1.sub("\r", text))


def _clean_lines(text: str) -> str:
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    text = _remove_overstruck(text)
    if "\r" not in text and "\b" not in text:
        return text
    return "\n".join(map(_rewrite_line, text.split("\n")))


def _clean_line(line: str) -> str:
    """The line as it stands in the end."""
    return _rewrite_line(_remove_overstruck(line))


def _remove_overstruck(text: str) -> str:
    if "\b" not in text:
        return text
    text = _OVERSTRUCK.sub("", text)
    return text if text.count("\b") <= MAX_STRIKES else text.replace("\b", "")


def _rewrite_line(line: str) -> str:
    if "\r" not in line:
        return _apply_backspaces(line)
    kept, state, _ = _split_states(line.split("\r"))
    return "\n".join(map(_apply_backspaces, [*kept, state]))


def _compact(line: str) -> tuple[str, str]:
    """The lines that nothing changes any more, and what has to be known of an unfinished line to go on with it."""
    line = _remove_overstruck(line)
    if "\r" not in line:
        return "", line
    *states, last = line.split("\r")
    kept, state, blanks = _split_states(states)
    return "".join(f"{_apply_backspaces(each)}\n" for each in kept), "\r".join([state, *blanks, last])


def _split_states(states: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """Take apart what `\\r` parts in a line: what stays, the last state, and the blanks after it.

    Of a meter only the last state stays. What the next state does not look like is no meter: text of another program
    or stream in between (curl writes its meter amid the body), or a file whose lines end in `\\r`.
    """
    kept: list[str] = []
    last, blanks = "", ""
    for state in states[-MAX_STATES:]:
        if not state.strip("\b \t\v\f"):
            blanks = max(blanks, state, key=len)
            continue
        if last and len(blanks) < len(last) and not _replaces(state, last):
            kept.append(last)
        last, blanks = state, ""
    return kept, last, [blanks] if blanks else []


def _replaces(state: str, last: str) -> bool:
    """Whether `state` is the next one of the meter that `last` is of."""
    if state == last:
        return True
    if len(state) + SHRINKS < len(last.rstrip()):
        return False
    new, old = _shape(state), _shape(last)
    return new == old or (new[:1] == old[:1] and any(token[0] == "0" for token in old))


def _shape(state: str) -> list[str]:
    """Its words and numbers: all numbers count as 0, with what follows them."""
    return [f"0{found[1]}" if found[1] is not None else found[0] for found in _TOKENS.finditer(state)]


def _apply_backspaces(line: str) -> str:
    """Return a line without its backspaces: each moves back by one, and what follows is written over."""
    if "\b" not in line:
        return line
    cells: list[str] = []
    place = 0
    for found in _STRIKES.finditer(line):
        strike = found[0]
        if strike[0] == "\b":
            place = max(0, place - len(strike))
        else:
            cells[place : place + len(strike)] = strike
            place += len(strike)
    return "".join(cells)
