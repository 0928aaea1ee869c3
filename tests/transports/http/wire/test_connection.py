"""One connection over a fake transport: any sequence of requests, cut anywhere, and the order of the answers."""

import asyncio
import gc
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.transports.http.wire.cases import CASES, CHUNKED, NEXT, head
from tests.transports.http.wire.fake_transport import FakeClient, cut, run_client
from tests.transports.http.wire.handlers import (
    HANDLERS,
    POSTED,
    any_kind,
    fail_at_once,
    fail_in_stream,
    fail_later,
    read_and_describe,
)
from toolgate.transports.http.wire.body import MAX_UNREAD, IncomingBody
from toolgate.transports.http.wire.connection import HttpConnection
from toolgate.transports.http.wire.request import (
    Answer,
    HttpRequest,
    PendingResponse,
    WholeResponse,
    refuse,
)


def random_request(rng: random.Random) -> bytes:
    kind = rng.randrange(4)
    line = f"{rng.choice(['GET', 'POST', 'HEAD', 'DELETE'])} /health?{kind} HTTP/1.1"
    match rng.randrange(3):
        case 0:
            return head(line=line)
        case 1:
            body = rng.randbytes(rng.choice([1, 3, 300]))
            return head(f"Content-Length: {len(body)}\r\n", line) + body
        case _:
            parts = [rng.randbytes(rng.choice([1, 5, 40])) for _ in range(rng.randrange(4))]
            chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(part), rng.choice([b"", b";x=y"]), part) for part in parts)
            return head(CHUNKED, line) + chunks + b"0\r\n" + rng.choice([b"", b"X-Own: y\r\n"]) + b"\r\n"


def random_sequence(rng: random.Random) -> bytes:
    requests = [random_request(rng) for _ in range(rng.randrange(1, 5))]
    if rng.random() < 0.4:
        cases = rng.choice([cases for cases in CASES.values() if not cases[0].needs_app])
        requests.append(next((case.data for case in cases if len(case.data) < 300), NEXT))
    return b"".join(requests) + NEXT


def exchange_in_parts(parts: Any) -> tuple[bytes, list[int]]:
    result: list[Any] = []

    async def work(client: FakeClient) -> None:
        await client.send(*parts)
        result.append((client.answers, client.statuses))

    run_client(work, any_kind)
    return result[0][0], result[0][1]


@pytest.mark.parametrize("seed", range(40))
def test_a_sequence_of_requests_has_the_same_answers_in_any_parts(seed: int) -> None:
    rng = random.Random(seed)
    data = random_sequence(rng)
    whole, statuses = exchange_in_parts([data])
    cuts = [sorted(rng.choices(range(len(data)), k=count)) for count in (1, 3, 20)]
    singles = range(len(data)) if len(data) < 1_500 else []
    for places in (*cuts, singles):
        answers, others = exchange_in_parts(cut(data, *places))
        assert others == statuses
        if 400 not in statuses:  # the sentence of a 400 may name another fault
            assert answers == whole


def test_a_broken_request_is_answered_after_a_slow_good_one() -> None:
    pending = PendingResponse()

    async def work(client: FakeClient) -> None:
        await client.send(head() + b"!!!\r\n\r\n", b"more")
        assert client.statuses == []
        pending.set(WholeResponse(204))
        await client.settle()
        assert client.statuses == [204, 400]
        assert client.answers.count(b"connection: close") == 1

    run_client(work, lambda _: pending)


def test_one_request_is_served_at_a_time() -> None:
    running: list[PendingResponse] = []

    def handler(_: HttpRequest) -> Answer:
        running.append(PendingResponse())
        return running[-1]

    async def work(client: FakeClient) -> None:
        await client.send(head() * 3, head())
        for number in range(1, 5):
            assert len(running) == number
            assert client.listener.running == 1
            running[-1].set(WholeResponse(200))
            await client.settle()
        assert client.statuses == [200] * 4

    run_client(work, handler)


def test_reading_stops_at_64_kib_that_no_one_reads_and_goes_on() -> None:
    go = asyncio.Event()

    async def handler(request: HttpRequest) -> Answer:
        await go.wait()
        return await read_and_describe(request)

    async def work(client: FakeClient) -> None:
        await client.send(head(f"Content-Length: {4 * MAX_UNREAD}\r\n"))
        await client.send(b"a" * MAX_UNREAD)
        assert not client.transport.is_reading_paused
        await client.send(b"a")
        assert client.transport.is_reading_paused
        go.set()
        await client.settle()
        await client.send(b"a" * (3 * MAX_UNREAD - 1), NEXT)
        assert client.statuses == [200, 200]

    run_client(work, handler)


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_an_early_answer_waits_for_the_end_of_the_body(framing: str) -> None:
    lines = "Content-Length: 6\r\n" if framing == "length" else CHUNKED
    first, last = (b"abc", b"def") if framing == "length" else (b"3\r\nabc", b"\r\n3\r\ndef\r\n0\r\n\r\n")

    async def work(client: FakeClient) -> None:
        await client.send(head(lines), first)
        assert client.statuses == []
        await client.send(last)
        assert client.statuses == [403]
        await client.send(NEXT)
        assert client.statuses == [403, 403]

    run_client(work, lambda _: refuse(403, "no"))


def test_an_early_answer_that_closes_is_sent_at_once_and_the_body_dropped() -> None:
    async def work(client: FakeClient) -> None:
        await client.send(POSTED)
        assert client.statuses == [403]
        client.connection.data_received(b"abc" + NEXT)
        await client.settle()
        assert client.statuses == [403]

    run_client(work, lambda _: refuse(403, "no", closes=True))


OF_A_CONNECTION = (HttpConnection, HttpRequest, IncomingBody, PendingResponse)


@pytest.mark.parametrize("data", [head(), POSTED + b"abc", POSTED, b"!!!\r\n\r\n", head(CHUNKED) + b"x\r\n"])
@pytest.mark.parametrize("handler", [*HANDLERS, fail_at_once, fail_later, fail_in_stream])
def test_a_closed_connection_and_its_requests_are_freed_without_the_collector(
    handler: Callable[[HttpRequest], Answer], data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("toolgate.http")
    monkeypatch.setattr(logger, "disabled", True)  # pytest keeps each record, with its traceback

    async def main() -> None:
        client = FakeClient(handler)
        await client.send(data)
        await client.hang_up()
        listener = client.listener  # the server goes on
        del client
        left = [type(each).__name__ for each in gc.get_objects(generation=0) if type(each) in OF_A_CONNECTION]
        assert left == []
        assert not listener.tasks

    gc.collect(1)  # what is young grows old: all that `main` makes is in generation 0
    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()
