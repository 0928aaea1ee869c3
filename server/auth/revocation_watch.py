"""End the sessions, streams and commands of people and clients whose access has been revoked.

They outlast the request whose token was verified. So every few seconds the watch checks which grants behind them are
still valid, whichever process revoked the others, and ends the rest.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Protocol

import msgspec

from toolgate.server.auth.tokens.access_tokens import OwnTokens
from toolgate.server.base.bus.bus import Topics
from toolgate.server.base.errors import StateError
from toolgate.server.base.principals.principal import GrantKey
from toolgate.tools.api.errors import ToolError

CHECK_INTERVAL = 10.0  # seconds between two checks: what a revoked grant has open ends soon after
HOLDER_CHECK_INTERVAL = 4.0  # the same for what is sent without a request: it stops within five
END_TIMES = 2  # checks that end a barred person: other processes notice seconds later (`access_tokens.FRESH`)

DENIED = "denied tokens"  # topic

log = logging.getLogger("toolgate.auth")


class GrantHolder(Protocol):
    """A part that sends to clients without requests, while their grants are valid."""

    def rights(self) -> Iterable[GrantKey]:
        """Yield the grants with something open here."""
        ...

    async def terminate_rights(self, rights: Collection[GrantKey]) -> None:
        """End what these grants have open."""
        ...


class RevocationTopic:
    """Tell all replicas at once which tokens were denied. `changed` is set when that may have ended access here."""

    def __init__(self, topics: Topics, tokens: OwnTokens) -> None:
        self.changed = asyncio.Event()
        self._tokens = tokens
        self._topics = topics
        tokens.announce = self._publish
        topics.subscribe(DENIED, self._receive, self._look_again)

    def _publish(self, jtis: Collection[str]) -> None:
        self._topics.publish(DENIED, msgspec.msgpack.encode(list(jtis)))

    def _receive(self, data: bytes) -> None:
        self._tokens.note_denied(msgspec.msgpack.decode(data, type=list[str]))
        self.changed.set()

    def _look_again(self) -> None:
        self._tokens.refresh_soon()
        self.changed.set()


class RevocationWatch:
    """End what is open under invalid grants.

    - `find_valid(keys)` returns the valid grants. `revoke_barred_people()` revokes the access tokens of people who may
      no longer sign in, and returns their principals. Both may raise StateError.
    - `list_open()` returns the grants with something open here. `end_grants(keys)` ends what grants have open, and
      `end_person(name)` what a person has.
    - `changed`: set when access may have been revoked, to check at once.
    """

    def __init__(
        self,
        find_valid: Callable[[Collection[GrantKey]], Awaitable[Collection[GrantKey]]],
        revoke_barred_people: Callable[[], Awaitable[Iterable[str]]],
        *,
        list_open: Callable[[], Iterable[GrantKey]],
        end_grants: Callable[[Collection[GrantKey]], Awaitable[None]],
        end_person: Callable[[str], Awaitable[None]],
        changed: asyncio.Event | None = None,
    ) -> None:
        self._find_valid = find_valid
        self._revoke_barred_people = revoke_barred_people
        self._list_open = list_open
        self._end_grants = end_grants
        self._end_person = end_person
        self._changed = changed or asyncio.Event()
        self._barred: dict[str, int] = {}  # principal → how often it was ended

    async def run(self, every: float) -> None:
        """Check now, since access may have been revoked while no server ran, then at intervals until cancelled."""
        while True:
            self._changed.clear()
            try:
                await self.check_once()
            except StateError as error:
                log.warning("the check for revoked access could not read the state, nothing is ended: %s", error)
            except Exception:
                log.exception("the check for revoked access failed, nothing is ended")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await self._changed.wait()

    async def check_once(self) -> None:
        """Check once: revoke tokens first, so that nothing new starts, then end what is open."""
        barred = await self._revoke_barred_people()
        open_now = frozenset(self._list_open())
        ended = open_now.difference(await self._find_valid(open_now)) if open_now else None
        if ended:
            log.info("ended the sessions, streams and commands of %d revoked grants", len(ended))
            await self._end_grants(ended)
        self._barred = {name: self._barred.get(name, 0) for name in barred}  # barred again: end again
        for name, times in self._barred.items():
            if times < END_TIMES:
                try:
                    await self._end_person(name)
                except ToolError as error:  # a node that can't be reached; others are ended all the same
                    log.warning("what %s runs is not ended yet: %s", name, error.text)
                    continue
                self._barred[name] = times + 1
