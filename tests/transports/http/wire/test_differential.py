"""Random requests are read as h11 and httptools (llhttp) read them, apart from listed differences."""

import asyncio
import random
import re
from collections.abc import Sequence
from typing import NamedTuple

import h11
import httptools
import pytest

from tests.transports.http.wire.cases import NEXT
from tests.transports.http.wire.fake_transport import FakeClient
from tests.transports.http.wire.grammar import CODINGS, FIELDS, LENGTHS, mutate, random_chunks
from toolgate.transports.http.wire.request import Answer, HttpRequest, WholeResponse

REQUESTS = 3_000
SEEDS = 10  # each has its part of the requests


class Read(NamedTuple):
    """A request as a parser reads it."""

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class Reading(NamedTuple):
    """What a parser makes of a client's bytes: the first request, or why it is refused.

    `is_followed`: whether NEXT is the second request. None if the connection closes after the first.
    """

    first: Read | None = None
    is_followed: bool | None = False
    refusal: str = ""


# Sentences that refuse what an oracle reads, by their beginnings: stricter on purpose
STRICTER = {
    "h11": {
        "Content-Length and Transfer-Encoding exclude": "h11 lets Transfer-Encoding win",
        "HTTP/1.0 has no Transfer-Encoding": "h11 decodes chunks of HTTP/1.0",
        "a header line is malformed": "h11 reads folded lines, and LF alone as the end of a line",
        "a line of the trailer is malformed": "likewise",
        "the trailer is malformed": "likewise",
        "the head has a control character": "likewise",
        "the request line is malformed": "likewise, and methods of any length",
        "the Content-Length must be a number": "h11 reads a list of equal numbers",
        "the header content-length may occur only once": "h11 reads equal lines",
        "the size of a chunk is malformed": "h11 reads white space and CR after the size",
        "the target must be": "h11 leaves the target to the application",
        "the version must be": "h11 leaves the version to the application",
    },
    "httptools": {
        "HTTP/1.0 has no Transfer-Encoding": "llhttp decodes chunks of HTTP/1.0",
        "the Host header is missing": "llhttp leaves Host to the application",
        "the Transfer-Encoding must be chunked": "llhttp reads other codings before chunked",
        "the head has a control character": "llhttp skips line ends before a request",
        "the header host may occur only once": "llhttp leaves Host to the application",
        "the request line is malformed": "llhttp skips line ends before a request, and reads HTTP/0.9",
        "the target must be": "llhttp reads URLs of any scheme",
        "the version must be": "llhttp reads HTTP/2.0 and 0.9",
    },
}
# Reasons of an oracle that refuses what is read here, by their beginnings
LOOSER = {
    "h11": {
        "Missing mandatory Host: header": "the authority of an absolute target is the Host",
        "no request line received": "h11 reads no empty line before a request",
    },
    "httptools": {
        "Expected space after method": "llhttp has a list of methods",
        "Invalid method encountered": "likewise",
        "Invalid character in chunk extensions": "llhttp checks extensions, which are dropped here",
        "Unexpected char in url server": "the Host is checked by the application",
    },
}


def is_next(request: Read) -> bool:
    return (request.method, request.target) == (b"GET", b"/ready")


async def read_by_wire(data: bytes) -> Reading:
    requests: list[Read] = []
    persists: list[bool] = []

    async def handler(request: HttpRequest) -> Answer:
        content, more = await request.read()
        while more:
            part, more = await request.read()
            content += part
        head = request.head
        target = head.raw_path + (b"?" + head.query if head.query else b"")
        requests.append(Read(head.method.encode(), target, head.fields, content))
        persists.append(head.persists)
        return WholeResponse(200)

    client = FakeClient(handler)
    await client.send(data)
    refusal = client.answers.rpartition(b"\r\n\r\n")[2].decode() if client.statuses[-1:] not in ([], [200]) else ""
    await client.hang_up()
    if not requests:
        return Reading(refusal=refusal)
    is_followed = any(is_next(request) for request in requests[1:])
    return Reading(requests[0], is_followed if persists[0] else None, refusal)


def read_by_h11(data: bytes) -> Reading:
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=100_000)
    parser.receive_data(data)
    request: h11.Request | None = None
    body = b""
    try:
        while True:
            event = parser.next_event()
            if isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                first = Read(request.method, request.target, tuple(request.headers), body)
                return Reading(first, re.sub(rb"^(\r\n)*", b"", parser.trailing_data[0]) == NEXT)
            else:
                return Reading()
    except h11.RemoteProtocolError as error:
        return Reading(refusal=str(error))


class Messages:
    """The callbacks of httptools."""

    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.requests: list[Read] = []
        self.has_head = False

    def on_message_begin(self) -> None:
        self.target, self.body, self.has_head = b"", b"", False
        self.headers: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.has_head:  # else it is a trailer
            self.headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.requests.append(Read(self.parser.get_method(), self.target, tuple(self.headers), self.body))


def read_by_httptools(data: bytes) -> Reading:
    messages = Messages()
    refusal = ""
    try:
        messages.parser.feed_data(data)
    except httptools.HttpParserError as error:
        refusal = str(error)
    except httptools.HttpParserUpgrade:
        refusal = "an upgrade"
    if not messages.requests or refusal == "an upgrade":
        return Reading(refusal=refusal)
    return Reading(messages.requests[0], any(is_next(request) for request in messages.requests[1:]))


# -- the grammar

METHODS = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "HEAD"]
TARGETS = ["/", "/health", "/a?b=c", "/%2e%2e/a", "/a;b=c?d?e", "//a", "/~a!$&'()*+,=:@", "http://localhost/a?b"]


def random_request(rng: random.Random) -> bytes:
    """Return a request, which is well formed half of the time."""
    version = rng.choice(["1.1"] * 12 + ["1.0", "2.0"])
    lines = [f"{rng.choice(METHODS)} {rng.choice(TARGETS)} HTTP/{version}", "Host: localhost"]
    lines += rng.choices(FIELDS, k=rng.randrange(4))
    body = b""
    content = rng.randbytes(rng.choice([0, 1, 9, 100]))
    match rng.randrange(3):
        case 0:
            lines.append(rng.choice(LENGTHS[:1] * 8 + LENGTHS).format(len(content)))
            body = content
        case 1:
            lines.append(rng.choice(CODINGS))
            body = random_chunks(rng, content)
    data = "".join(f"{line}\r\n" for line in lines).encode("latin-1") + b"\r\n" + body
    return data if rng.random() < 0.5 else mutate(rng, data)


# -- the comparison


def normalize(request: Read) -> Read:
    """Return a request with the path of its target, and the coding in lower case, as h11 does."""
    headers = tuple((name, value.lower() if name == b"transfer-encoding" else value) for name, value in request.headers)
    path = re.sub(rb"(?i)^https?://[^/?]*/?", b"/", request.target).removesuffix(b"?")
    return request._replace(target=path, headers=headers)


def find_difference(oracle: str, ours: Reading, theirs: Reading) -> str | None:
    """Return how an oracle reads the bytes in another way, or None if it does not, or is expected to."""
    is_stricter = any(ours.refusal.startswith(reason) for reason in STRICTER[oracle])
    is_looser = any(theirs.refusal.startswith(reason) for reason in LOOSER[oracle])
    if ours.first is not None and theirs.first is not None:
        is_same = normalize(ours.first) == normalize(theirs.first)
        is_same = is_same and (ours.is_followed in (None, theirs.is_followed) or is_stricter)
        return None if is_same else f"{oracle} reads {theirs}, not {ours}"
    if theirs.first is not None and not is_stricter:
        return f"{oracle} reads what is refused here: {ours.refusal}"
    if ours.first is not None and not is_looser:
        return f"{oracle} refuses what is read here: {theirs.refusal}"
    return None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_request_is_read_as_other_parsers_read_it(seed: int) -> None:
    rng = random.Random(seed)
    requests = [random_request(rng) for _ in range(REQUESTS // SEEDS)]

    async def read_all() -> Sequence[Reading]:
        return [await read_by_wire(request + NEXT) for request in requests]

    differences: dict[str, bytes] = {}
    for request, ours in zip(requests, asyncio.run(read_all()), strict=True):
        for oracle, theirs in (("h11", read_by_h11(request + NEXT)), ("httptools", read_by_httptools(request + NEXT))):
            difference = find_difference(oracle, ours, theirs)
            if difference is not None:
                differences[difference] = request
    assert differences == {}
