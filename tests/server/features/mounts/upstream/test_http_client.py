"""Requests to a mounted server share connections, and a connection is never used for two at once."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from toolgate.server.features.mounts.upstream import http_client, http_connection
from toolgate.server.features.mounts.upstream.errors import MountError
from toolgate.server.features.mounts.upstream.http_client import HttpClient, list_secrets
from toolgate.server.features.mounts.upstream.http_connection import open_connection

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b"9\r\ndata: {}\n\r\n"
LAST = b"0\r\n\r\n"


class Upstream:
    """A server that answers each request with the next of `answers`, in parts, and then ends the connection if the last
    part is b""."""

    def __init__(self, *answers: tuple[bytes, ...]) -> None:
        self._answers = list(answers)
        self.connections = 0
        self.requests: list[bytes] = []
        self.ended = asyncio.Event()  # the client has closed a connection
        self.sent = asyncio.Event()  # an answer was
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int((head.partition(b"Content-Length: ")[2] or b"0").partition(b"\r")[0])
                self.requests.append(head + await reader.readexactly(size))
                parts = self._answers.pop(0)
                for part in parts:
                    writer.write(part)
                    await asyncio.sleep(0)
                self.sent.set()
                if not parts[-1]:
                    return
        self.ended.set()


Talk = Callable[[Upstream, HttpClient], Awaitable[None]]


def talk(body: Talk, *answers: tuple[bytes, ...], headers: dict[str, str] | None = None) -> None:
    """Run `body` with a server and a client of it."""

    async def run() -> None:
        upstream = Upstream(*answers)
        async with asyncio.timeout(30), await asyncio.start_server(upstream.serve, "127.0.0.1", 0) as server:
            upstream.port = server.sockets[0].getsockname()[1]
            client = HttpClient(f"http://127.0.0.1:{upstream.port}/mcp?key=1", headers or {})
            try:
                await body(upstream, client)
            finally:
                await client.close()

    asyncio.run(run())


async def ask(client: HttpClient) -> bytes:
    async with client.open("POST", {"Accept": "*/*"}, b"{}") as response:
        return await response.read(1_000)


def test_requests_one_after_another_share_a_connection() -> None:
    async def body(upstream: Upstream, client: HttpClient) -> None:
        assert [await ask(client) for _ in range(3)] == [b"{}"] * 3
        assert upstream.connections == 1
        assert upstream.requests[0].startswith(b"POST /mcp?key=1 HTTP/1.1\r\n")
        assert b"\r\nHost: 127.0.0.1:%d\r\n" % upstream.port in upstream.requests[0]
        assert b"\r\nX-Key: secret\r\n" in upstream.requests[2]
        assert upstream.requests[2].endswith(b"\r\n\r\n{}")

    talk(body, *[(PLAIN,)] * 3, headers={"X-Key": "secret"})


def test_requests_at_once_have_a_connection_each() -> None:
    async def body(upstream: Upstream, client: HttpClient) -> None:
        assert await asyncio.gather(ask(client), ask(client)) == [b"{}"] * 2
        assert upstream.connections == 2

    talk(body, (PLAIN,), (PLAIN,))


def test_a_stream_that_ends_after_its_answer_leaves_its_connection() -> None:
    async def body(upstream: Upstream, client: HttpClient) -> None:
        async with client.open("POST", {}, b"{}") as response:
            assert await anext(response.body) == b"data: {}\n"
            await response.drain()
        assert await ask(client) == b"{}"
        assert upstream.connections == 1

    talk(body, (STREAM, EVENT, LAST), (PLAIN,))


def test_a_stream_that_goes_on_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "DRAIN_WITHIN", 0.05)

    async def body(upstream: Upstream, client: HttpClient) -> None:
        async with client.open("POST", {}, b"{}") as response:
            assert await anext(response.body) == b"data: {}\n"
            await response.drain()
        await upstream.ended.wait()
        assert await ask(client) == b"{}"
        assert upstream.connections == 2

    talk(body, (STREAM, EVENT), (PLAIN,))


@pytest.mark.parametrize("answer", [(PLAIN, b""), (PLAIN + b"HTTP/1.1 200",)], ids=["closed", "with more than asked"])
def test_a_connection_that_was_closed_or_is_out_of_step_is_left(answer: tuple[bytes, ...]) -> None:
    async def body(upstream: Upstream, client: HttpClient) -> None:
        assert await ask(client) == b"{}"
        for _ in range(10):  # turns of the loop, in which its end arrives
            await asyncio.sleep(0)
        assert await ask(client) == b"{}"
        assert upstream.connections == 2

    talk(body, answer, (PLAIN,))


@pytest.mark.parametrize(
    "answer",
    [
        (b"",),
        (PLAIN[:-1], b""),
        (b"SSH-2.0-x\r\n\r\n",),
        (STREAM, b"x\r\n"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,),
        (PLAIN.replace(b"\r\n", b"\n"),),
    ],
    ids=["no answer", "half of one", "another protocol", "a broken chunk", "an endless head", "lines that end in LF"],
)
def test_a_request_without_a_whole_answer_lost_its_connection(answer: tuple[bytes, ...]) -> None:
    async def body(upstream: Upstream, client: HttpClient) -> None:
        with pytest.raises(MountError) as caught:
            await ask(client)
        assert caught.value.code == "CONNECTION_LOST"
        assert await ask(client) == b"{}"

    talk(body, answer, (PLAIN,))


@pytest.mark.parametrize("value", ["secret\nX-Other: 1", "sécret-ключ"])
def test_a_header_that_can_not_be_sent_is_no_lost_connection(value: str) -> None:
    async def body(upstream: Upstream, client: HttpClient) -> None:
        with pytest.raises(MountError) as caught:
            await ask(client)
        assert caught.value.code == "CONNECT_FAILED"
        assert "cret" not in caught.value.text
        assert not upstream.requests

    talk(body, headers={"Authorization": value})


def test_a_port_without_a_server_is_refused() -> None:
    async def body(upstream: Upstream, client: HttpClient) -> None:
        closed = HttpClient("http://127.0.0.1:9/mcp", {})
        with pytest.raises(MountError) as caught:
            await ask(closed)
        assert caught.value.text == "CONNECT_FAILED: no connection to it: connection refused"

    talk(body)


def test_only_so_many_idle_connections_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_IDLE", 1)

    async def body(upstream: Upstream, client: HttpClient) -> None:
        await asyncio.gather(ask(client), ask(client))
        await upstream.ended.wait()
        await ask(client)
        assert upstream.connections == 2

    talk(body, *[(PLAIN,)] * 3)


def test_a_connection_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "IDLE", 0.0)

    async def body(upstream: Upstream, client: HttpClient) -> None:
        await ask(client)
        await ask(client)
        assert upstream.connections == 2

    talk(body, (PLAIN,), (PLAIN,))


def test_more_requests_than_may_be_at_once_wait_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(http_client, "ROOM_TIMEOUT", 0.05)

    async def body(upstream: Upstream, client: HttpClient) -> None:
        async with client.open("POST", {}, b"{}"):
            with pytest.raises(MountError) as caught:
                await ask(client)
            assert caught.value.code == "CONNECT_FAILED"
        assert await asyncio.gather(ask(client), ask(client)) == [b"{}"] * 2

    talk(body, *[(PLAIN,)] * 3)


def test_a_second_answer_is_nobody_elses() -> None:
    async def body(upstream: Upstream, client: HttpClient) -> None:
        assert await ask(client) == b"{}"
        await upstream.sent.wait()
        await asyncio.sleep(0)
        assert await ask(client) == b"{}"
        assert upstream.connections == 2, "the first one is not used again"

    talk(body, (PLAIN, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"), (PLAIN,))


def split(data: bytes) -> tuple[bytes, ...]:
    """Return the bytes one by one."""
    return tuple(data[place : place + 1] for place in range(len(data)))


@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: a\r\n\r\n" + PLAIN,
        STREAM + b"2;a=b\r\n{}\r\n" + LAST,
    ],
    ids=["plain", "after interim ones", "in a chunk"],
)
def test_an_answer_in_single_bytes_is_whole(data: bytes) -> None:
    async def body(upstream: Upstream, client: HttpClient) -> None:
        assert [await ask(client), await ask(client)] == [b"{}"] * 2
        assert upstream.connections == 1

    talk(body, split(data), split(data))


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200\r\nConnection: a, Close\r\n\r\n",
    ],
    ids=["no length", "HTTP/1.0", "close"],
)
def test_a_connection_that_ends_with_its_answer_is_left(head: bytes) -> None:
    async def body(upstream: Upstream, client: HttpClient) -> None:
        assert [await ask(client), await ask(client)] == [b"{}"] * 2
        assert upstream.connections == 2

    talk(body, (head, b"{", b"}", b""), (PLAIN,))


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"HTTP/1.1 101 Switching\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/2 200\r\n\r\n{}",
        b"SSH-2.0-x",
        b"HTTP/1.1 103 Early\r\n\r\n" * 10_000,
    ],
    ids=[
        "two lengths",
        "length and chunks",
        "another protocol",
        "another version",
        "a greeting",
        "endless interim ones",
    ],
)
def test_a_response_that_can_be_read_in_two_ways_is_none(head: bytes) -> None:
    async def body(_upstream: Upstream, client: HttpClient) -> None:
        with pytest.raises(MountError) as caught:
            await ask(client)
        assert caught.value.text.startswith("CONNECTION_LOST: its response can't be read: ")
        assert await ask(client) == b"{}"

    talk(body, (head,), (PLAIN,))


def test_a_target_that_breaks_out_of_its_line_is_not_sent() -> None:
    async def body(upstream: Upstream, client: HttpClient) -> None:
        broken = client.at(f"http://127.0.0.1:{upstream.port}/a HTTP/1.1")
        with pytest.raises(MountError) as caught:
            await ask(broken)
        await broken.close()
        assert caught.value.code == "CONNECT_FAILED"
        assert not upstream.requests

    talk(body)


def test_a_request_on_a_closed_connection_is_not_sent() -> None:
    async def body(upstream: Upstream, _client: HttpClient) -> None:
        connection = await open_connection("127.0.0.1", upstream.port, None)
        connection.close()
        with pytest.raises(MountError) as caught:
            await connection.request("GET", "/", [], b"")
        assert caught.value.code == "CONNECT_FAILED"

    talk(body)


def test_a_body_of_more_than_the_limit_ends_its_connection() -> None:
    async def body(upstream: Upstream, client: HttpClient) -> None:
        with pytest.raises(MountError) as caught:
            async with client.open("POST", {}, b"{}") as response:
                await response.read(100_000)
        assert caught.value.code == "TOO_LARGE"
        await upstream.ended.wait()

    talk(body, (b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n", bytes(150_000)))


def test_a_request_that_is_given_up_ends_its_connection() -> None:
    async def body(upstream: Upstream, client: HttpClient) -> None:
        asking = asyncio.create_task(ask(client))
        await upstream.sent.wait()
        asking.cancel()
        await upstream.ended.wait()
        assert await ask(client) == b"{}"

    talk(body, (PLAIN[:-1],), (PLAIN,))


def talk_by_hand(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    body: Callable[[HttpClient], Awaitable[None]],
) -> None:
    """Run `body` with a client of a server whose connections `serve` holds, and closes at its end."""

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            await serve(reader, writer)

    async def run() -> None:
        async with asyncio.timeout(30), await asyncio.start_server(hold, "127.0.0.1", 0) as server:
            client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", {})
            try:
                await body(client)
            finally:
                await client.close()

    asyncio.run(run())


def test_a_server_sends_no_faster_than_its_reader_reads() -> None:
    size, sent = 64 * 2**20, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // 2**16):
            writer.write(bytes(2**16))
            await writer.drain()
            sent += 2**16

    async def body(client: HttpClient) -> None:
        async with client.open("POST", {}, b"{}") as response:
            for _ in range(2_000):  # turns of the loop: enough for all of it
                await asyncio.sleep(0)
            assert sent < size // 2
            assert sum([len(part) async for part in response.body]) == size

    talk_by_hand(serve, body)


def test_a_request_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "WRITE_TIMEOUT", 0.05)
    is_over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await is_over.wait()

    async def body(client: HttpClient) -> None:
        with pytest.raises(MountError) as caught:
            async with client.open("POST", {}, bytes(64 * 2**20)):
                pass
        assert caught.value.code == "CONNECTION_LOST"
        is_over.set()

    talk_by_hand(serve, body)


def test_a_response_that_comes_before_its_request_is_read_counts() -> None:
    is_over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await is_over.wait()

    async def body(client: HttpClient) -> None:
        for _ in range(2):  # on a connection each: the first one is still taken
            async with client.open("POST", {}, bytes(16 * 2**20)) as response:
                assert (response.status, await response.read(10)) == (413, b"")
        is_over.set()

    talk_by_hand(serve, body)


def test_keys_in_a_url_are_not_repeated() -> None:
    assert {"k=s3cret&x=a%20b", "s3cret", "a b", "a%20b", "Bearer t0ken", "t0ken"} <= set(
        list_secrets("https://a/mcp?k=s3cret&x=a%20b", {"Authorization": "Bearer t0ken"})
    )
