"""Parse the head of an HTTP/1.1 request, refuse what servers and proxies may read in two ways, and write header lines.

Source: RFC 9110 section 5; RFC 9112 sections 2, 3, 6 and 7.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NoReturn
from urllib.parse import unquote

import msgspec

MAX_HEAD = 64 * 1024  # bytes: tokens and cookies are a few kilobytes
MAX_FIELDS = 256  # lines: browsers and proxies send some 30
MAX_CACHED = 4 * 1024  # bytes of a head that is remembered: 1,024 of the largest take some 20 MB
MAX_DIGITS = 18  # of Content-Length without its zeros: more than any body has
END = b"\r\n\r\n"

TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
REQUEST_LINE = re.compile(rb"(%b{1,64}+) ([\x21\x22\x24-\x7e]++) HTTP/([0-9])\.([0-9])\r\n" % TOKEN)
FIELD = re.compile(rb"(%b++):([^\x00-\x08\x0a-\x1f\x7f]*+)\r\n" % TOKEN)
ABSOLUTE = re.compile(rb"https?://([^/?@\\]+)(/[^?]*)?(\?.*)?", re.IGNORECASE)
CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)(?!\Z)|(?<!\r)\n")  # in no head, unfinished or not
EMPTY_LINES = re.compile(rb"(?:\r\n){0,8}+")  # before a request: old clients send one after a body

# May occur once: where two lines differ, a proxy may use the other. All others are lists (RFC 9110 section 5.3)
SINGLE = frozenset(
    b"authorization content-type content-location date from host if-modified-since if-range if-unmodified-since "
    b"last-event-id location max-forwards mcp-method mcp-name mcp-protocol-version mcp-session-id origin "
    b"proxy-authorization range referer user-agent x-real-ip x-request-id".split()
)
FRAMING = (b"content-length", b"transfer-encoding")
SINGLE_PREFIX = b"mcp-param-"


HeaderLines = Iterable[tuple[bytes, bytes]]


class HttpError(Exception):
    """The bytes are no request that is read here. `status` and the text are the last answer of the connection."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Head(msgspec.Struct, frozen=True, eq=False):
    """The head of a request. Requests of the same bytes share it.

    - `path`: decoded, without the query. `raw_path` is as it was sent.
    - `fields`: the lines, with names in lower case and without white space around values.
    - `headers`: the same by name; lines of a list are joined.
    - `length`: of the body in bytes; None if it is chunked. `size` is that of the head.
    - `persists`: whether the client lets the connection stay open.
    - `expects_continue`: whether the client waits for a 100 Continue before it sends the body.
    """

    method: str
    path: str
    raw_path: bytes
    query: bytes
    version: str
    fields: tuple[tuple[bytes, bytes], ...]
    headers: Mapping[bytes, bytes]
    length: int | None
    size: int
    persists: bool
    expects_continue: bool

    def count(self, name: bytes) -> int:
        """Return the number of lines with this name."""
        return sum(field == name for field, _ in self.fields)


def read_head(data: bytes) -> Head:
    """Return the head in `data`, which ends with an empty line. Raises HttpError."""
    return _parse_cached(data) if len(data) <= MAX_CACHED else parse_head(data)


def parse_head(data: bytes) -> Head:
    """Parse a head without remembering it. Raises HttpError."""
    line = REQUEST_LINE.match(data)
    if line is None:
        raise HttpError(400, "the request line is malformed")
    method, target, major, minor = line.groups()
    if (major, minor) not in ((b"1", b"1"), (b"1", b"0")):
        raise HttpError(505, "the version must be HTTP/1.1 or HTTP/1.0")
    is_old = minor == b"0"
    fields = parse_header_fields(data, line.end())
    headers = _merge_fields(fields)
    raw_path, query = _read_target(method, target, headers)
    if not is_old and b"host" not in headers:
        raise HttpError(400, "the Host header is missing")
    expects = _read_expect(headers)
    connection = [option.strip().lower() for option in headers.get(b"connection", b"").split(b",")]
    path = raw_path.decode("ascii")
    return Head(
        method.decode("ascii"),
        unquote(path) if "%" in path else path,
        raw_path,
        query,
        "1.0" if is_old else "1.1",
        tuple(fields),
        headers,
        read_body_length(headers, is_old=is_old),
        len(data),
        not is_old and b"close" not in connection,
        expects and not is_old,
    )


_parse_cached = lru_cache(1_024)(parse_head)


def skip_empty_lines(data: bytes, begin: int) -> int:
    """Return where the head begins, after at most eight empty lines."""
    match = EMPTY_LINES.match(data, begin)
    return begin if match is None else match.end()


def find_control(data: bytes | bytearray, begin: int, scanned: int) -> bool:
    """Return whether an unfinished head, which begins at `begin`, has a byte that no head has. Its client may wait for
    an answer. The bytes before `scanned` were searched earlier.
    """
    is_bare = data.startswith(b"\n", begin)  # what precedes it belongs to a body
    return is_bare or CONTROL.search(data, max(begin, scanned - 1)) is not None


def parse_header_fields(data: bytes, begin: int) -> list[tuple[bytes, bytes]]:
    """Return the lines of a head, whose first one begins at `begin`. Raises HttpError."""
    fields: list[tuple[bytes, bytes]] = []
    end = len(data) - 2  # the empty line
    while begin < end:
        field = FIELD.match(data, begin, end)
        if field is None:
            raise HttpError(400, "a header line is malformed")
        fields.append((field[1].lower(), field[2].strip(b" \t")))
        begin = field.end()
    if len(fields) > MAX_FIELDS:
        raise HttpError(431, f"there are more than {MAX_FIELDS} header lines")
    return fields


def join_fields(fields: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers of a response by name. Lines of a list are joined; of what may occur once, the last counts."""
    headers: dict[bytes, bytes] = {}
    for name, value in fields:
        is_list = name in headers and name not in SINGLE and name not in FRAMING
        headers[name] = headers[name] + b", " + value if is_list else value
    return headers


def format_lines(headers: HeaderLines) -> bytes:
    """Return header lines as they are sent. Raises ValueError for a name or value that breaks out of its line."""
    each = [b"%b: %b\r\n" % header for header in headers]
    lines = b"".join(each)
    if _count_fields(lines) != len(each):
        raise ValueError("a header is malformed")
    return lines


def _count_fields(lines: bytes) -> int:
    """Return the number of header lines, or -1 if one is malformed."""
    begin = count = 0
    while begin < len(lines):
        field = FIELD.match(lines, begin)
        if field is None:
            return -1
        begin, count = field.end(), count + 1
    return count


def _merge_fields(fields: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers by name. Raises HttpError for two lines of one that may occur once."""
    headers = dict(fields)
    if len(headers) == len(fields):
        return headers
    headers = {}
    for name, value in fields:
        if name not in headers:
            headers[name] = value
        elif name in (b"host", b"content-length"):
            _refuse_repeated(name)
        elif name not in SINGLE and not name.startswith(SINGLE_PREFIX):
            headers[name] += (b"; " if name == b"cookie" else b", ") + value  # RFC 9113 section 8.2.3
        elif headers[name] != value:
            _refuse_repeated(name)
    return headers


def _refuse_repeated(name: bytes) -> NoReturn:
    raise HttpError(400, f"the header {name.decode('ascii')} may occur only once")


def _read_target(method: bytes, target: bytes, headers: dict[bytes, bytes]) -> tuple[bytes, bytes]:
    """Return the path and the query. The authority of an absolute target replaces the Host (RFC 9112 section 3.2.2)."""
    if method == b"CONNECT":
        raise HttpError(400, "this server is no proxy: it does not CONNECT")
    if target.startswith(b"/"):
        path, _, query = target.partition(b"?")
        return path, query
    if target == b"*" and method == b"OPTIONS":
        return target, b""
    absolute = ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise HttpError(400, "the target must be a path or an http URL")
    headers[b"host"] = absolute[1]
    return absolute[2] or b"/", (absolute[3] or b"?")[1:]


def read_body_length(headers: Mapping[bytes, bytes], *, is_old: bool) -> int | None:
    """Return the length of the body, or None for a chunked one. Raises HttpError."""
    length, coding = headers.get(b"content-length"), headers.get(b"transfer-encoding")
    if coding is not None:
        if length is not None:
            raise HttpError(400, "Content-Length and Transfer-Encoding exclude each other")
        if is_old:
            raise HttpError(400, "HTTP/1.0 has no Transfer-Encoding")
        if coding.lower() != b"chunked":
            raise HttpError(501, "the Transfer-Encoding must be chunked")
        return None
    if length is None:
        return 0
    if not length.isdigit():
        raise HttpError(400, "the Content-Length must be a number")
    return int(length) if len(length.lstrip(b"0")) <= MAX_DIGITS else 10**MAX_DIGITS


def _read_expect(headers: dict[bytes, bytes]) -> bool:
    expected = headers.get(b"expect")
    if expected is not None and expected.lower() != b"100-continue":
        raise HttpError(417, "the only expectation that can be met is 100-continue")
    return expected is not None
