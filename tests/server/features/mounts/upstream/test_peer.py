"""What a mounted server says of a call reaches that call, and a program of ours may request something for it."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from toolgate.server.features.mounts.upstream import peer as peers
from toolgate.server.features.mounts.upstream.errors import MountError
from toolgate.server.features.mounts.upstream.messages import read_value
from toolgate.server.features.mounts.upstream.peer import REQUEST, Flight, FlightRequest, MountNotice, UpstreamPeer

LOG = "notifications/message"


class RecordedWire:
    """A wire that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    async def send(self, message: bytes, flight: Flight | None = None, headers: Mapping[str, str] = {}) -> None:
        self.sent.append(msgspec.json.decode(message))

    def abandon(self, flight: Flight) -> bool:
        return False

    async def read_log(self) -> str:
        return ""

    async def close(self) -> None:
        """There is nothing to close."""


async def begin(names_requests: bool, *, count: int) -> tuple[UpstreamPeer, RecordedWire, list[Flight]]:
    """Return a conversation with so many requests under way."""
    peer, wire = UpstreamPeer(lambda method, params: None, names_requests=names_requests), RecordedWire()
    peer.wire = wire
    flights = [Flight() for _ in range(count)]
    for flight in flights:
        await peer.send("tools/call", {}, flight)
    wire.sent.clear()
    return peer, wire, flights


def create_request(id: int, named: int) -> bytes:
    params = {"name": "todos.all", "_meta": {REQUEST: named}}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id, "method": "toolgate/context", "params": params})


def create_log(data: str, named: int | None = None) -> bytes:
    meta = {} if named is None else {"_meta": {REQUEST: named}}
    params = {"level": "error", "data": data, **meta}
    return msgspec.json.encode({"jsonrpc": "2.0", "method": LOG, "params": params})


def test_a_mounted_server_can_request_nothing_of_ours() -> None:
    async def run() -> None:
        peer, wire, (flight,) = await begin(names_requests=False, count=1)
        peer.receive(create_request(5, flight.id))
        await asyncio.sleep(0)
        assert [(sent["id"], sent["error"]["code"]) for sent in wire.sent] == [(5, -32601)]
        assert flight.events.empty()

    asyncio.run(run())


def test_a_program_of_ours_requests_something_for_the_call_that_it_names() -> None:
    async def run() -> None:
        peer, wire, flights = await begin(names_requests=True, count=2)
        peer.receive(create_request(5, flights[0].id))
        request = flights[0].events.get_nowait()
        assert isinstance(request, FlightRequest)
        assert (request.id, request.method, read_value(request.params["name"])) == (5, "toolgate/context", "todos.all")
        assert flights[1].events.empty()

        await peer.reply(request.id, {"result": []})
        assert wire.sent == [{"jsonrpc": "2.0", "id": 5, "result": {"result": []}}]

    asyncio.run(run())


def test_a_request_that_names_no_call_under_way_is_refused() -> None:
    async def run() -> None:
        peer, wire, (flight,) = await begin(names_requests=True, count=1)
        peer.receive(create_request(5, 99))
        peer.receive(msgspec.json.encode({"jsonrpc": "2.0", "id": 6, "method": "toolgate/context"}))
        peer.cancel(flight, "it is over")
        peer.receive(create_request(7, flight.id))
        await asyncio.sleep(0)
        assert [sent["id"] for sent in wire.sent if "error" in sent] == [5, 6, 7]
        assert flight.events.empty()

    asyncio.run(run())


def test_a_log_line_that_names_a_call_goes_to_that_one_or_to_none() -> None:
    async def run() -> None:
        peer, _, flights = await begin(names_requests=True, count=2)
        peer.receive(create_log("first", named=flights[0].id))
        peer.receive(create_log("late", named=99))
        peer.receive(create_log("unnamed"))
        logged = []
        for flight in flights:
            while not flight.events.empty():
                notice = flight.events.get_nowait()
                assert isinstance(notice, MountNotice)
                logged.append((flight.id, notice.params["data"]))
        assert logged == [(flights[0].id, "first"), (flights[1].id, "unnamed")]

    asyncio.run(run())


class DeafWire(RecordedWire):
    """A wire on which nothing is ever taken."""

    async def send(self, message: bytes, flight: Flight | None = None, headers: Mapping[str, str] = {}) -> None:
        await asyncio.Event().wait()


def test_a_flood_of_pings_costs_a_few_answers() -> None:
    async def body() -> None:
        peer = UpstreamPeer(lambda _method, _params: None)
        peer.wire = DeafWire()
        for number in range(10_000):
            peer.receive(b'{"jsonrpc":"2.0","id":%d,"method":"ping"}' % number)
        assert peer.failure is not None and peer.failure.code == "BAD_MESSAGE"
        assert len(asyncio.all_tasks()) < 300

    asyncio.run(body())


def test_notices_that_nobody_takes_are_bounded_in_bytes() -> None:
    async def body() -> None:
        peer, _, (flight,) = await begin(names_requests=False, count=1)
        line = create_log("x" * 2**20)
        for _ in range(20):
            peer.receive(line)
        assert flight.events.qsize() < 5
        while not flight.events.empty():
            flight.events.get_nowait()
        peer.receive(line)
        assert flight.events.qsize() == 1

    asyncio.run(body())


def test_answers_that_nobody_asked_for_are_rubbish() -> None:
    async def body() -> None:
        peer, _, _ = await begin(names_requests=False, count=1)
        for _ in range(1_001):
            peer.receive(b'{"jsonrpc":"2.0","id":999,"result":{}}')
        assert peer.failure is not None and peer.failure.code == "BAD_MESSAGE"

    asyncio.run(body())


def test_a_message_that_is_not_taken_in_time_ends_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SEND_WITHIN", 0.05)

    async def body() -> None:
        peer = UpstreamPeer(lambda _method, _params: None)
        peer.wire = DeafWire()
        with pytest.raises(MountError, match="CONNECTION_LOST"):
            await peer.send("tools/call", {}, Flight())
        assert peer.failure is not None

    asyncio.run(asyncio.wait_for(body(), 30))
