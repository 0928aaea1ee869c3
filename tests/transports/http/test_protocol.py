"""A repeated request is served like a parsed one, and an answer in one write has the bytes of one in two."""

import asyncio
import gc
import logging
import sys
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.transports.http.test_answer_queue import connected
from toolgate.server.telemetry.log_format import LOG_CONTEXT
from toolgate.transports.http import known_head
from toolgate.transports.http.answer_queue import SMALL, AnswerQueue
from toolgate.transports.http.body import take_small_body
from toolgate.transports.http.guard import RequestGuard
from toolgate.transports.http.known_head import MAX_KNOWN, learn_head
from toolgate.transports.http.protocol import HttpProtocol

ODD_HEADS = (b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\nConnection: upgrade\r\n", b"Connection: close\r\n")


def post(body: bytes, lines: bytes = b"", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"POST /a%%20b?c=d HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\nX-Last: y\r\n\r\n%b" % (lines, size, body)


def chunked(body: bytes) -> bytes:
    head = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    return b"%b%x\r\n%b\r\n0\r\n\r\n" % (head, len(body), body)


class Served:
    """What an application got and may answer, on one connection. `parsed` counts the requests that were parsed."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, Any], bytes]] = []
        self.writes: list[Any] = []
        self.parsed = 0
        self.release: asyncio.Event | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if "toolgate.starts" in scope:  # not if it waited for the answer before it
            scope["toolgate.starts"](False)
        plain = {name: value for name, value in scope.items() if not name.startswith("toolgate.")}
        if self.release is not None:
            await self.release.wait()
        body = b""
        while True:
            message = await receive()
            body += message["body"]
            if not message["more_body"]:
                break
        self.requests.append((plain, body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


def with_connection(
    monkeypatch: pytest.MonkeyPatch, body: Callable[[HttpProtocol, Served], Awaitable[None]], app: Any = None
) -> None:
    """Run `body` with a connection, which `app` serves, or `Served`."""

    async def main() -> None:
        served = Served()
        begin = HttpProtocol.on_message_begin

        def count(protocol: HttpProtocol) -> None:
            served.parsed += 1
            begin(protocol)

        monkeypatch.setattr(HttpProtocol, "on_message_begin", count)
        protocol = connected(app or served, AnswerQueue(asyncio.get_running_loop()), served.writes)
        await body(protocol, served)
        protocol.connection_lost(None)

    asyncio.run(main())


def test_a_request_with_a_known_head_is_the_one_that_the_parser_would_find(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(protocol: HttpProtocol, served: Served) -> None:
        for text in (b"first", b"second", b"the third"):
            protocol.data_received(post(text))
            await settle()
        assert served.parsed == 2
        (_, _), (parsed, _), (known, third) = served.requests
        assert third == b"the third"
        headers = [
            (b"content-length", b"9") if name == b"content-length" else (name, value)
            for name, value in parsed["headers"]
        ]
        assert known == {**parsed, "headers": headers}

    with_connection(monkeypatch, body)


@pytest.mark.parametrize(
    "data",
    [
        post(b"longer than said", length=3) + post(b"x"),  # two requests, the second cut off by nothing
        post(b"x") + post(b"y"),
        chunked(b"x"),
        post(b"x", b"X-More: 1\r\n"),
        post(b"x" * 10_000),
        post(b"x").replace(b"X-Last: y", b"X-Last: z"),
        post(b"x").replace(b"Content-Length: 1", b"Content-Length: +1"),
    ],
)
def test_another_head_or_length_is_parsed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    async def body(protocol: HttpProtocol, served: Served) -> None:
        for _ in range(3):
            protocol.data_received(post(b"known"))
            await settle()
        assert served.parsed == 2
        protocol.data_received(data)
        assert served.parsed >= 3
        await settle()

    with_connection(monkeypatch, body)


def test_a_body_in_two_parts_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(protocol: HttpProtocol, served: Served) -> None:
        for _ in range(3):
            protocol.data_received(post(b"known"))
            await settle()
        whole = post(b"apart")
        protocol.data_received(whole[:-2])
        protocol.data_received(whole[-2:])
        await settle()
        assert (served.parsed, [text for _, text in served.requests[2:]]) == (3, [b"known", b"apart"])

    with_connection(monkeypatch, body)


@pytest.mark.parametrize("lines", ODD_HEADS)
def test_a_head_that_the_parser_acts_on_is_not_known(monkeypatch: pytest.MonkeyPatch, lines: bytes) -> None:
    async def body(protocol: HttpProtocol, served: Served) -> None:
        protocol.data_received(post(b"first"))
        await settle()
        protocol.data_received(post(b"odd", lines))
        await settle()
        assert protocol._known is None

    with_connection(monkeypatch, body)


@pytest.mark.parametrize(
    "data", [post(b"x") + post(b"y"), post(b"x")[:-1], post(b"x", b"X-Long: %b\r\n" % (b"a" * MAX_KNOWN))]
)
def test_only_one_whole_request_with_a_short_head_is_learned(data: bytes) -> None:
    scope = {"headers": [(b"content-length", b"1")]}
    assert learn_head(post(b"x"), scope) is not None
    assert learn_head(data, scope) is None


def test_a_request_never_takes_the_body_of_the_one_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bytes | None] = []

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        taken.append(take_small_body(scope))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def body(protocol: HttpProtocol, served: Served) -> None:
        protocol.data_received(post(b"alone"))
        await settle()
        protocol.data_received(post(b"first") + post(b"second"))
        await settle()
        assert taken == [b"alone", None, b"second"]

    with_connection(monkeypatch, body, app)


def test_a_known_request_is_the_last_of_a_connection_that_is_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(protocol: HttpProtocol, served: Served) -> None:
        for _ in range(3):
            protocol.data_received(post(b"known"))
            await settle()
        protocol.close_after_answer()
        served.writes.clear()
        protocol.data_received(post(b"last"))
        await settle()
        assert served.parsed == 2
        assert b"connection: close\r\n" in served.writes[0][1]
        assert served.writes[-1] == ("ada", "closed")

    with_connection(monkeypatch, body)


def test_a_known_request_is_refused_while_there_are_too_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(protocol: HttpProtocol, served: Served) -> None:
        for _ in range(3):
            protocol.data_received(post(b"known"))
            await settle()
        protocol._connections.lower_limit(0)
        served.writes.clear()
        protocol.data_received(post(b"known"))
        await settle()
        assert served.writes[0][1].startswith(b"HTTP/1.1 503 ")
        assert len(served.requests) == 3

    with_connection(monkeypatch, body)


def test_a_known_request_waits_for_the_answer_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(protocol: HttpProtocol, served: Served) -> None:
        for _ in range(2):
            protocol.data_received(post(b"known"))
            await settle()
        served.release = asyncio.Event()
        protocol.data_received(post(b"1"))
        protocol.data_received(post(b"22"))
        await settle()
        assert len(served.requests) == 2
        served.release.set()
        await settle()
        assert [text for _, text in served.requests[2:]] == [b"1", b"22"]
        assert served.parsed == 3

    with_connection(monkeypatch, body)


def test_a_client_that_changes_its_head_each_time_is_soon_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(protocol: HttpProtocol, served: Served) -> None:
        for number in range(known_head.MAX_LEARNED + 5):
            protocol.data_received(post(b"x", b"Traceparent: %d\r\n" % number))
            await settle()
        assert protocol._learned == known_head.MAX_LEARNED

    with_connection(monkeypatch, body)


def test_an_answer_in_one_write_has_the_bytes_of_an_answer_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    is_whole: list[bool] = []

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        if len(is_whole) % 2:
            is_whole.append(send.send_whole(200, b"content-type: a/b\r\n", b"text"))
            return
        is_whole.append(False)
        headers = [(b"content-type", b"a/b"), (b"content-length", b"4")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"text"})

    async def body(protocol: HttpProtocol, served: Served) -> None:
        protocol.server_state.default_headers = [(b"date", b"today")]
        for _ in range(4):
            protocol.data_received(post(b"x", b"X-Request-Id: same\r\n"))
            await settle()
        assert is_whole == [False, True] * 2
        assert protocol.server_state.total_requests == 4
        assert protocol._queue.unstarted == 0
        assert [data for _, data in served.writes] == [served.writes[0][1]] * 4
        assert served.writes[0][1].startswith(b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-type: a/b\r\n")

    guard = RequestGuard(app, ["x"], [], loopback=True, behind_proxy=True, trusts=lambda _: True)
    with_connection(monkeypatch, body, guard)


@pytest.mark.parametrize(
    ("way", "status"),
    [("raises", b"500"), ("raises later", b"500"), ("answers nothing", b"500"), ("answers later", b"200")],
)
def test_an_eager_application_may_fail_or_wait_like_any_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str, status: bytes
) -> None:
    seen: list[Any] = []

    async def later(send: Any) -> None:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        assert asyncio.current_task() is seen[-1] is not None
        if way == "raises later":
            raise LookupError("lost")
        assert send.send_whole(200, b"", b"")

    def app(_scope: Any, _receive: Any, send: Any) -> Any:
        about = LOG_CONTEXT.get()
        assert about is not None
        seen.append(about.request)
        if len(seen) < 3:
            assert send.send_whole(200, b"", b"")
            return None
        if way == "raises":
            raise LookupError("lost")
        return None if way == "answers nothing" else later(send)

    async def body(protocol: HttpProtocol, served: Served) -> None:
        for _ in range(3):
            protocol.data_received(post(b"x"))
            await settle()
        assert served.parsed == 2 and protocol._begin is not None  # the third was known
        heads = [data for _, data in served.writes if isinstance(data, bytes) and data.startswith(b"HTTP/1.1 ")]
        assert [head.split(b" ")[1] for head in heads] == [b"200", b"200", status]
        assert guard.running == 0 and not protocol.tasks
        assert ("lost" in caplog.text) == way.startswith("raises")
        assert len(set(seen)) == len(seen)

    guard = RequestGuard(app, ["x"], [], loopback=True, behind_proxy=True)
    with_connection(monkeypatch, body, guard)


@pytest.mark.parametrize("waits", [False, True])
def test_each_request_has_a_log_context_of_its_own(monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    ids: list[str] = []
    tasks: set[str] = set()

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        for _ in range(2):
            about = LOG_CONTEXT.get()
            assert about is not None
            ids.append(about.request)
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task.get_name())
            del task
            if waits:
                await asyncio.sleep(0)
        assert send.send_whole(200, b"", b"")

    async def body(protocol: HttpProtocol, served: Served) -> None:
        for _ in range(6):
            protocol.data_received(post(b"x"))
            await settle()
            assert LOG_CONTEXT.get() is None
        assert len(served.writes) == 6
        assert ids[::2] == ids[1::2]
        assert len(set(ids)) == 6
        assert len(tasks) == (6 if waits or sys.version_info >= (3, 12) else 1)

    with_connection(monkeypatch, body, RequestGuard(app, ["x"], [], loopback=True, behind_proxy=True))


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nOrigin: http://localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2,
    ],
)
def test_other_answers_go_as_messages(monkeypatch: pytest.MonkeyPatch, request_bytes: bytes) -> None:
    is_whole: list[bool] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        is_whole.append(send.send_whole(200, b"", b"text"))

    async def body(protocol: HttpProtocol, served: Served) -> None:
        protocol.data_received(request_bytes)
        await settle()
        assert is_whole[0] is False

    with_connection(monkeypatch, body, RequestGuard(app, ["x"], [], loopback=True, behind_proxy=True))


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_large_answer_or_one_to_a_reader_who_is_behind_goes_as_messages(
    monkeypatch: pytest.MonkeyPatch, is_paused: bool
) -> None:
    is_whole: list[bool] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        is_whole.append(send.send_whole(200, b"", b"x" if is_paused else b"x" * (SMALL + 1)))

    async def body(protocol: HttpProtocol, served: Served) -> None:
        if is_paused:
            protocol.flow.pause_writing()
        protocol.data_received(post(b"x"))
        await settle()
        assert is_whole == [False]

    with_connection(monkeypatch, body, RequestGuard(app, ["x"], [], loopback=True, behind_proxy=True))


def test_an_idle_connection_is_closed_after_its_last_answer_and_no_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(protocol: HttpProtocol, served: Served) -> None:
        protocol.timeout_keep_alive = 0.2  # type: ignore[assignment]
        loop = asyncio.get_running_loop()
        protocol.data_received(post(b"x"))
        await asyncio.sleep(0.1)
        protocol.data_received(post(b"x"))
        await settle()
        answered = loop.time()
        async with asyncio.timeout(5):
            while served.writes[-1] != ("ada", "closed"):
                await asyncio.sleep(0.01)
        assert loop.time() - answered >= 0.19

    with_connection(monkeypatch, body)


def test_a_request_that_takes_longer_than_a_connection_may_be_idle_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(protocol: HttpProtocol, served: Served) -> None:
        protocol.timeout_keep_alive = 0.05  # type: ignore[assignment]
        protocol.data_received(post(b"x"))
        await settle()
        served.release = asyncio.Event()
        protocol.data_received(post(b"slow"))
        async with asyncio.timeout(5):
            while protocol._idle_timer is not None:
                await asyncio.sleep(0.01)
        served.release.set()
        await settle()
        assert [text for _, text in served.requests] == [b"x", b"slow"]
        assert ("ada", "closed") not in served.writes

    with_connection(monkeypatch, body)


@pytest.mark.parametrize("way", ["answers", "answers at once", "raises"])
def test_a_closed_connection_is_freed_without_the_garbage_collector(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "disabled", True)  # pytest keeps each record and its error
    requests: list[int] = []

    def app(_scope: Any, _receive: Any, send: Any) -> Any:
        requests.append(1)
        if way == "raises" and len(requests) == 3:
            raise LookupError("lost")
        assert send.send_whole(200, b"", b"")

    eager = RequestGuard(app, ["x"], [], loopback=True, behind_proxy=True)

    async def main() -> None:
        protocol = connected(Served() if way == "answers" else eager, AnswerQueue(asyncio.get_running_loop()), [])
        for _ in range(3):
            protocol.data_received(post(b"x"))
            await settle()
        assert (protocol._begin is None) == (way == "answers")
        protocol.connection_lost(None)
        left = weakref.ref(protocol)
        del protocol
        await settle()
        assert left() is None

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()
