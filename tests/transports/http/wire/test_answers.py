"""The kinds of answer of a connection: whole, pending, in parts, awaited, and those that fail."""

import logging
from functools import partial
from typing import Any

import pytest

from tests.transports.http.wire.cases import CHUNKED, NEXT, head
from tests.transports.http.wire.fake_transport import FakeClient, run_client
from tests.transports.http.wire.handlers import HANDLERS, any_kind, fail_at_once, fail_in_stream, fail_later
from toolgate.transports.http.wire.asgi import Receive, Scope, Send, answer_with
from toolgate.transports.http.wire.request import (
    Answer,
    HttpRequest,
    StreamedResponse,
    WholeResponse,
)
from toolgate.transports.http.wire.writer import AnswerWriter


@pytest.mark.parametrize("kind", range(len(HANDLERS)))
def test_each_kind_of_answer_describes_the_request(kind: int) -> None:
    async def work(client: FakeClient) -> None:
        await client.send(head("Content-Length: 3\r\n", f"POST /health?{kind} HTTP/1.1") + b"abc")
        assert client.statuses == [200]
        await client.send(NEXT)
        assert client.statuses == [200, 200]

    run_client(work, any_kind)


@pytest.mark.parametrize("body", [b"abc", b"a"])
@pytest.mark.parametrize("handler", [*HANDLERS, fail_at_once, fail_later, fail_in_stream])
def test_a_request_ends_once_whatever_becomes_of_its_answer(handler: Any, body: bytes) -> None:
    ends: list[bytes] = []

    def note_end(request: HttpRequest) -> Answer:
        request.on_end = partial(ends.append, request.head.path.encode())
        answer: Answer = handler(request)
        return answer

    async def work(client: FakeClient) -> None:
        await client.send(head("Content-Length: 3\r\n", "POST /one HTTP/1.1") + body)
        await client.hang_up()
        assert ends == [b"/one"]

    run_client(work, note_end)


def send_bad_header(request: HttpRequest) -> Answer:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"a\r\nSet-Cookie: secret")]})
        await send({"type": "http.response.body", "body": b"secret"})

    return answer_with(app, request)


def write_nothing(request: HttpRequest) -> Answer:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        return

    return answer_with(app, request)


@pytest.mark.parametrize("handler", [fail_at_once, fail_later, fail_in_stream, send_bad_header, write_nothing])
def test_a_handler_that_fails_is_500_and_logged(handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def work(client: FakeClient) -> None:
        await client.send(head() + NEXT)
        assert client.statuses == [500]
        assert b"secret" not in client.answers
        assert client.is_closed

    with caplog.at_level(logging.ERROR):
        run_client(work, handler)
    assert ("GET /health failed" in caplog.text) is (handler is not write_nothing)


def test_a_stream_that_fails_ends_without_its_last_chunk(caplog: pytest.LogCaptureFixture) -> None:
    async def write(writer: AnswerWriter) -> None:
        writer.begin(200, b"")
        await writer.write(b"abc")
        raise ValueError

    async def work(client: FakeClient) -> None:
        await client.send(head() + NEXT)
        assert client.answers.endswith(b"3\r\nabc\r\n")
        assert client.transport.is_aborted

    run_client(work, lambda _: StreamedResponse(write))
    assert "GET /health failed" in caplog.text


@pytest.mark.parametrize("size", [2, 4])
def test_a_stream_that_has_not_its_declared_length_ends_the_connection(size: int) -> None:
    async def write(writer: AnswerWriter) -> None:
        writer.begin(200, b"", 3)
        await writer.write(b"abcd"[:size])
        writer.end()

    async def work(client: FakeClient) -> None:
        await client.send(head() + NEXT)
        assert client.transport.is_aborted
        assert b"abcd" not in client.answers

    run_client(work, lambda _: StreamedResponse(write))


@pytest.mark.parametrize("kind", range(len(HANDLERS)))
def test_an_answer_to_head_has_no_body(kind: int) -> None:
    async def work(client: FakeClient) -> None:
        await client.send(head(line=f"HEAD /health?{kind} HTTP/1.1"), head(line=f"HEAD /health?{kind} HTTP/1.1"))
        assert client.statuses == [200, 200]
        assert b"{" not in client.answers
        assert client.answers.endswith(b"\r\n\r\n")
        assert not client.is_closed

    run_client(work, any_kind)


def test_a_refused_body_of_head_is_answered_without_a_body() -> None:
    async def work(client: FakeClient) -> None:
        await client.send(head(CHUNKED, "HEAD /health HTTP/1.1") + b"x\r\n")
        assert client.statuses == [400]
        assert client.answers.endswith(b"\r\n\r\n")

    run_client(work, any_kind)


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_content_has_no_length(status: int) -> None:
    async def work(client: FakeClient) -> None:
        await client.send(head())
        assert client.answers.partition(b"\r\n")[2] == b"\r\n"

    run_client(work, lambda _: WholeResponse(status, b"", b"ignored"))


def test_a_stream_to_http_1_0_ends_with_the_connection() -> None:
    async def work(client: FakeClient) -> None:
        await client.send(head(line="GET /health?1 HTTP/1.0"))
        lines, _, body = client.answers.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in lines and b"connection: close" in lines
        assert body.startswith(b"{") and body.endswith(b"}")
        assert client.is_closed

    run_client(work, any_kind)
