"""Responses are read as h11 reads them, apart from listed differences."""

import asyncio
import random
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

import h11
import pytest

from tests.transports.http.wire.grammar import CODINGS, FIELDS, LENGTHS, mutate, random_chunks
from toolgate.server.features.mounts.upstream.errors import MountError
from toolgate.server.features.mounts.upstream.http_connection import UpstreamConnection

RESPONSES = 3_000
SEEDS = 10  # each has its part of the responses
TURNS = 10  # of the loop, in which all that has come is read
STATUS_LINES = ["HTTP/1.1 200 OK"] * 6 + ["HTTP/1.1 202 ", "HTTP/1.1 404", "HTTP/1.0 200 OK", "HTTP/1.1 204 Not: \xe9"]


class Response(NamedTuple):
    """What a parser makes of a server's bytes. `is_last`: nothing else can be asked on the connection."""

    status: int = 0
    headers: Mapping[str, str] = {}
    body: bytes = b""
    is_last: bool = True
    refusal: str = ""


# Sentences that refuse what h11 reads, by their beginnings: stricter on purpose
STRICTER = {
    "its response can't be read: Content-Length and Transfer-Encoding exclude": "h11 lets Transfer-Encoding win",
    "its response can't be read: HTTP/1.0 has no Transfer-Encoding": "h11 decodes chunks of HTTP/1.0",
    "its response can't be read: a header line is malformed": "h11 reads folded lines, and LF as the end of a line",
    "its response can't be read: a line of the trailer is malformed": "likewise",
    "its response can't be read: the trailer is malformed": "likewise",
    "its response can't be read: the status line is malformed": "likewise, and any version",
    "its response can't be read: its head is malformed": "likewise, and for h11 the head ends earlier",
    "its response can't be read: the Content-Length must be a number": "h11 reads a list of equal numbers",
    "its response can't be read: the size of a chunk is malformed": "h11 reads white space and CR after the size",
}


class Wire(asyncio.Transport):
    """Takes all that is written, and has a socket on which nothing comes."""

    def __init__(self) -> None:
        super().__init__({"socket": socket.socket()})

    def write(self, data: Any) -> None: ...

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None:
        self.get_extra_info("socket").close()


async def read_here(data: bytes) -> Response:
    connection = UpstreamConnection(asyncio.get_running_loop())
    connection.connection_made(Wire())

    async def ask() -> Response:
        head = await connection.request("POST", "/", [("Host", "a")], b"")
        body = b"".join([part async for part in connection.read_body()])
        return Response(head.status, head.headers, body, not connection.is_idle)

    asking = asyncio.create_task(ask())
    connection.data_received(data)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    connection.eof_received()
    try:
        return await asking
    except MountError as error:
        return Response(refusal=error.sentence)
    finally:
        connection.close()


def read_by_h11(data: bytes) -> Response:
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=100_000)
    for event in (h11.Request(method="POST", target="/", headers=[("Host", "a")]), h11.EndOfMessage()):
        client.send(event)
    client.receive_data(data)
    head: h11.Response | None = None
    body = b""
    try:
        while not isinstance(event := client.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                client.receive_data(b"")
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif not isinstance(event, h11.InformationalResponse):
                return Response(refusal=f"{event}")
    except h11.RemoteProtocolError as error:
        return Response(refusal=str(error))
    assert head is not None
    headers: dict[str, str] = {}
    for name, value in ((name.decode(), value.decode("latin-1")) for name, value in head.headers):
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    is_last = client.their_state is not h11.DONE or client.trailing_data != (b"", False)
    return Response(head.status_code, headers, body, is_last)


def random_response(rng: random.Random) -> bytes:
    """Return a response, which is well formed half of the time."""
    lines = [rng.choice(STATUS_LINES), *rng.choices([*FIELDS, "Connection: a, close"], k=rng.randrange(4))]
    content = rng.randbytes(rng.choice([0, 1, 9, 100]))
    body = b""
    match rng.randrange(5):
        case 0:
            body = content
        case 1 | 2:
            lines.append(rng.choice(LENGTHS[:1] * 8 + LENGTHS).format(len(content)))
            body = content
        case _:
            lines.append(rng.choice(CODINGS))
            body = random_chunks(rng, content)
    data = "".join(f"{line}\r\n" for line in lines).encode("latin-1") + b"\r\n" + body
    return data if rng.random() < 0.5 else mutate(rng, data)


def normalize(response: Response) -> Response:
    """Return a response without the headers that h11 writes in its own way."""
    own = ("content-length", "transfer-encoding")
    return response._replace(headers={name: value for name, value in response.headers.items() if name not in own})


def find_difference(ours: Response, theirs: Response) -> str | None:
    """Return how h11 reads the bytes in another way, or None if it does not, or is expected to."""
    if ours.status and theirs.status:
        return None if normalize(ours) == normalize(theirs) else f"h11 reads {theirs}, not {ours}"
    if theirs.status and not any(ours.refusal.startswith(reason) for reason in STRICTER):
        return f"h11 reads what is refused here: {ours.refusal}"
    if ours.status:
        return f"h11 refuses what is read here: {theirs.refusal}"
    return None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_response_is_read_as_h11_reads_it(seed: int) -> None:
    rng = random.Random(seed)
    responses = [random_response(rng) for _ in range(RESPONSES // SEEDS)]

    async def read_all() -> list[Response]:
        return [await read_here(response) for response in responses]

    differences: dict[str, bytes] = {}
    for response, ours in zip(responses, asyncio.run(read_all()), strict=True):
        difference = find_difference(ours, read_by_h11(response))
        if difference is not None:
            differences[difference] = response
    assert differences == {}
