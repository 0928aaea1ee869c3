"""Decode the bytes of a command's output: UTF-8, UTF-16, text between NULs, and binary data, which is counted.

UTF-16 comes from programs of Windows (wsl.exe) and their files. NULs separate the names of `find -print0`. Lines are
the unit: a line with many bytes that no text has is binary, and a plain line ends binary data. A line that is not
complete waits for its end, up to MAX_LINE. The work is linear in the bytes.
"""

import codecs

MAX_LINE = 16 * 2**10  # bytes of an incomplete line held back
NEAR = 4096  # bytes before the end of a piece that are searched for a line end
SAMPLE = 128  # bytes that show whether a line is UTF-16
BLOCK = 8 * 2**10  # bytes from which lines are judged together: binary data has line ends by chance
MIN_WORD = 4  # characters of a plain line that ends binary data: shorter ones are there by chance
MAX_PENDING = 1024  # bytes of such shorter lines
MAX_DOUBTFUL = 3  # lines before binary data that belong to it
FEW = 3  # control characters that any line may have
MANY = 5  # one part in so many makes a line binary
BINARY_SHARE = 0.3  # of bytes that no text has in a block
CONTROLS = bytes({*range(1, 7), *range(0x10, 0x1B), *range(0x1C, 0x20), 0x7F})  # without those that ansi.py knows
ODD = b"\0" + CONTROLS
PLAIN = bytes(range(0x20, 0x7F)) + b"\t\r\n\x1b"
CARETS = {code: f"^{chr(code ^ 0x40)}" for code in CONTROLS}  # as `cat -v` shows them
MARKS = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
FIRST_NOTE = "(binary output: {:,} bytes; pipe it to xxd or file to look at it)"
NEXT_NOTE = "(binary output: {:,} bytes)"


class OutputDecoder:
    """One stream of output."""

    def __init__(self) -> None:
        self._order = ""  # of the line before, if it was UTF-16
        self._is_marked = False  # such a line began with a byte order mark
        self._binary = 0  # bytes of binary data that no note counts yet
        self._pending = b""  # short plain lines after it
        self._notes = 0
        self._is_in_line = False  # the last text has no line end
        self._may_be_block = True  # the rest of these bytes is not yet judged together

    def decode(self, data: bytes, *, final: bool) -> tuple[str, int]:
        """Return the text of `data`, and the bytes used. Unless `final`, what later bytes decide is left."""
        if self._binary or self._order or has_odd_bytes(data):
            text, used = self._decode_lines(data, final=final)
        else:
            text, used = decode_utf8(data, final=final)
        if text:
            self._is_in_line = not text.endswith("\n")
        return text, used

    def end(self) -> str:
        """Return the note about binary data at the end, and what followed it."""
        if not self._binary:
            return ""
        note = (NEXT_NOTE if self._notes else FIRST_NOTE).format(self._binary)
        gap = "\n" if self._is_in_line else ""
        text = f"{gap}{note}\n{decode_utf8(self._pending, final=True)[0]}"
        self._binary, self._pending, self._is_in_line = 0, b"", False
        self._notes += 1
        return text

    def _decode_lines(self, data: bytes, *, final: bool) -> tuple[str, int]:
        texts: list[str] = []
        place = 0
        self._may_be_block = True
        while place < len(data):
            end, text = self._take_utf16(data, place, final=final)
            if end < 0:
                break
            if end == place:
                self._order = ""
                end, text = self._take_line(data, place, final=final)
                if end == place:
                    break
            texts.append(text)
            self._is_in_line = not text.endswith("\n") if text else self._is_in_line
            place = end
        return "".join(texts), place

    def _take_block(self, data: bytes, place: int) -> tuple[int, str]:
        """Return the end of the complete lines from `place` on, and their text, if they are all text between NULs, or
        binary as a whole. Else the end is `place`."""
        is_first, self._may_be_block = self._may_be_block, False
        end = data.rfind(b"\n") + 1 or (len(data) if len(data) > MAX_LINE else 0)
        if not is_first or end - place < BLOCK:
            return place, ""
        block = data[place:end]
        foreign, nuls = count_foreign(block), block.count(0)
        if foreign > BINARY_SHARE * len(block):
            self._count_binary(block)
            return end, ""
        is_text = not self._binary and b"\0\0" not in block and b"\n\0" not in block
        return (end, show_controls(block)) if is_text and foreign - nuls < len(block) // 50 else (place, "")

    def _take_utf16(self, data: bytes, place: int, *, final: bool) -> tuple[int, str]:
        """Return the end of a line in UTF-16, and its text. The end is `place` for a line in UTF-8, and -1 where later
        bytes decide."""
        order = self._order or guess_utf16(data, place)
        if not order:
            return place, ""
        newline = "\n".encode(order)
        at = data.find(newline, place)
        while at >= 0 and (at - place) % 2:
            at = data.find(newline, at + 1)
        first = data.find(b"\n", place)
        is_sure = self._order or data.startswith(MARKS[order], place)
        is_cut = 0 <= first < at + newline.index(b"\n") and not (is_sure and (first - place + newline.index(b"\n")) % 2)
        is_open = at < 0 and first < 0 and not final and len(data) - place <= MAX_LINE
        if is_open or (at < 0 and first == len(data) - 1 and not final):
            return -1, ""
        is_end = self._is_marked and first < 0  # the last line of a file
        if is_cut or (at < 0 and not is_end and b"\0" not in data[place:]):
            return place, ""
        end = at + 2 if at >= 0 else place + (len(data) - place) // 2 * 2
        text = decode_utf16(data[place:end], order)
        if not text:
            return place, ""
        self._order = order
        self._is_marked = self._is_marked or data.startswith(MARKS[order], place)
        return end, self.end() + text

    def _take_line(self, data: bytes, place: int, *, final: bool) -> tuple[int, str]:
        """Return the end of a line that is not UTF-16, and the text that is certain. The end is `place` where later
        bytes decide."""
        end = data.find(b"\n", place) + 1
        line = data[place : end or len(data)]
        is_plain = not has_odd_bytes(line)
        if not is_plain:
            block_end, text = self._take_block(data, place)
            if block_end > place:
                return block_end, text
        if not end:
            if is_plain and not self._binary:
                text, used = decode_utf8(line, final=final)
                return place + used, text
            if not final and len(line) <= MAX_LINE:
                return place, ""
            end = len(data)
        if is_plain and self._binary and count_foreign(line) <= max(1, len(line) // MANY):  # text may follow
            self._pending += line
            is_over = len(line.strip()) >= MIN_WORD or len(self._pending) > MAX_PENDING
            return end, self.end() if is_over else ""
        if is_binary(line) or (is_plain and self._binary) or (is_doubtful(line) and begins_binary(data, end)):
            self._count_binary(line)
            return end, ""
        text = decode_utf8(line, final=True)[0] if is_plain else show_controls(line)
        return end, self.end() + text

    def _count_binary(self, data: bytes) -> None:
        """Count binary data. Plain text at its end, up to a line end, may be another program's."""
        after = len(data) - len(data.rstrip(PLAIN)) if data.endswith(b"\n") else 0
        self._binary += len(self._pending) + len(data) - after
        self._pending = data[len(data) - after :]


def has_odd_bytes(data: bytes) -> bool:
    """Return whether there is a NUL, or a control character that no terminal needs."""
    return len(data.translate(None, ODD)) < len(data)


def decode_utf8(data: bytes, *, final: bool) -> tuple[str, int]:
    """Return the text of `data`, and the bytes used: unless `final`, a cut character at the end is left."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final)
    return text, len(data) - len(decoder.getstate()[0])


def decode_utf16(data: bytes, order: str) -> str:
    """Return the text, or "" if it is not one."""
    try:
        text = data.decode(order).removeprefix("\ufeff")
    except UnicodeDecodeError:
        return ""
    plain = text.translate(dict.fromkeys(map(ord, "\r\n\t\b\f\v\x1b\x07")))
    strange = 0 if plain.isprintable() else sum(not each.isprintable() for each in plain)
    return text if strange * 10 <= len(text) else ""


def guess_utf16(data: bytes, place: int) -> str:
    """Return the byte order of the line at `place` if it looks like UTF-16, or "": half of its characters are Latin."""
    for order, high in (("utf-16-le", 1), ("utf-16-be", 0)):
        sample, newline = data[place : place + SAMPLE], "\n".encode(order)
        cut = sample.find(newline)
        is_line = cut >= 0 and cut % 2 == 0
        sample = sample[: cut + 2] if is_line else sample[: len(sample) // 2 * 2]
        units, highs, lows = len(sample) // 2, sample[high::2].count(0), sample[1 - high :: 2].count(0)
        if lows * 20 > units or highs == 0:
            continue
        if sample.startswith(MARKS[order]) or (units >= (2 if is_line else MIN_WORD) and highs * 5 >= units * 2):
            return order
    return ""


def count_foreign(data: bytes) -> int:
    """Return how many bytes no UTF-8 text has."""
    return len(data) - len(data.translate(None, ODD)) + data.decode("utf-8", "replace").count("\ufffd")


def is_binary(line: bytes) -> bool:
    """Return whether a line is more than text between NULs, or with a few control characters."""
    return b"\0\0\0" in line or count_foreign(line) - line.count(0) > max(FEW, len(line) // MANY)


def is_doubtful(line: bytes) -> bool:
    """Return whether a line has bytes that text seldom has."""
    return count_foreign(line) > line.count(0)


def begins_binary(data: bytes, place: int) -> bool:
    """Return whether binary data begins at `place`, or after a few doubtful lines, as in the head of a PNG."""
    for _ in range(MAX_DOUBTFUL):
        end = data.find(b"\n", place) + 1 or len(data)
        line = data[place:end]
        if is_binary(line) or not is_doubtful(line):
            return is_binary(line)
        place = end
    return False


def show_controls(line: bytes) -> str:
    """Return a line with a line end in the place of a NUL, and control characters as `cat -v` shows them."""
    text = line.decode("utf-8", "replace").replace("\0\n", "\n").replace("\0", "\n")
    return text.translate(CARETS)


def find_cut(data: bytes) -> int:
    """Return where to cut output so that no line is split, or 0 if no line ends near the end. In UTF-16 a NUL may
    follow a line end."""
    cut = data.rfind(b"\n", -NEAR) + 1
    return cut + 1 if cut and data[cut : cut + 1] == b"\0" else cut
