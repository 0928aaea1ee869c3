"""Requests that wait for a client to come back with an answer: for whom, how long, and how many."""

import asyncio
from typing import Any

import pytest

from toolgate.server.features.mounts.mount import requests
from toolgate.server.features.mounts.mount.requests import ForwardedRequest, RequestForwarder
from toolgate.server.features.mounts.upstream.peer import Flight


class Parked(ForwardedRequest):
    """A request whose end is noted."""

    def __init__(self, principal: str, ended: list["Parked"]) -> None:
        nowhere: Any = None
        super().__init__(nowhere, Flight(), principal)
        self._ended = ended

    def cancel(self, reason: str) -> None:
        self._ended.append(self)


def create_forwarder() -> RequestForwarder:
    unused: Any = None
    return RequestForwarder(unused, "person")


def test_a_parked_request_is_its_principals_alone_and_taken_once() -> None:
    async def body() -> None:
        ended: list[Parked] = []
        forwarder, request = create_forwarder(), Parked("ada", ended)
        forwarder._park("id", request)
        assert forwarder._unpark("id", "eve") is None  # which does not use it up
        assert forwarder._unpark("id", "ada") is request
        assert forwarder._unpark("id", "ada") is None
        forwarder.close()
        assert ended == []

    asyncio.run(body())


def test_a_client_that_does_not_come_back_costs_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PARKED_FOR", 0.01)

    async def body() -> None:
        ended: list[Parked] = []
        forwarder, request = create_forwarder(), Parked("ada", ended)
        forwarder._park("id", request)
        while not ended:
            await asyncio.sleep(0.01)
        assert ended == [request]
        assert forwarder._unpark("id", "ada") is None

    asyncio.run(asyncio.wait_for(body(), 40))


def test_one_principal_parks_no_more_than_its_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_PARKED", 2)

    async def body() -> None:
        ended: list[Parked] = []
        forwarder = create_forwarder()
        parked = [Parked(who, ended) for who in ("ada", "ada", "bob", "ada")]
        for number, request in enumerate(parked):
            forwarder._park(str(number), request)
        assert ended == [parked[0]]
        forwarder.close()
        assert set(ended) == set(parked)

    asyncio.run(body())
