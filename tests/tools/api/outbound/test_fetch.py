"""The guarded client against real sockets on loopback; the tests resolve the names, so nothing leaves the machine."""

import asyncio
import datetime
import gzip
import socket
import ssl
import threading
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from tests.tools.fake_web_site import Request, Site, never, redirect, site
from toolgate.tools.api.context.services import Page
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.outbound.address_policy import AddressPolicy, check_address, check_host
from toolgate.tools.api.outbound.dns import Resolver
from toolgate.tools.api.outbound.errors import AddressRefusedError, PageTimeoutError, PageUnreachableError
from toolgate.tools.api.outbound.fetch import Web

T = TypeVar("T")
BOUND = 20.0


def run(work: Awaitable[T]) -> T:
    return asyncio.run(asyncio.wait_for(work, BOUND))  # type: ignore[arg-type]


def names(table: Mapping[str, Sequence[str]]) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """Return a resolver that knows `table`, and addresses."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return table.get(host, [host])

    return resolve


async def got(place: Site, path: str, **options: object) -> Page:
    web = Web(["127.0.0.1"])
    try:
        return await web.fetch(place.url(path), **options)  # type: ignore[arg-type]
    finally:
        await web.close()


async def refused(url: str, allow: Sequence[str] = (), table: Mapping[str, Sequence[str]] | None = None) -> str:
    web = Web(allow, resolve=names(table) if table else None)
    try:
        with pytest.raises(AddressRefusedError) as caught:
            await web.fetch(url)
    finally:
        await web.close()
    return caught.value.text


PUBLIC = [
    "8.8.8.8",
    "1.1.1.1",
    "93.184.216.34",
    "2606:4700::1111",
    "2a00:1450:4001::200e",
    "172.15.0.1",
    "172.32.0.1",
]
PRIVATE = {
    "0.0.0.0": "unspecified",
    "0.1.2.3": "unspecified",
    "10.1.2.3": "private",
    "100.64.0.1": "carrier-grade NAT",
    "100.100.100.200": "carrier-grade NAT",
    "127.0.0.1": "loopback",
    "127.255.255.254": "loopback",
    "168.63.129.16": "cloud metadata",
    "169.254.169.254": "link-local",
    "172.16.0.1": "private",
    "172.31.255.255": "private",
    "192.0.0.192": "reserved",
    "192.0.2.1": "reserved",
    "192.168.1.1": "private",
    "198.18.0.1": "reserved",
    "203.0.113.9": "reserved",
    "224.0.0.1": "multicast",
    "240.0.0.1": "reserved",
    "255.255.255.255": "reserved",
    "::": "unspecified",
    "::1": "loopback",
    "::7f00:1": "IPv4-compatible",
    "::ffff:127.0.0.1": "IPv4-mapped",
    "::ffff:8.8.8.8": "IPv4-mapped",
    "64:ff9b::7f00:1": "NAT64",
    "64:ff9b:1::1": "NAT64",
    "100::1": "reserved",
    "2001::1": "Teredo",
    "2001:10::1": "reserved",
    "2001:db8::1": "reserved",
    "2002:7f00:1::": "6to4",
    "3fff::1": "reserved",
    "4000::1": "reserved",
    "fc00::1": "private",
    "fd00:ec2::254": "private",
    "fe80::1": "link-local",
    "fe80::1%eth0": "link-local",
    "fec0::1": "site-local",
    "ff02::1": "multicast",
}


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_may_be_reached(address: str) -> None:
    assert check_address(address, AddressPolicy()) is None


@pytest.mark.parametrize(("address", "kind"), PRIVATE.items())
def test_an_address_that_is_not_public_may_not(address: str, kind: str) -> None:
    assert check_address(address, AddressPolicy()) == kind


def test_exceptions_are_by_address_by_network_and_by_name() -> None:
    allowed = AddressPolicy.parse(["127.0.0.1", "10.0.0.0/8", "::1", "[fd00::1]", "Intranet.Example.", "fe80::/10"])
    for address in ("127.0.0.1", "10.200.0.1", "::1", "fd00::1", "fe80::1%eth0"):
        assert check_address(address, allowed) is None
    for address in ("127.0.0.2", "192.168.0.1", "::ffff:127.0.0.1", "fd00::2"):
        assert check_address(address, allowed) is not None
    assert check_host("intranet.example", ["192.168.0.1"], allowed) is None
    assert check_host("INTRANET.example.", ["192.168.0.1"], allowed) is None
    assert check_host("other.example", ["93.184.216.34", "192.168.0.1"], allowed) == (
        "192.168.0.1",
        "private",
    )


@pytest.mark.parametrize("entry", ["", "10.0.0.0/99", "http://x", "a b", "a..b", "*.example"])
def test_an_entry_that_is_no_host_address_or_network_is_a_value_error(entry: str) -> None:
    with pytest.raises(ValueError, match="not a host name"):
        AddressPolicy.parse([entry])


def test_a_text_that_is_no_address_is_refused() -> None:
    assert check_address("example.org", AddressPolicy()) == "not an address"


def test_a_page_comes_back_with_its_final_url_status_headers_and_body() -> None:
    async def scenario() -> None:
        async with site({"/a": (201, {"content-type": "Text/HTML; charset=x", "x-y": "z"}, b"hello")}) as place:
            page = await got(place, "/a?q=1#there")
            assert (page.url, page.status, page.body, page.truncated) == (
                place.url("/a?q=1#there"),
                201,
                b"hello",
                False,
            )
            assert page.content_type == "text/html"
            assert page.headers["x-y"] == "z"
            request = place.requests[0]
            assert request.target == "/a?q=1"
            assert request.headers["host"] == f"127.0.0.1:{place.port}"

    run(scenario())


def test_connections_are_kept_and_cookies_are_not() -> None:
    async def scenario() -> None:
        async with site({"/": (200, {"set-cookie": "a=b", "content-type": "text/plain"}, b"x")}) as place:
            web = Web(["127.0.0.1"])
            await web.fetch(place.url())
            await web.fetch(place.url())
            await web.close()
            assert place.connections == 1
            assert all("cookie" not in request.headers for request in place.requests)

    run(scenario())


def test_the_environment_chooses_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def scenario() -> None:
        async with site({"/": b"direct"}) as place:
            assert (await got(place, "/")).body == b"direct"

    run(scenario())


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "017700000001", "0", "0.0.0.0", "[::1]",
     "[::ffff:127.0.0.1]", "[0:0:0:0:0:ffff:7f00:1]", "localhost", "LOCALHOST", "localhost.", "127.0.0.1."],
)  # fmt: skip
def test_no_spelling_of_loopback_gets_through(host: str) -> None:
    async def scenario() -> None:
        async with site({"/": b"secret"}) as place:
            web = Web()
            with pytest.raises((AddressRefusedError, PageUnreachableError)):
                await web.fetch(place.url("/", host))
            await web.close()
            assert place.connections == 0

    run(scenario())


def test_a_refusal_names_the_address_and_the_option() -> None:
    text = run(refused("http://intranet.example/", table={"intranet.example": ["10.0.0.7"]}))
    assert "intranet.example" in text
    assert "10.0.0.7" in text
    assert "--allow-private" in text


def test_one_private_answer_among_public_ones_is_refused() -> None:
    run(refused("http://mixed.example/", table={"mixed.example": ["93.184.216.34", "127.0.0.1"]}))


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://example.org/", "gopher://x/", "javascript:alert(1)", "data:text/html,x",
            "http://user@example.org/", "http://user:pass@example.org/", "//example.org/", "example.org"],
)  # fmt: skip
def test_only_plain_web_urls_are_fetched(url: str) -> None:
    run(refused(url))


@pytest.mark.parametrize(
    "url", ["http://", "http:///x", "http://a b/", "http://[fe80::1%25eth0]/", "http://[fe80::1%eth0]/", "http://a..b/",
            "http://ex%61mple.org/", "http://h:0/", "http://h:99999/", "http://h/" + "x" * 9000, "http://xn--/",
            "http://h/\x00", "http://" + "a" * 300 + "/", "http://①②⑦.⓪.⓪.①/", "http://h:x/", "http://[::1/"],
)  # fmt: skip
def test_a_url_that_makes_no_sense_is_a_tool_error(url: str) -> None:
    async def scenario() -> None:
        web = Web(["0.0.0.0/0", "::/0"])
        with pytest.raises(ToolError):
            await web.fetch(url)
        await web.close()

    run(scenario())


def test_redirects_are_followed_relative_ones_too() -> None:
    async def scenario() -> None:
        pages = {"/a/b": redirect("../c?x=1", 301), "/c": redirect("/d#part", 308), "/d": b"here"}
        async with site(pages) as place:
            page = await got(place, "/a/b")
            assert (page.url, page.body) == (place.url("/d#part"), b"here")

    run(scenario())


@pytest.mark.parametrize(
    "target", ["http://127.0.0.2/", "http://169.254.169.254/latest/meta-data/", "http://[::1]/", "file:///etc/passwd",
               "http://x:y@127.0.0.1/", "//2130706434/", "http://localhost.localdomain.test/"],
)  # fmt: skip
def test_each_hop_is_vetted_again(target: str) -> None:
    async def scenario() -> None:
        async with site({"/": redirect(target)}) as place:
            web = Web(
                ["127.0.0.1"],
                resolve=names({"localhost.localdomain.test": ["127.0.0.3"], "2130706434": ["127.0.0.2"]}),
            )
            with pytest.raises(AddressRefusedError):
                await web.fetch(place.url())
            await web.close()
            assert len(place.requests) == 1

    run(scenario())


def test_redirects_without_end_are_given_up() -> None:
    async def scenario() -> None:
        async with site({"/": redirect("/")}) as place:
            with pytest.raises(PageUnreachableError, match="redirects more than 10 times"):
                await got(place, "/")
            assert len(place.requests) == 11

    run(scenario())


def test_a_name_may_not_change_its_address_between_the_check_and_the_connection() -> None:
    async def scenario() -> None:
        async with site({"/": b"first"}) as place:
            answers = iter([["127.0.0.1"], ["10.0.0.1"]])

            async def rebinding(host: str, port: int) -> Sequence[str]:
                return next(answers)

            web = Web(["127.0.0.1"], resolve=rebinding)
            page = await web.fetch(place.url("/", "rebind.example"))
            assert page.body == b"first"  # queried once: the checked address is the connected one
            assert place.requests[0].headers["host"] == f"rebind.example:{place.port}"
            place.pages["/"] = redirect("http://rebind.example/")  # another port, so another connection
            with pytest.raises(AddressRefusedError, match=r"10\.0\.0\.1"):
                await web.fetch(place.url("/", "rebind.example"))
            await web.close()

    run(scenario())


def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    async def scenario() -> None:
        async with site({"/": b"up"}) as place:
            web = Web(["127.0.0.0/8"], resolve=names({"two.example": ["127.0.0.9", "127.0.0.1"]}))
            assert (await web.fetch(place.url("/", "two.example"))).body == b"up"
            await web.close()

    run(scenario())


def test_headers_meant_for_one_origin_do_not_follow_to_another() -> None:
    async def scenario() -> None:
        async with (
            site() as other,
            site({"/": redirect("/same"), "/same": redirect(other.url("/other"))}) as place,
        ):
            await got(place, "/", headers={"API-Key": "secret", "Accept": "text/html"})
            assert [request.headers.get("api-key") for request in place.requests] == ["secret", "secret"]
            assert "api-key" not in other.requests[0].headers
            assert other.requests[0].headers["accept"] == "text/html"

    run(scenario())


PACKED = {
    "gzip": gzip.compress(b"page" * 1000),
    "x-gzip": gzip.compress(b"page" * 500) + gzip.compress(b"page" * 500),
    "deflate": zlib.compress(b"page" * 1000),
    "Deflate": zlib.compress(b"page" * 1000)[2:-4],
    "identity": b"page" * 1000,
}


@pytest.mark.parametrize("encoding", PACKED)  # not the bodies: gzip stores the time in them, and test ids are stable
def test_packed_bodies_are_unpacked(encoding: str) -> None:
    async def scenario() -> None:
        async with site({"/": (200, {"content-encoding": encoding}, PACKED[encoding])}) as place:
            page = await got(place, "/")
            assert (page.body, page.truncated) == (b"page" * 1000, False)

    run(scenario())


def test_a_body_is_unpacked_only_up_to_the_limit() -> None:
    async def scenario() -> None:
        bomb = gzip.compress(bytes(200_000_000), compresslevel=1)
        async with site({"/": (200, {"content-encoding": "gzip"}, bomb), "/exact": b"x" * 1000}) as place:
            page = await got(place, "/", limit=1000)
            assert (page.body, page.truncated) == (bytes(1000), True)
            page = await got(place, "/exact", limit=1000)
            assert (page.body, page.truncated) == (b"x" * 1000, False)
            page = await got(place, "/exact", limit=999)
            assert (page.body, page.truncated) == (b"x" * 999, True)

    run(scenario())


def test_junk_behind_a_packed_body_is_not_read_for_ever() -> None:
    async def junk(request: Request) -> None:
        await request.send(200, {"content-encoding": "gzip"}, gzip.compress(b"page"))
        while True:
            request.writer.write(bytes(65_536))
            await request.writer.drain()

    async def scenario() -> None:
        async with site({"/": junk}) as place:
            page = await got(place, "/", limit=1_000_000)
            assert (page.body, page.truncated) == (b"page", True)

    run(scenario())


@pytest.mark.parametrize("encoding", ["utf-8", "UTF-8", "aws-chunked", "none", "aws-chunked, identity", "binary"])
def test_words_that_name_no_compression_are_ignored(encoding: str) -> None:
    async def scenario() -> None:
        async with site({"/": (200, {"content-encoding": encoding}, b"plain")}) as place:
            assert (await got(place, "/")).body == b"plain"

    run(scenario())


def test_a_compression_beside_other_words_is_unpacked() -> None:
    async def scenario() -> None:
        packed = gzip.compress(b"page", mtime=0)
        async with site({"/": (200, {"content-encoding": "aws-chunked, gzip"}, packed)}) as place:
            assert (await got(place, "/")).body == b"page"

    run(scenario())


async def short_length(request: Request) -> None:
    await request.send(200, {"content-type": "text/plain", "content-length": "100"}, b"the first half")


async def short_chunks(request: Request) -> None:
    await request.send(200, {"content-type": "text/plain", "transfer-encoding": "chunked"}, b"e\r\nthe first half\r\n")


async def short_chunk(request: Request) -> None:
    await request.send(200, {"content-type": "text/plain", "transfer-encoding": "chunked"}, b"ff\r\nthe first half")


CUT = {"a length": short_length, "chunks": short_chunks, "a chunk": short_chunk}
CUT_PACKED = {
    "gzip": gzip.compress(b"the first half" + bytes(range(256)), mtime=0)[:-12],
    "deflate": zlib.compress(b"the first half" + bytes(range(256)))[:-6],
}


@pytest.mark.parametrize("name", CUT)
def test_a_body_that_breaks_off_is_an_error_or_told_apart_where_it_is_allowed(name: str) -> None:
    async def scenario() -> None:
        async with site({"/": CUT[name]}) as place:
            with pytest.raises(PageUnreachableError, match="could not fetch"):
                await got(place, "/")
            page = await got(place, "/", allow_incomplete=True)
            assert (page.body, page.truncated, page.is_incomplete) == (b"the first half", False, True)

    run(scenario())


@pytest.mark.parametrize("encoding", CUT_PACKED)
def test_a_packed_body_that_breaks_off_says_so(encoding: str) -> None:
    async def scenario() -> None:
        async with site({"/": (200, {"content-encoding": encoding}, CUT_PACKED[encoding])}) as place:
            page = await got(place, "/")
            assert page.body.startswith(b"the first half")
            assert (page.truncated, page.is_incomplete) == (False, True)

    run(scenario())


@pytest.mark.parametrize("encoding", PACKED)
def test_a_whole_body_is_not_incomplete(encoding: str) -> None:
    async def scenario() -> None:
        async with site({"/": (200, {"content-encoding": encoding}, PACKED[encoding]), "/empty": b""}) as place:
            assert not (await got(place, "/")).is_incomplete
            assert not (await got(place, "/empty")).is_incomplete

    run(scenario())


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "deflate, br", "compress"])
def test_an_encoding_that_was_not_asked_for_is_a_tool_error(encoding: str) -> None:
    async def scenario() -> None:
        async with site({"/": (200, {"content-encoding": encoding}, b"x")}) as place:
            with pytest.raises(PageUnreachableError, match="content-encoding"):
                await got(place, "/")

    run(scenario())


def test_a_body_that_does_not_unpack_is_a_tool_error() -> None:
    async def scenario() -> None:
        async with site({"/": (200, {"content-encoding": "gzip"}, b"not gzip at all")}) as place:
            with pytest.raises(PageUnreachableError, match="decompressed"):
                await got(place, "/")

    run(scenario())


async def dripping(request: Request) -> None:
    await request.send(200, {"content-type": "text/plain"})
    while True:
        request.writer.write(b"x")
        await request.writer.drain()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("page", [never, dripping])
def test_a_page_that_does_not_come_in_time_is_given_up(page: Callable[[Request], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with site({"/": page}) as place:
            with pytest.raises(PageTimeoutError, match=r"0\.3 s"):
                await got(place, "/", timeout=0.3)

    run(scenario())


def test_a_cancelled_fetch_closes_its_connection() -> None:
    async def scenario() -> None:
        gone = asyncio.Event()
        asked = asyncio.Event()

        async def held(request: Request) -> None:
            asked.set()
            await request.send(200, {})
            while not request.writer.is_closing():
                request.writer.write(b"x" * 65_536)
                try:
                    await request.writer.drain()
                except OSError:
                    break
            gone.set()

        async with site({"/": held}) as place:
            web = Web(["127.0.0.1"])
            task = asyncio.ensure_future(web.fetch(place.url(), limit=10**12))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await gone.wait()
            await web.close()

    run(scenario())


async def crumbled(request: Request) -> None:
    """Send much work in few bytes."""
    await request.send(200, {"transfer-encoding": "chunked"})
    for _ in range(100):
        request.writer.write(b"1\r\nx\r\n" * 1_000)
        await request.writer.drain()


def test_a_body_in_too_many_small_pieces_is_given_up() -> None:
    async def scenario() -> None:
        async with site({"/": crumbled}) as place:
            with pytest.raises(PageUnreachableError, match="small pieces"):
                await got(place, "/")

    run(scenario())


def test_a_lane_has_connections_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolgate.tools.api.outbound.vetted_client.MAX_CONNECTIONS", 1)
    asked = asyncio.Event()

    async def held(request: Request) -> None:
        asked.set()
        await never(request)

    async def scenario() -> None:
        async with site({"/slow": held, "/": b"quick"}) as place:
            web = Web(["127.0.0.1"])
            slow = asyncio.ensure_future(web.fetch(place.url("/slow"), lane="slow"))
            await asked.wait()
            for lane in ("quick", ""):
                assert (await web.fetch(place.url("/"), lane=lane)).body == b"quick"
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)
            await web.close()

    run(scenario())


async def headless(request: Request) -> None:
    request.writer.write(b"HTTP/1.1 200 x\r\n" + b"x-long: " + b"y" * 2**20)
    await request.writer.drain()


async def gibberish(request: Request) -> None:
    request.writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
    await request.writer.drain()


async def nothing(request: Request) -> None:
    pass


@pytest.mark.parametrize("page", [headless, gibberish, nothing])
def test_an_answer_that_is_not_http_is_a_tool_error(page: Callable[[Request], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with site({"/": page}) as place:
            with pytest.raises(PageUnreachableError, match="could not fetch"):
                await got(place, "/")

    run(scenario())


def test_a_refused_connection_and_an_unknown_name_say_so() -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError(-2, "Name or service not known")

    async def scenario() -> None:
        async with site() as place:
            url = place.url()
        web = Web(["127.0.0.1"])
        with pytest.raises(PageUnreachableError, match="connection refused"):
            await web.fetch(url)
        await web.close()
        web = Web(resolve=unknown)
        with pytest.raises(
            PageUnreachableError, match=r"could not resolve nowhere\.example: name or service not known"
        ):
            await web.fetch("http://nowhere.example/")
        await web.close()

    run(scenario())


def test_the_system_resolves_names_and_addresses() -> None:
    async def scenario() -> None:
        async with site({"/": b"home"}) as place:
            web = Web(["localhost", "127.0.0.1"])
            for host in ("localhost", "127.1"):
                assert (await web.fetch(place.url("/", host))).body == b"home"
            await web.close()

    run(scenario())


def test_concurrent_lookups_of_a_name_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, go = [], threading.Event()

    def answer(host: str, port: int, type: int, flags: int) -> list[object]:
        if flags:
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        looked.append(host)
        assert go.wait(BOUND)
        if host == "none.example":
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return [(socket.AF_INET, type, 6, "", ("192.0.2.1", port))]

    monkeypatch.setattr("toolgate.tools.api.outbound.dns.socket.getaddrinfo", answer)

    async def scenario() -> None:
        resolver = Resolver()
        wanted = [resolver.addresses(host, 443) for host in ("a.example", "none.example") for _ in range(100)]
        tasks = [asyncio.ensure_future(one) for one in wanted]
        await asyncio.sleep(0)
        tasks.pop(0).cancel()  # the first caller leaves: the others still get the answer
        go.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert answers[:99] == [["192.0.2.1"]] * 99
        assert all(isinstance(one, socket.gaierror) for one in answers[99:])
        assert sorted(looked) == ["a.example", "none.example"]
        assert await resolver.addresses("a.example", 443) == ["192.0.2.1"]
        assert len(looked) == 3  # nothing is remembered

    run(scenario())


def certificate(
    folder: Path, name: str, left: datetime.timedelta = datetime.timedelta(days=1)
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return TLS contexts for a server `name`, and for a client that trusts it; `left` is the certificate's remaining
    time."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + left)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    return server, ssl.create_default_context(cadata=signed.public_bytes(serialization.Encoding.PEM).decode())


def test_tls_is_verified_against_the_name_and_not_the_pinned_address(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, "shop.example")
    seen: list[str | None] = []
    server.sni_callback = lambda _, name, __: seen.append(name)

    async def scenario() -> None:
        async with site({"/": b"safe"}, server) as place:
            table = {"shop.example": ["127.0.0.1"], "other.example": ["127.0.0.1"]}
            web = Web(["127.0.0.1"], verify=client, resolve=names(table))
            assert (await web.fetch(place.url("/", "shop.example"))).body == b"safe"
            assert seen == ["shop.example"]
            with pytest.raises(PageUnreachableError, match="TLS: Hostname mismatch"):
                await web.fetch(place.url("/", "other.example"))
            await web.close()
            distrusting = Web(["127.0.0.1"], resolve=names(table))
            with pytest.raises(PageUnreachableError, match="TLS: self"):
                await distrusting.fetch(place.url("/", "shop.example"))
            await distrusting.close()

    run(scenario())


def test_plain_http_on_a_tls_port_is_a_tool_error() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(speak, "127.0.0.1", 0)
        async with server:
            web = Web(["127.0.0.1"])
            with pytest.raises(PageUnreachableError, match="TLS"):
                await web.fetch(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
            await web.close()

    run(scenario())
