"""Decode a chunked body. Chunk extensions and trailers are checked and dropped. Source: RFC 9112 section 7.1."""

import re

from toolgate.server.base.http.head import END, FIELD, MAX_FIELDS, MAX_HEAD, HttpError, find_control

MAX_LINE = 4 * 1024  # bytes of a chunk's size and extensions
MAX_EXTENSIONS = 64 * 1024  # bytes of all chunk extensions of a body
MAX_STEPS = 1_000  # chunks decoded in one turn of the event loop: some 2 ms

# 15 digits are more than any body has. White space is refused: proxies read it in different ways
LINE = rb"([0-9A-Fa-f]{1,15}+)(;[^\x00-\x08\x0a-\x1f\x7f]*+)?\r\n"
UNFINISHED = rb"(?:[0-9A-Fa-f]{1,15}+(?:;[^\x00-\x08\x0a-\x1f\x7f]*+)?\r?+)?"
FIRST = re.compile(LINE), re.compile(UNFINISHED)
NEXT = re.compile(rb"\r\n" + LINE), re.compile(rb"(?:\r(?:\n%b)?)?" % UNFINISHED)  # after the content of a chunk


class ChunkDecoder:
    """Decodes one chunked body. `rest` are the bytes that are not decoded: at the end, what follows the body."""

    __slots__ = ("_extensions", "_left", "_lines", "_scanned", "is_complete", "is_paused", "is_trailer", "rest")

    def __init__(self) -> None:
        self.is_complete = False
        self.is_paused = False  # there is more in `rest` to decode, in another turn
        self.is_trailer = False  # the content has ended
        self.rest = b""
        self._extensions = 0  # bytes
        self._left = 0  # bytes of the current chunk
        self._lines = FIRST
        self._scanned = 0  # bytes of an unfinished trailer

    def decode(self, data: bytes) -> bytes:
        """Return the content in `data`, of MAX_STEPS chunks at most. Raises HttpError."""
        data = self.rest + data if self.rest else data
        content: list[bytes] = []
        begin = 0
        self.is_paused = False
        for _ in range(0 if self.is_trailer else MAX_STEPS):
            if self._left:
                part = data[begin : begin + self._left]
                content.append(part)
                begin += len(part)
                self._left -= len(part)
            if self._left or self.is_trailer:
                break
            line = self._lines[0].match(data, begin, begin + MAX_LINE)
            if line is None:
                self._check_unfinished(data, begin)
                break
            begin = self._begin_chunk(line)
        else:
            self.is_paused = not self.is_trailer
        self.rest = data[begin:]
        if self.is_trailer:
            self._end_trailer()
        return b"".join(content)

    def _begin_chunk(self, line: re.Match[bytes]) -> int:
        """Take the line of a chunk, and return where its content begins."""
        self._lines = NEXT
        self._extensions += len(line[2] or b"")
        if self._extensions > MAX_EXTENSIONS:
            raise HttpError(400, f"the chunk extensions have more than {MAX_EXTENSIONS} bytes")
        self._left = int(line[1], 16)
        self.is_trailer = not self._left
        return line.end()

    def _check_unfinished(self, data: bytes, begin: int) -> None:
        if len(data) - begin >= MAX_LINE or self._lines[1].fullmatch(data, begin) is None:
            raise HttpError(400, "the size of a chunk is malformed")

    def _end_trailer(self) -> None:
        """Drop the trailer if it is complete."""
        if self.rest.startswith(b"\r\n"):
            self.is_complete, self.rest = True, self.rest[2:]
            return
        end = self.rest.find(END, max(0, self._scanned - 3))
        if max(end, len(self.rest) if end < 0 else 0) > MAX_HEAD:
            raise HttpError(431, f"the trailer has more than {MAX_HEAD} bytes")
        if end < 0:
            if find_control(self.rest, 0, self._scanned):
                raise HttpError(400, "the trailer is malformed")
            self._scanned = len(self.rest)
            return
        _check_trailer(self.rest[: end + 2])
        self.is_complete, self.rest = True, self.rest[end + len(END) :]


def _check_trailer(lines: bytes) -> None:
    begin = count = 0
    while begin < len(lines):
        field = FIELD.match(lines, begin)
        if field is None:
            raise HttpError(400, "a line of the trailer is malformed")
        begin, count = field.end(), count + 1
    if count > MAX_FIELDS:
        raise HttpError(431, f"the trailer has more than {MAX_FIELDS} lines")
