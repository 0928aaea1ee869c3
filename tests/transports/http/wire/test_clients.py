"""Clients of a connection that leave, read slowly or take too long."""

import asyncio

import pytest

from tests.transports.http.wire.cases import head
from tests.transports.http.wire.fake_transport import FakeClient, run_client
from tests.transports.http.wire.handlers import (
    HANDLERS,
    POSTED,
    any_kind,
    decide_later,
    describe,
    echo,
    read_and_describe,
)
from toolgate.transports.http.wire.body import BodyTooSlowError, ClientDisconnectedError
from toolgate.transports.http.wire.listener import ConnectionLimits
from toolgate.transports.http.wire.request import (
    Answer,
    HttpRequest,
    PendingResponse,
    StreamedResponse,
    WholeResponse,
)
from toolgate.transports.http.wire.writer import AnswerWriter


@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize("data", [b"", b"GET / HT", head()[:-2]])
def test_a_client_that_leaves_before_a_request_is_not_answered(data: bytes, is_half: bool) -> None:
    async def work(client: FakeClient) -> None:
        if data:
            await client.send(data)
        await (client.end() if is_half else client.hang_up())
        assert client.is_closed
        assert client.statuses == []

    run_client(work, echo)


@pytest.mark.parametrize("is_half", [False, True])
@pytest.mark.parametrize("kind", range(len(HANDLERS)))
def test_a_client_that_leaves_within_a_body_is_not_answered(kind: int, is_half: bool) -> None:
    async def work(client: FakeClient) -> None:
        await client.send(head("Content-Length: 3\r\n", f"POST /health?{kind} HTTP/1.1"), b"ab")
        await (client.end() if is_half else client.hang_up())
        assert client.is_closed
        assert client.statuses == []

    run_client(work, any_kind)


def test_a_handler_learns_that_the_client_has_left() -> None:
    lost: list[str] = []

    async def read(request: HttpRequest) -> Answer:
        try:
            return await read_and_describe(request)
        except ClientDisconnectedError:
            lost.append("read")
            raise

    def watch(request: HttpRequest) -> Answer:
        if request.body is None:
            return read(request)
        request.watch_client(lambda: lost.append("watch"))
        return PendingResponse()

    for data in (POSTED, head()):

        async def work(client: FakeClient, data: bytes = data) -> None:
            await client.send(data)
            await client.hang_up()

        run_client(work, watch)
    assert lost == ["read", "watch"]


def test_an_answer_after_its_client_has_left_is_dropped() -> None:
    pending = PendingResponse()

    async def work(client: FakeClient) -> None:
        await client.send(head())
        await client.hang_up()
        pending.set(WholeResponse(200))
        await client.settle()
        assert client.statuses == []

    run_client(work, lambda _: pending)


def test_a_stream_whose_client_leaves_sends_nothing_more() -> None:
    go = asyncio.Event()
    lost: list[bool] = []

    async def write(writer: AnswerWriter) -> None:
        writer.begin(200, b"")
        await writer.write(b"abc")
        await go.wait()
        await writer.write(b"def")
        writer.end()

    def handler(request: HttpRequest) -> Answer:
        request.watch_client(lambda: lost.append(True))
        return StreamedResponse(write)

    async def work(client: FakeClient) -> None:
        await client.send(head())
        await client.hang_up()
        go.set()
        await client.settle()
        assert lost == [True]
        assert b"def" not in client.answers

    run_client(work, handler)


def test_requests_before_the_end_of_the_clients_bytes_are_answered() -> None:
    async def work(client: FakeClient) -> None:
        await client.send(head() * 3 + head()[:-2])
        await client.end()
        assert client.statuses == [200, 200, 200]
        assert client.is_closed

    run_client(work, decide_later)


def test_a_writer_waits_until_its_client_reads() -> None:
    parts: list[int] = []

    async def write(writer: AnswerWriter) -> None:
        writer.begin(200, b"")
        for number in range(10):
            await writer.write(b"a" * 30_000)
            parts.append(number)
        writer.end()

    async def work(client: FakeClient) -> None:
        client.transport.reads = False
        await client.send(head())
        assert len(parts) == 2
        client.transport.take()
        await client.settle()
        assert 2 < len(parts) < 6
        client.transport.reads = True
        client.transport.take()
        await client.settle()
        assert client.answers.endswith(b"0\r\n\r\n")

    run_client(work, lambda _: StreamedResponse(write))


def test_no_request_is_parsed_while_its_client_leaves_an_answer_unread() -> None:
    async def work(client: FakeClient) -> None:
        client.transport.reads = False
        await client.send(head() * 3)
        assert client.statuses == [200]
        client.transport.take()
        await client.settle()
        assert client.statuses == [200, 200]
        client.connection.expire()
        assert client.transport.is_aborted

    run_client(work, lambda _: WholeResponse(200, b"", b"a" * 100_000))


def test_each_deadline_is_that_of_its_state() -> None:
    limits = ConnectionLimits(head=1_000, body=2_000, idle=3_000, unread=4_000, linger=5_000)
    pending: list[PendingResponse] = []

    def handler(request: HttpRequest) -> Answer:
        if request.body is None:
            return read_and_describe(request)
        pending.append(PendingResponse())
        return pending[-1]

    async def work(client: FakeClient) -> None:
        loop = asyncio.get_running_loop()

        def seconds() -> float:
            """Return the time that the client has, to a thousand seconds."""
            return round(client.connection.deadline - loop.time(), -3)

        assert seconds() == 1_000  # for the first head
        await client.send(head())
        assert seconds() == float("inf")  # it is answering
        pending[-1].set(WholeResponse(200))
        await client.settle()
        assert seconds() == 3_000
        await client.send(b"GET")
        assert seconds() == 1_000
        await client.send(b" /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n")
        assert seconds() == 2_000
        client.transport.reads = False
        await client.send(b"abc" + head())
        pending[-1].set(WholeResponse(200, b"", b"a" * 100_000))
        await client.settle()
        assert seconds() == 4_000
        client.transport.take()
        client.transport.reads = True
        await client.send(b"!!!\r\n\r\n")
        assert seconds() == 5_000
        client.connection.expire()
        assert client.transport.is_aborted

    run_client(work, handler, limits)


def test_a_connection_that_expires_is_closed_and_a_body_fails() -> None:
    faults: list[BaseException] = []

    async def handler(request: HttpRequest) -> Answer:
        try:
            return await read_and_describe(request)
        except BodyTooSlowError as error:
            faults.append(error.with_traceback(None))
            return describe(request, b"")

    async def work(client: FakeClient) -> None:
        await client.send(POSTED)
        client.connection.expire()
        await client.settle()
        assert client.statuses == [200]
        assert b"connection: close" in client.answers
        assert client.is_closed
        assert len(faults) == 1

    run_client(work, handler)
