"""Browsers that have been sent to somebody else's page to sign in. Knows what they left for only as an id.

The browser that leaves gets a ticket, which only its cookie holds; `state`, `nonce` and the PKCE verifier are made of
it, so that none of them is stored.
"""

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolgate.server.auth.address_blocks import AddressLimiter
from toolgate.server.auth.login.sessions import hashed
from toolgate.server.state import people

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection, Store

LIFETIME = 600.0  # seconds somebody may take at the other page
OF_QUESTION = 8  # at a time: a person who tries again, in some tabs
EACH, ALL = 30, 600  # a minute: of one address, which many may share, and of all
MOST = 6_000  # of all at a time, by any number of servers: each holds a question of 4 KiB and more


class TooMany(Exception):
    """Too many have been sent away just now, of this address or in all."""


@dataclass(frozen=True, slots=True)
class Departure:
    """Why a browser was sent away: the question it has approved `scopes` of, "" when it only signs in. `anew`: as
    somebody else than whom the provider knows it as; that is told when it leaves, and not kept."""

    provider: str
    question: str
    scopes: frozenset[str]
    anew: bool = False


class Departures:
    """Browsers that are at another page, found by their state once."""

    def __init__(self, store: "Store", now: Callable[[], float] = time.time, most: int = MOST) -> None:
        self._store = store
        self._now = now
        self._most = most
        self._limiter = AddressLimiter(EACH, ALL, now)

    async def leave(self, departure: Departure, address: str = "") -> str:
        """Return the ticket for the browser's cookie. `address` is the browser's, "" where it is unknown. Raises
        TooMany."""
        if address and not self._limiter.take(address):
            raise TooMany
        ticket, now = secrets.token_urlsafe(32), self._now()
        row = {
            "hash": hashed(state_of(ticket)),
            "provider": departure.provider,
            "question": departure.question,
            "scopes": " ".join(sorted(departure.scopes)),
            "until": now + LIFETIME,
        }

        def put(connection: "Connection") -> None:
            people.add_departure(connection, now, **row)
            people.trim_departures(connection, departure.question, OF_QUESTION, self._most)

        await self._store.transact(put)
        return ticket

    async def back(self, ticket: str) -> Departure | None:
        """Once; None for a ticket that is used, too old, or none of ours."""
        now = self._now()

        def take(connection: "Connection") -> Any:
            return people.take_departure(connection, hashed(state_of(ticket)), now)

        row = await self._store.transact(take)
        return None if row is None else Departure(row.provider, row.question, frozenset(row.scopes.split()))


def state_of(ticket: str) -> str:
    return made_of(ticket, "state")


def made_of(ticket: str, what: str) -> str:
    """One of the ticket's values, "nonce" or "verifier": none of them tells another."""
    digest = hmac.new(ticket.encode(), what.encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def challenge(ticket: str) -> dict[str, str]:
    """PKCE's parameters (RFC 7636 section 4.3)."""
    digest = hashlib.sha256(made_of(ticket, "verifier").encode()).digest()
    return {
        "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
        "code_challenge_method": "S256",
    }
