"""A connection that takes less memory than uvicorn's serves as that does, and a stream keeps little of its request."""

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from tests.transports.http.test_answer_queue import RecordedTransport
from toolgate.transports.http.compact_protocol import ArrivedCycle, CompactProtocol

GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
UNFINISHED = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n"


class PausedTransport(RecordedTransport):
    def pause_reading(self) -> None: ...


class Stream:
    """An application that answers each request with a stream, until its client disconnects."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.left = asyncio.Event()
        self.scope: Any = None
        self.protocol: CompactProtocol

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        self.protocol.begin_stream(scope, self.left.set)
        self.scope = scope
        self.begun.set()
        await self.left.wait()
        self.protocol.end_stream()
        await send({"type": "http.response.body", "body": b"end"})


async def connected(app: Any, writes: list[Any]) -> CompactProtocol:
    """Return the protocol of a new connection, which `app` serves."""
    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, proxy_headers=False)
    config.load()
    protocol = CompactProtocol(config, ServerState(), {}, asyncio.get_running_loop())
    transport: Any = PausedTransport(writes, "ada")
    protocol.connection_made(transport)
    return protocol


async def streamed(request: bytes, writes: list[Any]) -> tuple[CompactProtocol, Stream]:
    """Return a connection whose request is answered by a stream, and the stream."""
    app = Stream()
    app.protocol = await connected(app, writes)
    app.protocol.data_received(request)
    async with asyncio.timeout(10):
        await app.begun.wait()
    return app.protocol, app


def test_a_request_that_arrived_whole_begins_as_one_of_uvicorn_does() -> None:
    async def main() -> None:
        protocol = await connected(Stream(), [])
        protocol.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}")
        parsed, scope = vars(protocol.cycle), {"method": "POST"}
        whole = ArrivedCycle(protocol, scope, b"{}", keep_alive=True)
        own = {name: getattr(whole, name) for name in parsed}  # uvicorn sets no attribute that it lacks
        assert await whole.receive() == await protocol.cycle.receive()
        for name in ("scope", "message_event"):
            assert own.pop(name) is not parsed.pop(name)
        assert own == {**parsed, "body": b"{}", "access_log": False}

    asyncio.run(main())


def test_a_connection_needs_no_dictionary() -> None:
    async def main() -> None:
        protocol, _ = await streamed(GET, [])
        assert vars(protocol) == {}, "uvicorn has attributes that are not in slots"

    asyncio.run(main())


def test_a_stream_keeps_nothing_of_its_request() -> None:
    async def main() -> None:
        protocol, app = await streamed(GET, [])
        assert (app.scope, protocol.headers) == ({"method": "GET"}, [])

    asyncio.run(main())


def test_a_stream_is_left_when_its_client_disconnects_though_another_request_waits() -> None:
    async def main() -> None:
        for further in (b"", GET):
            protocol, app = await streamed(GET, [])
            protocol.data_received(further)
            assert not app.left.is_set()
            protocol.connection_lost(None)
            assert app.left.is_set()

    asyncio.run(main())


def test_a_stream_that_begins_after_its_client_has_disconnected_is_left_at_once() -> None:
    async def main() -> None:
        app = Stream()
        app.protocol = await connected(app, [])
        app.protocol.data_received(GET)
        app.protocol.connection_lost(None)
        async with asyncio.timeout(10):
            await app.left.wait()

    asyncio.run(main())


def test_the_rest_of_a_body_is_dropped_while_a_stream_answers_it() -> None:
    async def main() -> None:
        protocol, _ = await streamed(UNFINISHED, [])
        for _ in range(10):
            protocol.data_received(b"x" * 50_000)
        assert (len(protocol.cycle.body), protocol.flow.read_paused) == (0, False)

    asyncio.run(main())


def test_a_head_that_comes_in_parts_around_the_begin_of_a_stream_is_whole() -> None:
    async def main() -> None:
        headers: list[Any] = []

        async def app(scope: Any, _receive: Any, send: Any) -> None:
            stream = Stream()
            stream.protocol = protocol
            if scope["path"] == "/":
                stream.left.set()
                await stream(scope, _receive, send)
                return
            headers.extend(scope["headers"])
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body"})

        protocol = await connected(app, [])
        protocol.data_received(GET + b"GET /next HTTP/1.1\r\nhost: b\r\n")
        async with asyncio.timeout(10):
            while protocol.tasks:
                await asyncio.sleep(0)
            protocol.data_received(b"origin: c\r\n\r\n")
            while protocol.tasks:
                await asyncio.sleep(0)
        assert headers == [(b"host", b"b"), (b"origin", b"c")]

    asyncio.run(main())


def test_requests_that_came_during_a_stream_are_answered_in_their_order() -> None:
    async def main() -> None:
        writes: list[Any] = []
        paths: list[str] = []
        first = asyncio.Event()

        async def app(scope: Any, _receive: Any, send: Any) -> None:
            paths.append(scope["path"])
            await first.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": scope["path"].encode()})

        protocol = await connected(app, writes)
        protocol.data_received(b"".join(GET.replace(b"/ ", b"/%d " % number, 1) for number in range(4)))
        await asyncio.sleep(0)
        assert paths == ["/0"]
        first.set()
        async with asyncio.timeout(10):
            while len(paths) < 4 or protocol.tasks:
                await asyncio.sleep(0)
        assert paths == ["/0", "/1", "/2", "/3"]

    asyncio.run(main())


def test_writing_waits_while_the_reader_is_behind() -> None:
    async def main() -> None:
        writes: list[Any] = []
        protocol, app = await streamed(GET, writes)
        protocol.pause_writing()
        protocol.pause_writing()
        app.left.set()
        for _ in range(3):
            await asyncio.sleep(0)
        assert b"end" not in b"".join(data for _, data in writes)
        protocol.resume_writing()
        async with asyncio.timeout(10):
            while protocol.tasks:
                await asyncio.sleep(0)
        assert b"end" in b"".join(data for _, data in writes)

    asyncio.run(main())
