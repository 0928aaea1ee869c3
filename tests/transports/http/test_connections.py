"""Limits on connections, requests and streams, and which of them end at a limit."""

import asyncio
import contextlib
import http.client
import json
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE
from tests.clients.raw_http_client import Site, events, site
from tests.server.auth.minted_tokens import Signed, asked, session, signed_site
from tests.server.auth.sign_in_server import sign_in_server
from tests.servers.http_in_process import Exchange, Inside, named
from tests.transports.http.sessions.test_streams import run, until
from tests.transports.http.test_limits import serving
from toolgate.server.auth.address_blocks import prefixes
from toolgate.server.base.limits.budget import Budget
from toolgate.transports.http import transport
from toolgate.transports.http.sessions.session import MAX_GET_STREAMS
from toolgate.transports.http.wire.connections import MAX_CONNECTIONS, Connections
from toolgate.transports.web.http import MAX_FORM, MAX_FORMS

HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


# -- connections


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Allow this process enough of them."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def idle(listening: Site) -> socket.socket:
    """Return a connection on which one request was answered."""
    wire = listening.socket()
    wire.sendall(HEALTH)
    assert wire.recv(1_000).startswith(b"HTTP/1.1 200")
    return wire


def is_closed(wire: socket.socket) -> bool:
    wire.settimeout(0.2)
    try:
        return wire.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def test_idle_connections_give_way_to_new_ones_the_longest_idle_first(tmp_path: Path, descriptors: None) -> None:
    with site(tmp_path) as listening, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(idle(listening)) for _ in range(MAX_CONNECTIONS + 20)]
        assert listening.ask("GET", "/")[0].status == 200
        assert is_closed(wires[0])
        wires[-1].sendall(HEALTH)
        assert wires[-1].recv(1_000).startswith(b"HTTP/1.1 200")


class FakeConnection:
    """A fake connection that records its closing."""

    def __init__(self, connections: Connections, address: str) -> None:
        self.is_open = True
        self.place = connections.add(self, address)

    def drop(self) -> None:
        self.is_open = False
        self.place.release()


FLOODS = {  # addresses of one sender → how many of 64 connections they may have
    "one address": (lambda n: "192.0.2.1", 16),
    "one network": (lambda n: f"192.0.2.{n % 250}", 32),
    "one network, mapped": (lambda n: f"::ffff:192.0.2.{n % 250}", 32),
    "one /64": (lambda n: f"2001:db8::{n:x}", 16),
    "one /56": (lambda n: f"2001:db8:0:{n % 256:x}::1", 16),
    "one /48": (lambda n: f"2001:db8:0:{n:x}00::1", 32),
    "this machine": (lambda n: "127.0.0.1", 64),
    "this machine, mapped": (lambda n: "::ffff:127.0.0.1", 64),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_the_addresses_of_one_sender_hold_a_part_of_the_connections(flood: str) -> None:
    address, most = FLOODS[flood]
    connections = Connections(64)
    idle = [FakeConnection(connections, address(n)) for n in range(200)]
    assert [wire.is_open for wire in idle] == [False] * (200 - most) + [True] * most
    assert len(connections) == most
    other = FakeConnection(connections, "203.0.113.9")
    assert other.place.begin_request()
    for wire in [*idle, other]:
        wire.place.release()
    assert len(connections) == 0


def test_a_sender_whose_connections_are_all_in_use_leaves_room_to_others(tmp_path: Path) -> None:
    connections = Connections(64)
    busy = [FakeConnection(connections, "192.0.2.1") for _ in range(16)]
    assert all(wire.place.begin_request() for wire in busy)
    assert not FakeConnection(connections, "192.0.2.1").place.begin_request()
    assert FakeConnection(connections, "192.0.2.2").place.begin_request()
    assert all(wire.is_open for wire in busy)


def test_a_trusted_proxy_may_hold_all_connections() -> None:
    connections = Connections(64, lambda address: address == "10.0.0.2")
    for address, most in (("10.0.0.2", 64), ("10.0.0.3", 16)):
        wires = [FakeConnection(connections, address) for _ in range(100)]
        assert sum(wire.is_open for wire in wires) == most
        for wire in wires:
            wire.place.release()


def test_where_every_connection_is_in_use_a_newcomer_gets_503_and_a_probe_its_answer(tmp_path: Path) -> None:
    async def body(port: int, here: Any) -> None:
        head = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for _, writer in held:
            writer.write(head)
        await until(lambda: here.streamable.budgets.requests.used == 4)
        for path, status in ((b"/mcp", b"503"), (b"/probe", b"404"), (b"/probe?now", b"503"), (b"/mcp", b"503")):
            answer = await told(port, path)
            assert answer.startswith(b"HTTP/1.1 " + status), answer
            assert b"connection: close" in answer.lower()
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        await until(lambda: here.streamable.budgets.requests.used == 0)
        assert (await told(port, b"/mcp", b"Connection: close\r\n")).startswith(b"HTTP/1.1 400")

    async def told(port: int, path: bytes, headers: bytes = b"") -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers + b"\r\n")
        try:
            return await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()

    serving(tmp_path, body, connections=Connections(4))


@pytest.mark.parametrize("begun", [b"", b"username=", b"username=" + b"a" * 5_000])
def test_unfinished_forms_hold_only_a_part_of_the_connections(begun: bytes, tmp_path: Path, descriptors: None) -> None:
    head = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    most = MAX_FORMS // MAX_FORM
    with sign_in_server(tmp_path) as gate, contextlib.ExitStack() as stack:
        wires = []
        for _ in range(most + 20):
            wires.append(stack.enter_context(socket.create_connection(("127.0.0.1", gate.port), PATIENCE)))
            wires[-1].sendall(head + b"Content-Length: 60000\r\n\r\n" + begun)
        for wire in wires[:20]:
            assert wire.recv(1_000).startswith(b"HTTP/1.1 503")
        browser = gate.browser()  # its own form takes the place of another
        csrf = browser.get("/login").field("csrf")
        assert browser.post("/login", {"csrf": csrf, "username": "ada", "password": "x", "question": ""}).status == 403
        for wire in wires[22:]:
            wire.setblocking(False)
            with pytest.raises(BlockingIOError):
                wire.recv(1)


# -- streams


class Streams:
    """Streams that are opened, and closed in the end."""

    def __init__(self, listening: Site, stack: contextlib.ExitStack) -> None:
        self._site = listening
        self._stack = stack

    def stand(self, signed: Signed, token: str, count: int = 1) -> list[http.client.HTTPResponse]:
        """Return open streams of GET requests on one new session."""
        told = {"mcp-session-id": session(signed, token, "2025-06-18"), "mcp-protocol-version": "2025-06-18"}
        return [self.open("GET", None, token, **told) for _ in range(count)]

    def open(self, method: str, body: str | None, token: str, **headers: str) -> http.client.HTTPResponse:
        told = {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream", **headers}
        connection = self._stack.enter_context(contextlib.closing(self._site.connect()))
        connection.request(method, "/mcp", body, {"content-type": "application/json", **told})
        return self._stack.enter_context(contextlib.closing(connection.getresponse()))


def test_one_session_holds_eight_get_streams_and_the_newest_stay(tmp_path: Path) -> None:
    with signed_site(tmp_path) as signed, contextlib.ExitStack() as stack:
        token = signed.token()
        streams = Streams(signed.site, stack).stand(signed, token, 12)
        assert [stream.status for stream in streams] == [200] * 12
        assert all(b"open" in stream.read() for stream in streams[:4])  # to their ends
        assert all(next(events(stream)) == {"": "open"} for stream in streams[4:])
        assert "tools" in asked(signed, token, "tools/list")[2]["result"]


def test_the_oldest_streams_of_a_principal_make_room_for_its_new_ones(tmp_path: Path, descriptors: None) -> None:
    with signed_site(tmp_path) as signed, contextlib.ExitStack() as stack:
        ada, bob = signed.token("ada"), signed.token("bob")
        opened = Streams(signed.site, stack)
        others = opened.stand(signed, bob)
        sessions = transport.MAX_EACH_STREAMS // MAX_GET_STREAMS + 1
        streams = [stream for _ in range(sessions) for stream in opened.stand(signed, ada, MAX_GET_STREAMS)]
        assert all(b"open" in stream.read() for stream in streams[:MAX_GET_STREAMS])  # to their ends
        others += opened.stand(signed, bob)
        assert all(next(events(stream)) == {"": "open"} for stream in [*streams[MAX_GET_STREAMS:], *others])
        assert asked(signed, bob, "tools/list")[0].status == 200


def shared(**sizes: tuple[int, int]) -> Any:
    """Return budgets of these sizes: (all, each)."""
    whole = transport.create_budgets(Budget(2**30, 2**30))
    return transport.HttpBudgets(
        **{
            name: Budget(*sizes[name], renews=name in ("streams", "events")) if name in sizes else budget
            for name, budget in whole.by_name().items()
        }
    )


async def standing(here: Inside, user: str) -> Exchange:
    id = await here.session(x_user=user)
    return await here.ask("GET", mcp_session_id=id, x_user=user).started()


def test_where_there_are_too_many_streams_the_principal_with_most_gives_way(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        ada, bob = [await standing(here, "ada") for _ in range(4)], [await standing(here, "bob") for _ in range(2)]
        eve = [await standing(here, "eve")]
        async with asyncio.timeout(PATIENCE):
            await ada[0].task
        eve.append(await standing(here, "eve"))
        async with asyncio.timeout(PATIENCE):
            await ada[1].task
        assert not any(stream.task.done() for stream in [*ada[2:], *bob, *eve])
        for stream in [*ada[2:], *bob, *eve]:
            await stream.hang_up()

    run(body, tmp_path, shared=shared(streams=(6, 4)))


def test_one_request_too_many_of_a_principal_is_refused_and_others_are_served(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        ada, bob = await here.session(), await here.session(x_user="bob")
        calls = [here.call(ada, id, "wait", {"seconds": 1.5}) for id in range(3)]
        await until(lambda: len(here.streamable.running) == 3)
        refused = await here.call(ada, 4, "echo", {"text": "x"}).started()
        assert (refused.status, refused.headers[b"retry-after"]) == (503, b"1")
        assert "result" in await here.call(bob, 1, "echo", {"text": "x"}, x_user="bob").json()
        assert ["result" in await call.json() for call in calls] == [True] * 3
        assert "result" in await here.call(ada, 5, "echo", {"text": "x"}).json()

    run(body, tmp_path, shared=shared(requests=(5, 3)))


# -- events kept by streams


async def large(here: Inside, session: str, size: int, **headers: str) -> tuple[str, Any]:
    """Return the id of a large answer's stream, and the answer."""
    call = here.call(session, 1, "wait_large", {"size": size}, **headers)
    *_, last = [event async for event in call.events()]
    return last["id"].rpartition("-")[0], json.loads(last["data"])


async def resumed(here: Inside, session: str, stream: str, **headers: str) -> int:
    again = here.ask("GET", mcp_session_id=session, last_event_id=f"{stream}-0", **headers)
    async with asyncio.timeout(PATIENCE):
        await again.task
    return again.status


def test_events_of_a_principals_streams_are_bounded_over_all_its_sessions(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        sessions = [await here.session("2025-06-18") for _ in range(4)]
        bob = await here.session("2025-06-18", x_user="bob")
        bobs, _ = await large(here, bob, 300_000, x_user="bob")
        streams = [(await large(here, id, 300_000))[0] for id in sessions]
        statuses = [await resumed(here, id, stream) for id, stream in zip(sessions, streams, strict=True)]
        assert statuses == [400, 400, 200, 200]
        assert await resumed(here, bob, bobs, x_user="bob") == 200
        for id in sessions:
            await here.ask("DELETE", mcp_session_id=id).started()
        assert here.streamable.budgets.events.used_by(named("ada")) == 0

    run(body, tmp_path, shared=shared(events=(2_000_000, 700_000)))


def test_an_answer_of_more_than_a_mebibyte_is_not_kept_once_it_was_read(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        id = await here.session("2025-06-18")
        stream, answer = await large(here, id, 3 * 2**20)
        assert "result" in answer
        await until(lambda: here.streamable.budgets.events.used == 0)
        assert await resumed(here, id, stream) == 400

    run(body, tmp_path, shared=shared())


def test_an_answer_that_no_stream_has_room_for_is_an_error(tmp_path: Path) -> None:
    async def body(here: Inside) -> None:
        id = await here.session("2025-06-18")
        _, answer = await large(here, id, 300_000)
        assert answer["error"]["code"] == -32603
        assert "ask for less" in answer["error"]["message"]
        assert "result" in (await large(here, id, 1_000))[1]

    run(body, tmp_path, shared=shared(events=(200_000, 200_000)))


# -- the budget itself


def test_a_budget_takes_from_the_principal_that_holds_most_what_it_offered_first() -> None:
    budget = Budget(100, 60)
    ended: list[int] = []
    large = [budget.take("ada", 20, lambda n=n: ended.append(n)) for n in range(3)]  # type: ignore[misc]
    assert None not in large
    assert budget.take("ada", 1) is None, "more than its own share"
    bob = budget.take("bob", 40, lambda: ended.append(99))
    assert bob is not None
    assert (budget.used, ended) == (100, [])
    eve = budget.take("eve", 30)
    assert eve is not None and ended == [0, 1]
    assert budget.take("bob", 20) is None, "it would hold most itself"
    assert [budget.used_by(name) for name in ("ada", "bob", "eve")] == [20, 40, 30]
    for claim in (*large, bob, eve):
        assert claim is not None
        claim.release()
        claim.release()
        assert not claim.grow(1)
    assert budget.used == 0
    alone = budget.take("ada", 80)
    assert alone is not None, "one claim may be larger than a share"
    assert budget.take("ada", 1) is None
    assert budget.take("bob", 101) is None


def test_a_budget_that_renews_ends_a_principals_own_oldest() -> None:
    budget = Budget(10, 3, renews=True)
    ended: list[int] = []
    claims = [budget.take("ada", 1, lambda n=n: ended.append(n)) for n in range(5)]  # type: ignore[misc]
    assert ended == [0, 1] and budget.used == 3
    last = claims[-1]
    assert last is not None
    claims[2].withdraw()  # type: ignore[union-attr]
    assert last.grow(1) and ended == [0, 1, 3]
    assert not last.grow(2), "it is not ended for itself"


def test_blocks_of_addresses_grow() -> None:
    assert prefixes("2001:db8:1:2::3") == ("2001:db8:1:2::/64", "2001:db8:1::/56", "2001:db8:1::/48")
