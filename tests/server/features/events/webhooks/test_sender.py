"""One attempt to deliver, against real sockets and real TLS on loopback: what a receiver may do, and how it ends."""

import asyncio
import datetime
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from tests.server.features.events.webhooks.fake_authority import FakeAuthority
from tests.server.features.events.webhooks.fake_receiver import (
    ACCEPTED,
    HOST,
    OLD_SECRET,
    SECRET,
    delivery,
    receiver,
    resolve_to_loopback,
    sender,
)
from tests.tools.api.outbound.test_fetch import PRIVATE, dripping, gibberish, headless, nothing, run
from tests.tools.fake_web_site import Answer, Request, never, redirect, site, tcp_server
from toolgate.server.features.events.webhooks.delivery import MAX_BODY, Disposition, Failure, Outcome, create_message_id
from toolgate.server.features.events.webhooks.sender import CallbackUrlError, WebhookSender

ACKNOWLEDGED = Outcome(Disposition.ACKNOWLEDGED)
IN_TIME = 10.0  # seconds that no test reaches
SHORT = 0.5


def retry(error: Failure, after: float = 0.0, *, is_soon: bool = False) -> Outcome:
    return Outcome(Disposition.RETRY, error, after, is_soon)


def attempt(folder: Path, page: Answer, *, timeout: float = IN_TIME) -> Outcome:
    """Return how one attempt ends at a receiver that answers so."""

    async def scenario() -> Outcome:
        receiving = receiver(folder, {"/hook": page})
        async with receiving as (place, authority), sender(authority, timeout=timeout) as sending:
            return await sending.send(delivery(place.url("/hook", HOST)))

    return run(scenario())


def test_a_delivery_is_one_signed_post(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with receiver(tmp_path, {"/hook": ACCEPTED}) as (place, authority), sender(authority) as sending:
            message = delivery(place.url("/hook?key=1", HOST), secrets=(SECRET, OLD_SECRET))
            assert await sending.send(message) == ACKNOWLEDGED
        (request,) = place.requests
        assert request.target == "/hook?key=1"
        assert request.body == message.body
        for secret in (SECRET, OLD_SECRET):
            assert Webhook(secret.to_text()).verify(request.body, request.headers) == {"eventId": "build-7"}
        stamp = request.headers.pop("webhook-timestamp"), request.headers.pop("webhook-signature").split(" ")
        assert abs(int(stamp[0]) - datetime.datetime.now(datetime.UTC).timestamp()) < 60
        assert len(stamp[1]) == 2
        assert request.headers == {
            "host": f"{HOST}:{place.port}",
            "user-agent": "toolgate-webhooks",
            "accept": "*/*",
            "accept-encoding": "gzip, deflate",
            "connection": "close",
            "content-type": "application/json",
            "content-length": str(len(message.body)),
            "webhook-id": "build-7",
            "x-mcp-subscription-id": "sub_1",
        }

    run(scenario())


def test_each_attempt_has_the_same_id_and_a_fresh_time_signature_and_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        times = iter([1000.0, 1000.0, 2000.9, 2000.9])
        async with receiver(tmp_path, {"/hook": ACCEPTED}) as (place, authority):
            sending = WebhookSender(
                ["127.0.0.1"], verify=authority.trust(), resolve=resolve_to_loopback, now=lambda: next(times)
            )
            for _ in range(2):
                await sending.send(delivery(place.url("/hook", HOST)))
            await sending.close()
        headers = [request.headers for request in place.requests]
        assert [each["webhook-id"] for each in headers] == ["build-7", "build-7"]
        assert [each["webhook-timestamp"] for each in headers] == ["1000", "2000"]
        assert len({each["webhook-signature"] for each in headers}) == 2
        assert place.connections == 2

    run(scenario())


STATUSES = {
    200: ACKNOWLEDGED,
    202: ACKNOWLEDGED,
    299: ACKNOWLEDGED,
    300: retry("http_4xx"),
    304: retry("http_4xx"),
    400: retry("http_4xx"),
    401: retry("http_4xx"),
    404: retry("http_4xx"),
    410: Outcome(Disposition.FINAL, "http_4xx"),
    413: Outcome(Disposition.FINAL, "http_4xx"),
    425: retry("http_4xx", is_soon=True),
    429: retry("http_4xx"),
    500: retry("http_5xx"),
    503: retry("http_5xx", is_soon=True),
    599: retry("http_5xx"),
    999: retry("http_5xx"),
}


@pytest.mark.parametrize(("status", "outcome"), STATUSES.items())
def test_what_a_status_means(tmp_path: Path, status: int, outcome: Outcome) -> None:
    assert attempt(tmp_path, (status, {}, b"")) == outcome


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_used_up_to_its_limit(tmp_path: Path, status: int) -> None:
    for value, seconds in (("30", 30.0), (str(10**9), 3600.0)):
        assert attempt(tmp_path, (status, {"retry-after": value}, b"")).retry_after == seconds


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(tmp_path: Path, status: int) -> None:
    async def scenario() -> None:
        async with receiver(tmp_path, {"/next": ACCEPTED}) as (place, authority), sender(authority) as sending:
            place.pages["/hook"] = redirect(place.url("/next", HOST), status)
            assert await sending.send(delivery(place.url("/hook", HOST))) == retry("http_4xx")
            assert [request.path for request in place.requests] == ["/hook"]

    run(scenario())


async def flood(request: Request) -> None:
    await request.send(200, {"content-type": "text/plain"})
    while not request.writer.is_closing():
        request.writer.write(bytes(65_536))
        await request.writer.drain()


async def hint_for_ever(request: Request) -> None:
    while not request.writer.is_closing():
        request.writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1_000)
        await request.writer.drain()


async def drip_head(request: Request) -> None:
    request.writer.write(b"HTTP/1.1 200 OK\r\nx: ")
    while True:
        request.writer.write(b"x")
        await request.writer.drain()
        await asyncio.sleep(0.02)


def test_a_body_that_never_ends_is_not_read(tmp_path: Path) -> None:
    assert attempt(tmp_path, flood) == ACKNOWLEDGED
    assert attempt(tmp_path, dripping) == ACKNOWLEDGED
    assert attempt(tmp_path, (200, {"content-encoding": "nonsense"}, b"no page")) == ACKNOWLEDGED


@pytest.mark.parametrize("page", [never, drip_head])
def test_a_receiver_that_does_not_answer_in_time_is_a_timeout(tmp_path: Path, page: Answer) -> None:
    assert attempt(tmp_path, page, timeout=SHORT) == retry("timeout")


@pytest.mark.parametrize("page", [headless, hint_for_ever, gibberish, nothing])
def test_an_answer_that_is_not_http_is_a_failure(tmp_path: Path, page: Answer) -> None:
    assert attempt(tmp_path, page) == retry("connection_refused")


async def wait_for_ever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def read_for_ever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(65_536):
        pass


def test_a_receiver_that_reads_nothing_is_a_timeout(tmp_path: Path) -> None:
    async def scenario() -> None:
        authority = FakeAuthority(tmp_path)
        async with (
            tcp_server(wait_for_ever, authority.issue(HOST)) as port,
            sender(authority, timeout=SHORT) as sending,
        ):
            message = delivery(f"https://{HOST}:{port}/", body=bytes(MAX_BODY))
            assert await sending.send(message) == retry("timeout")

    run(scenario())


@pytest.mark.parametrize("serve", [wait_for_ever, read_for_ever])
def test_a_receiver_that_stops_within_tls_is_a_timeout(serve: Callable[..., Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with tcp_server(serve) as port, sender(timeout=SHORT) as sending:
            assert await sending.send(delivery(f"https://{HOST}:{port}/")) == retry("timeout")

    run(scenario())


def test_a_receiver_without_tls_is_a_tls_error() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.drain()
        await read_for_ever(reader, writer)

    async def scenario() -> None:
        async with tcp_server(speak) as port, sender() as sending:
            assert await sending.send(delivery(f"https://{HOST}:{port}/")) == retry("tls_error")

    run(scenario())


def test_a_receiver_that_hangs_up_within_tls_is_a_failure() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.close()

    async def scenario() -> None:
        async with tcp_server(hang_up) as port, sender() as sending:
            outcome = await sending.send(delivery(f"https://{HOST}:{port}/"))
            assert outcome in (retry("tls_error"), retry("connection_refused"))

    run(scenario())


def test_a_wrong_certificate_is_a_tls_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with receiver(tmp_path, {"/hook": ACCEPTED}) as (place, authority):
            async with sender(authority) as sending:  # another name
                assert await sending.send(delivery(place.url("/hook", "other.example"))) == retry("tls_error")
                assert await sending.send(delivery(place.url("/hook", "127.0.0.1"))) == retry("tls_error")
            async with sender() as sending:  # an authority that is not trusted
                assert await sending.send(delivery(place.url("/hook", HOST))) == retry("tls_error")
            assert place.requests == []

    run(scenario())


def test_a_certificate_that_has_ended_is_a_tls_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        authority = FakeAuthority(tmp_path)
        ended = authority.issue(HOST, left=datetime.timedelta(hours=-1))
        async with site({"/hook": ACCEPTED}, ended) as place, sender(authority) as sending:
            assert await sending.send(delivery(place.url("/hook", HOST))) == retry("tls_error")

    run(scenario())


def test_tls_before_1_2_is_a_tls_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        authority = FakeAuthority(tmp_path)
        context = authority.issue(HOST)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        async with site({"/hook": ACCEPTED}, context) as place, sender(authority) as sending:
            assert await sending.send(delivery(place.url("/hook", HOST))) == retry("tls_error")

    with pytest.warns(DeprecationWarning):
        run(scenario())


def test_a_closed_port_and_an_unknown_name_are_refused_connections(tmp_path: Path) -> None:
    async def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError(-2, "Name or service not known")

    async def scenario() -> None:
        async with receiver(tmp_path, {}) as (place, authority):
            url = place.url("/hook", HOST)
        async with sender(authority) as sending:
            assert await sending.send(delivery(url)) == retry("connection_refused")
        async with sender(authority, resolve=unknown) as sending:
            assert await sending.send(delivery(url)) == retry("connection_refused")

    run(scenario())


SPELLINGS = [
    "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "017700000001", "0", "localhost", "LOCALHOST.", "127.0.0.1.",
    "[::1]", "[::ffff:127.0.0.1]", "[0:0:0:0:0:ffff:7f00:1]",
]  # fmt: skip


def test_no_hostile_address_is_connected_to(tmp_path: Path) -> None:
    """The addresses that ReadDocs is tested with: as they are, and as what a name resolves to."""

    async def scenario() -> None:
        async with receiver(tmp_path, {"/": ACCEPTED}) as (place, authority):
            async with sender(authority, allow=()) as sending:
                hosts = [f"[{address}]" if ":" in address else address for address in PRIVATE]
                for host in (*hosts, *SPELLINGS):
                    assert await sending.send(delivery(f"https://{host}:{place.port}/")) == retry("connection_refused")
            for address in PRIVATE:
                async with sender(authority, allow=(), resolve=resolver([address], [])) as sending:
                    outcome = await sending.send(delivery(place.url("/", HOST)))
                    assert outcome == retry("connection_refused"), address
            assert place.connections == 0

    run(scenario())


def resolver(*answers: Sequence[str]) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """Return a DNS that gives one answer after the other."""
    left = iter(answers)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return next(left)

    return resolve


def test_one_private_answer_among_public_ones_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with receiver(tmp_path, {"/": ACCEPTED}) as (place, authority):
            async with sender(authority, allow=(), resolve=resolver(["93.184.216.34", "127.0.0.1"])) as sending:
                assert await sending.send(delivery(place.url("/", HOST))) == retry("connection_refused")
            assert place.connections == 0

    run(scenario())


def test_the_policy_may_name_a_host(tmp_path: Path) -> None:
    async def scenario() -> None:
        receiving = receiver(tmp_path, {"/": ACCEPTED})
        async with receiving as (place, authority), sender(authority, allow=(HOST,)) as sending:
            assert await sending.send(delivery(place.url("/", HOST))) == ACKNOWLEDGED

    run(scenario())


def test_a_name_is_vetted_at_each_delivery(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with receiver(tmp_path, {"/": ACCEPTED}) as (place, authority):
            answers = resolver(["127.0.0.1"], ["10.0.0.7"], ["127.0.0.1"])
            async with sender(authority, resolve=answers) as sending:
                outcomes = [await sending.send(delivery(place.url("/", HOST))) for _ in range(3)]
            assert outcomes == [ACKNOWLEDGED, retry("connection_refused"), ACKNOWLEDGED]
            assert len(place.requests) == 2

    run(scenario())


def test_the_environment_chooses_no_proxy_and_no_cookie_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def scenario() -> None:
        pages: dict[str, Answer] = {"/": (200, {"set-cookie": "a=b"}, b"")}
        async with receiver(tmp_path, pages) as (place, authority), sender(authority) as sending:
            for _ in range(2):
                assert await sending.send(delivery(place.url("/", HOST))) == ACKNOWLEDGED
            assert all("cookie" not in request.headers for request in place.requests)

    run(scenario())


def test_plain_http_is_not_sent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with receiver(tmp_path, {"/": ACCEPTED}) as (place, authority), sender(authority) as sending:
            url = place.url("/").replace("https://", "http://")
            assert await sending.send(delivery(url)) == retry("connection_refused")
            assert place.connections == 0

    run(scenario())


@pytest.mark.parametrize(
    "changes",
    [
        {"id": ""},
        {"id": "a b"},
        {"id": "a\r\nx-evil: 1"},
        {"id": "é"},
        {"id": "x" * 257},
        {"subscription": "a\nb"},
        {"body": bytes(MAX_BODY + 1)},
        {"secrets": ()},
    ],
)
def test_a_delivery_that_can_never_be_sent_is_final(tmp_path: Path, changes: dict[str, str]) -> None:
    async def scenario() -> None:
        async with receiver(tmp_path, {"/": ACCEPTED}) as (place, authority), sender(authority) as sending:
            outcome = await sending.send(delivery(place.url("/", HOST), **changes))
            assert outcome == Outcome(Disposition.FINAL, "http_4xx")
            assert place.connections == 0

    run(scenario())


@pytest.mark.parametrize(
    "url", ["http://hooks.example/", "HTTPS:/hooks.example", "https://", "https:///x", "https://user@hooks.example/",
            "https://u:p@hooks.example/", "https://a b/", "https://hooks..example/", "https://h:0/", "https://h:99999/",
            "https://[::1/", "https://h/\n", " https://h/", "ftp://h/", "hooks.example", "", "https://h/" + "x" * 2048,
            "https://[fe80::1%25eth0]/"],
)  # fmt: skip
def test_a_url_that_is_no_callback_is_refused(url: str) -> None:
    sending = WebhookSender()
    with pytest.raises(CallbackUrlError):
        sending.check_url(url)


def test_a_callback_is_an_https_url() -> None:
    for url in ("https://hooks.example/x?y=z", "HTTPS://Hooks.Example:8443", "https://münchen.example/ü"):
        WebhookSender().check_url(url)


def test_a_reachable_callback_has_no_fault(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with receiver(tmp_path, {"/moved": redirect("/")}) as (place, authority), sender(authority) as sending:
            assert await sending.find_fault(place.url("/hook", HOST)) is None
            assert await sending.find_fault(place.url("/moved", HOST)) == "http_4xx"
            assert await sending.find_fault(place.url("/hook", "other.example")) == "tls_error"
            assert await sending.find_fault("https://10.0.0.7/") == "connection_refused"
            assert await sending.find_fault("http://hooks.example/") == "connection_refused"
            assert {"webhook-signature" in request.headers for request in place.requests} == {False}

    run(scenario())


def test_a_lookup_that_hangs_keeps_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A principal has as many hanging lookups as turns, though each delivery gives up sooner."""
    go = threading.Event()

    def answer(host: str, port: int, type: int, flags: int) -> list[object]:
        if not flags:
            assert go.wait(60)
        raise socket.gaierror(socket.EAI_NONAME, "not known")

    monkeypatch.setattr("toolgate.tools.api.outbound.dns.socket.getaddrinfo", answer)

    async def scenario() -> None:
        sending = WebhookSender(timeout=0.1)
        task = asyncio.ensure_future(sending.send(delivery("https://slow.example/")))
        _, hanging = await asyncio.wait([task], timeout=0.5)
        assert hanging == {task}
        go.set()
        assert await task == retry("timeout")
        await sending.close()

    run(scenario())


def test_control_messages_have_ids_of_their_own() -> None:
    ids = {create_message_id("gap") for _ in range(10)}
    assert len(ids) == 10
    assert all(id.startswith("msg_gap_") for id in ids)
