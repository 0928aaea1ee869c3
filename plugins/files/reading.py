"""Read lines of text files of any size. Runs in the caller's sandbox."""

import os

from .paths import CHUNK, MAX_DIGEST, FileError, Places, make_key, make_stamp, read_stamp, show_text

MAX_LINE = 2_000  # characters of a line that are shown
MAX_TEXT = 30_000  # characters of a result
MAX_COUNTED = 2**30  # bytes in which lines are counted from the end
HEAD = 8_192  # bytes that tell text from other content
TEXT_16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
FORMATS = {  # first bytes → what it is, and what reads it
    b"\x89PNG": "a PNG image: use ReadImage",
    b"\xff\xd8\xff": "a JPEG image: use ReadImage",
    b"GIF8": "a GIF image: use ReadImage",
    b"BM": "perhaps a BMP image: use ReadImage",
    b"II*\0": "a TIFF image: use ReadImage",
    b"MM\0*": "a TIFF image: use ReadImage",
    b"\0\0\1\0": "perhaps an icon: use ReadImage",
    b"RIFF": "perhaps a WebP image: use ReadImage",
    b"%PDF": "a PDF: use Bash, such as pdftotext FILE -",
    b"PK\3\4": "a zip archive, or a document that is one: use Bash, such as unzip -l",
    b"\x1f\x8b": "compressed by gzip: use Bash, such as zcat",
    b"\x7fELF": "a program",
    b"SQLite format 3": "an SQLite database: use Bash, such as sqlite3",
}


def read(places: Places, path: str, offset: int, limit: int) -> dict[str, str]:
    """Return lines from number `offset` (negative: from the end), with their numbers, and the file's stamp."""
    real = places.resolve(path)
    file = places.open_regular(real)
    size = os.fstat(file).st_size
    head = os.read(file, HEAD)
    os.lseek(file, 0, os.SEEK_SET)
    check_is_text(head, size)
    encoding = TEXT_16.get(head[:2], "utf-8")
    lines = Lines(file, encoding)
    first = offset or 1
    if offset < 0:
        first = max(1, lines.count(size) + offset + 1)
    text = lines.take(first, limit)
    # the stamp is of what was read: `take` has the content, unless it is large
    stamp = make_stamp(file, lines.content) if lines.content is not None else read_stamp(file)
    return {"text": text, "key": make_key(real), "stamp": stamp}


def check_is_text(head: bytes, size: int) -> None:
    """Raise FileError if a file that begins so is no text."""
    what = next((what for first, what in FORMATS.items() if head.startswith(first)), "")
    what = "an AVIF image: use ReadImage" if head[4:12] == b"ftypavif" else what
    is_binary = head[:2] not in TEXT_16 and b"\0" in head
    if is_binary or head.startswith(b"%PDF") or (what and not head.isascii()):
        raise FileError(f"it is {what or 'a binary file'} ({size:,} bytes)")


class Lines:
    """The lines of an open file. `content` is the whole of it once read, unless it is large."""

    def __init__(self, file: int, encoding: str) -> None:
        self._file = file
        self._encoding = encoding
        self.content: bytes | None = None
        self._notes: list[str] = []
        self._has_crlf = self._has_controls = self._is_cut = self._has_other_bytes = False

    def count(self, size: int) -> int:
        """Return the number of lines. Raises FileError for a large file."""
        if size > MAX_COUNTED:
            raise FileError(f"it has {size:,} bytes, too many to count its lines from the end: use tail in Bash")
        count, last = 0, b"\n"
        while piece := os.read(self._file, CHUNK):
            count += piece.count(b"\n")
            last = piece[-1:]
        os.lseek(self._file, 0, os.SEEK_SET)
        return count + (last != b"\n")

    def take(self, first: int, limit: int) -> str:
        """Return the numbered lines from `first`, and notes."""
        found, total = self._find(first, limit)
        shown: list[str] = []
        size = 0
        for number, line in enumerate(found, first):
            text = f"{number}\t{self._show(line)}"
            size += len(text) + 1
            if shown and size > MAX_TEXT:
                break
            shown.append(text)
        return "\n".join([*shown, *self._describe(first, len(shown), total)])

    def _find(self, first: int, limit: int) -> tuple[list[bytes], int | None]:
        """Return at most `limit` lines and enough of them for a result, and the number of all, if known."""
        content = self._read_small()
        if content is not None:
            if self._encoding != "utf-8":
                content = content.decode(self._encoding, "replace").removeprefix("\ufeff").encode()
            lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
            if not lines[-1]:
                lines.pop()
            return lines[first - 1 : first - 1 + limit], len(lines)
        if self._encoding != "utf-8":
            raise FileError(f"it is a UTF-16 text of more than {MAX_DIGEST:,} bytes: use iconv in Bash")
        return self._find_in_large(first, limit), None

    def _read_small(self) -> bytes | None:
        if os.fstat(self._file).st_size > MAX_DIGEST:
            return None
        pieces, size = [], 0
        while piece := os.read(self._file, CHUNK):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_DIGEST:  # it grows
                os.lseek(self._file, 0, os.SEEK_SET)
                return None
        self.content = b"".join(pieces)
        return self.content

    def _find_in_large(self, first: int, limit: int) -> list[bytes]:
        number, lines, rest, size = 1, [], b"", 0
        while piece := os.read(self._file, CHUNK):
            if number < first:
                here = piece.count(b"\n")
                if number + here < first:
                    number += here
                    continue
                for _ in range(first - number):
                    piece = piece[piece.index(b"\n") + 1 :]
                number = first
            *whole, rest = (rest + piece).split(b"\n")
            rest = rest[: 8 * MAX_LINE]  # a line of gigabytes costs no memory
            lines += whole
            size += sum(min(len(line), MAX_LINE) for line in whole)
            if len(lines) > limit or size > 8 * MAX_TEXT:
                return lines[:limit]
        return [*lines, *([rest] if rest else [])][:limit]

    def _show(self, line: bytes) -> str:
        if line.endswith(b"\r"):
            self._has_crlf = True
            line = line[:-1]
        text = line[: 4 * MAX_LINE + 4].decode("utf-8", "replace")
        self._has_other_bytes |= "\ufffd" in text
        if len(text) > MAX_LINE or len(line) > 4 * MAX_LINE:
            self._is_cut = True
            text = f"{text[:MAX_LINE]}…"
        shown = show_text(text)
        self._has_controls |= shown != text
        return shown

    def _describe(self, first: int, count: int, total: int | None) -> list[str]:
        if total == 0:
            return ["[the file is empty]"]
        if not count:
            return [f"[it has {total:,} lines: none from {first:,} on]" if total else f"[no line {first:,}]"]
        last = first + count - 1
        notes = []
        if total is None or last < total:
            of = f" of {total:,}" if total is not None else ""
            notes.append(f"lines {first}-{last}{of}; go on with offset={last + 1}")
        elif first > 1:
            notes.append(f"lines {first}-{last}, the end")
        notes += [f"lines are cut at {MAX_LINE:,} characters"] if self._is_cut else []
        notes += ["lines end in CRLF"] if self._has_crlf else []
        notes += ["control characters are shown as pictures such as ␛"] if self._has_controls else []
        notes += ["� may stand for bytes that are not UTF-8"] if self._has_other_bytes else []
        return [f"[{'; '.join(notes)}]"] if notes else []
