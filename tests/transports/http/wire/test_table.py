"""The table of docs/http.md: each row, on a new and on a used connection, whole and cut."""

import asyncio
import json
import re
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from tests.clients.raw_client import ROOT
from tests.clients.raw_http_client import Site
from tests.clients.segments import USED, exchange
from tests.transports.http.wire.cases import CASES, NEXT, Case, head
from tests.transports.http.wire.fake_transport import FakeClient, cut, run_client
from tests.transports.http.wire.handlers import echo, read_and_describe
from toolgate.transports.http.wire.body import MAX_UNREAD, BodyTooSlowError
from toolgate.transports.http.wire.connection import MAX_UNPARSED
from toolgate.transports.http.wire.listener import ConnectionLimits
from toolgate.transports.http.wire.request import Answer, HttpRequest, PendingResponse, WholeResponse, refuse

ROW = re.compile(r"^\| (?P<what>.+?) \| (?P<status>\w[^|]*) \|(?P<does>[^|]*)\| (?P<closes>yes|no) \| RFC \d{4} ", re.M)
EACH = [pytest.param(case, id=f"{what}-{number}") for what, cases in CASES.items() for number, case in enumerate(cases)]
CUT_BELOW = 1_000  # bytes: a longer request is cut at some places only


def rows() -> dict[str, re.Match[str]]:
    return {row["what"]: row for row in ROW.finditer((ROOT / "docs/http.md").read_text())}


def places(data: bytes) -> Iterator[int]:
    """Yield where a request is cut: everywhere, or around each border of a long one."""
    if len(data) < CUT_BELOW:
        yield from range(1, len(data))
        return
    end = data.find(b"\r\n\r\n") + 4 if b"\r\n\r\n" in data else len(data) // 2
    yield from (5, 22, 23, 24, end - 3, end - 2, end - 1, end, end + 1, len(data) - 1)


def descriptions(client: FakeClient) -> list[dict[str, Any]]:
    """Return what the handler saw of each request."""
    bodies = re.findall(rb"\r\n\r\n(\{.*?\})(?=HTTP/1\.1 |$)", client.answers, re.S)
    return [json.loads(body) for body in bodies]


def check(case: Case, *parts: bytes) -> None:
    """Send the parts and another request, and compare statuses and what the handler saw."""

    async def work(client: FakeClient) -> None:
        await client.send(*parts, NEXT)
        assert client.is_closed
        assert client.statuses == [*case.statuses, *([] if case.closes else [200])]
        if case.statuses[-1] == 200 and b"HEAD" not in case.data:
            seen = descriptions(client)[len(case.statuses) - 1]
            assert seen["body"].encode("latin-1") == case.body
            assert seen["headers"].items() >= case.headers.items()

    run_client(work, echo)


def test_each_row_has_a_test_and_its_answer() -> None:
    assert set(rows()) == {*CASES, *OWN}
    for what, cases in CASES.items():
        status = rows()[what]["status"]
        assert {case.statuses[-1] for case in cases} >= {200 if status == "as usual" else int(status)}, what
        assert any(case.closes for case in cases) or rows()[what]["closes"] == "no", what
        assert not all(case.closes for case in cases) or rows()[what]["closes"] == "yes", what


@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.soak)], ids=["some places", "each place"])
@pytest.mark.parametrize("case", [case for case in EACH if not case.values[0].needs_app])
def test_a_request_has_one_meaning_wherever_it_is_cut(case: Case, every: int) -> None:
    used = case._replace(data=USED + case.data, statuses=(200, *case.statuses))
    check(case, case.data)
    check(used, used.data)
    borders = {place for end in re.finditer(rb"\r\n\r\n", case.data) for place in range(end.start(), end.end() + 1)}
    some = [*places(case.data)][len(case.data) % every :: every]
    for place in sorted({*some, *borders} - {0, len(case.data)}):
        check(case, *cut(case.data, place))
        check(used, USED, *cut(case.data, place))


@pytest.mark.pairs
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
@pytest.mark.parametrize("case", EACH)
def test_the_server_answers_as_the_table_says(case: Case, used: bool, shared: Site) -> None:
    end = case.data.find(b"\r\n\r\n") + 4
    expected = [*case.statuses, *([] if case.closes else [200])]
    for parts in ((case.data + NEXT,), cut(case.data + NEXT, end), cut(case.data + NEXT, min(24, end - 1))):
        statuses, came = exchange(shared, *parts, used=used, pause=0.01)
        assert statuses == expected, came
        assert (b'"ready"' in came) is not case.closes, came


def test_a_client_that_expects_100_continue_gets_it_before_the_body_is_read() -> None:
    expecting = head("Expect: 100-Continue\r\nContent-Length: 3\r\n")

    async def work(client: FakeClient) -> None:
        await client.send(expecting)
        assert client.answers == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"abc", NEXT)
        assert client.statuses == [100, 200, 200]
        assert descriptions(client)[0]["body"] == "abc"

    run_client(work, echo)
    check(Case(expecting + b"abc", (200,), body=b"abc"), expecting + b"abc")


def test_an_answer_without_reading_an_expected_body_closes() -> None:
    async def work(client: FakeClient) -> None:
        await client.send(head("Expect: 100-continue\r\nContent-Length: 3\r\n"), NEXT)
        assert client.statuses == [403]
        assert b"connection: close\r\n" in client.answers

    run_client(work, lambda _: refuse(403, "no"))


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "Via"])
def test_a_proxy_that_passes_the_expectation_on_may_send_the_body_before_the_answer(name: str) -> None:
    """Caddy does so. An answer before the body is lost when Caddy resets its client's connection."""
    expecting = head(f"Expect: 100-continue\r\n{name}: 192.0.2.1\r\nContent-Length: 3\r\n")

    async def work(client: FakeClient) -> None:
        await client.send(expecting)
        assert client.statuses == []
        await client.send(b"abc", NEXT)
        assert client.statuses == [403, 403]

    run_client(work, lambda _: refuse(403, "no"))


def test_requests_before_the_answer_wait_unparsed_and_then_reading_stops() -> None:
    pending: list[PendingResponse] = []

    def handler(_: HttpRequest) -> Answer:
        pending.append(PendingResponse())
        return pending[-1]

    async def work(client: FakeClient) -> None:
        await client.send(head())
        more = MAX_UNPARSED // len(head())
        await client.send(head() * more)
        assert not client.transport.is_reading_paused
        await client.send(head())
        assert client.transport.is_reading_paused
        for number in range(more + 2):
            assert len(pending) == number + 1
            assert client.transport.is_reading_paused is (number == 0)
            pending[-1].set(WholeResponse(200))
            await client.settle()
        assert client.statuses == [200] * (more + 2)

    run_client(work, handler)


def test_a_slow_head_closes_the_connection() -> None:
    async def work(client: FakeClient) -> None:
        await client.send(head()[:-2])
        client.connection.expire()
        assert client.is_closed
        assert client.statuses == []

    run_client(work, echo)


def test_a_slow_body_is_408() -> None:
    async def read(request: HttpRequest) -> Answer:
        try:
            return await read_and_describe(request)
        except BodyTooSlowError:
            return refuse(408, "too slow")

    async def work(client: FakeClient) -> None:
        loop = asyncio.get_running_loop()
        await client.send(head("Content-Length: 100000\r\n"))
        begin = client.connection.deadline
        assert begin - loop.time() <= limits.body
        await client.send(b"a" * 16_384)
        assert client.connection.deadline - begin <= 1.0  # a second for so many bytes
        client.connection.expire()
        await client.settle()
        assert client.statuses == [408]
        assert client.is_closed

    limits = ConnectionLimits()
    assert (limits.head, limits.body, limits.rate) == (15, 15, 16 * 1024)
    run_client(work, read, limits)


def test_nothing_is_parsed_after_an_error() -> None:
    requests: list[HttpRequest] = []

    def handler(request: HttpRequest) -> Answer:
        requests.append(request)
        return WholeResponse(200)

    async def work(client: FakeClient) -> None:
        await client.send(head(host="") + NEXT)
        client.connection.data_received(NEXT * 2)
        client.connection.data_received(b"a" * MAX_UNREAD * 2)
        await client.settle()
        assert client.statuses == [400]
        assert requests == []

    run_client(work, handler)


@pytest.mark.parametrize("ends_with_client", [False, True])
def test_the_answer_still_comes_after_the_end_of_the_clients_bytes(ends_with_client: bool) -> None:
    pending = PendingResponse()

    def handler(request: HttpRequest) -> Answer:
        request.ends_with_client = ends_with_client
        return pending

    async def work(client: FakeClient) -> None:
        await client.send(head())
        await client.end()
        assert client.is_closed is ends_with_client
        pending.set(WholeResponse(200))
        await client.settle()
        assert client.statuses == ([] if ends_with_client else [200])
        assert client.is_closed

    run_client(work, handler)


OWN: dict[str, Awaitable[None] | Any] = {
    "`Expect: 100-continue`": test_a_client_that_expects_100_continue_gets_it_before_the_body_is_read,
    "more requests before the answer": test_requests_before_the_answer_wait_unparsed_and_then_reading_stops,
    "a slow head": test_a_slow_head_closes_the_connection,
    "a slow body": test_a_slow_body_is_408,
    "bytes after an error": test_nothing_is_parsed_after_an_error,
    "the end of the client's bytes": test_the_answer_still_comes_after_the_end_of_the_clients_bytes,
}
