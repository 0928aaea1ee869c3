"""Handlers for tests of a connection: one for each kind of answer, and those that fail."""

import asyncio
import json
from collections.abc import Callable

from tests.transports.http.wire.cases import head
from toolgate.transports.http.wire.request import (
    Answer,
    HttpRequest,
    PendingResponse,
    StreamedResponse,
    WholeResponse,
)
from toolgate.transports.http.wire.writer import AnswerWriter

POSTED = head("Content-Length: 3\r\n", "POST /health HTTP/1.1")


def echo(request: HttpRequest) -> Answer:
    """Answer with what the handler sees of a request."""
    if request.body is not None:
        return describe(request, request.body)
    return read_and_describe(request)


async def read_and_describe(request: HttpRequest) -> Answer:
    content, more = await request.read()
    while more:
        part, more = await request.read()
        content += part
    return describe(request, content)


def describe(request: HttpRequest, content: bytes) -> WholeResponse:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()}
    seen = {"path": request.head.path, "body": content.decode("latin-1"), "headers": headers}
    return WholeResponse(200, b"", json.dumps(seen).encode())


def stream(request: HttpRequest) -> Answer:
    """Answer in parts: what the handler sees of the request."""

    async def write(writer: AnswerWriter) -> None:
        response = await read_and_describe(request)
        assert isinstance(response, WholeResponse)
        writer.begin(response.status, response.lines)
        for begin in range(0, len(response.body), 20):
            await writer.write(response.body[begin : begin + 20])
        writer.end()

    return StreamedResponse(write)


def decide_later(request: HttpRequest) -> Answer:
    """Answer by a callback of the event loop."""
    pending = PendingResponse()
    asyncio.get_running_loop().call_soon(pending.set, echo(request))
    return pending


async def wait_then_echo(request: HttpRequest) -> Answer:
    await asyncio.sleep(0)
    return echo(request)


HANDLERS: list[Callable[[HttpRequest], Answer]] = [echo, stream, decide_later, wait_then_echo]


def any_kind(request: HttpRequest) -> Answer:
    """Answer in the way that the target names."""
    return HANDLERS[int(request.head.query or b"0")](request)


def fail_at_once(request: HttpRequest) -> Answer:
    raise ValueError("secret")


async def fail_later(request: HttpRequest) -> Answer:
    raise ValueError("secret")


def fail_in_stream(request: HttpRequest) -> Answer:
    async def write(writer: AnswerWriter) -> None:
        raise ValueError("secret")

    return StreamedResponse(write)
