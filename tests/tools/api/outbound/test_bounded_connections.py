"""Connections that serve one request each, of which a bounded number of bytes is read; and the kinds of failure."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.tools.api.outbound.test_fetch import certificate, names, run
from tests.tools.fake_web_site import Request, never, redirect, site, tcp_server
from toolgate.tools.api.outbound.errors import PageTimeoutError, PageTlsError, PageUnreachableError
from toolgate.tools.api.outbound.fetch import Web

MANY = 100_000  # bytes
TABLE = {"shop.example": ["127.0.0.1"], "other.example": ["127.0.0.1"]}


@asynccontextmanager
async def bounded(**options: object) -> AsyncIterator[Web]:
    web = Web(["127.0.0.1"], max_received=MANY, resolve=names(TABLE), **options)  # type: ignore[arg-type]
    try:
        yield web
    finally:
        await web.close()


def test_each_request_has_its_own_connection() -> None:
    async def scenario() -> None:
        async with site({"/": b"page"}) as place, bounded() as web:
            for _ in range(3):
                assert (await web.fetch(place.url())).body == b"page"
            assert place.connections == 3
            assert {request.headers["connection"] for request in place.requests} == {"close"}

    run(scenario())


async def send_hints(request: Request) -> None:
    """Send informational answers for ever."""
    while not request.writer.is_closing():
        request.writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1_000)
        await request.writer.drain()


async def send_body(request: Request) -> None:
    await request.send(200, {})
    while not request.writer.is_closing():
        request.writer.write(bytes(65_536))
        await request.writer.drain()


@pytest.mark.parametrize("page", [send_hints, send_body])
def test_no_more_bytes_are_read_than_allowed(page: object) -> None:
    async def scenario() -> None:
        async with site({"/": page}) as place, bounded() as web:  # type: ignore[dict-item]
            with pytest.raises(PageUnreachableError, match="the answer is too long"):
                await web.fetch(place.url(), limit=10**9)

    run(scenario())


def test_bytes_are_counted_inside_tls_too(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, "shop.example")

    async def scenario() -> None:
        async with site({"/": send_hints}, server) as place, bounded(verify=client) as web:
            with pytest.raises(PageUnreachableError, match="the answer is too long"):
                await web.fetch(place.url("/", "shop.example"))

    run(scenario())


def test_a_redirect_is_returned_if_none_may_be_followed() -> None:
    async def scenario() -> None:
        async with site({"/": redirect("/next")}) as place, bounded() as web:
            page = await web.fetch(place.url(), redirects=None)
            assert (page.status, page.headers["location"]) == (302, "/next")
            assert len(place.requests) == 1

    run(scenario())


def test_a_wrong_certificate_is_a_tls_error(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, "shop.example")

    async def scenario() -> None:
        async with site({"/": b"page"}, server) as place:
            async with bounded(verify=client) as web:
                with pytest.raises(PageTlsError, match="Hostname mismatch"):
                    await web.fetch(place.url("/", "other.example"))
            async with bounded() as web:
                with pytest.raises(PageTlsError, match="TLS: self"):
                    await web.fetch(place.url("/", "shop.example"))

    run(scenario())


async def send_plain_bytes(request: Request) -> None:
    """Write past TLS, into its connection."""
    os.write(request.writer.get_extra_info("socket").fileno(), b"HTTP/1.1 200 OK\r\n\r\n")
    await never(request)


def test_an_answer_that_breaks_tls_is_a_tls_error(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, "shop.example")

    async def scenario() -> None:
        async with site({"/": send_plain_bytes}, server) as place, bounded(verify=client) as web:
            with pytest.raises(PageTlsError):
                await web.fetch(place.url("/", "shop.example"))

    run(scenario())


def test_a_server_that_stops_within_tls_is_a_timeout_and_its_connection_is_closed() -> None:
    async def scenario() -> None:
        closed = asyncio.Event()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(65_536):
                pass
            closed.set()

        async with tcp_server(accept) as port, bounded() as web:
            with pytest.raises(PageTimeoutError) as caught:
                await web.fetch(f"https://127.0.0.1:{port}/", timeout=0.3)
            await closed.wait()  # while the error holds the frames, and so the connection
            assert caught.value.text

    run(scenario())


def test_a_page_that_does_not_answer_is_a_timeout() -> None:
    async def scenario() -> None:
        async with site({"/": never}) as place, bounded() as web:
            with pytest.raises(PageTimeoutError):
                await web.fetch(place.url(), timeout=0.3)

    run(scenario())
