"""Check one input of the fuzzer.

An input is a count, so many places of two bytes, and the bytes of the client, which are sent whole and cut there. The
handler sees the same requests, the statuses agree, and a client that follows the RFC reads each answer.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import h11

from tests.transports.http.wire.cases import CASES
from tests.transports.http.wire.fake_transport import FakeClient, cut
from tests.transports.http.wire.handlers import HANDLERS
from toolgate.transports.http.wire.request import Answer, HttpRequest

MAX_INPUT = 4_096  # bytes


class Run:
    """What one connection did."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, bytes]] = []
        self.answers = b""
        self.statuses: list[int] = []
        self.faults: list[str] = []

    def handle(self, request: HttpRequest) -> Answer:
        head = request.head
        self.requests.append((head.method, head.path, head.query))
        return HANDLERS[len(self.requests) % len(HANDLERS)](request)


async def run(parts: Sequence[bytes]) -> Run:
    """Send the parts, then the end of the client's bytes, and return what happened."""
    result = Run()

    def note_fault(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        result.faults.append(str(context))

    asyncio.get_running_loop().set_exception_handler(note_fault)
    client = FakeClient(result.handle)
    await client.send(*parts)
    if not client.is_closed:
        await client.end()
    result.answers, result.statuses = client.answers, client.statuses
    await client.hang_up()
    assert client.listener.running == 0
    assert not client.listener.tasks
    return result


def read_answers(result: Run) -> None:
    """Read all answers with h11. One that says `Connection: close` is the last."""
    answers = result.answers
    methods = [method for method, _, _ in result.requests]
    while answers:
        client = h11.Connection(h11.CLIENT)
        method = methods.pop(0) if methods else "GET"  # else a request that was refused
        client.send(h11.Request(method="HEAD" if method == "HEAD" else "GET", target="/", headers=[("host", "x")]))
        client.send(h11.EndOfMessage())
        client.receive_data(answers)
        closes, is_whole = read_answer(client)
        answers = client.trailing_data[0] if is_whole else b""
        assert not (closes and answers), "an answer after connection: close"


def read_answer(client: h11.Connection) -> tuple[bool, bool]:
    """Return whether the connection closes after an answer, and whether the answer is whole."""
    closes = False
    while True:
        event = client.next_event()
        if isinstance(event, h11.Response):
            closes = (b"connection", b"close") in event.headers
            assert event.status_code != 500, "the handler failed"
            is_delimited = any(name in (b"content-length", b"transfer-encoding") for name, _ in event.headers)
            if not is_delimited:  # the answer to HTTP/1.0: the rest is its body
                return closes, False
        elif isinstance(event, h11.EndOfMessage):
            return closes, True
        elif event is h11.NEED_DATA:  # 100 Continue alone, or a stream whose client has gone
            return closes, False


def check(data: bytes) -> None:
    """Run one input. Raises AssertionError for a fault."""
    end = 1 + 2 * (data[0] % 16) if data else 0
    numbers, content = data[1:end], data[end:]
    places = [int.from_bytes(numbers[at : at + 2], "big") % (len(content) + 1) for at in range(0, len(numbers), 2)]
    if not content:
        return
    whole = asyncio.run(run([content]))
    parts = asyncio.run(run(cut(content, *places)))
    for result in (whole, parts):
        assert not result.faults, result.faults
        read_answers(result)
    assert parts.requests == whole.requests
    assert [status < 400 for status in parts.statuses] == [status < 400 for status in whole.statuses], (
        parts.statuses,  # a refusal of two faults may name either
        whole.statuses,
    )


def encode(content: bytes, *places: int) -> bytes:
    """Return the input that sends these bytes, and cuts them at the places."""
    return bytes([len(places)]) + b"".join(place.to_bytes(2, "big") for place in places) + content


def write_corpus(folder: Path) -> None:
    """Write an input for each short case of the table."""
    folder.mkdir(parents=True, exist_ok=True)
    for what, cases in enumerate(CASES.values()):
        for number, case in enumerate(cases):
            if len(case.data) < MAX_INPUT // 2:
                (folder / f"case-{what}-{number}").write_bytes(encode(case.data * 2, 32, 64))
