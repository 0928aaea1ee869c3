"""Requests that wait for a client to come back with an answer: for whom, how long, and how many."""

import asyncio
from typing import Any

import msgspec
import pytest

from toolgate.server.features.mounts.mount import parked_elsewhere, parked_requests
from toolgate.server.features.mounts.mount.forwarded_request import ForwardedRequest
from toolgate.server.features.mounts.mount.parked_elsewhere import ParkedMail, ParkedOffice, ParkedReply
from toolgate.server.features.mounts.mount.parked_requests import ParkedRequests
from toolgate.server.features.mounts.upstream.peer import PROGRESS, Flight, MountNotice


class Parked(ForwardedRequest):
    """A request whose end is noted."""

    def __init__(self, principal: str, ended: list["Parked"]) -> None:
        nowhere: Any = None
        super().__init__(nowhere, Flight(), principal)
        self._ended = ended

    def cancel(self, reason: str) -> None:
        self._ended.append(self)


def test_a_parked_request_is_its_principals_alone_and_taken_once() -> None:
    async def body() -> None:
        ended: list[Parked] = []
        held, request = ParkedRequests(), Parked("ada", ended)
        held.park("id", request)
        assert held.take("id", "eve") is None  # which does not use it up
        assert held.take("id", "ada") is request
        assert held.take("id", "ada") is None
        held.end(None)
        assert ended == []

    asyncio.run(body())


def test_a_client_that_does_not_come_back_costs_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_requests, "PARKED_FOR", 0.01)

    async def body() -> None:
        ended: list[Parked] = []
        held, request, turns = ParkedRequests(), Parked("ada", ended), list[str]()
        with request.turn as turn:
            turn.callback(turns.append, "over")
            held.park("id", request)
        assert turns == []
        while not ended:
            await asyncio.sleep(0.01)
        assert (ended, turns) == ([request], ["over"])
        assert held.take("id", "ada") is None

    asyncio.run(asyncio.wait_for(body(), 40))


def test_one_principal_parks_no_more_than_its_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_requests, "MAX_PARKED", 2)

    async def body() -> None:
        ended: list[Parked] = []
        held = ParkedRequests()
        parked = [Parked(who, ended) for who in ("ada", "ada", "bob", "ada")]
        for number, request in enumerate(parked):
            held.park(str(number), request)
        assert ended == [parked[0]]
        held.end(None)
        assert set(ended) == set(parked)

    asyncio.run(body())


def test_a_call_that_goes_on_for_a_client_who_left_another_server_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_elsewhere, "ASKED_WITHIN", 0.01)

    async def body() -> None:
        ended: list[Parked] = []
        held, request, turns = ParkedRequests(), Parked("ada", ended), list[str]()
        request.turn.callback(turns.append, "over")
        office = ParkedOffice(lambda mount: (held, 30.0) if mount == "far" else None)

        async def ask(who: str) -> ParkedReply:
            mail = ParkedMail("far", "id", who, goes_on=True)
            return msgspec.json.decode(await office.handle(msgspec.json.encode(mail)), type=ParkedReply)

        held.park("id", request)
        request.flight.add(notice := MountNotice(PROGRESS, {"progress": 1}), 1)
        assert (await ask("eve")).fault == parked_elsewhere.GIVEN_UP
        reply = await ask("ada")
        assert (reply.notices, reply.goes_on) == ([notice], True)
        while not ended:
            await asyncio.sleep(0.01)
        assert (ended, turns) == ([request], ["over"])
        assert (await ask("ada")).fault == parked_elsewhere.GIVEN_UP

    asyncio.run(asyncio.wait_for(body(), 40))
