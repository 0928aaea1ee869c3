"""Write the head of a request, and read the head and the body of its response (RFC 9112).

What may be read in two ways is no response.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from toolgate.server.base.http.chunks import ChunkDecoder
from toolgate.server.base.http.head import (
    FRAMING,
    HttpError,
    format_lines,
    join_fields,
    parse_header_fields,
    read_body_length,
)

RESPONSE_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\x00-\x08\x0a-\x1f\x7f]*+)?\r\n")
BEGIN = b"HTTP/1."
TARGET = re.compile(r"[\x21-\x7e]+")
SWITCHING = 101


class BodyDecoder(Protocol):
    """Finds the end of a body. `rest` are the bytes after it; a decoder `is_paused` that has more to decode without
    new bytes."""

    @property
    def is_complete(self) -> bool: ...
    @property
    def is_paused(self) -> bool: ...
    @property
    def rest(self) -> bytes: ...

    def decode(self, data: bytes) -> bytes:
        """Return the content in `data`. Raises HttpError."""
        ...


class SizedDecoder:
    """Decodes a body whose head says how long it is."""

    is_paused = False

    def __init__(self, length: int) -> None:
        self.is_complete = not length
        self.rest = b""
        self._left = length

    def decode(self, data: bytes) -> bytes:
        content, self.rest = data[: self._left], data[self._left :]
        self._left -= len(content)
        self.is_complete = not self._left
        return content


class UnsizedDecoder:
    """Decodes a body that ends with its connection."""

    is_complete = False
    is_paused = False
    rest = b""

    def decode(self, data: bytes) -> bytes:
        return data


class ResponseHead(msgspec.Struct, frozen=True):
    """The head of a response. `length`: bytes of its body; None if it is chunked, or not `is_sized` at all. `persists`:
    whether the server lets the connection stay open."""

    status: int
    headers: Mapping[str, str]
    length: int | None
    is_sized: bool
    persists: bool

    @property
    def is_interim(self) -> bool:
        """Whether another head follows, which answers the request."""
        return self.status < 200

    def create_decoder(self) -> BodyDecoder:
        if not self.is_sized:
            return UnsizedDecoder()
        return ChunkDecoder() if self.length is None else SizedDecoder(self.length)


def encode_request(method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes) -> bytes:
    """Return the bytes of a request. Raises ValueError for what breaks out of its line."""
    if TARGET.fullmatch(target) is None:
        raise ValueError("the target is malformed")
    lines = format_lines([(name.encode("ascii"), value.encode("ascii")) for name, value in headers])
    return b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method.encode("ascii"), target.encode("ascii"), lines, body)


def parse_response(data: bytes) -> ResponseHead:
    """Return the head in `data`, which ends with an empty line. Raises HttpError."""
    line = RESPONSE_LINE.match(data)
    if line is None:
        raise HttpError(502, "the status line is malformed")
    status, is_old = int(line[2]), line[1] == b"0"
    fields = parse_header_fields(data, line.end())
    headers = dict(fields)
    if len(headers) != len(fields):
        _check_repeated(fields)
        headers = join_fields(fields)
    if status == SWITCHING:
        raise HttpError(502, "it switches to a protocol that was not asked for")
    length = read_body_length(headers, is_old=is_old)
    is_sized = any(name in headers for name in FRAMING)
    if status < 200 or status in (204, 304):
        length, is_sized = 0, True
    options = b",".join(value for name, value in fields if name == b"connection").lower().split(b",")
    is_last = is_old or not is_sized or b"close" in map(bytes.strip, options)
    told = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
    return ResponseHead(status, told, length, is_sized, not is_last)


def is_response(data: bytes | bytearray) -> bool:
    """Return whether these bytes can be the first ones of a response."""
    return BEGIN.startswith(bytes(data[: len(BEGIN)]))


def _check_repeated(fields: list[tuple[bytes, bytes]]) -> None:
    for name in FRAMING:
        if len({value for field, value in fields if field == name}) > 1:
            raise HttpError(502, f"the header {name.decode('ascii')} may occur only once")
