"""Parse the replies of Redis (RESP2) as they arrive: many in one piece, or one in many.

The client library's parser waits for each line of each reply, which takes most of the time of a small one.
"""

from typing import Any

Reply = Any  # bytes, int, None, a RefusedError, or a list of these
INCOMPLETE = object()  # more has to arrive first
KEPT = 64 * 1024  # bytes of parsed replies after which they are dropped

STATUS, ERROR, NUMBER, BULK, ARRAY = b"+-:$*"


class RefusedError(Exception):
    """Redis refused one command; the text is its own."""


class ReplyParser:
    """The bytes of one connection. `take` returns the next reply, or INCOMPLETE. It raises ValueError for other
    protocols."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0

    def feed(self, data: bytes) -> None:
        self._data += data

    def take(self) -> Reply:
        reply, end = self._parse(self._at)
        if reply is not INCOMPLETE:
            self._at = end
            if end == len(self._data):
                self._data.clear()
                self._at = 0
            elif end > KEPT:
                del self._data[:end]
                self._at = 0
        return reply

    def _parse(self, begin: int) -> tuple[Reply, int]:
        """Return the reply at a place, and where it ends."""
        data = self._data
        end = data.find(b"\r\n", begin)
        if end < 0:
            return INCOMPLETE, begin
        kind, line, at = data[begin], bytes(data[begin + 1 : end]), end + 2
        if kind == BULK:
            size = int(line)
            if size < 0:
                return None, at
            if len(data) < at + size + 2:
                return INCOMPLETE, begin
            return bytes(data[at : at + size]), at + size + 2
        if kind == NUMBER:
            return int(line), at
        if kind == STATUS:
            return line, at
        if kind == ERROR:
            return RefusedError(line.decode("utf-8", "replace").partition(", with args")[0]), at  # they may be secret
        if kind != ARRAY:
            raise ValueError("not a reply of Redis")
        return self._parse_array(int(line), begin, at)

    def _parse_array(self, count: int, begin: int, at: int) -> tuple[Reply, int]:
        if count < 0:
            return None, at
        found: list[Reply] = []
        for _ in range(count):
            reply, at = self._parse(at)
            if reply is INCOMPLETE:
                return INCOMPLETE, begin
            found.append(reply)
        return found, at
